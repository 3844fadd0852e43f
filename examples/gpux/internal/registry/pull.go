// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"context"
	"crypto/sha1" // Git's name of a file, which Hugging Face has for small ones
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/config"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/onnx"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/preprocess"
)

// Options of a pull.
type Options struct {
	// Revision is a branch, tag or commit of Hugging Face. Empty means main.
	Revision string
	// File is the .onnx file to take where there are several.
	File string
	// SHA256 is the digest of the file at an address.
	SHA256 string
	// Log gets messages for the user: a file that was downloaded, or why the pull waits. It may be nil.
	Log func(format string, args ...any)
}

// Pull gets a model from a folder, an address, or an ID of Hugging Face. It does nothing, and returns
// false, if the registry has the same files already. If it fails, a later pull goes on where it ended,
// unless the disk is full.
func (r *Registry) Pull(ctx context.Context, from string, o Options) (e Entry, changed bool, err error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	s, err := r.resolve(ctx, from, o)
	if err != nil {
		return e, false, err
	}
	defer s.close()
	files, c, err := s.choose(ctx, o.File)
	if err != nil {
		return e, false, fmt.Errorf("%s: %w", cmp.Or(s.text, from), err)
	}
	e = Entry{Name: s.name, Revision: s.revision, Source: s.text, Commit: s.commit, Pulled: time.Now().UTC().Truncate(time.Millisecond)}
	if c != nil && !s.forced {
		e.Name = c.Name
	}
	if e.Revision == "" {
		e.Revision = "1.0.0"
		if c != nil {
			e.Revision = c.Version
		}
	}
	if err := checkNames(e.Name, e.Revision); err != nil {
		return e, false, err
	}
	if err := r.checkSize(files); err != nil {
		return e, false, err
	}
	k := key(e.Name, e.Revision)
	unlock, err := r.lock(ctx, k, func() { o.Log("another process pulls %s: waiting", e.Reference()) })
	if err != nil {
		return e, false, err
	}
	defer unlock()
	if s.local {
		if err := s.digest(ctx, files); err != nil {
			return e, false, err
		}
	}
	all, _ := r.List() // folders that are no models do not matter here
	for _, old := range all {
		switch {
		case old.Incomplete || old.Reference() != e.Reference():
		case old.Source != e.Source:
			return e, false, fmt.Errorf("%s is in the registry already, from %s; `gpux rm %s` removes it", e.Reference(), old.Source, e.Reference())
		case old.has(files):
			return old, false, nil
		}
	}
	partial := filepath.Join(r.dir, partials, k)
	if err := os.MkdirAll(partial, 0o755); err != nil {
		return e, false, err
	}
	if e, err = r.fill(ctx, partial, s, files, e, o); err != nil {
		var local *localError
		if errors.As(err, &local) {
			return e, false, errors.Join(err, os.RemoveAll(partial))
		}
		return e, false, err
	}
	target := k + "~" + strconv.FormatInt(time.Now().UnixNano(), 36)
	e.Dir = filepath.Join(r.dir, target)
	if err := os.Rename(partial, e.Dir); err != nil {
		return e, false, err
	}
	return e, true, r.removeAll(k, target)
}

// companions are the files besides the model that tell how to use it.
var companions = []string{"tokenizer.json", "config.json"}

// choose returns the files of a model: gpux.yml, if there is one, and those that it names; else the
// model and its companions. Data of a model beside it has the name of its file as prefix.
func (s *source) choose(ctx context.Context, file string) (files []File, c *config.Config, err error) {
	var paths []string // apart from the model
	if find(s.files, config.FileName) >= 0 && file == "" {
		text, err := s.read(ctx, config.FileName, maxText)
		if err != nil {
			return nil, nil, err
		}
		if c, err = parseConfig(text, s.local); err != nil {
			return nil, nil, err
		}
		file = path.Clean(filepath.ToSlash(c.Model.Source))
		paths = append(scalars(text), config.FileName)
	}
	if file == "" {
		if file, err = s.only(); err != nil {
			return nil, nil, err
		}
	}
	if find(s.files, file) < 0 {
		return nil, nil, fmt.Errorf("there is no file %.200q", file)
	}
	s.model = file
	if c == nil {
		for _, name := range companions {
			paths = append(paths, name, path.Join(path.Dir(file), name))
		}
	}
	for _, f := range s.files {
		if strings.HasPrefix(f.Path, file) || slices.Contains(paths, f.Path) {
			if err := checkPath(f.Path); err != nil {
				return nil, nil, err
			}
			if find(files, f.Path) >= 0 {
				return nil, nil, fmt.Errorf("the file %q is listed twice", f.Path)
			}
			files = append(files, f)
		}
	}
	return files, c, nil
}

