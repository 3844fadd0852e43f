// SPDX-License-Identifier: Apache-2.0

// Package registry keeps the models that `gpux pull` got from a folder, a web server or Hugging Face
// in one local folder, where the other commands find them by name.
//
// A model appears and disappears as a whole: its files are written to a hidden folder, checked, and
// renamed. Several processes may use the folder at the same time.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Limits of a model. ONNX files have at most 2 GiB, and can have more data in files beside them.
const (
	maxFiles = 1000
	maxBytes = 32 << 30
)

// Registry is the folder. Its methods can be called at the same time.
type Registry struct {
	dir string
	hub string // the address of Hugging Face, without a slash at the end
	// maxBytes bounds the size of a model.
	maxBytes int64
	client   *http.Client
	// stall is how long a transfer may deliver nothing; pause is the time before the first retry.
	stall, pause time.Duration
}

// New returns the registry in a folder, which Pull creates. HF_ENDPOINT is the address of Hugging
// Face or of a mirror, and HF_TOKEN the token for it. The token is sent to no other address.
func New(dir string) (*Registry, error) {
	hub := strings.TrimRight(os.Getenv("HF_ENDPOINT"), "/")
	if hub == "" {
		hub = "https://huggingface.co"
	}
	address, err := url.Parse(hub)
	if err != nil || address.Host == "" || address.User != nil {
		return nil, errors.New("HF_ENDPOINT is no address such as https://huggingface.co")
	}
	if address.Scheme != "https" && !(address.Scheme == "http" && loopback(address.Hostname())) {
		return nil, errors.New("HF_ENDPOINT must begin with https://")
	}
	return &Registry{
		dir: dir, hub: hub, maxBytes: maxBytes, client: newClient(address, os.Getenv("HF_TOKEN")),
		stall: time.Minute, pause: time.Second,
	}, nil
}

// File is a file of a model. Path is relative and has slashes. Size is -1 if the source does not say it.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	// Git is Git's name of the content, which Hugging Face has for small files instead of a digest.
	Git string `json:"git,omitempty"`
}

// Entry is a model in the registry.
type Entry struct {
	// Name is the ID on Hugging Face, such as org/name, or the name in gpux.yml.
	Name     string `json:"name"`
	Revision string `json:"revision"`
	// Model is the name in gpux.yml.
	Model string `json:"model"`
	// Source is a folder or an address, without secrets.
	Source string `json:"source"`
	// Commit is what Revision meant on Hugging Face when the model was pulled.
	Commit string    `json:"commit,omitempty"`
	Pulled time.Time `json:"pulled"`
	Files  []File    `json:"files"`

	// Dir is the folder with the files.
	Dir string `json:"-"`
	// Incomplete says that the pull did not end. Only Name, Revision, Dir and the sizes of Files are set.
	Incomplete bool `json:"-"`
}

// Reference returns NAME@REVISION.
func (e Entry) Reference() string { return e.Name + "@" + e.Revision }

// Size returns the size of all files in bytes.
func (e Entry) Size() (n int64) {
	for _, f := range e.Files {
		n += f.Size
	}
	return n
}

// manifest is the file that describes an entry, in its folder.
const manifest = "pulled.json"

const (
	partials = ".partial" // pulls that have not ended
	locks    = ".lock"
	removed  = ".removed-" // the prefix of folders that are no models any more
)

