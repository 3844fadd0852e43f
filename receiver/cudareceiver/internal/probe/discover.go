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

// library is one of those that are attached to.
type library uint8

const (
	libcuda library = iota
	libcudart
	libnccl
	libraries
)

// candidate is a library that some process has mapped, or an installed driver.
type candidate struct {
	library library
	// path is where it is, seen through the process's own view of the files. It is for people: another file may be
	// there by now.
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

// revision is one version of a file in the hands of one user.
type revision struct {
	sighting
	size, changed int64
}

func (c *candidate) revision() revision {
	return revision{sighting{c.tenant, c.file}, c.size, c.changed}
}

// is records what was found where the candidate is.
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

// installed are the places of drivers, below the root: of distributions, of images of NVIDIA and of its operator for
// Kubernetes, of WSL.
var installed = []string{
	"usr/lib64/libcuda.so.1", "usr/lib/x86_64-linux-gnu/libcuda.so.1", "usr/lib/aarch64-linux-gnu/libcuda.so.1",
	"usr/lib/libcuda.so.1", "usr/local/nvidia/lib64/libcuda.so.1", "usr/local/cuda/compat/libcuda.so.1",
	"run/nvidia/driver/usr/lib64/libcuda.so.1", "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1",
	"run/nvidia/driver/usr/lib/aarch64-linux-gnu/libcuda.so.1", "usr/lib/wsl/lib/libcuda.so.1",
}

// drivers returns the drivers that are installed, so that they are attached to before the first process loads one.
func drivers(root string) (found []candidate) {
	for _, place := range installed {
		c := candidate{library: libcuda, path: filepath.Join(root, place), tenant: machine}
		// A link that begins at the root leads to another file when seen from outside; it is looked at when a process
		// has it.
		if o, err := openPath(c.path); err == nil {
			o.close()
			c.is(o)
			found = append(found, c)
		}
	}
	return found
}

const (
	// maxMaps bounds what is read of one process's maps, in bytes: a hundred bytes for each of the 65,530
	// mappings that Linux allows by default.
	maxMaps = 8 << 20
	// scanLimit is how long reading the maps of one process and finding its files may take. It takes 0.1 ms.
	scanLimit = time.Second
	// longScan is the time of a scan that is charged to the process's user even if it found nothing.
	longScan = 2 * time.Millisecond
)

// look is what was found by looking through processes.
type look struct {
	found []candidate
	seen  map[sighting]bool
	// denied counts what we were not allowed to look at.
	denied int
	// partial are users whose processes were not all looked at; everybody if incomplete.
	partial    map[tenant]bool
	incomplete bool
}

// sighting is a file in the hands of a user. The same file of two users is looked at for both: one may be over its
// share.
type sighting struct {
	tenant tenant
	file   file
}

func newLook() *look { return &look{seen: map[sighting]bool{}, partial: map[tenant]bool{}} }

func (l *look) add(all []candidate) {
	for i := range all {
		if s := (sighting{all[i].tenant, all[i].file}); !l.seen[s] {
			l.seen[s] = true
			l.found = append(l.found, all[i])
		}
	}
}

// finder looks through processes for libraries. Only one goroutine may use it at a time.
type finder struct {
	proc   string
	shares *shares
	dog    watchdog.Watchdog[tenant]
}

// all looks through the maps of all processes for the driver, the runtime and NCCL, and for installed drivers.
// Processes that end meanwhile, or that we may not look at, are left out.
func (f *finder) all(ctx context.Context) (*look, error) {
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
	// A look that ends early must not always leave out the same processes.
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

// skip counts what is left out of a look.
func (f *finder) skip(l *look, o tenant, n int, s Skip) {
	if s.Reason == SkipTotalShare {
		l.incomplete = true
	}
	l.partial[o] = true
	s.UID = o.uid
	f.shares.skip(n, s)
}

// process adds the libraries that one process has mapped.
func (f *finder) process(ctx context.Context, l *look, pid string) {
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

// scan is what one process has mapped.
type scan struct {
	tenant  tenant
	found   []candidate
	denied  int
	skipped []Skip
	// over is how many files were left out for reason.
	over   int
	reason string
}

// scan reads a process's maps and finds the files. It may block for as long as the file systems of the process like.
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
		// The path is the process's: in a container it is another file than ours of that name.
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

// mappedLibraries returns the libraries of interest in one process's maps, each file once, and how many there are
// past the share of a user. A file that is deleted is left out: nothing new loads it.
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
		// address perms offset dev inode pathname; the pathname may hold spaces. The parts of a library follow one
		// another.
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

// isLibrary reports whether a path is of a library that is looked at.
func isLibrary(path []byte) bool {
	_, ok := libraryOf(path)
	return ok
}

// libraryPrefix is what all names of libraries begin with.
var libraryPrefix = []byte("lib")

// libraryOf says which library a path is of. Stubs of the toolkit, which programs are linked with and never load, have
// the driver's name and do no harm. Wheels of PyTorch name some of theirs libcudart-0123abcd.so.12.
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