// scalars returns the texts in a gpux.yml. Those that are paths are files that the model needs.
func scalars(text []byte) (paths []string) {
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode {
			paths = append(paths, path.Clean(n.Value))
		}
		for _, child := range n.Content {
			visit(child)
		}
	}
	var document yaml.Node
	if yaml.Unmarshal(text, &document) == nil { // parseConfig reports errors
		visit(&document)
	}
	return paths
}

// parseConfig reads a gpux.yml. That of somebody else must not read the environment: what it contains
// is shown to clients.
func parseConfig(text []byte, local bool) (*config.Config, error) {
	if !local && strings.Contains(string(text), "${") {
		return nil, fmt.Errorf("%s has ${…}, and a model from elsewhere must not read variables of the environment", config.FileName)
	}
	c, err := config.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config.FileName, err)
	}
	if checkPath(path.Clean(filepath.ToSlash(c.Model.Source))) != nil {
		return nil, fmt.Errorf("%s: model.source %.200q leads out of the folder", config.FileName, c.Model.Source)
	}
	if t := c.Preprocessing.Tokenizer; !local && t != "" && checkPath(path.Clean(filepath.ToSlash(t))) != nil {
		return nil, fmt.Errorf("%s: preprocessing.tokenizer %.200q leads out of the folder", config.FileName, t)
	}
	return c, nil
}

