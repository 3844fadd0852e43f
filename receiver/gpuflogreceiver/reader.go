// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"slices"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/fileset"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// reader moves data from the files through the decoders to the pipelines, one step of one group at
// a time. One goroutine owns it at a time: see aside.
type reader struct {
	cfg    *Config
	logger *zap.Logger
	files  *fileset.Set
	out    *outputs
	tel    *metadata.TelemetryBuilder
	store  *checkpoints

	batch, muted *gpuevent.Batch
	followers    map[string]*follower
	// added and removed are the groups that a scan added or removed.
	added, removed []*fileset.Group
	buf            []byte
	started        bool // the first scan is done
	warned         map[warning]struct{}
	counters       *counters
	now            func() time.Time
	aside          aside
}

// bufferBytes is the size of the read buffer. Usually only a chunk of it is used. The rest serves
// long lines and is otherwise not touched: it takes address space but no memory. It counts as heap
// without pointers, so the garbage collector runs less often. With a small heap, a quarter of the
// time went into a collection every two or three steps. The heap in use grows by about this size.
const bufferBytes = 32 << 20

type warning struct{ path, reason string }

// maxWarnings bounds the keys of warnings that are logged once.
const maxWarnings = 4096

func newReader(cfg *Config, logger *zap.Logger, files *fileset.Set, out *outputs, tel *metadata.TelemetryBuilder, store *checkpoints) *reader {
	return &reader{
		cfg: cfg, logger: logger, files: files, out: out, tel: tel, store: store,
		batch: gpuevent.NewBatch(out.signals()), muted: gpuevent.NewBatch(gpuevent.Signals{}),
		followers: map[string]*follower{}, warned: map[warning]struct{}{},
		counters: newCounters(tel), now: time.Now, aside: newAside(),
		buf: make([]byte, bufferBytes),
	}
}

// follower follows one group of files.
type follower struct {
	group *fileset.Group
	// dec is nil once the group is finished.
	dec *gpuflog.Decoder
	// muted means that the present data was written before the first start with start_at: end.
	muted bool
	// unsaved are the steps since the last stored plan. The plans from snapshotPlan up to nextPlan
	// are stored. snapshotAt is the time of the last snapshot.
	unsaved                []planStep
	snapshotPlan, nextPlan uint64
	snapshotAt             time.Time
	changed                bool // the snapshot is out of date
	hasSnapshot            bool
	dictVersion            uint64
	counted                gpuflog.Stats
	// interrupted means that the last delivery did not end, so the decoder is ahead of the accepted
	// data.
	interrupted bool
	// planned means that a plan with the current step is stored.
	planned bool
	// aside means that a delivery inside a step waits for a pipeline. The reader continues without
	// the group.
	aside bool
}

// idle reports whether an unchanged group needs no step, because nothing waits for a time.
func (f *follower) idle(now time.Time, timeout time.Duration) bool {
	if f.dec == nil {
		return true
	}
	rows, events := f.dec.Waiting()
	return f.dec.Finished() && rows+events == 0 && !f.changed && now.Sub(f.group.LastChange()) <= timeout
}

// snapshotEvery and snapshotPlans bound the work that a restart repeats.
const (
	snapshotEvery = time.Second
	snapshotPlans = 64
)

// shortPoll is the poll interval while something waits for a time.
const shortPoll = 50 * time.Millisecond

func (r *reader) run(ctx context.Context, stop <-chan struct{}) {
	if err := r.store.open(ctx); err != nil {
		r.logger.Error("list of checkpoints is invalid; starting with an empty one", zap.Error(err))
		r.reject(ctx, "checkpoint", 1)
	}
	defer r.saveAll(ctx)
	defer r.aside.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		progress, waiting, ok := r.pass(ctx, stop)
		if !ok {
			return
		}
		if stopped(stop) {
			return
		}
		if progress {
			continue
		}
		wait := r.cfg.PollInterval
		if waiting {
			wait = min(wait, shortPoll)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-r.files.Wake():
		case r.aside.resume <- struct{}{}:
			<-r.aside.yield
		case <-stop:
			return
		}
	}
}

