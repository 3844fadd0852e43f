// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// source is where a model comes from.
type source struct {
	// name is the name of the model unless a gpux.yml has another; forced says that none can.
	name     string
	forced   bool
	revision string // empty: the version in gpux.yml
	commit   string
	text     string // for people, without secrets
	files    []File
	model    string // the path of the model, after choose
	// open returns a file from a byte on, or from the start.
	open func(ctx context.Context, path string, offset int64) (body io.ReadCloser, start int64, err error)
	// local says that reading is cheap: files without a digest are read to get one.
	local bool
	close func()
}

// sums is the file with the digests of a folder, as sha256sum writes it.
const sums = "SHA256SUMS"

// limits of files that are read into memory.
const (
	maxListing = 32 << 20
	maxText    = 1 << 20
)

// resolve finds out what is meant: an address, a folder, or an ID of Hugging Face.
func (r *Registry) resolve(ctx context.Context, from string, o Options) (*source, error) {
	if strings.HasPrefix(from, "http://") || strings.HasPrefix(from, "https://") {
		return r.web(ctx, from, o)
	}
	info, err := os.Stat(from)
	switch {
	case err == nil && o.SHA256 != "":
		return nil, errors.New("--sha256 is for addresses; a folder can have a " + sums)
	case err == nil && info.IsDir():
		return folder(from)
	case err == nil:
		return nil, fmt.Errorf("%s is a file: name the folder that has it", from)
	case strings.HasPrefix(from, ".") || filepath.IsAbs(from) || strings.Contains(from, `\`):
		return nil, err
	}
	if o.SHA256 != "" {
		return nil, errors.New("--sha256 is for addresses; Hugging Face has a digest of each file")
	}
	return r.huggingFace(ctx, from, o)
}

func folder(dir string) (*source, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir) // links that lead out of the folder are not followed
	if err != nil {
		return nil, err
	}
	s := &source{name: filepath.Base(dir), text: dir, local: true, close: func() { _ = root.Close() }}
	s.open = func(_ context.Context, path string, offset int64) (io.ReadCloser, int64, error) {
		f, err := root.Open(filepath.FromSlash(path))
		if err != nil {
			return nil, 0, err
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, 0, errors.Join(fmt.Errorf("%s is no regular file", path), err, f.Close())
		}
		_, err = f.Seek(offset, io.SeekStart)
		return f, offset, err
	}
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); strings.HasPrefix(name, ".") && name != "." {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.IsDir() {
			s.files = append(s.files, File{Path: path, Size: -1})
		}
		if len(s.files) > 100*maxFiles {
			return fmt.Errorf("%s has more than %d files", dir, 100*maxFiles)
		}
		return nil
	})
	if err == nil {
		err = s.addSums()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// addSums takes the digests of SHA256SUMS, if a folder has one.
func (s *source) addSums() error {
	at := find(s.files, sums)
	if at < 0 {
		return nil
	}
	text, err := s.read(context.Background(), sums, maxText)
	if err != nil {
		return err
	}
	listed, err := parseSums(text)
	if err != nil {
		return fmt.Errorf("%s: %w", sums, err)
	}
	for _, f := range listed {
		if at := find(s.files, f.Path); at >= 0 {
			s.files[at].SHA256 = f.SHA256
		}
	}
	return nil
}

func find(files []File, path string) int {
	for i, f := range files {
		if f.Path == path {
			return i
		}
	}
	return -1
}

// read returns a small file.
func (s *source) read(ctx context.Context, path string, limit int64) ([]byte, error) {
	body, _, err := s.open(ctx, path, 0)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return readSmall(body, path, limit)
}

func readSmall(body io.Reader, what string, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s is larger than %d MiB", what, limit>>20)
	}
	return text, nil
}

// parseSums reads the lines of sha256sum: a digest, a space, a space or star, and a path.
func parseSums(text []byte) (files []File, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimRight(lines.Text(), "\r")
		if line == "" {
			continue
		}
		if len(line) < 67 || line[64] != ' ' || line[65] != ' ' && line[65] != '*' || !isSHA256(line[:64]) {
			return nil, fmt.Errorf("line %d is no digest and file, as sha256sum writes them", n)
		}
		f := File{Path: strings.TrimPrefix(line[66:], "./"), Size: -1, SHA256: strings.ToLower(line[:64])}
		if err := checkPath(f.Path); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if files = append(files, f); len(files) > maxFiles {
			return nil, fmt.Errorf("it has more than %d files", maxFiles)
		}
	}
	return files, lines.Err()
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}

// checkPath refuses paths that lead out of a folder, are hidden, or that gpux itself writes.
func checkPath(p string) error {
	if len(p) > 400 || !filepath.IsLocal(p) || path.Clean(p) != p || strings.ContainsAny(p, "\\:\x00") || p == manifest {
		return fmt.Errorf("%.100q cannot be the path of a file of a model", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if strings.HasPrefix(part, ".") {
			return fmt.Errorf("%.100q cannot be the path of a file of a model: it is hidden", p)
		}
	}
	return nil
}

// web takes an .onnx file, or a folder with a SHA256SUMS.
func (r *Registry) web(ctx context.Context, from string, o Options) (*source, error) {
	address, err := url.Parse(from)
	if err != nil || address.Host == "" {
		return nil, errors.New("the address is not valid") // it may contain a password
	}
	if o.SHA256 != "" && !isSHA256(o.SHA256) {
		return nil, fmt.Errorf("%.70q is no SHA-256: it has 64 hexadecimal digits", o.SHA256)
	}
	if address.Scheme == "http" && !loopback(address.Hostname()) && o.SHA256 == "" {
		return nil, fmt.Errorf("%s could be changed on the way: use https, or give its digest with --sha256", clean(address))
	}
	s := &source{text: clean(address), close: func() {}}
	if strings.HasSuffix(address.Path, ".onnx") {
		file := path.Base(address.Path)
		s.name = strings.TrimSuffix(file, ".onnx")
		if parent := path.Base(path.Dir(address.Path)); s.name == "model" && len(parent) > 1 {
			s.name = parent
		}
		s.files = []File{{Path: file, Size: -1, SHA256: strings.ToLower(o.SHA256)}}
		s.open = func(ctx context.Context, _ string, offset int64) (io.ReadCloser, int64, error) {
			return r.get(ctx, address, offset)
		}
		return s, nil
	}
	base := *address
	base.Path = strings.TrimSuffix(base.Path, "/")
	s.name, s.text = path.Base(base.Path), clean(&base)
	s.open = func(ctx context.Context, file string, offset int64) (io.ReadCloser, int64, error) {
		at := base
		at.Path, at.RawPath = base.Path+"/"+file, ""
		return r.get(ctx, &at, offset)
	}
	text, err := s.read(ctx, sums, maxText)
	if err != nil {
		var status *statusError
		if errors.As(err, &status) && status.code == http.StatusNotFound {
			err = fmt.Errorf("%w; the address must be that of an .onnx file, or of a folder with a %s", err, sums)
		}
		return nil, err
	}
	if err := verify(text, o.SHA256); err != nil {
		return nil, fmt.Errorf("%s: %w", sums, err)
	}
	if s.files, err = parseSums(text); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", s.text, sums, err)
	}
	return s, nil
}

// listing is what Hugging Face answers for a revision with blobs=true
// (https://huggingface.co/docs/hub/api).
type listing struct {
	SHA      string `json:"sha"`
	Siblings []struct {
		Path string `json:"rfilename"`
		Size *int64 `json:"size"`
		Blob string `json:"blobId"`
		LFS  *struct {
			SHA256 string `json:"sha256"`
			Size   int64  `json:"size"`
		} `json:"lfs"`
	} `json:"siblings"`
}

func parseListing(text []byte) (commit string, files []File, err error) {
	var l listing
	if err := json.Unmarshal(text, &l); err != nil {
		return "", nil, fmt.Errorf("the list of files is no JSON object of Hugging Face: %w", err)
	}
	if !validRevision.MatchString(l.SHA) || len(l.SHA) > 96 {
		return "", nil, errors.New("the list of files has no commit")
	}
	for _, f := range l.Siblings {
		if checkPath(f.Path) != nil {
			continue // such as .gitattributes; a model that needs one is not found
		}
		file := File{Path: f.Path, Size: -1, Git: f.Blob}
		if f.Size != nil {
			file.Size = *f.Size
		}
		if f.LFS != nil {
			file.Size, file.SHA256, file.Git = f.LFS.Size, strings.ToLower(f.LFS.SHA256), ""
		}
		if file.Size < 0 || file.SHA256 == "" && file.Git == "" || file.SHA256 != "" && !isSHA256(file.SHA256) {
			return "", nil, fmt.Errorf("the list of files has no size or digest of %.100q", f.Path)
		}
		files = append(files, file)
	}
	return l.SHA, files, nil
}

func (r *Registry) huggingFace(ctx context.Context, id string, o Options) (*source, error) {
	revision := o.Revision
	if revision == "" {
		revision = "main"
	}
	if err := checkNames(id, revision); err != nil {
		return nil, err
	}
	hub, err := url.Parse(r.hub)
	if err != nil {
		return nil, err
	}
	address := hub.JoinPath("api", "models", id, "revision", url.PathEscape(revision))
	address.RawQuery = "blobs=true"
	body, _, err := r.get(ctx, address, 0)
	if err != nil {
		return nil, hubError(err, hub.Host, id, revision)
	}
	defer body.Close()
	text, err := readSmall(body, "the list of files of "+id, maxListing)
	if err != nil {
		return nil, err
	}
	s := &source{name: id, forced: true, revision: revision, text: hub.Host, close: func() {}}
	if s.commit, s.files, err = parseListing(text); err != nil {
		return nil, fmt.Errorf("%s: %w", clean(address), err)
	}
	s.open = func(ctx context.Context, file string, offset int64) (io.ReadCloser, int64, error) {
		at := hub.JoinPath(id, "resolve", s.commit)
		at.Path, at.RawPath = at.Path+"/"+file, ""
		return r.get(ctx, at, offset)
	}
	return s, nil
}

// hubError says what the answers of Hugging Face mean for a model.
func hubError(err error, host, id, revision string) error {
	var s *statusError
	if !errors.As(err, &s) {
		return err
	}
	switch s.code {
	case http.StatusUnauthorized, http.StatusNotFound:
		text := fmt.Sprintf("%s has no model %s with the revision %s, or it is private", host, id, revision)
		if os.Getenv("HF_TOKEN") == "" {
			text += ": HF_TOKEN gives access"
		}
		return errors.New(text)
	case http.StatusForbidden:
		return fmt.Errorf("%s refuses access to %s: its page says how to get it", host, id)
	}
	return err
}
