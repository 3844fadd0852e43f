// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpuflight/gpuflight/internal/collector/storageclient"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/varint"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
)

// outcome is the result of a window.
type outcome string

const (
	outcomeNew      outcome = "new"
	outcomeResumed  outcome = "resumed"
	outcomeRepeated outcome = "repeated"
)

// chunkKey identifies a window by its content, because the released client sends no other id. It
// includes the channel: a short session may have the same few lines in all channels.
type chunkKey struct {
	sum     ingest.Sum
	channel gpuflog.Channel
	known   bool
}

// chunkState is the progress of a window.
type chunkState struct {
	place ingest.Place
	// row is the row at which the line at place continues. It is not stored: after a restart the
	// complete line is decoded again.
	row int64
	// accepted, rejected and refused count lines: valid, invalid, and permanently rejected by a
	// pipeline.
	accepted, rejected, refused int64
	// header is the number of the line that was decoded before all others, or 0.
	header int64
}

// chunkTable holds the windows of a session, so that a repeated window has no effect. The oldest
// are evicted. If an evicted window is repeated, its spans have the same ids.
type chunkTable struct {
	m     map[chunkKey]*chunkState
	order []chunkKey
	// owner is the principal that opened the session, or zero. project is the owner's project.
	// intake.mu guards both.
	owner   principal
	project string
}

// isOf reports whether a principal may use the session. A session without an owner was opened
// without credentials, or stored by an older version. The first principal may use it. Without
// credentials there is one principal.
func (t *chunkTable) isOf(who principal) bool {
	return t.owner == who || t.owner == principal{} || who == principal{}
}

// claim is isOf, and makes the principal of a project the owner of a session without one.
func (t *chunkTable) claim(who principal, project string) bool {
	if t.owner == (principal{}) {
		t.owner, t.project = who, project
	}
	return t.isOf(who)
}

// maxWindows exceeds the windows of a session of a week with one window a minute.
const maxWindows = 1 << 14

func (t *chunkTable) get(k chunkKey) *chunkState {
	if w := t.m[k]; w != nil {
		return w
	}
	if t.m == nil {
		t.m = map[chunkKey]*chunkState{}
	}
	if len(t.order) >= maxWindows {
		delete(t.m, t.order[0])
		t.order = t.order[1:]
	}
	w := &chunkState{}
	t.m[k] = w
	t.order = append(t.order, k)
	return w
}

func (t *chunkTable) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(t.order)))
	for _, k := range t.order {
		w := t.m[k]
		known := byte(0)
		if k.known {
			known = 1
		}
		b = append(append(b, k.sum[:]...), byte(k.channel), known)
		for _, v := range [...]int64{w.place.Line, w.place.Offset, w.accepted, w.rejected, w.refused, w.header} {
			b = binary.AppendVarint(b, v)
		}
	}
	return b
}

func (d *decoder) windows() *chunkTable {
	t := &chunkTable{}
	n := d.Uint()
	if n > maxWindows {
		d.Fail(damaged)
		return t
	}
	for ; n > 0 && d.OK(); n-- {
		var k chunkKey
		for i := range k.sum {
			k.sum[i] = d.Byte()
		}
		k.channel = gpuflog.Channel(d.Byte())
		k.known = d.Byte() != 0
		w := t.get(k)
		for _, v := range [...]*int64{&w.place.Line, &w.place.Offset, &w.accepted, &w.rejected, &w.refused, &w.header} {
			if *v = d.Int(); *v < 0 {
				d.Fail(damaged)
			}
		}
	}
	return t
}

// finished holds the windows of sessions that are no longer in memory.
type finished struct {
	m       map[string]*chunkTable
	order   []string
	windows int
}

// maxFinished and maxFinishedWindows bound it: about 10 MiB.
const (
	maxFinished        = 1024
	maxFinishedWindows = 1 << 16
)

func newFinished() *finished { return &finished{m: map[string]*chunkTable{}} }

