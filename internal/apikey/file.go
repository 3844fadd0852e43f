// SPDX-License-Identifier: Apache-2.0

package apikey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// DefaultFile is the key file of the extension and of the command line, in the current folder.
const DefaultFile = "gpuflight-state/keys.json"

// maxFile is enough for about 4,000 keys.
const maxFile = 1 << 20

const fileVersion = 1

type content struct {
	Version int   `json:"version"`
	Keys    []Key `json:"keys"`
}

// Load reads a key file. Only its owner may write to it, and others than its group may not read it: a
// Secret of Kubernetes belongs to root and the pod's group.
func Load(path string) ([]Key, error) {
	keys, _, err := load(path)
	return keys, err
}

func load(path string) ([]Key, fs.FileInfo, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: create the first key with gpuflight key create", err)
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}
	// Windows has no such permissions.
	if mode := info.Mode().Perm(); mode&0o037 != 0 && runtime.GOOS != "windows" {
		return nil, nil, fmt.Errorf("%s has the permissions %04o: only its owner may write and its group may read (chmod 600)", path, mode)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, err
	}
	keys, err := parse(b)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, info, nil
}

// parse rejects unknown fields, because they may restrict a key.
func parse(b []byte) ([]Key, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("the key file is larger than %d bytes", maxFile)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var c content
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("not a key file: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not a key file: it has text after its end")
	}
	if c.Version != fileVersion {
		return nil, fmt.Errorf("the key file has version %d: this program reads version %d", c.Version, fileVersion)
	}
	known := make(map[string]struct{}, len(c.Keys))
	for i := range c.Keys {
		k := &c.Keys[i]
		if err := k.validate(); err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		if _, ok := known[k.ID]; ok {
			return nil, fmt.Errorf("key %d: the id %s occurs twice", i+1, k.ID)
		}
		known[k.ID] = struct{}{}
	}
	return c.Keys, nil
}

// Edit changes a key file, or creates it and its folder. A lock excludes other calls, also of other
// processes. A reader has either the old or the new file. The owner of a file stays the same.
func Edit(path string, change func([]Key) ([]Key, error)) (err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a rename must not replace the link
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := lockFile(lock); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	keys, info, err := load(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if keys, err = change(keys); err != nil {
		return err
	}
	b, err := json.MarshalIndent(content{Version: fileVersion, Keys: keys}, "", "  ")
	if err != nil {
		return err
	}
	if _, err := parse(b); err != nil {
		return err
	}
	return replace(path, append(b, '\n'), info)
}

// replace writes a new file and gives it the name and the owner of an old one, if there is one.
func replace(path string, b []byte, old fs.FileInfo) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && old != nil {
		err = keepOwner(f, old)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Keys are the keys of a file. They follow its changes: each check looks for a new file. It is safe
// for concurrent use.
type Keys struct {
	path string
	now  func() time.Time
	// changed reports a reload with the ids that were added and removed, or its error.
	changed func(added, removed []string, err error)

	mu   sync.Mutex
	info fs.FileInfo // of the file in keys; nil after an error
	keys map[string]*Key
	last string // the last error
}

// Open reads a key file. changed is called after a later change of the file, not concurrently.
// After an error no key is valid.
func Open(path string, now func() time.Time, changed func(added, removed []string, err error)) (*Keys, error) {
	keys, info, err := load(path)
	if err != nil {
		return nil, err
	}
	return &Keys{path: path, now: now, changed: changed, info: info, keys: index(keys)}, nil
}

func index(keys []Key) map[string]*Key {
	m := make(map[string]*Key, len(keys))
	for i := range keys {
		m[keys[i].ID] = &keys[i]
	}
	return m
}

// Check returns the key with a text if it is valid and has a scope. The error is [ErrMissing],
// [ErrInvalid], [ErrExpired] or [ErrScope]. With the last two, the key is known.
func (k *Keys) Check(text string, scope Scope) (*Key, error) {
	if text == "" {
		return nil, ErrMissing
	}
	id := ID(text)
	if id == "" {
		return nil, ErrInvalid
	}
	key := k.current()[id]
	switch {
	case key == nil || !key.is(text):
		return nil, ErrInvalid
	case key.Expired(k.now()):
		return key, ErrExpired
	case !key.Allows(scope):
		return key, ErrScope
	}
	return key, nil
}

// current returns the keys of the file. The map does not change.
func (k *Keys) current() map[string]*Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.path)
	if err == nil && k.info != nil && os.SameFile(info, k.info) && info.ModTime().Equal(k.info.ModTime()) &&
		info.Size() == k.info.Size() && info.Mode() == k.info.Mode() {
		return k.keys
	}
	old := k.keys
	keys, info, err := load(k.path)
	if err != nil {
		k.info, k.keys = nil, nil
		if k.last != err.Error() {
			k.last = err.Error()
			k.changed(nil, nil, err)
		}
		return nil
	}
	k.info, k.keys, k.last = info, index(keys), ""
	var added, removed []string
	for _, key := range keys {
		if old[key.ID] == nil {
			added = append(added, key.ID)
		}
	}
	for id := range old {
		if k.keys[id] == nil {
			removed = append(removed, id)
		}
	}
	k.changed(added, removed, nil)
	return k.keys
}
