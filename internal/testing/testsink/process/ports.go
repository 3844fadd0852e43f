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

// lowestPort is below the ports that FreePort gives, and above those that servers have by default.
const lowestPort = 20_000

// given are the ports that this process has been given, which it may not have taken yet.
var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// FreePort returns a loopback address at which nobody listens, each once. Its port is one that the kernel
// gives only to who asks for it: a connection that goes out or a listener on port 0 cannot take it before
// the program does for which it is meant.
func FreePort(t testing.TB) string {
	t.Helper()
	given.Lock()
	defer given.Unlock()
	n := firstDynamicPort() - lowestPort
	for range 1000 {
		port := 0 // where the kernel gives out nearly all of them, any is as good
		if n > 1000 {
			port = lowestPort + rand.IntN(n)
		}
		if given.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // somebody has it
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

// firstDynamicPort is the first of the ports that the kernel gives to who asks for any.
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
