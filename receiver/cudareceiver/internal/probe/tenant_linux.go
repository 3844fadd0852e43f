// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

// tenant is the user who is charged for what a process makes us read: the real user id, and for root the container. Root
// runs most containers, and one of them must not use up the share of the others.
type tenant struct {
	uid       uint32
	container string
}

// machine owns the installed drivers.
var machine = tenant{}

// maxNamespaces bounds the nested user namespaces that are followed: the kernel allows 32.
const maxNamespaces = 33

// tenantOf returns whose share a process uses. A process in another user namespace belongs to the user who created the
// outermost namespace that is not ours: in it the user has 65,536 user ids, which must not be as many shares.
func tenantOf(proc, pid string) tenant {
	dir := filepath.Join(proc, pid)
	o := tenant{uid: procfs.ParseUID(procfs.ReadFile(filepath.Join(dir, "status")))}
	if uid, ok := namespaceOwner(filepath.Join(dir, "ns", "user")); ok {
		o.uid = uid
	}
	if o.uid == 0 {
		o.container, _ = procfs.ParseCgroup(string(procfs.ReadFile(filepath.Join(dir, "cgroup"))))
	}
	return o
}

// namespaceOwner returns who created the outermost user namespace around a process that is not ours; false if the
// process is in ours, or the kernel does not say.
func namespaceOwner(path string) (uid uint32, ok bool) {
	own, err := inodeAt("/proc/self/ns/user")
	if err != nil {
		return 0, false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(fd) }()
	for range maxNamespaces {
		if at, err := inodeOf(fd); err != nil || at == own {
			return 0, false
		}
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		if err != nil {
			return 0, false
		}
		at, err := inodeOf(parent)
		if err == nil && at == own {
			_ = unix.Close(parent)
			n, err := unix.IoctlGetUint32(fd, unix.NS_GET_OWNER_UID)
			return n, err == nil
		}
		_ = unix.Close(fd)
		fd = parent
	}
	return 0, false
}

// inOurNamespace reports whether the mounts that a process sees were made by the owner of our user namespace: no user
// can have made them in a namespace of its own.
func inOurNamespace(proc, pid string) bool {
	own, err := inodeAt("/proc/self/ns/user")
	if err != nil {
		return false
	}
	fd, err := unix.Open(filepath.Join(proc, pid, "ns", "mnt"), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	user, err := unix.IoctlRetInt(fd, unix.NS_GET_USERNS)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(user) }()
	at, err := inodeOf(user)
	return err == nil && at == own
}

func inodeAt(path string) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return s.Ino, nil
}

func inodeOf(fd int) (uint64, error) {
	var s unix.Stat_t
	err := unix.Fstat(fd, &s)
	return s.Ino, err
}
