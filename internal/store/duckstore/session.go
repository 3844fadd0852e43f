// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// session is the segments and the summary of one session. Store.mu guards it. Only the holder of
// Store.write changes it.
type session struct {
	project, id string
	dir         string
	segments    []*segment // by from
	info        summary
	pinned      bool
	sealed      bool
	dropped     bool // rows were removed, rollups kept

	// Of the writer; nil if not loaded.
	dicts    *dictionaries
	chains   *chains
	numbered *store.Numbered
	// lastKernels is the kernels of gap_bins with the latest ends, by device; nil if not loaded.
	lastKernels map[string]gapKernel
	// late is the longest time by which a kernel began before one that was stored already.
	late int64
	// rebuilt is the number of spans when the chains were built again, and epoch counts these events.
	rebuilt int64
	epoch   uint64
	// rebuiltLost says that the chains are right although a segment is missing. Its property staleChains stays,
	// because the segment can come back.
	rebuiltLost bool

	version uint64 // changes with each transaction
	cache   *cache
	paths   *paths
}

// summarize adds up the summaries of the segments.
func (sess *session) summarize() {
	sess.info = newSummary()
	for _, seg := range sess.segments {
		sess.info.add(&seg.summary)
	}
}

// summary is what the list of sessions shows.
type summary struct {
	FirstNs, LastNs int64
	Counts          map[string]int64
	Operations      map[store.Operation]int64
	KernelNs        int64
	Ended           bool
	Resource        store.Attrs
	ResourceNs      int64  // time of the row that has this resource
	ResourceKey     uint64 // key of its origin, which decides between rows of one time
	ResourceID      uint32 // id of its origin
}

func newSummary() summary {
	return summary{
		FirstNs: math.MaxInt64, LastNs: math.MinInt64, ResourceNs: -1,
		Counts: map[string]int64{}, Operations: map[store.Operation]int64{},
	}
}

func (m *summary) extend(first, last int64) {
	m.FirstNs = min(m.FirstNs, first)
	m.LastNs = max(m.LastNs, last)
}

// extendBatch adds the times of the rows of a batch, and whether it has the end of the session.
func (m *summary) extendBatch(b *store.Batch) {
	valid, _ := validRows([]*store.Batch{b})
	for table, rows := range valid {
		for _, i := range rows {
			m.extend(i.timeOf(table), i.endOf(table))
			m.Ended = m.Ended || table == 1 && b.Spans[i.row].Operation == semconv.CUDAOperationSession
		}
	}
}

func (m *summary) resource(at int64, key uint64, id uint32, attrs store.Attrs) {
	if at > m.ResourceNs || at == m.ResourceNs && key < m.ResourceKey {
		m.ResourceNs, m.ResourceKey, m.ResourceID, m.Resource = at, key, id, attrs
	}
}

// cloneAttrs copies attributes: those of a batch belong to its sender.
func cloneAttrs(a store.Attrs) store.Attrs {
	c, _ := store.DecodeAttrs(a.Append(nil))
	return c
}

