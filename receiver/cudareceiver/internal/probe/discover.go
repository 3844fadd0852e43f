// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/watchdog"
)

// library is a kind of observed library.
type library uint8

const (
	libcuda library = iota
	libcudart
	libnccl
	libraries
)

// candidate is a library that a process has mapped, or an installed driver.
type candidate struct {
	library library
	// path is the path of the file, seen through the process's own mounts. It is for messages:
	// another file may have this path now.
	path string
	// pid, mapped, addresses and inode are the process and its mapping, as in /proc/PID/maps; pid is "" for an
	// installed driver.
	pid, mapped, addresses string
	inode                  uint64
	tenant                 tenant
	file                   file
	// size and changed, its change time in ns, distinguish versions of the file.
	size, changed int64
}

// revision is one version of a file, mapped by one user.
type revision struct {
	sighting
	size, changed int64
}

func (c *candidate) revision() revision {
	return revision{sighting{c.tenant, c.file}, c.size, c.changed}
}

// is sets the properties of the opened file.
func (c *candidate) is(o *opened) {
	c.file, c.size, c.changed = o.id, int64(o.stat.Size), o.stat.Ctime.Sec*1e9+int64(o.stat.Ctime.Nsec)
}

// open opens the candidate's file without side effects.
func (c *candidate) open(proc string) (*opened, error) {
	if c.pid == "" {
		return openPath(c.path)
	}
	return openMapping(proc, c)
}

// installed are the paths of drivers below the root: of distributions, of NVIDIA's images, of its
// operator for Kubernetes, and of WSL.
var installed = []string{
	"usr/lib64/libcuda.so.1", "usr/lib/x86_64-linux-gnu/libcuda.so.1", "usr/lib/aarch64-linux-gnu/libcuda.so.1",
	"usr/lib/libcuda.so.1", "usr/local/nvidia/lib64/libcuda.so.1", "usr/local/cuda/compat/libcuda.so.1",
	"run/nvidia/driver/usr/lib64/libcuda.so.1", "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1",
	"run/nvidia/driver/usr/lib/aarch64-linux-gnu/libcuda.so.1", "usr/lib/wsl/lib/libcuda.so.1",
}

// drivers returns the installed drivers, so that they are attached before a process loads one.
func drivers(root string) (found []candidate) {
	for _, place := range installed {
		c := candidate{library: libcuda, path: filepath.Join(root, place), tenant: machine}
		// A link that begins at the root leads to another file when seen from outside. It is
		// checked when a process has mapped it.
		if o, err := openPath(c.path); err == nil {
			o.close()
			c.is(o)
			found = append(found, c)
		}
	}
	return found
}

const (
	// maxMaps bounds what is read of one process's maps, in bytes. It is a hundred bytes for each
	// of the 65,530 mappings that Linux allows by default.
	maxMaps = 8 << 20
	// scanLimit bounds the time to read the maps of one process and find its files. It takes 0.1
	// ms.
	scanLimit = time.Second
	// longScan is the time from which a scan without a result is charged to the process's user.
	longScan = 2 * time.Millisecond
)

// scanned is the result of a scan of all processes.
type scanned struct {
	found []candidate
	seen  map[sighting]bool
	// denied counts processes and files without permission.
	denied int
	// partial are users whose processes were not all scanned; incomplete means all users.
	partial    map[tenant]bool
	incomplete bool
}

// sighting is a file mapped by a user. If two users map a file, both are checked: one may be over
// its share.
type sighting struct {
	tenant tenant
	file   file
}

func newLook() *scanned { return &scanned{seen: map[sighting]bool{}, partial: map[tenant]bool{}} }

func (l *scanned) add(all []candidate) {
	for i := range all {
		if s := (sighting{all[i].tenant, all[i].file}); !l.seen[s] {
			l.seen[s] = true
			l.found = append(l.found, all[i])
		}
	}
}

// finder searches processes for libraries. Only one goroutine may use it at a time.
type finder struct {
	proc   string
	shares *shares
	dog    watchdog.Watchdog[tenant]
}