// put stores a session and returns the evicted sessions.
func (f *finished) put(id string, w *chunkTable) (dropped []string) {
	f.take(id)
	f.m[id] = w
	f.order = append(f.order, id)
	f.windows += len(w.order)
	for len(f.order) > maxFinished || (f.windows > maxFinishedWindows && len(f.order) > 1) {
		oldest := f.oldest()
		dropped = append(dropped, oldest)
		f.take(oldest)
	}
	return dropped
}

// oldest returns the oldest session of the principal with the most windows, so that no principal
// can evict the sessions of another.
func (f *finished) oldest() (id string) {
	room := map[principal]int{}
	for _, w := range f.m {
		room[w.owner] += 1 + len(w.order)*maxFinished/maxFinishedWindows
	}
	most := 0
	for _, o := range f.order {
		if n := room[f.m[o].owner]; n > most {
			id, most = o, n
		}
	}
	return id
}

// take removes and returns a session's windows, or nil.
func (f *finished) take(id string) *chunkTable {
	w := f.m[id]
	if w == nil {
		return nil
	}
	delete(f.m, id)
	f.windows -= len(w.order)
	f.order = slices.DeleteFunc(f.order, func(o string) bool { return o == id })
	return w
}

// intakeStore stores the sessions over HTTP: the state of each decoder, and the accepted windows.
// The stored data is delivered or waits for delivery. It is stored before a window is answered.
// Without a storage every call is a no-op. Calls for a session require its lock.
type intakeStore struct {
	client storage.Client
	index  chan map[string]bool // id: whether it is finished; held by who changes it
}

func newIntakeStore(c storage.Client) *intakeStore {
	s := &intakeStore{client: c, index: make(chan map[string]bool, 1)}
	s.index <- map[string]bool{}
	return s
}

func (st *intakeStore) on() bool { return st.client != nil }

const intakeIndexKey = "http/sessions"

// intakeKey is the key of a part of a session. Clients choose the ids, so the hash must be
// collision resistant.
func intakeKey(id, what string) string {
	h := sha256.Sum256([]byte(id))
	return "http/s/" + hex.EncodeToString(h[:]) + "/" + what
}

// storedSession is an active session as stored.
type storedSession struct {
	id              string
	lines, complete bool
	state, dicts    []byte
	windows         *chunkTable
}

// finishedSession is a session of which only the windows are stored.
type finishedSession struct {
	id      string
	windows *chunkTable
}

// open reads the stored sessions. It returns one error for each unusable entry.
func (st *intakeStore) open(ctx context.Context) (active []storedSession, done []finishedSession, errs []error) {
	if !st.on() {
		return nil, nil, nil
	}
	b, err := st.client.Get(ctx, intakeIndexKey)
	if err != nil {
		return nil, nil, []error{fmt.Errorf("list of sessions: %w", err)}
	}
	if b == nil {
		return nil, nil, nil
	}
	index := map[string]bool{}
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, nil, []error{fmt.Errorf("list of sessions: %w", err)}
	}
	<-st.index
	st.index <- index
	ids := make([]string, 0, len(index))
	for id := range index {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		s, err := st.session(ctx, id, index[id])
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("session %s: %w", id, err))
			if errors.Is(err, storageclient.ErrDamaged) {
				st.forget(id)
			}
		case index[id]:
			done = append(done, finishedSession{id: id, windows: s.windows})
		default:
			active = append(active, s)
		}
	}
	return active, done, errs
}

// forget removes an unusable session from the list. The next change stores the list.
func (st *intakeStore) forget(id string) {
	index := <-st.index
	delete(index, id)
	st.index <- index
}

func (st *intakeStore) session(ctx context.Context, id string, finished bool) (storedSession, error) {
	b, err := st.client.Get(ctx, intakeKey(id, "s"))
	if err != nil {
		return storedSession{}, err
	}
	s, err := parseStored(b, id)
	if err == nil && !finished {
		s.dicts, err = st.client.Get(ctx, intakeKey(id, "d"))
	}
	return s, err
}