// add adds the summary of other rows.
func (m *summary) add(o *summary) {
	m.extend(o.FirstNs, o.LastNs)
	for k, v := range o.Counts {
		m.Counts[k] += v
	}
	for k, v := range o.Operations {
		m.Operations[k] += v
	}
	m.KernelNs += o.KernelNs
	m.Ended = m.Ended || o.Ended
	if o.ResourceNs >= 0 {
		m.resource(o.ResourceNs, o.ResourceKey, o.ResourceID, o.Resource)
	}
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,99}$`)

// folder returns the name of the folder of a session, and of most projects. The empty string gives "_". A name
// with other characters gives a hash, and the segments have the name itself.
func folder(name string) string {
	if name == "" {
		return "_"
	}
	if plainName.MatchString(name) && !strings.HasSuffix(name, ".") {
		return name
	}
	return hashed(name)
}

func hashed(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "=" + hex.EncodeToString(sum[:16])
}

// reservedName matches the names that the store uses in its directory, for all file systems.
var reservedName = regexp.MustCompile(`(?i)^(tmp|lock|catalog(\.new)?|baselines\.json(\..*)?)$`)

// projectFolder returns the name of the folder of a project.
func projectFolder(name string) string {
	if reservedName.MatchString(name) {
		return hashed(name)
	}
	return folder(name)
}

// moveReserved moves sessions of projects that an earlier build kept under a reserved name.
func (s *Store) moveReserved() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		old := filepath.Join(s.dir, e.Name())
		if _, err := os.Stat(filepath.Join(old, "sessions")); err != nil || !reservedName.MatchString(e.Name()) {
			continue
		}
		if err := os.Rename(old, filepath.Join(s.dir, hashed(e.Name()))); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) newSession(k sessionKey) *session {
	return &session{
		project: k.project, id: k.session, info: newSummary(), cache: newCache(), paths: newPaths(),
		dir: filepath.Join(s.dir, projectFolder(k.project), "sessions", folder(k.session)),
	}
}

// load reads the segments of all sessions.
func (s *Store) load(ctx context.Context) error {
	all, err := filepath.Glob(filepath.Join(escapeGlob(s.dir), "*", "sessions", "*", "*"))
	if err != nil {
		return err
	}
	var files []string
	for _, f := range all {
		name, log := f, false
		for _, suffix := range segmentFiles {
			if base, ok := strings.CutSuffix(name, suffix); ok && suffix != "" {
				name, log = base, true
				break
			}
		}
		switch {
		case strings.HasSuffix(name, ".new"):
			// A process was killed while it created the file.
			err = os.Remove(f)
		case log && strings.HasSuffix(name, ".duckdb"):
			if _, statErr := os.Stat(name); errors.Is(statErr, os.ErrNotExist) {
				// DuckDB would replay it into a new file.
				err = s.setAside(f, unused(f, ".damaged"), errors.New("a write-ahead log without its file"))
			}
		case strings.HasSuffix(f, newerSuffix):
			// This build may be newer than the one that set the file aside.
			file := strings.TrimSuffix(f, newerSuffix)
			if _, statErr := os.Stat(file); errors.Is(statErr, os.ErrNotExist) {
				err = renameSegment(f, file)
				files = append(files, file)
			}
		case strings.HasSuffix(f, ".duckdb"):
			files = append(files, f)
		}
		if err != nil {
			return err
		}
	}
	logs := map[string]bool{}
	for _, file := range files {
		_, _, closed := identity(file)
		logs[file] = !closed
	}
	known := s.readCatalog()
	var unknown []string
	for _, file := range files {
		if info := known[file]; info == nil || s.addLoaded(file, info) != nil {
			unknown = append(unknown, file)
		}
	}
	if err := s.loadFiles(ctx, unknown); err != nil {
		return err
	}
	for _, sess := range s.sessions {
		if err := s.distrustChains(ctx, sess, logs); err != nil {
			return err
		}
	}
	return s.distrustGaps(ctx, logs)
}

// distrustChains marks the chains of a session as stale after a segment was lost, or a disk may have lost the end of
// logs. Other segments can have sums of the lost spans and chains. With largeTree or more spans, the chains stay after
// a crash. A rebuild takes minutes, in which nothing is written, and a disk that keeps what it acknowledged loses no
// log. If another one does, lost spans that arrive again count twice in sums of scopes.
func (s *Store) distrustChains(ctx context.Context, sess *session, logs map[string]bool) error {
	torn := len(sess.segments) > 1 && sess.info.Counts["spans"] < s.largeTree &&
		slices.ContainsFunc(sess.segments, func(seg *segment) bool { return logs[seg.file] })
	if !torn && !sess.lost() || sess.stale() {
		return nil
	}
	seg := sess.segments[0]
	s.mu.Lock()
	seg.stale, sess.rebuiltLost = true, false
	sess.epoch++
	s.mu.Unlock()
	if err := s.acquire(ctx, seg); err != nil {
		return err
	}
	defer s.release(seg)
	return s.setMeta(ctx, seg, staleChains, "1")
}

// distrustGaps removes gaps after a disk may have lost the end of logs, and with it gaps of a segment of
// which other segments have those that follow.
func (s *Store) distrustGaps(ctx context.Context, logs map[string]bool) error {
	for _, sess := range s.sessions {
		for _, seg := range sess.segments {
			if logs[seg.file] {
				if err := s.trimGaps(ctx, sess, seg, max(seg.gapBin+1, seg.from>>gapLevel)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// loadFiles adds segments to their sessions, migrates older ones, and sets aside files that cannot be
// read. If such a file has a write-ahead log and can be read without it, only the log is set aside. The
// file has the rows up to its last checkpoint, and senders deliver the others again.
//
// If another build wrote all files, it changes none and returns an error.
func (s *Store) loadFiles(ctx context.Context, files []string) error {
	// What to read again, without its log or migrated.
	var again []string
	// Names of logs that are set aside with the reason, and files of other builds.
	names, reasons, others := map[string]string{}, map[string]error{}, map[string]error{}
	migrated := map[string]bool{}
	read := func(file string, a *response) error {
		err := errors.New(a.Err)
		switch {
		case a.Old:
			if err := s.migrate(ctx, file); err != nil {
				return fmt.Errorf("open %s: %w", file, err)
			}
			again = append(again, file)
			migrated[file] = true
			return nil
		case a.Err == "":
			if err = s.addLoaded(file, a.Segment); err == nil {
				if names[file] != "" {
					s.reportDamaged(names[file]+".wal", reasons[file])
				}
				return nil
			}
		case a.Newer, a.Other:
			others[file] = err
			return nil
		case a.Temporary:
			return fmt.Errorf("open %s: %w", file, err)
		}
		if names[file] != "" {
			return s.setAside(file, names[file], reasons[file])
		}
		name := unused(file, ".damaged")
		moved, moveErr := setAsideLog(file, name)
		if !moved && moveErr == nil {
			return s.setAside(file, name, err)
		}
		again = append(again, file)
		names[file], reasons[file] = name, err
		return moveErr
	}
	for len(files) > 0 {
		again = nil
		err := readFiles(ctx, request{Directory: s.dir, Files: files}, func(i int, a *response) error { return read(files[i], a) })
		if err != nil {
			return err
		}
		files = again
	}
	for _, sess := range s.sessions {
		if slices.ContainsFunc(sess.segments, func(seg *segment) bool { return migrated[seg.file] }) {
			s.refreshChains(ctx, sess, true)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(others)) {
		err := others[file]
		if len(s.sessions) == 0 {
			return fmt.Errorf("%s: %w: use the build that wrote it or another directory", file, err)
		}
		suffix := ".damaged"
		if strings.Contains(err.Error(), errNewer.Error()) {
			suffix = newerSuffix
		}
		if err := s.setAside(file, unused(file, suffix), err); err != nil {
			return err
		}
	}
	return nil
}

func escapeGlob(s string) string {
	return regexp.MustCompile(`[][*?\\]`).ReplaceAllString(s, `\$0`)
}

// addLoaded adds a segment to its session.
func (s *Store) addLoaded(file string, info *segmentInfo) error {
	n, err := strconv.ParseInt(info.Meta["segment"], 10, 64)
	if err != nil {
		return err
	}
	from, err := strconv.ParseInt(info.Meta["from_ns"], 10, 64)
	if err != nil {
		return err
	}
	k := sessionKey{info.Meta["project"], info.Meta["session"]}
	sess := s.sessions[k]
	if sess == nil {
		sess = s.newSession(k)
	}
	if file != filepath.Join(sess.dir, strconv.FormatInt(n, 10)+".duckdb") {
		return errors.New("the file belongs to another session")
	}
	s.sessions[k] = sess
	seg := &segment{
		file: file, n: n, from: from, newest: info.Newest, ops: info.Summary.Counts["ops"], summary: info.Summary, cache: sess.cache,
		dropped: info.Meta["rows_dropped"] == "1", partial: info.Partial, merged: info.Merged,
		gapBin: info.GapBin, gapOps: info.Summary.Counts["ops"], stale: info.Meta[staleChains] == "1", coarse: info.Meta[coarse] == "1",
		traces: info.Traces,
	}
	if m := parseMark(info.Meta[topProperty]); m != nil {
		seg.top.Store(m) // topOps is 0: operations after the mark may be many
	}
	seg.gapTail.forget(seg.newest[0])
	sess.info.add(&seg.summary)
	sess.pinned = sess.pinned || info.Meta["pinned"] == "1"
	sess.sealed = info.Meta["sealed"] == "1" && (len(sess.segments) == 0 || sess.sealed)
	sess.dropped = sess.dropped || seg.dropped
	sess.segments = append(sess.segments, seg)
	slices.SortFunc(sess.segments, func(a, b *segment) int { return cmp.Compare(a.from, b.from) })
	return nil
}

// summarize reads the summary of a segment.
func (s *Store) summarize(ctx context.Context, seg *segment) (summary, error) {
	m := newSummary()
	for i := range seg.newest {
		seg.newest[i] = -1
	}
	err := s.each(ctx, `SELECT s.*, coalesce(o.key, 0), o.resource FROM {db}.summaries s LEFT JOIN
		(SELECT DISTINCT ON (id) * FROM {db}.origins) o ON o.id = s.origin`, nil, func(r *sql.Rows) error {
		part := newSummary()
		var counts, newest, kinds, kindCounts []int64
		err := r.Scan(&part.FirstNs, &part.LastNs, intList{&counts}, intList{&newest}, intList{&kinds}, intList{&kindCounts},
			&part.KernelNs, &part.Ended, &part.ResourceNs, &part.ResourceID, &part.ResourceKey, attrsValue{&part.Resource})
		if err != nil {
			return err
		}
		if len(counts) != len(rowTables) || len(newest) != len(rowTables) || len(kinds) != len(kindCounts) {
			return fmt.Errorf("read summary: got lists of %d, %d, %d and %d", len(counts), len(newest), len(kinds), len(kindCounts))
		}
		for i, t := range rowTables {
			part.Counts[t] = counts[i]
			seg.newest[i] = max(seg.newest[i], newest[i])
		}
		for i, k := range kinds {
			part.Operations[store.Operation(k)] = kindCounts[i]
		}
		m.add(&part)
		return nil
	}, seg.alias)
	if err != nil {
		return m, err
	}
	seg.ops = m.Counts["ops"]
	if err := s.findTraces(ctx, seg); err != nil {
		return m, err
	}
	if err := s.countGaps(ctx, seg); err != nil {
		return m, err
	}
	return m, s.countPartial(ctx, seg)
}

// recount finds again what a replaced row may have changed in a summary.
func (m *summary) recount(ctx context.Context, q querier, db string) error {
	query := func(query string, scan func(*sql.Rows) error, args ...any) error {
		return eachRow(ctx, q, strings.ReplaceAll(query, "{db}", db), args, scan)
	}
	err := query("SELECT count(*) > 0 FROM {db}.spans WHERE operation = ?", func(r *sql.Rows) error { return r.Scan(&m.Ended) },
		semconv.CUDAOperationSession)
	if err != nil {
		return err
	}
	m.ResourceNs, m.ResourceID, m.ResourceKey, m.Resource = -1, 0, 0, nil
	return query(`SELECT t, key, id, resource FROM (SELECT origin, max(t) AS t FROM (
		SELECT origin, start_ns AS t FROM {db}.ops UNION ALL SELECT origin, start_ns FROM {db}.spans
		UNION ALL SELECT origin, time_ns FROM {db}.samples UNION ALL SELECT origin, time_ns FROM {db}.logs
		UNION ALL SELECT s.origin, time_ns FROM {db}.points p JOIN {db}.series s ON s.id = p.series) GROUP BY 1)
		JOIN {db}.origins ON id = origin ORDER BY 1 DESC, 2 LIMIT 1`, func(r *sql.Rows) error {
		var at int64
		var key uint64
		var id uint32
		var attrs store.Attrs
		err := r.Scan(&at, &key, &id, attrsValue{&attrs})
		m.resource(at, key, id, attrs)
		return err
	})
}

// lookup returns a session.
func (s *Store) lookup(project, id string) (*session, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, errClosed
	}
	sess := s.sessions[sessionKey{project, id}]
	if sess == nil {
		return nil, fmt.Errorf("session %q: %w", id, store.ErrNotFound)
	}
	return sess, nil
}

var errClosed = errors.New("store is closed")

// describe returns what readers see of a session, without Bytes. The caller holds Store.mu.
func (s *Store) describe(sess *session) store.SessionInfo {
	m := &sess.info
	i := store.SessionInfo{
		Project: sess.project, ID: sess.id, Resource: m.Resource, FirstNs: m.FirstNs, LastNs: m.LastNs,
		Counts: map[string]int64{}, Operations: map[store.Operation]int64{}, KernelNs: m.KernelNs,
		Sealed: sess.sealed && s.journal.backlog(sessionKey{sess.project, sess.id}) == nil, Pinned: sess.pinned, RowsDropped: sess.dropped, Ended: m.Ended,
		Service: text(m.Resource, semconv.ServiceName), Host: text(m.Resource, semconv.HostName),
		Run: text(m.Resource, semconv.CUDARunID), Rank: text(m.Resource, semconv.CUDARunRank),
		RankSize: text(m.Resource, semconv.CUDARunSize),
	}
	if m.FirstNs > m.LastNs {
		i.FirstNs, i.LastNs = 0, 0
	}
	for _, t := range rowTables {
		i.Counts[t] = m.Counts[t]
	}
	for k, v := range m.Operations {
		i.Operations[k] = v
	}
	if v, ok := m.Resource.Get(semconv.ProcessPID); ok && v.Kind == store.KindInt {
		i.PID = store.Some(v.Int)
	}
	return i
}

// bytes returns the size of a session on disk. The caller holds Store.mu.
func (sess *session) bytes() (n int64) {
	for _, seg := range sess.segments {
		n += sizeOf(seg.file)
	}
	return n
}

// text returns an attribute that is a string or an integer.
func text(a store.Attrs, key string) string {
	switch v, _ := a.Get(key); v.Kind {
	case store.KindString:
		return v.Str
	case store.KindInt:
		return strconv.FormatInt(v.Int, 10)
	}
	return ""
}