// only returns the .onnx file if it is clear which one is meant.
func (s *source) only() (string, error) {
	var all []string
	for _, f := range s.files {
		if strings.HasSuffix(f.Path, ".onnx") {
			all = append(all, f.Path)
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	for _, usual := range []string{"model.onnx", "onnx/model.onnx"} {
		if slices.Contains(all, usual) {
			return usual, nil
		}
	}
	if len(all) == 0 {
		return "", errors.New("there is no .onnx file; gpux does not convert other formats")
	}
	more := ""
	if len(all) > 10 {
		more = fmt.Sprintf(" and %d more", len(all)-10)
	}
	return "", fmt.Errorf("there are several models: name one with --file: %s%s", strings.Join(all[:min(10, len(all))], ", "), more)
}

func (r *Registry) checkSize(files []File) error {
	if len(files) > maxFiles {
		return fmt.Errorf("the model has %d files, and %d is the most", len(files), maxFiles)
	}
	left := r.maxBytes
	for _, f := range files {
		if left -= max(f.Size, 0); left < 0 {
			return fmt.Errorf("the model is larger than %s", Bytes(r.maxBytes))
		}
	}
	return nil
}

// Bytes writes a size for people.
func Bytes(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.3g %s", float64(n)/float64(unit.size), unit.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// digest reads the files that have none.
func (s *source) digest(ctx context.Context, files []File) error {
	for i, f := range files {
		if f.SHA256 != "" {
			continue
		}
		body, _, err := s.open(ctx, f.Path, 0)
		if err != nil {
			return err
		}
		n, digest, _, err := sum(body, 0)
		if err := errors.Join(err, body.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		files[i].Size, files[i].SHA256 = n, digest
	}
	return nil
}

// sum returns the size of a file, its SHA-256, and Git's name if its size is that.
func sum(in io.Reader, size int64) (n int64, digest, git string, err error) {
	a, b := sha256.New(), sha1.New()
	fmt.Fprintf(b, "blob %d\x00", size)
	all := []io.Writer{a}
	if size > 0 {
		all = append(all, b)
	}
	n, err = io.Copy(io.MultiWriter(all...), in)
	return n, hex.EncodeToString(a.Sum(nil)), hex.EncodeToString(b.Sum(nil)), err
}

// has says whether the entry has these files, unchanged on disk. Files without a digest can have
// changed at the source.
func (e Entry) has(files []File) bool {
	for _, f := range files {
		at := find(e.Files, f.Path)
		if at < 0 || f.SHA256 == "" && f.Git == "" {
			return false
		}
		if got := e.Files[at]; f.SHA256 != "" && f.SHA256 != got.SHA256 || f.SHA256 == "" && f.Git != got.Git {
			return false
		}
	}
	for _, f := range e.Files {
		if find(files, f.Path) < 0 && f.Path != config.FileName {
			return false
		}
		in, err := os.Open(filepath.Join(e.Dir, filepath.FromSlash(f.Path)))
		if err != nil {
			return false
		}
		_, digest, _, err := sum(in, 0)
		if err := errors.Join(err, in.Close()); err != nil || digest != f.SHA256 {
			return false
		}
	}
	return true
}

// localError is a failure that another try has as well: this machine cannot write the files, or they
// are no model. What was downloaded is removed.
type localError struct{ err error }

func (e *localError) Unwrap() error { return e.err }

func (e *localError) Error() string { return e.err.Error() }

// fill writes all files of a model, and checks that it can be used.
func (r *Registry) fill(ctx context.Context, dir string, s *source, files []File, e Entry, o Options) (Entry, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return e, err
	}
	defer root.Close()
	if err := clearOthers(root, files); err != nil {
		return e, err
	}
	left := r.maxBytes
	for _, f := range files {
		got, err := r.fetch(ctx, root, s, f, left)
		if err != nil {
			return e, err
		}
		left -= got.Size
		e.Files = append(e.Files, got)
		o.Log("%s  %s", got.Path, Bytes(got.Size))
	}
	text, err := root.ReadFile(config.FileName)
	if errors.Is(err, fs.ErrNotExist) || find(files, config.FileName) < 0 {
		if text, err = generate(root, s.model, e, o.Log); err != nil {
			return e, err
		}
		if err := write(root, config.FileName, text); err != nil {
			return e, err
		}
		_, digest, _, _ := sum(strings.NewReader(string(text)), 0)
		e.Files = append(e.Files, File{Path: config.FileName, Size: int64(len(text)), SHA256: digest})
	}
	if err != nil {
		return e, err
	}
	c, err := parseConfig(text, s.local)
	if err != nil {
		return e, &localError{err}
	}
	c.Dir, c.Path = dir, config.FileName
	info, err := onnx.ReadFile(c.ModelPath())
	if err != nil {
		return e, &localError{fmt.Errorf("%s: %w", c.Model.Source, unwrapped(err))}
	}
	if err := c.Agree(info); err != nil {
		return e, &localError{err}
	}
	if _, err := preprocess.New(c, info); err != nil {
		return e, &localError{err}
	}
	e.Model = c.Name
	text, err = json.MarshalIndent(e, "", "  ")
	if err != nil {
		return e, err
	}
	return e, write(root, manifest, text)
}

// unwrapped drops the path of a folder that the user does not know.
func unwrapped(err error) error { return cmp.Or(errors.Unwrap(err), err) }

// clearOthers removes what an earlier pull of other files left.
func clearOthers(root *os.Root, files []File) error {
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && find(files, path) < 0 {
			err = root.Remove(filepath.FromSlash(path))
		}
		return err
	})
}

func write(root *os.Root, name string, text []byte) error {
	f, err := root.Create(name)
	if err != nil {
		return &localError{err}
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return &localError{err}
	}
	return nil
}

// retries is how often a transfer may fail without a new byte.
const retries = 3

// fetch gets one file of at most limit bytes and checks it.
func (r *Registry) fetch(ctx context.Context, root *os.Root, s *source, f File, limit int64) (File, error) {
	name := filepath.FromSlash(f.Path)
	if dir := filepath.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return f, &localError{err}
		}
	}
	out, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return f, &localError{err}
	}
	defer out.Close()
	// Without a digest, nothing tells whether the rest belongs to what is here.
	resumed, err := out.Seek(0, io.SeekEnd)
	if f.SHA256 == "" && f.Git == "" || f.Size >= 0 && resumed > f.Size {
		resumed = 0
	}
	if err := errors.Join(err, out.Truncate(resumed)); err != nil {
		return f, &localError{err}
	}
	if f.Size >= 0 {
		limit = f.Size
	}
	began := resumed > 0
	for at, failures := resumed, 0; ; {
		var n int64
		if n, err = r.transfer(ctx, out, s, f, at, limit); err == nil {
			var got File
			if got, err = check(out, f); err == nil {
				if err := out.Sync(); err != nil {
					return f, &localError{err}
				}
				return got, nil
			}
			if !began { // all of it is from this pull
				return f, errors.Join(err, root.Remove(name))
			}
			began = false
			if err := out.Truncate(0); err != nil {
				return f, &localError{err}
			}
			at = 0
			continue
		}
		var local *localError
		if errors.As(err, &local) || ctx.Err() != nil || s.local || permanent(err) {
			return f, err
		}
		if failures++; n > at {
			failures = 0
		} else if failures >= retries {
			return f, fmt.Errorf("%w; pull again to go on", err)
		}
		if at = n; f.SHA256 == "" && f.Git == "" {
			at = 0
		}
		select {
		case <-time.After(r.pause << failures):
		case <-ctx.Done():
			return f, context.Cause(ctx)
		}
	}
}

