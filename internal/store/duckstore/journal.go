// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
)

const (
	// journalFolder is no folder of a project, since its name starts with a period.
	journalFolder = ".journal"
	// journalMagic starts a file. A change of the codec changes the digit. A later build must still read
	// the files of this one.
	journalMagic = "GPUFLJ1\n"
	// journalFileSize is the size from which a new file starts.
	journalFileSize = 32 << 20
	// recordHeader is the length and checksum of the batch, 4 bytes each in little-endian order, and the
	// state, one byte.
	recordHeader = 9
)

// States of a record.
const (
	recordWaiting = 1
	recordDone    = 0
)

// journal keeps rows that are durable, but not yet in their segments. Its files have records of one
// batch each. A file is deleted when all its records are in segments.
//
// Store.write guards it. The fields after mu need mu too, since readers look there first.
type journal struct {
	dir      string
	files    []*journalFile // oldest first
	tail     *journalFile   // to which records are appended, or nil
	next     int64
	fileSize int64        // from which a new file starts
	size     atomic.Int64 // of all files

	mu       sync.Mutex
	sessions map[sessionKey]*backlog
	rows     int64
}

type journalFile struct {
	*os.File
	size    int64
	waiting int // records
}

// backlog is the records of a session that are not in its segments.
type backlog struct {
	records []record
	rows    int64
	since   time.Time
	traces  traceSet
	info    summary // without maps: FirstNs, LastNs and Ended
}

type record struct {
	file   *journalFile
	offset int64
	length int
	rows   int
}

// openJournal reads the index of the records that an earlier process left. It calls damaged for a file
// with a damaged record and renames it. A record that ends early was not acknowledged.
func openJournal(dir string, damaged func(name string, reason error)) (*journal, error) {
	j := &journal{dir: filepath.Join(dir, journalFolder), sessions: map[sessionKey]*backlog{}, fileSize: journalFileSize}
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, err
	}
	var numbers []int64
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		j.next = n + 1
		if err := j.load(j.name(n), damaged); err != nil {
			j.close()
			return nil, err
		}
	}
	return j, j.clean()
}

func (j *journal) name(n int64) string { return filepath.Join(j.dir, strconv.FormatInt(n, 10)) }

func (j *journal) load(name string, damaged func(name string, reason error)) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	file := &journalFile{File: f}
	fi, err := f.Stat()
	if err == nil {
		file.size = fi.Size()
		err = j.index(file)
	}
	if errors.Is(err, errRecord) {
		// The records before the damaged one count. The name that is set aside is a second one of the same file.
		aside := unused(name, ".damaged")
		if err = os.Link(name, aside); err == nil {
			damaged(aside, errRecord)
		}
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	j.files = append(j.files, file)
	j.size.Add(file.size)
	return nil
}

// index adds the records of a file that are waiting.
func (j *journal) index(file *journalFile) error {
	r := bufio.NewReaderSize(file, 1<<20)
	head := make([]byte, len(journalMagic))
	switch _, err := io.ReadFull(r, head); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil
	case err != nil:
		return err
	case string(head) != journalMagic:
		return fmt.Errorf("%s: not a journal of this version", file.Name())
	}
	var body []byte
	for offset := int64(len(journalMagic)); ; {
		var h [recordHeader]byte
		_, err := io.ReadFull(r, h[:])
		length := int64(binary.LittleEndian.Uint32(h[:]))
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || offset+recordHeader+length > file.size {
			return nil
		}
		if err == nil {
			body = slices.Grow(body[:0], int(length))[:length]
			_, err = io.ReadFull(r, body)
		}
		if err != nil {
			return err
		}
		if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(h[4:]) {
			return errRecord
		}
		if h[8] == recordWaiting {
			b, err := decodeBatch(body)
			if err != nil {
				return err
			}
			j.add(b, record{file, offset, int(length), b.Rows()})
		}
		offset += recordHeader + length
	}
}

// add adds a record to the index.
func (j *journal) add(b *store.Batch, r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := sessionKey{utf8(b.Project), utf8(b.Session)}
	l := j.sessions[k]
	if l == nil {
		l = &backlog{since: time.Now(), info: summary{FirstNs: math.MaxInt64, LastNs: math.MinInt64}}
		j.sessions[k] = l
	}
	l.records = append(l.records, r)
	l.rows += int64(r.rows)
	l.traces.addBatch(b)
	l.info.extendBatch(b)
	j.rows += int64(r.rows)
	r.file.waiting++
}

