// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// library is one of those that are attached to.
type library uint8

const (
	libcuda library = iota
	libcudart
	libnccl
	libraries
)

// candidate is a library that some process has mapped.
type candidate struct {
	library library
	// path is where we can open it: through the process's own view of the files.
	path string
	file file
}

// file tells a file from all others of the machine: see fileOf.
type file struct{ device, inode uint64 }

// installed are the places of drivers, below the root: of distributions, of images of NVIDIA and of its operator for
// Kubernetes, of WSL.
var installed = []string{
	"usr/lib64/libcuda.so.1", "usr/lib/x86_64-linux-gnu/libcuda.so.1", "usr/lib/aarch64-linux-gnu/libcuda.so.1",
	"usr/lib/libcuda.so.1", "usr/local/nvidia/lib64/libcuda.so.1", "usr/local/cuda/compat/libcuda.so.1",
	"run/nvidia/driver/usr/lib64/libcuda.so.1", "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1",
	"run/nvidia/driver/usr/lib/aarch64-linux-gnu/libcuda.so.1", "usr/lib/wsl/lib/libcuda.so.1",
}

// drivers adds the drivers that are installed, so that they are attached to before the first process loads one.
func drivers(root string, add func(candidate)) {
	for _, place := range installed {
		path := filepath.Join(root, place)
		// A link that begins at the root leads to another file when seen from outside; it is looked at when a process
		// has it.
		if id, ok, err := fileOf(path); ok && err == nil {
			add(candidate{library: libcuda, path: path, file: id})
		}
	}
}

// maxMaps bounds what is read of one process's maps, in bytes: a hundred bytes for each of the 65,530
// mappings that Linux allows by default.
const maxMaps = 8 << 20

// discover looks through the maps of all processes for the driver, the runtime and NCCL, and for installed drivers, one
// candidate for each file.
// Processes that end meanwhile, or that we may not look at, are left out; denied says how many those
// latter are.
func discover(proc string) (found []candidate, denied int, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, 0, err
	}
	seen := map[file]bool{}
	add := func(c candidate) {
		if !seen[c.file] {
			seen[c.file] = true
			found = append(found, c)
		}
	}
	drivers(filepath.Dir(proc), add)
	for _, e := range entries {
		if _, err := strconv.ParseUint(e.Name(), 10, 31); err != nil {
			continue
		}
		denied += mapped(proc, e.Name(), add)
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.file.device, b.file.device), cmp.Compare(a.file.inode, b.file.inode))
	})
	return found, denied, nil
}

// mapped adds the libraries that one process has mapped; denied counts what we may not look at.
func mapped(proc, pid string, add func(candidate)) (denied int) {
	dir := filepath.Join(proc, pid)
	paths, err := mappedLibraries(filepath.Join(dir, "maps"))
	if errors.Is(err, fs.ErrPermission) {
		denied++
	}
	for _, path := range paths {
		// The path is the process's: in a container it is another file than ours of that name. The device in
		// maps is no help, since overlays show another one there than stat does.
		through := filepath.Join(dir, "root", path)
		id, ok, err := fileOf(through)
		if errors.Is(err, fs.ErrPermission) {
			denied++
		}
		if ok {
			l, _ := libraryOf(path)
			add(candidate{library: l, path: through, file: id})
		}
	}
	return denied
}

// mappedLibraries returns the paths of libraries of interest in one process's maps, each once. A file that is
// deleted cannot be opened by its path any more and is left out.
func mappedLibraries(maps string) ([]string, error) {
	f, err := os.Open(maps)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var paths []string
	lines := bufio.NewScanner(io.LimitReader(f, maxMaps))
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		// address perms offset dev inode pathname; the pathname may hold spaces.
		line := lines.Text()
		at := strings.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		path := line[at:]
		if isLibrary(path) && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths, lines.Err()
}

// isLibrary reports whether a path is of a library that is looked at.
func isLibrary(path string) bool {
	_, ok := libraryOf(path)
	return ok
}

// libraryOf says which library a path is of. Stubs of the toolkit, which programs are linked with and never load, have
// the driver's name and do no harm. Wheels of PyTorch name some of theirs libcudart-0123abcd.so.12.
func libraryOf(path string) (library, bool) {
	name := filepath.Base(path)
	if strings.HasSuffix(name, " (deleted)") {
		return 0, false
	}
	for l, prefix := range [libraries]string{libcuda: "libcuda", libcudart: "libcudart", libnccl: "libnccl"} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if library(l) == libcudart && strings.HasPrefix(rest, "-") { //nolint:gosec // One of three.
			if at := strings.Index(rest, ".so"); at > 0 {
				rest = rest[at:]
			}
		}
		if rest == ".so" || strings.HasPrefix(rest, ".so.") {
			return library(l), true //nolint:gosec // One of three.
		}
	}
	return 0, false
}
