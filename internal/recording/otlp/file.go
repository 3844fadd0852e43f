// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// file appends requests as lines of OTLP's JSON. Several processes may append to the same file: each
// line is written whole under a lock of the system. In a compressed file each append is a member
// (gzip) or frame (zstd) of its own, which its readers put together as they are.
type file struct {
	compress func([]byte) ([]byte, error)
	// patience is how long a line waits for the lock. Nobody who works holds it for longer than a write.
	patience time.Duration

	mu sync.Mutex
	f  *os.File
}

// lockPatience is thousands of times as long as a line takes.
const lockPatience = 5 * time.Second

// errBusy says that another process has the lock.
var errBusy = errors.New("in use")

func openFile(path string) (*file, error) {
	// Opening a pipe would wait for its reader.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	// What is recorded names programs and their arguments: it is the user's own.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	w := &file{f: f, patience: lockPatience}
	switch {
	case strings.HasSuffix(path, ".gz"):
		w.compress = gzipMember
	case strings.HasSuffix(path, ".zst"):
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		w.compress = func(b []byte) ([]byte, error) { return e.EncodeAll(b, nil), nil }
	}
	return w, nil
}

func gzipMember(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// check tells whether the file is still where lines can go.
func (w *file) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.f.Stat()
	return err
}

// append writes one line, or none of it.
func (w *file) append(ctx context.Context, line []byte) error {
	b := append(line, '\n')
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.compress != nil {
		var err error
		if b, err = w.compress(b); err != nil {
			return err
		}
	}
	locked, err := w.lock(ctx)
	if err != nil {
		return fmt.Errorf("locking %s: %w", w.f.Name(), err)
	}
	if !locked {
		_, err := w.f.Write(b)
		return err
	}
	defer unlock(w.f)
	end, err := w.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if w.compress == nil && end > 0 {
		// Half a line, of a process that was killed, must not spoil this one.
		var last [1]byte
		if _, err := w.f.ReadAt(last[:], end-1); err == nil && last[0] != '\n' {
			b = append([]byte{'\n'}, b...)
		}
	}
	if _, err := w.f.Write(b); err != nil {
		// Half a line would spoil the next one.
		_ = w.f.Truncate(end)
		return err
	}
	return nil
}

// lock takes the file's lock, which belongs to this process and those that it forked. It does not wait
// for ever: a process that was stopped, or a copy of one that was killed, may keep it. It returns false
// where the file system has no locks; there, each line is one write at the end of the file, which is
// all that can be done.
func (w *file) lock(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.patience, errors.New("another process keeps it"))
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		switch err := tryLock(w.f); {
		case err == nil:
			return true, nil
		case errors.Is(err, errors.ErrUnsupported):
			return false, nil
		case !errors.Is(err, errBusy):
			return false, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

func (w *file) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.f.Close()
}