// append makes batches durable. After an error, none of them is in the journal.
func (j *journal) append(batches []*store.Batch) (err error) {
	if j.tail != nil && j.tail.size >= j.fileSize {
		j.tail = nil
	}
	if j.tail == nil {
		if err := j.create(); err != nil {
			return err
		}
	}
	file := j.tail
	var buf []byte
	records := make([]record, 0, len(batches))
	for _, b := range batches {
		at := len(buf)
		buf = append(buf, make([]byte, recordHeader)...)
		buf = encodeBatch(buf, b)
		body := buf[at+recordHeader:]
		binary.LittleEndian.PutUint32(buf[at:], uint32(len(body)))
		binary.LittleEndian.PutUint32(buf[at+4:], crc32.ChecksumIEEE(body))
		buf[at+8] = recordWaiting
		records = append(records, record{file, file.size + int64(at), len(body), b.Rows()})
	}
	if _, err = file.WriteAt(buf, file.size); err == nil {
		err = file.Sync()
	}
	if err != nil {
		// Records that are not acknowledged must not come back. If that fails too, they are delivered again.
		_ = file.Truncate(file.size)
		j.tail = nil
		return err
	}
	file.size += int64(len(buf))
	j.size.Add(int64(len(buf)))
	for i, b := range batches {
		j.add(b, records[i])
	}
	return nil
}

// create starts a file.
func (j *journal) create() error {
	name := j.name(j.next)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.WriteString(journalMagic); err == nil {
		err = syncDirectory(j.dir)
	}
	if err != nil {
		_ = f.Close()
		_ = os.Remove(name)
		return err
	}
	j.next++
	j.tail = &journalFile{File: f, size: int64(len(journalMagic))}
	j.files = append(j.files, j.tail)
	j.size.Add(j.tail.size)
	return nil
}

// read returns the batch of a record.
func (r *record) read() (*store.Batch, error) {
	b := make([]byte, recordHeader+r.length)
	if _, err := r.file.ReadAt(b, r.offset); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(b[recordHeader:]) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, fmt.Errorf("read %s: %w", r.file.Name(), errRecord)
	}
	return decodeBatch(b[recordHeader:])
}

// backlog returns what waits for a session, or nil.
func (j *journal) backlog(k sessionKey) *backlog {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.sessions[k]
}

// keys returns the sessions that wait.
func (j *journal) keys() []sessionKey {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Keys(j.sessions))
}

// withTrace returns the sessions of a project that wait and may have a trace.
func (j *journal) withTrace(project string, trace store.TraceID) (keys []sessionKey) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k, l := range j.sessions {
		if k.project == project && l.traces.has(trace) {
			keys = append(keys, k)
		}
	}
	return keys
}

// times returns the earliest start and the latest end of the rows that wait for a session, and whether
// they have its end.
func (j *journal) times(k sessionKey) (first, last int64, ended bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := j.sessions[k]
	if l == nil {
		return math.MaxInt64, math.MinInt64, false
	}
	return l.info.FirstNs, l.info.LastNs, l.info.Ended
}

// postpone makes a session the last one that is moved.
func (j *journal) postpone(k sessionKey) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if l := j.sessions[k]; l != nil {
		l.since = time.Now()
	}
}

func (j *journal) waiting() (sessions, rows int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return int64(len(j.sessions)), j.rows
}

// done marks the first records of a session. The mark takes no space on the disk. Without sync, the
// records may come back after a power failure, as a delivery that comes twice.
func (j *journal) done(k sessionKey, n int, sync bool) error {
	l := j.backlog(k)
	var errs []error
	var files []*journalFile
	for _, r := range l.records[:n] {
		_, err := r.file.WriteAt([]byte{recordDone}, r.offset+8)
		errs = append(errs, err)
		if sync && !slices.Contains(files, r.file) {
			files = append(files, r.file)
		}
	}
	for _, f := range files {
		errs = append(errs, f.Sync())
	}
	j.mu.Lock()
	for _, r := range l.records[:n] {
		l.rows -= int64(r.rows)
		j.rows -= int64(r.rows)
		r.file.waiting--
	}
	if l.records = l.records[n:]; len(l.records) == 0 {
		delete(j.sessions, k)
	} else {
		l.since = time.Now()
	}
	j.mu.Unlock()
	return errors.Join(append(errs, j.clean())...)
}

// clean deletes the files of which no record waits.
func (j *journal) clean() error {
	var errs []error
	j.files = slices.DeleteFunc(j.files, func(f *journalFile) bool {
		if f.waiting > 0 || f == j.tail && f.size < j.fileSize/8 {
			return false
		}
		if f == j.tail {
			j.tail = nil
		}
		j.size.Add(-f.size)
		errs = append(errs, os.Remove(f.Name()), f.Close())
		return true
	})
	return errors.Join(errs...)
}

// close closes all files. It deletes those of which no record waits.
func (j *journal) close() error {
	j.tail = nil
	errs := []error{j.clean()}
	for _, f := range j.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
