// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	folder = "gpuflight"
	suffix = ".sock"
	// unfinished is the name of a socket that does not listen yet.
	unfinished = ".new"
	// maxEntries bounds what is looked at in a folder: more processes of one user have no GPU.
	maxEntries = 1024
)

// dir is a folder of sockets that is held open.
type dir struct {
	file *os.File
	path string
}

func (d *dir) close() { _ = d.file.Close() }

// at returns a path to something in the folder that stays right whatever becomes of the folder's
// own, and that is short enough for an address.
func (d *dir) at(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.file.Fd(), name)
}

func socketName(pid int) string { return strconv.Itoa(pid) + suffix }

// makeDir opens the folder for this user's sockets, and makes it if it must.
func makeDir(p Place) (*dir, error) {
	uid := os.Geteuid()
	path := filepath.Join(p.temp(), folder+"-"+strconv.Itoa(uid))
	if filepath.IsAbs(p.RuntimeDir) && private(p.RuntimeDir, uid) {
		path = filepath.Join(p.RuntimeDir, folder)
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return openDir(path, uid)
}

// Folder makes the folder for this user's sockets, if it must, and returns its path.
func (p Place) Folder() (string, error) {
	d, err := makeDir(p)
	if err != nil {
		return "", err
	}
	d.close()
	return d.path, nil
}

// private says whether a folder is a user's and nobody else can change it.
func private(path string, uid int) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == uid && st.Mode&0o022 == 0
}

// openDir opens a folder of sockets that must belong to a user, and to nobody else.
func openDir(path string, uid int) (*dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is no folder; remove it", path)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d := &dir{file: os.NewFile(uintptr(fd), path), path: path}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		d.close()
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(st.Uid) != uid || st.Mode&0o077 != 0 {
		d.close()
		return nil, fmt.Errorf("%s belongs to user %d with mode %04o; it must belong to user %d with mode 0700: remove it", path, st.Uid, st.Mode&0o7777, uid)
	}
	return d, nil
}

// pids returns the ids of processes that have a socket in the folder, sorted.
func (d *dir) pids() []int {
	var pids []int
	for _, name := range d.names() {
		if digits, ok := strings.CutSuffix(name, suffix); ok {
			if pid, err := strconv.Atoi(digits); err == nil && pid > 0 && socketName(pid) == name {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return pids
}

func (d *dir) names() []string {
	if _, err := d.file.Seek(0, 0); err != nil {
		return nil
	}
	names, _ := d.file.Readdirnames(maxEntries) // what can be read is enough
	return names
}

// clean removes what processes that were killed left behind.
func (d *dir) clean() {
	for _, pid := range d.pids() {
		if pid == os.Getpid() || !exists(pid) {
			d.removeStale(pid)
		}
	}
	for _, name := range d.names() {
		var st unix.Stat_t
		if strings.HasSuffix(name, unfinished) && unix.Fstatat(int(d.file.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
			time.Since(time.Unix(st.Mtim.Unix())) > time.Minute {
			_ = unix.Unlinkat(int(d.file.Fd()), name, 0)
		}
	}
}

// removeStale removes the socket of a process that does not exist here. It may exist in another PID
// namespace that shares the folder. So the socket is removed only if nobody listens, or if the
// listener is a child that inherited it from that process.
func (d *dir) removeStale(pid int) {
	name := socketName(pid)
	var before, after unix.Stat_t
	fd := int(d.file.Fd())
	if unix.Fstatat(fd, name, &before, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	owner, err := listener(d.at(name))
	if !errors.Is(err, unix.ECONNREFUSED) && (err != nil || owner != pid || pid == os.Getpid()) {
		return
	}
	if unix.Fstatat(fd, name, &after, unix.AT_SYMLINK_NOFOLLOW) == nil && before.Ino == after.Ino {
		_ = unix.Unlinkat(fd, name, 0)
	}
}

// listener returns the id of the process that made a socket listen, 0 if that is in another
// namespace. It does not wait.
func listener(path string) (pid int, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return 0, err
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// exists says whether there is a process of an id in this namespace.
func exists(pid int) bool {
	err := unix.Kill(pid, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}
