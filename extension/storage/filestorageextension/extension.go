// SPDX-License-Identifier: Apache-2.0

package filestorageextension

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/extension/storage/filestorageextension/internal/boltcheck"
	"github.com/gpuflight/gpuflight/extension/storage/filestorageextension/internal/metadata"
)

// bucket is the only bucket of contrib's files.
const bucket = "default"

// fileStorage is safe for concurrent use.
type fileStorage struct {
	storage.Extension // contrib's
	cfg               *filestorage.Config
	logger            *zap.Logger
	telemetry         *metadata.TelemetryBuilder
}

func (s *fileStorage) Shutdown(ctx context.Context) error {
	s.telemetry.Shutdown()
	return s.Extension.Shutdown(ctx)
}

// GetClient checks the file of a component and opens it. A damaged file is set aside before. The error
// for a file that is in use comes after the setting timeout, 5 s at most.
func (s *fileStorage) GetClient(ctx context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	c, err := s.checkAndOpen(ctx, kind, id, name)
	if err != nil {
		return nil, explain(err, s.cfg.Directory)
	}
	return c, nil
}

func (s *fileStorage) checkAndOpen(ctx context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	path, err := s.path(kind, id, name)
	if err != nil {
		return nil, err
	}
	if err := s.check(path); err != nil {
		return nil, err
	}
	c, err := s.Extension.GetClient(ctx, kind, id, name)
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("lock %s: %w", path, errInUse)
	}
	if err != nil {
		return nil, err
	}
	if s.cfg.FSync {
		// bbolt syncs the file it creates, not the directory that has its name.
		if err := syncDir(s.cfg.Directory); err != nil {
			return nil, errors.Join(err, c.Close(ctx))
		}
	}
	return &client{c}, nil
}

// check checks the file at path, if there is one, and sets it aside if it is damaged. It holds bbolt's
// own lock meanwhile, so that nobody writes to the file, and nobody renames one that is in use.
func (s *fileStorage) check(path string) error {
	// A FIFO must not stop the Collector.
	f, err := os.OpenFile(path, os.O_RDWR|nonblock, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // It was not written to.
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("open %s: not a regular file", path)
	}
	if err := lock(f, s.cfg.Timeout); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(info, now) {
		return fmt.Errorf("lock %s: %w", path, errInUse) // Another Collector has just set it aside.
	}
	if info, err = f.Stat(); err != nil {
		return err
	}
	space, err := boltcheck.Check(f, info.Size(), bucket)
	if err != nil {
		return s.setAside(path, err)
	}
	// A sending queue removes the requests that were in flight and stores them again behind the others.
	// On a full disk it loses them.
	room := space.Free + freeBytes(f)
	if need := min(space.Used, maxRoom); room < need {
		return fmt.Errorf("open %s: %w: %d bytes are free, %d are needed: make room", path, syscall.ENOSPC, room, need)
	}
	return nil
}

// maxRoom is the most free space that a file needs at start. It is more than the requests of a sending
// queue that are in flight at a time: 4 of 3 MB in the shipped configurations.
const maxRoom = 32 << 20

// errInUse is the error for a file that is locked.
var errInUse = errors.New("in use by another Collector, or by this component in another pipeline")

// explain adds what the user can do about an error.
func explain(err error, directory string) error {
	switch {
	case errors.Is(err, errInUse):
		return fmt.Errorf("%w: give each Collector a storage directory of its own", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: make directory %s writable for uid %d", err, directory, os.Getuid())
	}
	return err
}

// path returns the path that contrib's extension gives a client's file.
func (s *fileStorage) path(kind component.Kind, id component.ID, name string) (string, error) {
	raw := kindName(kind) + "_" + id.Type().String() + "_" + id.Name()
	if name != "" {
		raw += "_" + name
	}
	var b strings.Builder
	for _, r := range raw {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_", r)) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "~%04X", r)
		}
	}
	path := filepath.Join(s.cfg.Directory, b.String())
	_, err := os.Lstat(path)
	if errors.Is(err, syscall.ENAMETOOLONG) {
		sum := sha256.Sum256([]byte(b.String()))
		return filepath.Join(s.cfg.Directory, hex.EncodeToString(sum[:])), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return path, nil
}

func kindName(k component.Kind) string {
	switch k {
	case component.KindReceiver, component.KindProcessor, component.KindExporter, component.KindExtension, component.KindConnector:
		return strings.ToLower(k.String())
	default:
		return "other"
	}
}

// syncDir makes new names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil // Some file systems cannot.
	}
	return errors.Join(err, d.Close())
}

// now is the clock of time stamps in names.
var now = time.Now
