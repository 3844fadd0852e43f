// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"net"
	"net/http"
	"sync"
)

// maxConnections bounds the connections. One address may have half of them.
const maxConnections = 512

// connections closes new connections above the bound. It is safe for concurrent use.
type connections struct {
	mu     sync.Mutex
	open   map[net.Conn]string // the address that counts
	counts map[string]int
}

func newConnections() *connections {
	return &connections{open: map[net.Conn]string{}, counts: map[string]int{}}
}

// changed is for [http.Server.ConnState].
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		if len(c.open) >= maxConnections || c.counts[host] >= maxConnections/2 {
			_ = conn.Close()
			return
		}
		c.open[conn] = host
		c.counts[host]++
	case http.StateClosed, http.StateHijacked:
		host, ok := c.open[conn]
		if !ok {
			return
		}
		delete(c.open, conn)
		if c.counts[host]--; c.counts[host] == 0 {
			delete(c.counts, host)
		}
	}
}
