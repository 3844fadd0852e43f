// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

// tenant is the user to whom reads for a process are charged: the real user id, and for root also
// the container. Root runs most containers, and one of them must not exhaust the share of the
// others.
type tenant struct {
	uid       uint32
	container string
}

// machine owns the installed drivers.
var machine = tenant{}

// maxNamespaces bounds the nested user namespaces that are followed: the kernel allows 32.
const maxNamespaces = 33

// tenantOf returns the tenant of a process. A process in another user namespace belongs to the
// creator of the outermost namespace below ours. A user has 65,536 user ids in a namespace, which
// must not be as many shares.
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

// namespaceOwner returns the creator of the outermost user namespace of a process below ours. It
// returns false if the process is in ours, or if the kernel does not provide it.
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

// inOurNamespace reports whether the owner of our user namespace made the mounts that a process
// sees. A user cannot have made them in a namespace then.
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
