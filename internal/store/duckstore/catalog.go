// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"
)

// The catalogue is a file with what the store knows about its segments, so that it need not open them
// at start. It is derived: a segment whose size or time of change differs is read again, and so are all
// segments if the file is missing or damaged. The file has a checksum of 4 bytes, then the version of
// the catalogue and the entries in the format of encoding/gob.
const (
	catalogFile    = "catalog"
	catalogVersion = 3
	// catalogInterval is the time after which a write saves the catalogue. Close saves it too.
	catalogInterval = 5 * time.Minute
)

type catalogEntry struct {
	File          string // below the directory of the store
	Bytes, TimeNs int64
	Info          segmentInfo
}

// identity returns the size and the time of change of a segment; not ok if it has a write-ahead log.
func identity(file string) (size, at int64, ok bool) {
	for _, suffix := range segmentFiles {
		fi, err := os.Stat(file + suffix)
		switch {
		case suffix != "" && !errors.Is(err, os.ErrNotExist):
			return 0, 0, false
		case suffix == "" && err == nil:
			return fi.Size(), fi.ModTime().UnixNano(), true
		}
	}
	return 0, 0, false
}

// readCatalog returns the entries of segments that have not changed, by file.
func (s *Store) readCatalog() map[string]*segmentInfo {
	b, err := os.ReadFile(filepath.Join(s.dir, catalogFile))
	if err != nil || len(b) < 4 || binary.LittleEndian.Uint32(b) != crc32.ChecksumIEEE(b[4:]) {
		return nil
	}
	var version int
	var entries []catalogEntry
	dec := gob.NewDecoder(bytes.NewReader(b[4:]))
	if dec.Decode(&version) != nil || version != catalogVersion*1000+schemaVersion() || dec.Decode(&entries) != nil {
		return nil
	}
	known := make(map[string]*segmentInfo, len(entries))
	for i := range entries {
		e := &entries[i]
		file := filepath.Join(s.dir, e.File)
		if size, at, ok := identity(file); ok && size == e.Bytes && at == e.TimeNs {
			known[file] = &e.Info
		}
	}
	return known
}

// saveCatalog writes the catalogue. It leaves out segments that are open. The caller holds Store.write.
func (s *Store) saveCatalog() error {
	s.catalogSaved = time.Now()
	var entries []catalogEntry
	s.mu.RLock()
	for k, sess := range s.sessions {
		for _, seg := range sess.segments {
			s.attach.Lock()
			size, at, ok := int64(0), int64(0), false
			if seg.alias == "" {
				size, at, ok = identity(seg.file)
			}
			s.attach.Unlock()
			file, err := filepath.Rel(s.dir, seg.file)
			if !ok || err != nil {
				continue
			}
			flag := func(b bool) string {
				if b {
					return "1"
				}
				return "0"
			}
			entries = append(entries, catalogEntry{file, size, at, segmentInfo{
				Meta: map[string]string{
					"project": k.project, "session": k.session, "segment": fmt.Sprint(seg.n), "from_ns": fmt.Sprint(seg.from),
					"pinned": flag(sess.pinned), "sealed": flag(sess.sealed), "rows_dropped": flag(seg.dropped),
					staleChains: flag(seg.stale), coarse: flag(seg.coarse), topProperty: seg.top.Load().String(),
				},
				Summary: seg.summary, Newest: seg.newest, Partial: seg.partial, Merged: seg.merged, GapBin: seg.gapBin,
				Traces: seg.traces,
			}})
		}
	}
	s.mu.RUnlock()
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	enc := gob.NewEncoder(&b)
	if err := errors.Join(enc.Encode(catalogVersion*1000+schemaVersion()), enc.Encode(entries)); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b.Bytes(), crc32.ChecksumIEEE(b.Bytes()[4:]))
	name := filepath.Join(s.dir, catalogFile)
	if err := os.WriteFile(name+".new", b.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