// all searches the maps of all processes for the driver, the runtime and NCCL, and adds installed
// drivers. It skips processes that end meanwhile or may not be read.
func (f *finder) all(ctx context.Context) (*scanned, error) {
	entries, err := os.ReadDir(f.proc)
	if err != nil {
		return nil, err
	}
	l := newLook()
	found, err := watchdog.Run(ctx, &f.dog, func() tenant { return machine }, scanLimit,
		func() []candidate { return drivers(filepath.Dir(f.proc)) }, nil)
	if err != nil {
		f.skip(l, machine, 1, Skip{Reason: SkipUnresponsive, Path: filepath.Dir(f.proc), Err: err})
	}
	l.add(found)
	// A scan that ends early must not always skip the same processes.
	first := 0
	if len(entries) > 0 {
		first = rand.IntN(len(entries))
	}
	for i := range entries {
		name := entries[(first+i)%len(entries)].Name()
		if _, err := strconv.ParseUint(name, 10, 31); err != nil {
			continue
		}
		f.process(ctx, l, name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return l, nil
}

// skip counts files that a scan skips.
func (f *finder) skip(l *scanned, o tenant, n int, s Skip) {
	if s.Reason == SkipTotalShare {
		l.incomplete = true
	}
	l.partial[o] = true
	s.UID = o.uid
	f.shares.skip(n, s)
}

// process adds the libraries that one process has mapped.
func (f *finder) process(ctx context.Context, l *scanned, pid string) {
	who := func() tenant { return tenantOf(f.proc, pid) }
	if o, reason, over := f.shares.exhausted(who); over {
		f.skip(l, o, 1, Skip{Reason: reason, Path: filepath.Join(f.proc, pid)})
		return
	}
	began := time.Now()
	s, err := watchdog.Run(ctx, &f.dog, who, scanLimit, func() scan { return f.scan(pid) }, nil)
	if ctx.Err() != nil {
		return
	}
	if took := time.Since(began); err != nil || took >= longScan || len(s.found) > 0 {
		o := s.tenant
		if len(s.found) == 0 {
			o = who()
		}
		f.shares.spend(o, took, 0)
		if err != nil {
			f.skip(l, o, 1, Skip{Reason: SkipUnresponsive, Path: filepath.Join(f.proc, pid), Err: err})
			return
		}
	}
	l.denied += s.denied
	for i := range s.skipped {
		f.skip(l, s.tenant, 1, s.skipped[i])
	}
	if s.over > 0 {
		f.skip(l, s.tenant, s.over, Skip{Reason: s.reason, Path: filepath.Join(f.proc, pid)})
	}
	l.add(s.found)
}

// scan is the result for one process.
type scan struct {
	tenant  tenant
	found   []candidate
	denied  int
	skipped []Skip
	// over counts the files that were skipped for reason.
	over   int
	reason string
}

// scan reads a process's maps and finds the files. It may block as long as the process's file
// systems block.
func (f *finder) scan(pid string) (s scan) {
	dir := filepath.Join(f.proc, pid)
	all, over, err := mappedLibraries(filepath.Join(dir, "maps"))
	if errors.Is(err, fs.ErrPermission) {
		s.denied++
	}
	if len(all) == 0 {
		return s
	}
	s.tenant = tenantOf(f.proc, pid)
	got, reason := f.shares.files(s.tenant, len(all))
	s.over, s.reason = over+len(all)-got, reason
	if over > 0 {
		s.reason = SkipUserShare
	}
	for _, c := range all[:got] {
		// The path belongs to the process: in a container it is another file than the host's.
		c.pid, c.tenant, c.path = pid, s.tenant, filepath.Join(dir, "root", c.mapped)
		o, err := c.open(f.proc)
		switch {
		case err == nil:
			o.close()
			c.is(o)
			s.found = append(s.found, c)
		case errors.Is(err, fs.ErrPermission):
			s.denied++
		case errors.Is(err, errNotRegular), errors.Is(err, errChanged):
			s.skipped = append(s.skipped, Skip{Reason: SkipChanged, Path: c.path, Err: err})
		case errors.Is(err, errTooLarge):
			s.skipped = append(s.skipped, Skip{Reason: SkipMalformed, Path: c.path, Err: err})
		}
	}
	return s
}

// mappedLibraries returns the observed libraries in one process's maps, each file once, and the
// number above the share of a user. It skips deleted files, because nothing loads them again.
func mappedLibraries(maps string) (all []candidate, over int, err error) {
	f, err := os.Open(maps)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	seen := map[string]bool{}
	var last []byte
	lines := bufio.NewScanner(io.LimitReader(f, maxMaps))
	lines.Buffer(make([]byte, 4096), 64<<10)
	for lines.Scan() {
		line := lines.Bytes()
		at := bytes.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		l, ok := libraryOf(line[at:])
		if !ok {
			continue
		}
		// address perms offset dev inode pathname; the pathname may contain spaces. The mappings of
		// a library are consecutive.
		fields := bytes.Fields(line[:at])
		if len(fields) != 5 {
			continue
		}
		file := line[bytes.Index(line, fields[3]):]
		if bytes.Equal(file, last) {
			continue
		}
		last = append(last[:0], file...)
		if seen[string(file)] {
			continue
		}
		if len(all) >= userFiles {
			over++
			continue
		}
		seen[string(file)] = true
		inode, err := strconv.ParseUint(string(fields[4]), 10, 64)
		if err != nil {
			continue
		}
		all = append(all, candidate{library: l, mapped: string(line[at:]), addresses: rangeOf(string(fields[0])), inode: inode})
	}
	return all, over, lines.Err()
}

// rangeOf returns the name in map_files of a range in maps, which has leading zeros.
func rangeOf(addresses string) string {
	from, to, _ := strings.Cut(addresses, "-")
	trim := func(s string) string {
		if s = strings.TrimLeft(s, "0"); s == "" {
			return "0"
		}
		return s
	}
	return trim(from) + "-" + trim(to)
}

// isLibrary reports whether a path belongs to an observed library.
func isLibrary(path []byte) bool {
	_, ok := libraryOf(path)
	return ok
}

// libraryPrefix is the prefix of all names of libraries.
var libraryPrefix = []byte("lib")

// libraryOf returns the library of a path. Stubs of the toolkit, which programs link but never
// load, have the driver's name and cause no harm. PyTorch wheels contain names such as
// libcudart-0123abcd.so.12.
func libraryOf(path []byte) (library, bool) {
	base := path[bytes.LastIndexByte(path, '/')+1:]
	if !bytes.HasPrefix(base, libraryPrefix) || bytes.HasSuffix(base, []byte(" (deleted)")) {
		return 0, false
	}
	name := string(base)
	for l, prefix := range [libraries]string{libcuda: "libcuda", libcudart: "libcudart", libnccl: "libnccl"} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if library(l) == libcudart && strings.HasPrefix(rest, "-") {
			if at := strings.Index(rest, ".so"); at > 0 {
				rest = rest[at:]
			}
		}
		if rest == ".so" || strings.HasPrefix(rest, ".so.") {
			return library(l), true
		}
	}
	return 0, false
}
