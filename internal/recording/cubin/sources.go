// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Bounds for reading sources.
const (
	maxSourceBytes  = 4 << 20  // of a file; hand-written files are shorter
	maxSourcesBytes = 32 << 20 // of all files that are kept
	maxSources      = 1024     // files, including unreadable ones
	maxSourceLine   = 512      // of a line; the rest is truncated
)

// sourceSuffixes are the names of files that may be read. A path in an image may point to other
// files, such as keys and settings. Those must not get into telemetry.
var sourceSuffixes = []string{
	".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".c++", ".h", ".hh", ".hpp", ".hxx", ".inl", ".ipp", ".tcc", ".cl", ".py", ".rs", ".jl",
	".mojo", ".f90", ".f", ".cuf", ".mlir", ".ttir", ".ptx",
}

var errNoSource = errors.New("not a source file")

// Sources reads lines of source files below some folders. Images select the files, and therefore
// the author of the running code does. For that reason it is off unless the user names folders. It
// is safe for concurrent use.
type Sources struct {
	roots []sourceRoot

	mu    sync.Mutex
	files map[string]*sourceFile
	bytes int
	tick  uint64
}

// sourceRoot is a folder. No file outside of it is read, not even by a link or "..".
type sourceRoot struct {
	dir  string
	root *os.Root
}

// sourceFile is a requested file. It has no lines if it cannot be read.
type sourceFile struct {
	text  []byte
	lines []int32 // start of each line
	used  uint64
}

func (f *sourceFile) bytes() int { return len(f.text) + 4*len(f.lines) }

// NewSources returns a reader of the source files below the folders, whose paths must be absolute.
// It reads only regular files with the name of a source file and at most 4 MiB. It caches up to 32
// MiB of them: a line is as old as the cached copy. Close releases the folders.
func NewSources(folders []string) (*Sources, error) {
	s := &Sources{files: map[string]*sourceFile{}}
	for _, dir := range folders {
		if !filepath.IsAbs(dir) {
			return nil, errors.Join(errors.New("folder of sources "+dir+": not an absolute path"), s.Close())
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.roots = append(s.roots, sourceRoot{filepath.Clean(dir), root})
	}
	return s, nil
}

// Close releases the folders. Lines cannot be read afterwards.
func (s *Sources) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, r := range s.roots {
		errs = append(errs, r.root.Close())
	}
	s.roots, s.files = nil, map[string]*sourceFile{}
	return errors.Join(errs...)
}

// Line returns a line of a file, counted from 1, without surrounding space and truncated to 512
// bytes. It returns "" if the line is unavailable.
func (s *Sources) Line(path string, line int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[path]
	if f == nil {
		f = s.read(path)
		s.keep(path, f)
	}
	s.tick++
	f.used = s.tick
	if line < 1 || line > len(f.lines) {
		return ""
	}
	end := len(f.text)
	if line < len(f.lines) {
		end = int(f.lines[line])
	}
	b := bytes.TrimSpace(f.text[f.lines[line-1]:end])
	return strings.ToValidUTF8(string(b[:min(len(b), maxSourceLine)]), "")
}

func (s *Sources) keep(path string, f *sourceFile) {
	for len(s.files) > 0 && (len(s.files) >= maxSources || s.bytes+f.bytes() > maxSourcesBytes) {
		oldest, at := "", uint64(0)
		for path, other := range s.files {
			if oldest == "" || other.used < at {
				oldest, at = path, other.used
			}
		}
		s.bytes -= s.files[oldest].bytes()
		delete(s.files, oldest)
	}
	s.bytes += f.bytes()
	s.files[path] = f
}

func (s *Sources) read(path string) *sourceFile {
	f := &sourceFile{}
	if !filepath.IsAbs(path) || !isSource(path) {
		return f
	}
	clean := filepath.Clean(path)
	for _, r := range s.roots {
		rel, err := filepath.Rel(r.dir, clean)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		text, err := readSource(r.root, rel)
		if err != nil {
			continue
		}
		f.text, f.lines = text, []int32{0}
		for at := 0; ; {
			n := bytes.IndexByte(text[at:], '\n') + 1
			if at += n; n == 0 || at == len(text) {
				break
			}
			f.lines = append(f.lines, int32(at))
		}
		break
	}
	return f
}

func isSource(path string) bool {
	return slices.Contains(sourceSuffixes, strings.ToLower(filepath.Ext(path)))
}

// readSource reads a regular file. It checks the type first: opening a device or a pipe may block
// or have side effects.
func readSource(root *os.Root, rel string) ([]byte, error) {
	before, err := root.Stat(rel)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() || before.Size() > maxSourceBytes {
		return nil, errNoSource
	}
	file, err := root.OpenFile(rel, os.O_RDONLY|openWithoutWaiting, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	after, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(before, after) || !after.Mode().IsRegular() {
		return nil, errNoSource
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSourceBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSourceBytes {
		return nil, errNoSource
	}
	return text, nil
}