func parseStored(b []byte, id string) (storedSession, error) {
	d := decoder{varint.Reader{Rest: b}}
	s := storedSession{id: string(d.Sized())}
	flags := d.Byte()
	s.lines, s.complete = flags&1 != 0, flags&2 != 0
	s.state = d.Sized()
	s.windows = d.windows()
	for i := range s.windows.owner {
		s.windows.owner[i] = d.Byte()
	}
	if len(d.Rest) > 0 { // an older version stored no project
		s.windows.project = string(d.Sized())
	}
	if !d.OK() || len(d.Rest) != 0 || s.id != id {
		return storedSession{}, errDamaged
	}
	return s, nil
}

func (s *intakeSession) appendStored(b []byte, state []byte) []byte {
	b = varint.AppendBytes(b, []byte(s.id))
	flags := byte(0)
	if s.lines {
		flags |= 1
	}
	if s.complete {
		flags |= 2
	}
	b = s.windows.append(varint.AppendBytes(append(b, flags), state))
	owner, project := s.owner()
	return varint.AppendBytes(append(b, owner[:]...), project)
}

// owner returns the principal that owns the session, and its project.
func (s *intakeSession) owner() (principal, string) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	return s.windows.owner, s.windows.project
}

// note changes the list. It returns the operation that stores the list, and a function for the
// caller to report whether that succeeded.
func (st *intakeStore) note(change func(index map[string]bool)) (op *storage.Operation, done func(ok bool), err error) {
	old := <-st.index
	index := make(map[string]bool, len(old)+1)
	for id, v := range old {
		index[id] = v
	}
	change(index)
	b, err := json.Marshal(index)
	if err != nil {
		st.index <- old
		return nil, nil, err
	}
	return storage.SetOperation(intakeIndexKey, b), func(ok bool) {
		if ok {
			st.index <- index
		} else {
			st.index <- old
		}
	}, nil
}

// save stores a session. All its data must be delivered.
func (s *intakeSession) save(ctx context.Context) error {
	st := s.in.store
	s.savedAt = s.in.now()
	if !st.on() {
		s.changed = false
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	ops := []*storage.Operation{storage.SetOperation(intakeKey(s.id, "s"), s.appendStored(nil, s.dec.AppendState(nil)))}
	version := s.dec.DictionariesVersion()
	if version != s.dictVersion || !s.stored {
		ops = append(ops, storage.SetOperation(intakeKey(s.id, "d"), s.dec.AppendDictionaries([]byte{})))
	}
	done := func(bool) {}
	if !s.stored {
		op, noted, err := st.note(func(index map[string]bool) { index[s.id] = false })
		if err != nil {
			return err
		}
		ops, done = append(ops, op), noted
	}
	err := st.client.Batch(ctx, ops...)
	done(err == nil)
	if err != nil {
		return err
	}
	s.stored, s.changed, s.dictVersion = true, false, version
	s.storedOwner, _ = s.owner()
	return nil
}

// finish stores only the windows of a session, and removes the dropped sessions.
func (st *intakeStore) finish(ctx context.Context, s *intakeSession, dropped []string) error {
	if !st.on() {
		return nil
	}
	op, done, err := st.note(func(index map[string]bool) {
		index[s.id] = true
		for _, id := range dropped {
			delete(index, id)
		}
	})
	if err != nil {
		return err
	}
	ops := []*storage.Operation{
		op, storage.SetOperation(intakeKey(s.id, "s"), s.appendStored(nil, nil)), storage.DeleteOperation(intakeKey(s.id, "d")),
	}
	for _, id := range dropped {
		ops = append(ops, storage.DeleteOperation(intakeKey(id, "s")))
	}
	err = st.client.Batch(context.WithoutCancel(ctx), ops...)
	done(err == nil)
	return err
}

// load restores a session from its stored form.
func (in *intake) load(b storedSession) (*intakeSession, error) {
	s := in.newSession(b.id, b.lines)
	if err := s.dec.LoadState(b.state, b.dicts); err != nil {
		return nil, fmt.Errorf("session %s: %w", b.id, err)
	}
	s.dec.Resume(gpuflog.Now(in.now()))
	s.complete, s.windows, s.stored, s.storedOwner = b.complete, b.windows, true, b.windows.owner
	s.dictVersion = s.dec.DictionariesVersion()
	rows, held := s.dec.Waiting()
	s.waits = rows + held
	in.waiting.Add(int64(s.waits))
	return s, nil
}
