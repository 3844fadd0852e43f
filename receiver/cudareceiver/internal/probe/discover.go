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

// candidate is a driver library that some process has mapped.
type candidate struct {
	// path is where we can open it: through the process's own view of the files.
	path          string
	device, inode uint64
}

// maxMaps bounds what is read of one process's maps, in bytes: a hundred bytes for each of the 65,530
// mappings that Linux allows by default.
const maxMaps = 8 << 20

// discover looks through the maps of all processes for driver libraries, one candidate for each file.
// Processes that end meanwhile, or that we may not look at, are left out; denied says how many those
// latter are.
func discover(proc string) (found []candidate, denied int, err error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, 0, err
	}
	type file struct{ device, inode uint64 }
	seen := map[file]bool{}
	for _, e := range entries {
		if _, err := strconv.ParseUint(e.Name(), 10, 31); err != nil {
			continue
		}
		denied += mapped(proc, e.Name(), func(c candidate) {
			if id := (file{c.device, c.inode}); !seen[id] {
				seen[id] = true
				found = append(found, c)
			}
		})
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.inode, b.inode))
	})
	return found, denied, nil
}

// mapped adds the driver libraries that one process has mapped; denied counts what we may not look at.
func mapped(proc, pid string, add func(candidate)) (denied int) {
	dir := filepath.Join(proc, pid)
	paths, err := mappedDrivers(filepath.Join(dir, "maps"))
	if errors.Is(err, fs.ErrPermission) {
		denied++
	}
	for _, path := range paths {
		// The path is the process's: in a container it is another file than ours of that name. The device in
		// maps is no help, since overlays show another one there than stat does.
		through := filepath.Join(dir, "root", path)
		info, err := os.Stat(through)
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				denied++
			}
			continue
		}
		if device, inode, ok := identify(info); ok && info.Mode().IsRegular() {
			add(candidate{path: through, device: device, inode: inode})
		}
	}
	return denied
}

// mappedDrivers returns the paths of driver libraries in one process's maps, each once. A file that is
// deleted cannot be opened by its path any more and is left out.
func mappedDrivers(maps string) ([]string, error) {
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
		if !isDriver(path) || slices.Contains(paths, path) {
			continue
		}
		paths = append(paths, path)
	}
	return paths, lines.Err()
}

// isDriver reports whether a path is of a CUDA driver library: libcuda.so, libcuda.so.1,
// libcuda.so.580.159.04. Stubs of the toolkit, which programs are linked with and never load, have the
// same name and do no harm.
func isDriver(path string) bool {
	name := filepath.Base(path)
	rest, ok := strings.CutPrefix(name, "libcuda.so")
	return ok && (rest == "" || rest[0] == '.') && !strings.HasSuffix(name, " (deleted)")
}
