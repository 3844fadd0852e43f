// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// file appends requests as lines of OTLP's JSON. Several processes may append to the same file: each
// line is written whole under a lock of the system. In a compressed file each append is a member
// (gzip) or frame (zstd) of its own, which its readers put together as they are.
type file struct {
	compress func([]byte) ([]byte, error)

	mu sync.Mutex
	f  *os.File
}

func openFile(path string) (*file, error) {
	// What is recorded names programs and their arguments: it is the user's own.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	w := &file{f: f}
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

// append writes one line, or none of it. An empty line writes nothing and tells whether it could.
func (w *file) append(line []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(line) == 0 {
		_, err := w.f.Stat()
		return err
	}
	b := append(line, '\n')
	if w.compress != nil {
		var err error
		if b, err = w.compress(b); err != nil {
			return err
		}
	}
	if err := syscall.Flock(int(w.f.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", w.f.Name(), err)
	}
	defer syscall.Flock(int(w.f.Fd()), syscall.LOCK_UN) //nolint:errcheck // closing would do it as well
	end, err := w.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := w.f.Write(b); err != nil {
		// Half a line would spoil the next one.
		_ = w.f.Truncate(end)
		return err
	}
	return nil
}

func (w *file) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.f.Close()
}
