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

// file appends requests as lines of OTLP's JSON. Several processes may append to the same file:
// each line is written whole, under a lock of the system. In a compressed file each append is a
// separate member (gzip) or frame (zstd). Readers join them.
type file struct {
	compress func([]byte) ([]byte, error)
	// lockTimeout bounds the wait for the lock. A running process holds it only for one write.
	lockTimeout time.Duration

	mu sync.Mutex
	f  *os.File
}

// maxLockWait is thousands of times the duration of a write.
const maxLockWait = 5 * time.Second

// errBusy means that another process holds the lock.
var errBusy = errors.New("in use")

func openFile(path string) (*file, error) {
	// Opening a pipe would block until it has a reader.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	// Recordings name programs and their arguments, so only the user may read them.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	w := &file{f: f, lockTimeout: maxLockWait}
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

// check reports an error if lines can no longer be written to the file.
func (w *file) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.f.Stat()
	return err
}

// append writes one line completely or not at all.
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
		return fmt.Errorf("lock %s: %w", w.f.Name(), err)
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
		// Remove the incomplete line of a killed process. It would corrupt this line.
		var last [1]byte
		if _, err := w.f.ReadAt(last[:], end-1); err == nil && last[0] != '\n' {
			b = append([]byte{'\n'}, b...)
		}
	}
	if _, err := w.f.Write(b); err != nil {
		// An incomplete line would corrupt the next one.
		_ = w.f.Truncate(end)
		return err
	}
	return nil
}

// lock acquires the file's lock, which this process shares with its forks. It waits for a limited
// time: a suspended process, or a fork of a killed one, may keep the lock. It returns false where
// the file system has no locks. There, each line is one write at the end of the file, which is the
// best available protection.
func (w *file) lock(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.lockTimeout, errors.New("another process holds the lock"))
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