// pass runs one step of every group with work. It reports whether it read anything and whether
// something waits for a time. ok is false if it was stopped.
func (r *reader) pass(ctx context.Context, stop <-chan struct{}) (progress, waiting, ok bool) {
	now := r.now()
	r.scan(ctx, now)
	r.removed = slices.DeleteFunc(r.removed, func(g *fileset.Group) bool {
		if f := r.followers[g.Key()]; f != nil && f.aside {
			return false // once its delivery has ended
		}
		r.remove(ctx, g.Key())
		return true
	})
	for len(r.added) > 0 {
		g := r.added[0]
		r.added = r.added[1:]
		if !r.aside.run(func() { r.add(ctx, stop, g, now) }) && r.followers[g.Key()].interrupted {
			return false, false, false
		}
	}
	if !r.started {
		r.started = true
		r.dropStale(ctx)
		r.reportUnmatched()
	}
	var backlog int64
	lag := 0.0
	rows, held := 0, 0
	for _, g := range slices.Clone(r.files.Groups()) {
		// A delivery may have delayed the pass. Decisions by the clock and by the ends of files
		// need the current state.
		if t := r.now(); t.Sub(now) > shortPoll {
			now = t
			r.scan(ctx, now)
		}
		progress = r.aside.resumeReady() || progress
		f := r.followers[g.Key()]
		if f != nil && f.aside {
			for _, s := range g.Streams() {
				backlog += s.Backlog()
			}
			continue
		}
		if f == nil || (!g.Changed() && f.idle(now, r.cfg.SessionTimeout)) {
			continue
		}
		p := false
		if r.aside.run(func() { p = r.step(ctx, stop, f, now) }) {
			continue
		}
		if f.interrupted {
			return false, false, false
		}
		progress = progress || p
		if f.dec == nil {
			continue
		}
		n, e := f.dec.Waiting()
		rows, held = rows+n, held+e
		for _, s := range g.Streams() {
			backlog += s.Backlog()
		}
		if newest := f.dec.Newest(); p && newest > 0 {
			lag = max(lag, float64(now.UnixNano()-newest)/1e9)
		}
	}
	r.tel.ReceiverGpuflogJoinsPending.Record(ctx, int64(rows))
	r.tel.ReceiverGpuflogHeld.Record(ctx, int64(held))
	r.tel.ReceiverGpuflogBacklog.Record(ctx, backlog)
	r.tel.ReceiverGpuflogLag.Record(ctx, lag)
	r.tel.ReceiverGpuflogFilesOpen.Record(ctx, int64(r.files.OpenFiles()))
	r.tel.ReceiverGpuflogSessions.Record(ctx, int64(len(r.followers)))
	return progress, rows+held > 0, true
}

// scan scans the files. The next pass handles added and removed groups.
func (r *reader) scan(ctx context.Context, now time.Time) {
	c := r.files.Scan(now)
	for _, p := range c.Problems {
		r.fileProblem(ctx, p)
	}
	r.removed = append(r.removed, c.Removed...)
	r.added = append(r.added, c.Added...)
}

// reportUnmatched logs the entries of include that match nothing at the start, as a misspelled path does.
func (r *reader) reportUnmatched() {
	for _, p := range r.cfg.Include {
		if found, err := doublestar.FilepathGlob(p); err == nil && len(found) == 0 {
			r.logger.Warn("no file or folder matches this entry of include; the receiver continues to search for it",
				zap.String("include", p))
		}
	}
}

func (r *reader) newDecoder(g *fileset.Group) *gpuflog.Decoder {
	return gpuflog.NewDecoder(gpuflog.Options{
		MaxSpansPerTrace: r.cfg.MaxSpansPerTrace, JoinTimeout: r.cfg.JoinTimeout, SessionTimeout: r.cfg.SessionTimeout,
		KernelNameInPath: g.Layout() != fileset.Windows,
	})
}

// add starts to follow a group, from its checkpoint if there is one.
func (r *reader) add(ctx context.Context, stop <-chan struct{}, g *fileset.Group, now time.Time) {
	f := &follower{group: g, dec: r.newDecoder(g), snapshotAt: now}
	r.followers[g.Key()] = f
	s, err := r.store.load(ctx, g.Key())
	if err == nil && s != nil {
		err = r.restore(f, s)
	}
	if err != nil {
		r.logger.Error("checkpoint cannot be used; reading from the beginning (spans keep their ids)",
			zap.String("group", g.Key()), zap.Error(err))
		r.reject(ctx, "checkpoint", 1)
		f.dec, s = r.newDecoder(g), nil
	}
	r.logger.Info("following", zap.String("group", g.Key()), zap.Stringer("layout", g.Layout()), zap.Bool("resumed", s != nil))
	if s == nil {
		if err := r.store.clear(ctx, g.Key()); err != nil {
			r.storeFailed(ctx, f, err)
		}
		f.muted = r.cfg.StartAt == startAtEnd && !r.started
		return
	}
	r.redo(ctx, stop, f, s.plans)
}

// restore loads a snapshot.
func (r *reader) restore(f *follower, s *saved) error {
	if err := f.group.LoadState(s.files); err != nil {
		return err
	}
	if err := f.dec.LoadState(s.state, s.dicts); err != nil {
		return err
	}
	f.hasSnapshot, f.muted = true, s.muted
	f.nextPlan = s.next
	f.snapshotPlan = s.next - uint64(len(s.plans))
	f.dictVersion = f.dec.DictionariesVersion()
	return nil
}

// redo repeats the plans that were stored after the snapshot.
func (r *reader) redo(ctx context.Context, stop <-chan struct{}, f *follower, plans []plan) {
	f.dec.WhenFull(func(b *gpuevent.Batch) bool {
		f.interrupted = stopped(stop) || !r.deliver(ctx, stop, f, b)
		return !f.interrupted
	})
	for _, p := range plans {
		for i := range p.steps {
			st := &p.steps[i]
			for _, s := range st.segments {
				data, err := r.reread(ctx, stop, f, s)
				if err != nil && stopped(stop) {
					f.interrupted = true
					return
				}
				if err != nil {
					r.logger.Error("data of an interrupted delivery is gone", zap.String("group", f.group.Key()),
						zap.Stringer("channel", s.channel), zap.Error(err))
					r.reject(ctx, "file_vanished", 1)
					continue
				}
				f.dec.Feed(s.channel, data, s.seg.From, st.end.Now, r.batch)
				if f.interrupted {
					return
				}
			}
			if !st.open {
				f.dec.EndStep(st.end, r.batch)
			}
		}
		f.changed = true
		if f.interrupted || !r.deliver(ctx, stop, f, r.batch) {
			f.interrupted = true
			return
		}
		if err := f.group.LoadState(p.files); err != nil {
			r.logger.Error("checkpoint of the files is damaged", zap.String("group", f.group.Key()), zap.Error(err))
		}
	}
	f.dec.Resume(gpuflog.Now(r.now()))
	r.updateCounters(ctx, f)
	r.snapshot(ctx, f) // of the new time, before steps of it are stored
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// rereadWait bounds the search for the data of a plan. During a rotation or publication, a segment
// may have no name.
const rereadWait = 3 * time.Second

// reread reads a segment of a channel again.
func (r *reader) reread(ctx context.Context, stop <-chan struct{}, f *follower, s segment) (data []byte, err error) {
	for until := time.Now().Add(rereadWait); ; {
		data, r.buf, err = f.group.Stream(s.channel).Reread(s.seg, r.buf)
		if err == nil || time.Now().After(until) {
			return data, err
		}
		select {
		case <-stop:
			return nil, err
		case <-time.After(shortPoll):
		}
		r.scan(ctx, r.now())
	}
}

// step reads, decodes and delivers one step of a group. It reports whether there may be more.
func (r *reader) step(ctx context.Context, stop <-chan struct{}, f *follower, now time.Time) (more bool) {
	if f.dec == nil { // more of a group that was finished
		f.dec = r.newDecoder(f.group)
	}
	out := r.batch
	if f.muted {
		out = r.muted
	}
	st := planStep{end: gpuflog.Step{Now: gpuflog.Now(now)}, open: true}
	quiet := now.Sub(f.group.LastChange())
	f.planned, f.interrupted = false, false
	f.dec.WhenFull(func(b *gpuevent.Batch) bool {
		r.savePlan(ctx, f, &st)
		f.interrupted = stopped(stop) || !r.deliver(ctx, stop, f, b)
		return !f.interrupted
	})
	more, progress := r.read(ctx, f, &st, quiet, out)
	if f.interrupted {
		return false
	}
	st.open, f.planned = false, false
	for ch, s := range f.group.Streams() {
		st.end.AtEnd[ch] = s.Exhausted()
	}
	st.end.Quiet = max(quiet, 0)
	if !f.dec.Finished() || quiet > r.cfg.SessionTimeout { // asking takes a system call or two
		st.end.Gone = f.group.Writer(now) == fileset.WriterGone
	}
	f.dec.EndStep(st.end, out)
	if f.interrupted {
		return false
	}
	r.decodeProblems(f, f.group.Key())
	full := f.planned || !out.Empty()
	switch {
	case !out.Empty():
		r.savePlan(ctx, f, &st)
		if !r.deliver(ctx, stop, f, out) {
			f.interrupted = true
			return false
		}
	case progress && !f.planned:
		f.unsaved = append(f.unsaved, st)
	}
	if progress || full {
		f.changed = true
		r.updateCounters(ctx, f)
	}
	if f.muted && st.end.AtEnd == [gpuflog.NumChannels]bool{true, true, true, true} {
		f.muted = false
		r.logger.Info("reached the end of existing data; new data is sent", zap.String("group", f.group.Key()))
	}
	if f.changed && (!progress || now.Sub(f.snapshotAt) >= snapshotEvery || f.nextPlan-f.snapshotPlan >= snapshotPlans || !f.hasSnapshot) {
		r.snapshot(ctx, f)
		f.snapshotAt = now
	}
	if !progress && st.end.Gone && quiet > r.cfg.SessionTimeout && f.dec.Finished() && !f.group.Changed() {
		f.dec = nil // its files stay known; its tables are not needed any more
		f.counted = gpuflog.Stats{}
	}
	return progress || more
}

// savePlan stores the progress of a step before any of its data is delivered. It does nothing if
// the progress is stored.
func (r *reader) savePlan(ctx context.Context, f *follower, st *planStep) {
	if f.planned {
		return
	}
	f.planned = true
	f.changed = true
	f.unsaved = append(f.unsaved, *st)
	st.segments = nil
	p := plan{steps: f.unsaved, files: f.group.AppendState(nil)}
	if err := r.store.savePlan(ctx, f.group.Key(), f.nextPlan, &p); err != nil {
		r.storeFailed(ctx, f, err) // the next plan holds these steps too
		return
	}
	f.nextPlan++
	f.unsaved = f.unsaved[:0]
}

// tailWait is how long a file must be unchanged until a complete record at its end counts without
// its newline.
const tailWait = 2 * time.Second

// read passes up to about chunkBytes to the decoder. Of the system and sass channels it reads at
// most one chunk each, because nothing depends on them. Of the other two the decoder selects one.
// more means that a stream delivered nothing but has not ended. progress means that a stream
// delivered data.
func (r *reader) read(ctx context.Context, f *follower, st *planStep, quiet time.Duration, out *gpuevent.Batch) (more, progress bool) {
	var ended [gpuflog.NumChannels]bool
	left := chunkBytes
	take := func(ch gpuflog.Channel) {
		s := f.group.Stream(ch)
		chunk, buf, err := s.Next(r.buf)
		if r.buf = buf; cap(buf) > bufferBytes {
			r.buf = make([]byte, bufferBytes) // one long line must not pin its memory
		}
		for _, p := range chunk.Problems {
			r.fileProblem(ctx, p)
		}
		if err != nil {
			r.warn(f.group.Key()+" "+ch.String(), "read", zap.Error(err))
		}
		if len(chunk.Data) == 0 && chunk.AtEnd && quiet >= tailWait {
			chunk = r.tail(ctx, s)
		}
		if len(chunk.Data) == 0 {
			ended[ch] = true
			more = more || (err == nil && !chunk.AtEnd)
			return
		}
		// A plan that is stored during the decoding must contain the chunk.
		st.segments = append(st.segments, segment{ch, chunk.Seg})
		f.planned, progress = false, true
		f.dec.Feed(ch, chunk.Data, chunk.Seg.From, st.end.Now, out)
		r.decodeProblems(f, chunk.Path)
		left -= len(chunk.Data)
	}
	for _, ch := range [...]gpuflog.Channel{gpuflog.System, gpuflog.Sass} {
		if f.group.Stream(ch).Changed() || quiet >= tailWait {
			take(ch)
		}
	}
	for left > 0 && !f.interrupted && !(ended[gpuflog.Device] && ended[gpuflog.Scope]) {
		ch := f.dec.Want()
		if ended[ch] {
			ch = gpuflog.Device + gpuflog.Scope - ch
		}
		take(ch)
	}
	return more, progress
}

// tail reads the unterminated end of an unchanged file if it is a complete record.
func (r *reader) tail(ctx context.Context, s *fileset.Stream) fileset.Chunk {
	pending, size, err := s.Pending(r.buf)
	if err != nil || size == 0 || int64(len(pending)) != size || !gpuflog.Whole(pending) {
		return fileset.Chunk{AtEnd: true}
	}
	chunk, buf, err := s.TakeTail(r.buf)
	r.buf = buf
	if err != nil {
		return fileset.Chunk{AtEnd: true}
	}
	for _, p := range chunk.Problems {
		r.fileProblem(ctx, p)
	}
	return chunk
}

// snapshot stores the progress of the group. All its data must be delivered.
func (r *reader) snapshot(ctx context.Context, f *follower) {
	if r.store.client == nil {
		f.changed = false
		f.unsaved = f.unsaved[:0]
		return
	}
	var dicts []byte
	if v := f.dec.DictionariesVersion(); v != f.dictVersion || !f.hasSnapshot {
		dicts = f.dec.AppendDictionaries([]byte{})
		f.dictVersion = v
	}
	err := r.store.saveSnapshot(ctx, f.group.Key(), f.snapshotPlan, &saved{
		files: f.group.AppendState(nil), state: f.dec.AppendState(nil), dicts: dicts, muted: f.muted, next: f.nextPlan,
	})
	if err != nil {
		f.dictVersion = 0
		r.storeFailed(ctx, f, err)
		return
	}
	f.snapshotPlan = f.nextPlan
	f.unsaved = f.unsaved[:0]
	f.hasSnapshot, f.changed = true, false
}

func (r *reader) storeFailed(ctx context.Context, f *follower, err error) {
	r.tel.ReceiverGpuflogCheckpointErrors.Add(ctx, 1)
	r.warn(f.group.Key(), "checkpoint", zap.Error(err))
}

// saveAll takes a last snapshot of all completely delivered groups.
func (r *reader) saveAll(ctx context.Context) {
	for _, f := range r.followers {
		if f.dec != nil && f.changed && !f.interrupted {
			r.snapshot(ctx, f)
		}
	}
}

func (r *reader) remove(ctx context.Context, key string) {
	f := r.followers[key]
	if f == nil {
		return
	}
	if err := r.store.drop(ctx, key, f.snapshotPlan, f.nextPlan); err != nil {
		r.storeFailed(ctx, f, err)
	}
	delete(r.followers, key)
}

// dropStale removes the checkpoints of groups that disappeared while the receiver was not running.
func (r *reader) dropStale(ctx context.Context) {
	for _, key := range append([]string(nil), r.store.groups...) {
		if r.followers[key] != nil {
			continue
		}
		first, next := uint64(0), uint64(0)
		if s, err := r.store.load(ctx, key); err == nil && s != nil {
			first, next = s.next-uint64(len(s.plans)), s.next
		}
		if err := r.store.drop(ctx, key, first, next); err != nil {
			r.logger.Warn("checkpoint of a removed group cannot be deleted", zap.String("group", key), zap.Error(err))
		}
	}
}

// updateCounters updates the counters of a group.
func (r *reader) updateCounters(ctx context.Context, f *follower) {
	r.counters.update(ctx, f.dec.Stats(), &f.counted)
}

func (r *reader) reject(ctx context.Context, reason string, n int64) {
	r.counters.reject(ctx, reason, n)
}

func (r *reader) fileProblem(ctx context.Context, p fileset.Problem) {
	r.reject(ctx, string(p.Reason), int64(p.Count))
	r.warn(p.Path, string(p.Reason), zap.Int64("offset", p.Offset), zap.Int64("length", p.Length), zap.Error(p.Err))
}

// decodeProblems reports rejected input: once for each file and reason.
func (r *reader) decodeProblems(f *follower, path string) {
	for _, p := range f.dec.TakeProblems() {
		r.warn(path, p.Reason.String(), zap.Int64("offset", p.Offset), zap.String("detail", p.Detail))
	}
}

func (r *reader) warn(path, reason string, fields ...zap.Field) {
	w := warning{path, reason}
	if _, ok := r.warned[w]; ok {
		return
	}
	if len(r.warned) >= maxWarnings {
		clear(r.warned)
	}
	r.warned[w] = struct{}{}
	message := "input rejected; further input with this file and reason is only counted"
	if reason == gpuflog.TooOld.String() {
		message = "log generations before A2 are unsupported; the log is skipped"
	}
	r.logger.Warn(message, append([]zap.Field{zap.String("path", path), zap.String("reason", reason)}, fields...)...)
}
