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

// Bounds of what is read of sources.
const (
	maxSourceBytes  = 4 << 20  // of a file; none that people write is as long
	maxSourcesBytes = 32 << 20 // of all files that are kept
	maxSources      = 1024     // files, also those that cannot be read
	maxSourceLine   = 512      // of a line, the rest is cut off
)

// sourceSuffixes are the names of files that may be read. What else a path in an image may point to, keys and
// settings among them, must not get into telemetry.
var sourceSuffixes = []string{
	".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".c++", ".h", ".hh", ".hpp", ".hxx", ".inl", ".ipp", ".tcc", ".cl", ".py", ".rs", ".jl",
	".mojo", ".f90", ".f", ".cuf", ".mlir", ".ttir", ".ptx",
}

var errNoSource = errors.New("not a source file")

// Sources reads lines of source files below some folders. Which files are read is decided by images, that is, by
// whoever made the code that runs, so it is off unless somebody names folders. It is safe for concurrent use.
type Sources struct {
	roots []sourceRoot

	mu    sync.Mutex
	files map[string]*sourceFile
	bytes int
	tick  uint64
}

// sourceRoot is a folder; nothing is read that lies outside, also not by a link or "..".
type sourceRoot struct {
	dir  string
	root *os.Root
}

// sourceFile is a file that was asked for; without lines if it cannot be read.
type sourceFile struct {
	text  []byte
	lines []int32 // where each begins
	used  uint64
}

func (f *sourceFile) bytes() int { return len(f.text) + 4*len(f.lines) }

// NewSources returns a reader of the source files below those folders, whose paths must be absolute. Of files
// it reads only regular ones with the name of a source file, of at most 4 MiB, and keeps them: a line is what it was
// when the file was first asked for, or is again after 32 MiB of others. Close releases the folders.
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

// Line returns a line of a file, from 1, without the space around it and at most 512 bytes of it; "" if it cannot
// be had.
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

// readSource reads a regular file. It looks before it opens: to open a device or a pipe may do something, or wait.
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
