// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

// channel is one stream of lines and its files.
type channel struct {
	name  string
	files *files
	f     *os.File
	// buf holds lines that are not written yet. written counts the bytes in the live file, so
	// written + len(buf) is its size after a flush.
	buf     []byte
	written int64
	// opened is the session time at which the live file began, in ns.
	opened int64
	total  ChannelTotal
	// windows counts the completed files; the next one is windows + 1 (C3).
	windows int
}

// files holds the paths and channels of a session on disk.
type files struct {
	cfg     Config
	session string
	// dir is the output folder (A2) or the session's folder (C3). tmp is C3's hidden folder.
	dir, tmp string
	channels []*channel
	lock     *os.File
	// rng draws file ids and piece lengths. It is separate so that they do not change the session's
	// content.
	rng *rand.Rand
	// now returns the session time in ns.
	now func() int64
	// start is the start time of the session in Unix ns.
	start int64
}

// openFiles creates the folders and opens the live files.
func openFiles(cfg Config, session string, names []string, rng *rand.Rand, start int64, now func() int64) (_ *files, err error) {
	fl := &files{cfg: cfg, session: session, dir: cfg.Dir, rng: rng, start: start, now: now}
	if cfg.Layout == C3 {
		fl.dir = filepath.Join(cfg.Dir, session)
		fl.tmp = filepath.Join(fl.dir, ".tmp")
		if _, err := os.Stat(fl.dir); err == nil {
			return nil, fmt.Errorf("session folder %s exists: choose another seed or an empty folder", fl.dir)
		}
		if err := os.MkdirAll(fl.tmp, 0o755); err != nil {
			return nil, err
		}
		if fl.lock, err = lockFile(filepath.Join(fl.dir, ".gpufl-session.lock")); err != nil {
			return nil, err
		}
	} else if err := os.MkdirAll(fl.dir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range names {
		c := &channel{name: name, files: fl}
		fl.channels = append(fl.channels, c)
		if err := c.open(); err != nil {
			return nil, errors.Join(err, fl.abandon())
		}
	}
	return fl, nil
}

// livePath returns the path of the live file.
func (c *channel) livePath() string {
	if c.files.cfg.Layout == C3 {
		return filepath.Join(c.files.tmp, c.name+".log")
	}
	return filepath.Join(c.files.dir, c.files.cfg.App+"."+c.name+".log")
}

func (c *channel) open() error {
	f, err := os.OpenFile(c.livePath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	// A2 appends to the files of an earlier session.
	c.f, c.written, c.opened = f, st.Size(), c.files.now()
	return nil
}

// append adds one line, given without its newline. It rotates the file first if the line does not
// fit.
func (c *channel) append(l []byte) error {
	size := c.written + int64(len(c.buf))
	if size > 0 && (c.files.cfg.RotateBytes > 0 && size+int64(len(l))+1 > c.files.cfg.RotateBytes ||
		c.files.cfg.RotateAfter > 0 && c.files.now()-c.opened >= int64(c.files.cfg.RotateAfter)) {
		if err := c.rotate(); err != nil {
			return err
		}
	}
	c.buf = append(c.buf, l...)
	c.buf = append(c.buf, '\n')
	c.total.Lines++
	c.total.Bytes += int64(len(l)) + 1
	if len(c.buf) >= defaultFlushBytes {
		return c.flush()
	}
	return nil
}

// maxPieceBytes limits the size of one split write.
const maxPieceBytes = 4096

// flush writes the buffered bytes. With Pieces it keeps a random part at the end.
func (c *channel) flush() error {
	if !c.files.cfg.Pieces {
		return c.write(len(c.buf))
	}
	if len(c.buf) == 0 {
		return nil
	}
	return c.write(len(c.buf) - c.files.rng.IntN(min(maxPieceBytes, len(c.buf))))
}

// write writes the first n buffered bytes, in one call or in pieces.
func (c *channel) write(n int) error {
	for done := 0; done < n; {
		size := n - done
		if c.files.cfg.Pieces {
			size = min(size, 1+c.files.rng.IntN(maxPieceBytes))
		}
		if _, err := c.f.Write(c.buf[done : done+size]); err != nil {
			return err
		}
		done += size
	}
	c.written += int64(n)
	c.buf = append(c.buf[:0], c.buf[n:]...)
	return nil
}

// rotate completes the live file, unless it is empty, and opens the next one.
func (c *channel) rotate() error {
	if err := c.write(len(c.buf)); err != nil {
		return err
	}
	if c.written == 0 {
		return nil
	}
	c.total.Rotations++
	if err := c.f.Close(); err != nil {
		return err
	}
	if c.files.cfg.Layout == A2 {
		if err := c.shift(); err != nil {
			return err
		}
		return c.open()
	}
	opened := c.opened
	staged, err := c.stage()
	if err != nil {
		return err
	}
	// The recorder compresses in the background while it fills the next live file. Open that file
	// first, so that a reader sees the same names.
	if err := c.open(); err != nil {
		return err
	}
	return c.publish(staged, opened)
}

// shift is A2's rotation: each .N becomes .N+1, and the live file becomes .1 and is compressed.
// During the compression there is no live file.
func (c *channel) shift() error {
	base := filepath.Join(c.files.dir, c.files.cfg.App+"."+c.name+".")
	for i := maxRotatedFiles; i >= 1; i-- {
		for _, ext := range []string{".log", ".log.gz"} {
			from := base + strconv.Itoa(i) + ext
			var err error
			if i == maxRotatedFiles {
				err = os.Remove(from)
			} else {
				err = os.Rename(from, base+strconv.Itoa(i+1)+ext)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	raw := base + "1.log"
	if err := os.Rename(c.livePath(), raw); err != nil {
		return err
	}
	if c.files.cfg.NoCompress {
		return nil
	}
	if err := compressFile(raw, raw+".gz"); err != nil {
		return err
	}
	return os.Remove(raw)
}

// stage is the first half of C3's rotation. It renames the live file to its number.
func (c *channel) stage() (string, error) {
	c.windows++
	staged := filepath.Join(c.files.tmp, c.name+"."+strconv.Itoa(c.windows)+".log")
	return staged, os.Rename(c.livePath(), staged)
}

// sidecar is the description of a published file, in the recorder's key order.
type sidecar struct {
	SchemaVersion  int    `json:"schema_version"`
	Type           string `json:"type"`
	WindowID       string `json:"window_id"`
	SessionID      string `json:"session_id"`
	Channel        string `json:"channel"`
	WindowSequence int    `json:"window_sequence"`
	OpenedMonoMS   int64  `json:"opened_mono_ms"`
	ClosedMonoMS   int64  `json:"closed_mono_ms"`
	CreatedWallMS  int64  `json:"created_wall_ms"`
	PayloadFile    string `json:"payload_file"`
	PayloadBytes   int64  `json:"payload_bytes"`
	PayloadCRC32   uint32 `json:"payload_crc32"`
}

// monoBaseMillis is the simulated uptime at the session's start. Only differences are meaningful.
const monoBaseMillis = 1_000_000

// publish is the second half of C3's rotation. It compresses under a .part name, writes the sidecar
// and renames the payload into the session's folder. It removes the raw file last, so the data is
// never missing.
func (c *channel) publish(staged string, opened int64) error {
	payload := staged
	if !c.files.cfg.NoCompress {
		payload = staged + ".gz"
		if err := compressFile(staged, payload+".part"); err != nil {
			return err
		}
		if err := os.Rename(payload+".part", payload); err != nil {
			return err
		}
	}
	size, sum, err := checksum(payload)
	if err != nil {
		return err
	}
	now := c.files.now()
	mono := func(t int64) int64 { return monoBaseMillis + (t-c.files.start)/1e6 }
	meta, err := json.Marshal(sidecar{
		SchemaVersion: 1, Type: "transport_window", WindowID: uuid(c.files.rng), SessionID: c.files.session,
		Channel: c.name, WindowSequence: c.windows, OpenedMonoMS: mono(opened), ClosedMonoMS: mono(now),
		CreatedWallMS: now / 1e6, PayloadFile: filepath.Base(payload), PayloadBytes: size, PayloadCRC32: sum,
	})
	if err != nil {
		return err
	}
	name := ".gpufl-window." + c.name + "." + strconv.Itoa(c.windows) + ".json"
	if err := os.WriteFile(filepath.Join(c.files.tmp, name), append(meta, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(c.files.tmp, name), filepath.Join(c.files.dir, name)); err != nil {
		return err
	}
	if err := os.Rename(payload, filepath.Join(c.files.dir, filepath.Base(payload))); err != nil {
		return err
	}
	if payload == staged {
		return nil
	}
	return os.Remove(staged)
}

// compressFile writes the file from as gzip to the file to.
func compressFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	gz := gzip.NewWriter(out)
	if _, err := io.Copy(gz, in); err != nil {
		return err
	}
	return gz.Close()
}

func checksum(path string) (size int64, sum uint32, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	h := crc32.NewIEEE()
	size, err = io.Copy(h, f)
	return size, h.Sum32(), err
}

// finish closes a session cleanly. C3 publishes the last file of each channel and removes .tmp. A2
// leaves the live files unchanged.
func (fl *files) finish() error {
	for _, c := range fl.channels {
		if err := c.write(len(c.buf)); err != nil {
			return err
		}
		if err := c.f.Close(); err != nil {
			return err
		}
		if fl.cfg.Layout == A2 {
			continue
		}
		if c.written == 0 {
			if err := os.Remove(c.livePath()); err != nil {
				return err
			}
			continue
		}
		staged, err := c.stage()
		if err != nil {
			return err
		}
		if err := c.publish(staged, c.opened); err != nil {
			return err
		}
	}
	if fl.cfg.Layout == A2 {
		return nil
	}
	if err := os.Remove(fl.tmp); err != nil {
		return err
	}
	return fl.lock.Close()
}

// abandon closes the descriptors and changes no files, as a killed process does.
func (fl *files) abandon() error {
	var errs []error
	for _, c := range fl.channels {
		if c.f != nil {
			errs = append(errs, c.f.Close())
		}
	}
	if fl.lock != nil {
		errs = append(errs, fl.lock.Close())
	}
	return errors.Join(errs...)
}

// uuid draws a version 4 UUID.
func uuid(rng *rand.Rand) string {
	hi := rng.Uint64()&^uint64(0xf000) | 0x4000
	lo := rng.Uint64()&^(uint64(3)<<62) | 1<<63
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xffff, lo>>48, lo&0xffffffffffff)
}
