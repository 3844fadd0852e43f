// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// lowestPort is below the ports that FreePort returns and above the default ports of servers.
const lowestPort = 20_000

// blockPorts is how many ports a process takes at a time.
const blockPorts = 250

// given holds the ports of this process. Each test binary is a process, and several run at a time.
var given = struct {
	sync.Mutex
	free  []int
	locks []*os.File
	ports map[int]bool
}{ports: map[int]bool{}}

// FreePort returns a free loopback address, and each address only once. Its port is outside the
// kernel's dynamic range. Outgoing connections, listeners on port 0 and other test binaries therefore
// cannot take the port before the program under test opens it, or while a test restarts that program.
func FreePort(t testing.TB) string {
	t.Helper()
	given.Lock()
	defer given.Unlock()
	n := firstDynamicPort() - lowestPort
	for range 1000 {
		port := 0 // any port, if the dynamic range includes nearly all
		if n > 1000 {
			if len(given.free) == 0 {
				takeBlock(n / blockPorts)
			}
			if len(given.free) == 0 {
				break
			}
			port, given.free = given.free[0], given.free[1:]
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

// takeBlock adds the ports of a block that no other process has locked. The lock ends with the process.
func takeBlock(blocks int) {
	dir := filepath.Join(os.TempDir(), "gpuflight-test-ports-"+strconv.Itoa(os.Getuid()))
	_ = os.MkdirAll(dir, 0o700)
	for _, block := range rand.Perm(blocks) {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(block)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = f.Close()
			continue
		}
		given.locks = append(given.locks, f)
		for _, port := range rand.Perm(blockPorts) {
			given.free = append(given.free, lowestPort+block*blockPorts+port)
		}
		return
	}
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
