// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
)

// lowestPort is below the ports that FreePort returns and above the default ports of servers.
const lowestPort = 20_000

// given holds the ports that FreePort returned in this process. They may still be free.
var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// FreePort returns a free loopback address, and each address only once. Its port is outside the
// kernel's dynamic range. Outgoing connections and listeners on port 0 therefore cannot take the
// port before the program under test opens it.
func FreePort(t testing.TB) string {
	t.Helper()
	given.Lock()
	defer given.Unlock()
	n := firstDynamicPort() - lowestPort
	for range 1000 {
		port := 0 // any port, if the dynamic range includes nearly all
		if n > 1000 {
			port = lowestPort + rand.IntN(n)
		}
		if given.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // in use
		}
		port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if given.ports[port] {
			continue
		}
		given.ports[port] = true
		return l.Addr().String()
	}
	t.Fatal("no port is free")
	return ""
}

// firstDynamicPort returns the first port of the kernel's dynamic range.
func firstDynamicPort() (first int) {
	const usual = 32768
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return usual
	}
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		return usual
	}
	return first
}
