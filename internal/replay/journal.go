// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// journalVersion is the form of the file. It changes when positions come to mean something else.
const journalVersion = 1

// maxEntry is the longest line of a journal in bytes; names of objects have 1 KiB at most in S3, and
// 4 KiB as paths.
const maxEntry = 64 << 10

// Journal is the file that says how far a replay has come: a line of JSON for each batch that was
// sent. A line is on the disk before the next batch is sent. Opening it writes it anew, shorter, into
// another file that takes its place. Of a process that was killed there may be half a line at its
// end, which counts as not written.
//
// In memory it keeps 16 bytes, and the map around them, for each object that was complete when it was
// opened. It belongs to one goroutine.
type Journal struct {
	file    *os.File
	started time.Time
	done    map[[16]byte]struct{}
	begun   map[string]entry
}

// entry says how far one object was sent.
type entry struct {
	Object string `json:"object"`
	// Version tells an object from another one of its name.
	Version string `json:"version"`
	// Messages is how many from its start need not be sent again.
	Messages int  `json:"messages,omitempty"`
	Done     bool `json:"done,omitempty"`
}

// header is a journal's first line.
type header struct {
	Version int `json:"gpuflight_replay"`
	// Started is when the replay was first begun, in Unix nanoseconds.
	Started int64 `json:"started_unix_nano"`
}

// OpenJournal opens a journal, made if there is none. A file that is something else is an error and
// stays as it is; so is one that another process has open.
func OpenJournal(path string) (*Journal, error) {
	j := &Journal{started: time.Now(), done: map[[16]byte]struct{}{}, begun: map[string]entry{}}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := lock(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// The name may have gone to the file of another process since it was opened.
	if same, err := isNamed(f, path); err != nil || !same {
		return nil, errors.Join(err, fmt.Errorf("%s: %w", path, errInUse))
	}

	next, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	if err = j.rewrite(f, next); err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		_ = next.Close()
		_ = os.Remove(next.Name())
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	j.file = next
	return j, nil
}

var errInUse = errors.New("in use by another replay")

func isNamed(f *os.File, path string) (bool, error) {
	opened, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	return os.SameFile(opened, named), nil
}

// rewrite reads the old file and writes what still counts of it into the new one, which it locks.
func (j *Journal) rewrite(old io.Reader, next *os.File) error {
	if err := lock(next); err != nil {
		return err
	}
	out := bufio.NewWriter(next)
	in := bufio.NewReaderSize(old, maxEntry)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			if n == 1 {
				if len(line) > 0 && !bytes.HasPrefix(line, []byte(`{"gpuflight_replay"`)) {
					return errors.New("not the state of a replay")
				}
				if err := put(out, header{journalVersion, j.started.UnixNano()}); err != nil {
					return err
				}
			}
			break // what is left of a line was never complete
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if n == 1 {
			var h header
			if err := json.Unmarshal(line, &h); err != nil || h.Version == 0 {
				return errors.New("not the state of a replay")
			}
			if h.Version != journalVersion {
				return fmt.Errorf("has form %d, this gpuflight reads form %d", h.Version, journalVersion)
			}
			j.started = time.Unix(0, h.Started)
			if err := put(out, h); err != nil {
				return err
			}
			continue
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil || e.Object == "" || e.Messages < 0 {
			return fmt.Errorf("line %d is damaged: remove the file to send everything again", n)
		}
		if !e.Done {
			j.begun[e.Object] = e
			continue
		}
		delete(j.begun, e.Object)
		j.done[fingerprint(e.Object, e.Version)] = struct{}{}
		if err := put(out, e); err != nil {
			return err
		}
	}
	for _, e := range j.begun { // one or two: a replay has one at a time
		if err := put(out, e); err != nil {
			return err
		}
	}
	return errors.Join(out.Flush(), next.Sync())
}

func put(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func fingerprint(object, version string) (f [16]byte) {
	sum := sha256.Sum256([]byte(object + "\x00" + version))
	copy(f[:], sum[:])
	return f
}

// Started is when the replay was first begun.
func (j *Journal) Started() time.Time { return j.started }

// position says how far an object was sent. changed is that another version of it was.
func (j *Journal) position(object, version string) (messages int, done, changed bool) {
	if _, ok := j.done[fingerprint(object, version)]; ok {
		return 0, true, false
	}
	e, ok := j.begun[object]
	if !ok || e.Version != version {
		return 0, false, ok
	}
	return e.Messages, false, false
}

// note writes down how far an object was sent, and returns when that is on the disk.
func (j *Journal) note(e entry) error {
	if err := put(j.file, e); err != nil {
		return err
	}
	return j.file.Sync()
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }
