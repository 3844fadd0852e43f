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

// outcome says what became of a window.
type outcome string

const (
	outcomeNew      outcome = "new"
	outcomeResumed  outcome = "resumed"
	outcomeRepeated outcome = "repeated"
)

// windowKey identifies a window by its content: the released client names none in any other way. The
// channel belongs to it, for a session that ended early may have the same few lines in all channels.
type windowKey struct {
	sum     ingest.Sum
	channel gpuflog.Channel
	known   bool
}

// windowState is how far a window was taken.
type windowState struct {
	place ingest.Place
	// row is where the line at place continues. It is not stored: the line then comes again whole.
	row int64
	// accepted, rejected and refused count lines: taken, bad, and refused for good by a pipeline.
	accepted, rejected, refused int64
	// header is the number of the line that was fed before all others, 0 if none was.
	header int64
}

// windowTable remembers the windows of a session, so that one that comes again changes nothing. The
// oldest are forgotten; if one of those comes again, its spans have the same ids.
type windowTable struct {
	m     map[windowKey]*windowState
	order []windowKey
	// owner is the principal that opened the session, zero if it had none. intake.mu guards it.
	owner principal
}

// isOf reports whether a principal may use the session. One that was opened without credentials, or
// stored before principals were, is of whoever comes first. Without credentials there is one
// principal.
func (t *windowTable) isOf(who principal) bool {
	return t.owner == who || t.owner == principal{} || who == principal{}
}

// claim is isOf, and makes the principal the owner of a session that has none.
func (t *windowTable) claim(who principal) bool {
	if t.owner == (principal{}) {
		t.owner = who
	}
	return t.isOf(who)
}

// maxWindows is more windows than a session of a week has at one a minute.
const maxWindows = 1 << 14

func (t *windowTable) get(k windowKey) *windowState {
	if w := t.m[k]; w != nil {
		return w
	}
	if t.m == nil {
		t.m = map[windowKey]*windowState{}
	}
	if len(t.order) >= maxWindows {
		delete(t.m, t.order[0])
		t.order = t.order[1:]
	}
	w := &windowState{}
	t.m[k] = w
	t.order = append(t.order, k)
	return w
}

func (t *windowTable) append(b []byte) []byte {
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

func (d *decoder) windows() *windowTable {
	t := &windowTable{}
	n := d.Uint()
	if n > maxWindows {
		d.Fail(damaged)
		return t
	}
	for ; n > 0 && d.OK(); n-- {
		var k windowKey
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

// finished remembers the windows of sessions that are not in memory any more.
type finished struct {
	m       map[string]*windowTable
	order   []string
	windows int
}

// maxFinished and maxFinishedWindows bound it: about 10 MiB.
const (
	maxFinished        = 1024
	maxFinishedWindows = 1 << 16
)

func newFinished() *finished { return &finished{m: map[string]*windowTable{}} }

// put remembers a session and returns those that it had to forget for it.
func (f *finished) put(id string, w *windowTable) (dropped []string) {
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

// oldest returns the oldest session of the principal that takes the most room, so that no principal
// can have those of another forgotten.
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

// take gives a session's windows back and forgets it; nil if it is not known.
func (f *finished) take(id string) *windowTable {
	w := f.m[id]
	if w == nil {
		return nil
	}
	delete(f.m, id)
	f.windows -= len(w.order)
	f.order = slices.DeleteFunc(f.order, func(o string) bool { return o == id })
	return w
}

// intakeStore keeps the sessions that come over HTTP: for each what its decoder knows, and which
// windows were taken. What is stored is what was delivered, or waits to be; it is stored before a
// window is answered. Without a storage every call does nothing. It is used by one session at a time
// where that matters: by whoever has locked it.
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

// intakeKey is the key of a part of a session. Clients choose the ids, so the hash must withstand a
// search for another id with the same key.
func intakeKey(id, what string) string {
	h := sha256.Sum256([]byte(id))
	return "http/s/" + hex.EncodeToString(h[:]) + "/" + what
}

// storedSession is a living session as it was stored.
type storedSession struct {
	id              string
	lines, complete bool
	state, dicts    []byte
	windows         *windowTable
}

// finishedSession is one of which only the windows are remembered.
type finishedSession struct {
	id      string
	windows *windowTable
}

// open reads what was stored. There is one error for each thing that cannot be used.
func (st *intakeStore) open(ctx context.Context) (living []storedSession, done []finishedSession, errs []error) {
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
			living = append(living, s)
		}
	}
	return living, done, errs
}

// forget takes a session that cannot be used out of the list; the next change stores that.
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
	owner := s.owner()
	return append(b, owner[:]...)
}

// owner returns the principal whose session it is.
func (s *intakeSession) owner() principal {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	return s.windows.owner
}

// note enters a session into the list. It gives the operation that stores the list, and a function
// that says whether that was done.
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

// save stores a session. Nothing of it is undelivered.
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
	s.stored, s.changed, s.dictVersion, s.storedOwner = true, false, version, s.owner()
	return nil
}

// finish stores of a session only which windows it had, and forgets those that are dropped.
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

// load makes a session of what was stored.
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
