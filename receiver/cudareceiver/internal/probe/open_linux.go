// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

// file identifies a file on the machine. A user must not be able to make a file with the identity
// of another, because it would replace that file.
//
// The kernel provides device and inode, which suffice except on an overlay. Each container has an
// overlay of its own over the same files, but a probe belongs to the file. With one probe for each
// container every call would be counted several times. So all overlays count as one device. The
// inode's number is that of the file below (Documentation/filesystems/overlayfs.rst, "Inode
// properties").
//
// A user can choose an inode number on a tmpfs, and a size and a modification time anywhere. A user
// can mount an overlay over it in a user namespace. Nobody can choose the creation time of a file,
// unless the user's own program serves the file: see trusted.
type file struct{ device, inode, born uint64 }

// overlay represents the device of all overlays. Devices have at most 44 bits (MKDEV of 12 and 20,
// as in stat).
const overlay = 1 << 63

// maxFileBytes bounds the size of a library. NVIDIA's largest have less than 1 GiB.
const maxFileBytes = 8 << 30

// Errors of files that are not read.
var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = fmt.Errorf("larger than %d bytes", int64(maxFileBytes))
	errChanged    = errors.New("the path names another file than the mapped one")
	errUntrusted  = errors.New("on a file system that a user serves")
	// errNoFunctions: the file has the name of a library and none of its functions.
	errNoFunctions = errors.New("exports no observed function")
)

// opened is a file opened with O_PATH: the kernel has found it, but its driver and its file system
// have not opened it. Opening a FIFO can block and opening a device can have effects, so the kind
// is checked first.
type opened struct {
	fd   int
	stat unix.Statx_t
	// kind is the magic number of its file system.
	kind int64
	id   file
}

func (o *opened) close() { _ = unix.Close(o.fd) }

// openPath opens a path of the host. It follows links.
func openPath(path string) (*opened, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return inspect(fd)
}

// openMapping opens the file that a process has mapped at a range of addresses. /proc/PID/map_files
// names the file itself. It requires CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN. Without these, the
// path is opened below the root of the process, without links, and must have the mapping's inode
// number.
func openMapping(proc string, c *candidate) (*opened, error) {
	dir := filepath.Join(proc, c.pid)
	if fd, err := unix.Open(filepath.Join(dir, "map_files", c.addresses), unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		return inspect(fd)
	}
	root, err := unix.Open(filepath.Join(dir, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: c.path, Err: err}
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, strings.TrimPrefix(c.mapped, "/"), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		return nil, errChanged
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: c.path, Err: err}
	}
	o, err := inspect(fd)
	// Before Linux 6.8, an overlay shows another number in maps. Use only the file's own identity
	// there.
	if err == nil && o.id.device != overlay && o.stat.Ino != c.inode {
		o.close()
		return nil, errChanged
	}
	return o, err
}

// inspect checks a descriptor and closes it if the file must not be read. It does not request
// current attributes from a server: the size may be old, and reading may fail.
func inspect(fd int) (*opened, error) {
	o := &opened{fd: fd}
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &o.stat)
	switch {
	case err != nil:
		err = os.NewSyscallError("statx", err)
	case o.stat.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errNotRegular
	case o.stat.Size > maxFileBytes:
		err = errTooLarge
	}
	if err != nil {
		o.close()
		return nil, err
	}
	var of unix.Statfs_t
	if unix.Fstatfs(fd, &of) == nil {
		o.kind = of.Type
	}
	o.id = file{device: unix.Mkdev(o.stat.Dev_major, o.stat.Dev_minor), inode: o.stat.Ino}
	if o.kind == unix.OVERLAYFS_SUPER_MAGIC {
		born := o.stat.Btime
		if o.stat.Mask&unix.STATX_BTIME == 0 {
			born = o.stat.Ctime // cannot be chosen either, but changes with the file's names and rights
		}
		o.id.device, o.id.born = overlay, uint64(born.Sec)*1e9+uint64(born.Nsec)
	}
	return o, nil
}

// read opens the file for reading through its descriptor, without another path lookup.
func (o *opened) read() (*os.File, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", o.fd)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// trusted reports whether no user's program serves the file. Such a program can give the file any
// identity, and can delay the kernel whenever it reads the file for a probe. This concerns FUSE of
// a user other than root, and overlays over FUSE. A user can mount such an overlay in a user
// namespace. There, a file without extents on a disk is not trusted.
func (o *opened) trusted(proc, pid string, f *os.File) bool {
	switch o.kind {
	case unix.FUSE_SUPER_MAGIC:
		return fuseOfRoot(procfs.ReadFile(filepath.Join(proc, pid, "mountinfo")), o.stat.Dev_major, o.stat.Dev_minor)
	case unix.OVERLAYFS_SUPER_MAGIC:
		return pid == "" || inOurNamespace(proc, pid) || hasExtents(f)
	}
	return true
}

// fuseOfRoot reports whether root mounted the FUSE file system of a device, from the text of
// /proc/PID/mountinfo. Mounts of another user namespace show that namespace's user ids, but the
// kernel does not allow opening files there.
func fuseOfRoot(mountinfo []byte, major, minor uint32) bool {
	device := strconv.FormatUint(uint64(major), 10) + ":" + strconv.FormatUint(uint64(minor), 10)
	for line := range bytes.Lines(mountinfo) {
		fields := strings.Fields(string(line))
		if len(fields) < 6 || fields[2] != device {
			continue
		}
		for option := range strings.SplitSeq(fields[len(fields)-1], ",") {
			if option == "user_id=0" {
				return true
			}
		}
	}
	return false
}

// hasExtents reports whether the kernel knows the extents of a file on a disk. FUSE and tmpfs have
// none, and an overlay returns those of the file below.
func hasExtents(f *os.File) bool {
	const (
		fsIocFiemap = 0xc020660b // _IOWR('f', 11, struct fiemap)
		header      = 32         // struct fiemap without extents
		extent      = 56
	)
	var request [header + extent]byte
	fiemap := (*struct {
		start, length                  uint64
		flags, mapped, count, reserved uint32
	})(unsafe.Pointer(&request))
	fiemap.length, fiemap.count = ^uint64(0), 1
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&request)))
	return errno == 0 && fiemap.mapped > 0
}