// transfer writes a file from a byte on. It returns how many bytes the file has then.
func (r *Registry) transfer(ctx context.Context, out *os.File, s *source, f File, at, limit int64) (int64, error) {
	if f.Size >= 0 && at == f.Size {
		return at, nil // only the check was missing
	}
	body, start, err := s.open(ctx, f.Path, at)
	var status *statusError
	if at > 0 && errors.As(err, &status) && status.code == 416 { // there is no byte after these
		body, start, err = s.open(ctx, f.Path, 0)
	}
	if err != nil {
		return at, err
	}
	defer body.Close()
	if err := out.Truncate(start); err != nil {
		return at, &localError{err}
	}
	if _, err := out.Seek(start, io.SeekStart); err != nil {
		return at, &localError{err}
	}
	at = start
	buffer := make([]byte, 256<<10)
	for {
		n, err := body.Read(buffer)
		if int64(n) > limit-at {
			return at, &localError{fmt.Errorf("%s: %s is larger than %s", s.text, f.Path, Bytes(limit))}
		}
		if n > 0 {
			if _, err := out.Write(buffer[:n]); err != nil {
				return at, &localError{err}
			}
			at += int64(n)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return at, fmt.Errorf("%s: %s: %w after %s", s.text, f.Path, err, Bytes(at))
		}
	}
	if f.Size >= 0 && at < f.Size {
		return at, fmt.Errorf("%s: %s ends after %d of %d bytes", s.text, f.Path, at, f.Size)
	}
	return at, nil
}

// check compares a file with its digest.
func check(out *os.File, f File) (File, error) {
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return f, &localError{err}
	}
	n, digest, git, err := sum(out, f.Size)
	if err != nil {
		return f, &localError{err}
	}
	if f.SHA256 != "" && digest != f.SHA256 {
		return f, fmt.Errorf("%s has the SHA-256 %s, and it must be %s", f.Path, digest, f.SHA256)
	}
	if f.Git != "" && git != f.Git {
		return f, fmt.Errorf("%s has the Git hash %s, and it must be %s", f.Path, git, f.Git)
	}
	f.Size, f.SHA256 = n, digest
	return f, nil
}

// verify compares a text with its digest, if there is one.
func verify(text []byte, want string) error {
	if got := sha256.Sum256(text); want != "" && hex.EncodeToString(got[:]) != strings.ToLower(want) {
		return fmt.Errorf("it has the SHA-256 %x, and it must be %s", got, strings.ToLower(want))
	}
	return nil
}