// Names and revisions also are names of folders.
var (
	validName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$`)
	validRevision = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
)

func checkNames(name, revision string) error {
	if len(name) > 96 || !validName.MatchString(name) {
		return fmt.Errorf("%.100q cannot be the name of a model: use letters, digits, and the characters . _ -", name)
	}
	if len(revision) > 96 || !validRevision.MatchString(revision) {
		return fmt.Errorf("%.100q cannot be a revision: use letters, digits, and the characters . _ - /", revision)
	}
	return nil
}

// key is the name of the folder of a model. Complete ones add ~ and a time.
func key(name, revision string) string { return escape(name) + "@" + escape(revision) }

func escape(s string) string { return strings.ReplaceAll(s, "/", "%2F") }

// List returns the models by name, with pulls that have not ended last. Folders that are none are in
// the error.
func (r *Registry) List() (list []Entry, err error) {
	newest, err := r.read()
	for range 10 { // a model that was replaced meanwhile has another folder now
		if !errors.Is(err, errReplaced) {
			break
		}
		newest, err = r.read()
	}
	for _, e := range newest {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Reference(), b.Reference()) })
	return append(list, r.incomplete()...), err
}

var errReplaced = errors.New("it was removed while it was read")

// read returns the newest entry of each reference.
func (r *Registry) read() (newest map[string]Entry, err error) {
	folders, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	newest = map[string]Entry{}
	var unreadable []error
	for _, f := range folders {
		if strings.HasPrefix(f.Name(), ".") {
			continue
		}
		dir := filepath.Join(r.dir, f.Name())
		e, err := readEntry(dir)
		if err != nil {
			if _, gone := os.Lstat(dir); errors.Is(gone, fs.ErrNotExist) {
				err = fmt.Errorf("%s: %w", dir, errReplaced)
			}
			unreadable = append(unreadable, err)
			continue
		}
		if old, ok := newest[e.Reference()]; !ok || old.Pulled.Before(e.Pulled) {
			newest[e.Reference()] = e
		}
	}
	return newest, errors.Join(unreadable...)
}

func readEntry(dir string) (e Entry, err error) {
	text, err := os.ReadFile(filepath.Join(dir, manifest))
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return e, fmt.Errorf("%s: %w", filepath.Join(dir, manifest), err)
	}
	if err := checkNames(e.Name, e.Revision); err != nil {
		return e, fmt.Errorf("%s: %w", filepath.Join(dir, manifest), err)
	}
	e.Dir = dir
	return e, nil
}

func (r *Registry) incomplete() (list []Entry) {
	folders, _ := os.ReadDir(filepath.Join(r.dir, partials)) // there may be none
	for _, f := range folders {
		name, revision, _ := strings.Cut(strings.ReplaceAll(f.Name(), "%2F", "/"), "@")
		if checkNames(name, revision) != nil {
			continue
		}
		e := Entry{Name: name, Revision: revision, Dir: filepath.Join(r.dir, partials, f.Name()), Incomplete: true}
		_ = filepath.WalkDir(e.Dir, func(path string, d fs.DirEntry, err error) error { // a pull may end meanwhile
			if err == nil && d.Type().IsRegular() {
				if info, err := d.Info(); err == nil {
					e.Files = append(e.Files, File{Path: filepath.Base(path), Size: info.Size()})
				}
			}
			return nil
		})
		list = append(list, e)
	}
	return list
}

// ErrNotFound says that no model has the name.
var ErrNotFound = errors.New("no such model was pulled")

// Find returns the model with a name, which is its Name or Model, with or without @REVISION. A name
// without a revision must have one revision only.
func (r *Registry) Find(name string) (Entry, error) {
	found, err := r.match(name, false)
	if err != nil {
		return Entry{}, err
	}
	return found[0], nil
}

func (r *Registry) match(name string, incomplete bool) (found []Entry, err error) {
	all, problems := r.List()
	var references []string
	for _, e := range all {
		if e.Incomplete && !incomplete {
			continue
		}
		if name == e.Name || name == e.Reference() || name == e.Model || name == e.Model+"@"+e.Revision {
			found = append(found, e)
			if !slices.Contains(references, e.Reference()) {
				references = append(references, e.Reference())
			}
		}
	}
	switch {
	case len(found) == 0 && problems != nil:
		return nil, fmt.Errorf("%w: %s; %w", ErrNotFound, name, problems)
	case len(found) == 0:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, name)
	case len(references) > 1:
		return nil, fmt.Errorf("%s can be %s: name one of them", name, strings.Join(references, " or "))
	}
	return found, nil
}

// Remove removes a model, and what a pull of it left. Programs that have loaded it are not affected.
func (r *Registry) Remove(ctx context.Context, name string) (Entry, error) {
	found, err := r.match(name, true)
	if err != nil {
		return Entry{}, err
	}
	e := found[0]
	unlock, err := r.lock(ctx, key(e.Name, e.Revision), nil)
	if err != nil {
		return e, err
	}
	defer unlock()
	return e, errors.Join(r.removeAll(key(e.Name, e.Revision), ""), os.RemoveAll(filepath.Join(r.dir, partials, key(e.Name, e.Revision))))
}

// removeAll removes the folders of a model, except one. The caller has the lock.
func (r *Registry) removeAll(key, except string) error {
	folders, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, f := range folders {
		name := f.Name()
		if strings.HasPrefix(name, key+"~") && name != except { // it disappears as a whole
			if err := os.Rename(filepath.Join(r.dir, name), filepath.Join(r.dir, removed+name)); err != nil {
				return err
			}
			name = removed + name
		}
		if strings.HasPrefix(name, removed+key+"~") {
			if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lock waits until no other process changes the model. It calls waiting, if it is not nil, when it
// has to wait.
func (r *Registry) lock(ctx context.Context, key string, waiting func()) (unlock func(), err error) {
	dir := filepath.Join(r.dir, locks)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(dir, key))
	if ok, err := l.TryLock(); err != nil || !ok {
		if err == nil && waiting != nil {
			waiting()
		}
		if err == nil {
			_, err = l.TryLockContext(ctx, 50*time.Millisecond)
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", l.Path(), err)
		}
	}
	return func() { _ = l.Unlock() }, nil // closing the file cannot fail in a way that matters
}
