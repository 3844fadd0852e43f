// SPDX-License-Identifier: Apache-2.0

package checks

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// freeSpace returns the bytes that this user can write in a folder.
func freeSpace(folder string) (free uint64, writable bool, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(folder, &s); err != nil {
		return 0, false, err
	}
	return s.Bavail * uint64(s.Bsize), unix.Access(folder, unix.W_OK) == nil, nil
}

const listening = "0A" // TCP_LISTEN in /proc/net/tcp

// owner returns the name and the id of the process that listens on a port, or "" if this user
// cannot see it.
func (s System) owner(address string) string {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return ""
	}
	want := strings.ToUpper(hex.EncodeToString([]byte{byte(number >> 8), byte(number)}))
	sockets := map[string]bool{}
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(s.path(name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == listening && strings.HasSuffix(fields[1], ":"+want) {
				sockets["socket:["+fields[9]+"]"] = true
			}
		}
	}
	links, _ := filepath.Glob(s.path("/proc/[0-9]*/fd/*")) // the pattern is valid
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && sockets[to] {
			process := filepath.Dir(filepath.Dir(link))
			comm, _ := os.ReadFile(filepath.Join(process, "comm"))
			return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(comm)), filepath.Base(process))
		}
	}
	return ""
}
