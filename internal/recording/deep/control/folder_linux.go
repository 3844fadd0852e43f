// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	folder = "gpuflight"
	suffix = ".sock"
)

func socketName(pid int) string { return strconv.Itoa(pid) + suffix }

// folders returns where a process of a user has its socket, best first.
func (p Place) folders(uid int) []string {
	list := []string{filepath.Join(p.temp(), folder+"-"+strconv.Itoa(uid))}
	if filepath.IsAbs(p.RuntimeDir) {
		list = append([]string{filepath.Join(p.RuntimeDir, folder)}, list...)
	}
	return list
}

// Folder returns the folder for this user's sockets. It creates the folder if it does not exist.
func (p Place) Folder() (path string, err error) {
	for _, path = range p.folders(os.Geteuid()) {
		err = os.Mkdir(path, 0o700)
		if errors.Is(err, fs.ErrExist) {
			err = checkFolder(path)
		}
		if err == nil {
			return path, nil
		}
	}
	return "", err
}

// checkFolder returns an error if users other than this one can use a folder.
func checkFolder(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("%s is no folder; remove it", path)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s belongs to user %d with mode %04o; it must belong to user %d with mode 0700: remove it", path, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return nil
}

// removeStale removes sockets of processes that were killed. A process of another PID namespace may
// share the folder, so only sockets without a listener are removed.
func removeStale(folder string) {
	sockets, _ := filepath.Glob(filepath.Join(folder, "*"+suffix)) // the pattern is valid
	for _, path := range sockets {
		pid, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), suffix))
		if err != nil || pid != os.Getpid() && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue
		}
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
}
