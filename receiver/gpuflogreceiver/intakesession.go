// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
)

// intakeSession is one session over HTTP. Except for receiving, it belongs to the holder of its
// lock.
type intakeSession struct {
	in *intake
	id string
	// encodedID is the id as JSON, as every line of the session contains it.
	encodedID []byte
	lines     bool
	dec       *gpuflog.Decoder
	batch     *gpuevent.Batch
	lockC     chan struct{}
	// receiving counts the bodies in progress.
	receiving atomic.Int64
	// gone means that the session was removed from the table.
	gone bool

	// request is the context of the request in progress, nil if there is none.
	request context.Context
	// unfinished is the step that the decoder did not finish, because the pipelines did not accept
	// data.
	unfinished *gpuflog.Step
	// partRefused means that a pipeline permanently rejected a part of the current line.
	partRefused bool
	// partial is the single line of which the decoder has read some rows, with the next row.
	partial struct {
		sum uint64
		row int64
	}
	// nextRow is the row at which the last line continues.
	nextRow int64

	windows *chunkTable
	// pending is the batch that the pipelines have not accepted yet. Nothing is decoded before they
	// have.
	pending *pendingBatch
	triedAt time.Time
	// pendingOf is the window of the last pendingLines lines of pending. It is nil if the window
	// was answered.
	pendingOf    *chunkState
	pendingLines int64
	// unanswered is a single line that was decoded but not answered with success. A repetition is
	// not decoded again.
	unanswered *answeredLine
	// lastLine is, for each channel, the last body with a single line.
	lastLine [gpuflog.NumChannels]answeredLine

	// last is the time of the last data, lastOf that of each channel.
	last     time.Time
	lastOf   [gpuflog.NumChannels]time.Time
	complete bool
	// waits is this session's share in intake.waiting.
	waits   int
	counted gpuflog.Stats

	changed     bool
	savedAt     time.Time
	dictVersion uint64
	stored      bool
	storedOwner principal
	warned      map[string]struct{}
}

// answeredLine is a single line and its response.
type answeredLine struct {
	sum   uint64
	reply ingest.Reply
	// refused means that a pipeline permanently rejected its data.
	refused bool
}

func (in *intake) newSession(id string, lines bool) *intakeSession {
	opt := in.opt
	// Only layouts before C2 have a path that ends with the kernel's name. Their agent sends line
	// by line. Windows are sent for C2 and later.
	opt.KernelNameInPath = lines
	now := in.now()
	s := &intakeSession{
		in: in, id: id, encodedID: fmt.Appendf(nil, `"session_id":"%s"`, id), lines: lines,
		dec: gpuflog.NewDecoder(opt), batch: gpuevent.NewBatch(in.out.signals()),
		lockC: make(chan struct{}, 1), windows: &chunkTable{}, last: now, savedAt: now,
		warned: map[string]struct{}{},
	}
	s.dec.WhenFull(s.whenFull)
	for ch := range s.lastOf {
		s.lastOf[ch] = now
	}
	return s
}

// whenFull delivers the decoded data. It waits while a request waits for the result.
func (s *intakeSession) whenFull(*gpuevent.Batch) bool {
	if s.pending != nil {
		return false
	}
	s.collect()
	try := s.tryDeliverPending
	ctx := s.request
	if ctx == nil {
		_, err := try(s.in.base)
		return err == nil
	}
	if s.in.closing.Load() {
		return false
	}
	refused, err := repeatedly(ctx, try)
	s.partRefused = s.partRefused || refused != nil
	return err == nil
}

func (s *intakeSession) lock(ctx context.Context, wait time.Duration) bool {
	if s.tryLock() { // also when the context has ended: a shutdown past its time still stores sessions
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case s.lockC <- struct{}{}:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

func (s *intakeSession) tryLock() bool {
	select {
	case s.lockC <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *intakeSession) unlock() { <-s.lockC }

// before reports whether a session is closed before another one.
func (s *intakeSession) before(o *intakeSession) bool {
	if a, b := s.dec.Finished(), o.dec.Finished(); a != b {
		return a
	}
	return s.last.Before(o.last)
}

// idle reports whether the session needs no timed work.
func (s *intakeSession) idle() bool { return s.dec.Finished() && s.waits == 0 }

// stepAt returns the step for a time. While a body is in progress, no channel counts as ended,
// unless it is idle for much longer than a body may take.
func (s *intakeSession) stepAt(now time.Time) gpuflog.Step {
	st := gpuflog.Step{Now: gpuflog.Now(now), Quiet: max(now.Sub(s.last), 0), Gone: s.complete}
	timeout := s.in.cfg.ChannelTimeout
	if s.receiving.Load() > 0 {
		timeout = 10 * timeout
		st.Quiet, st.Gone = 0, false
	}
	for ch := range st.AtEnd {
		st.AtEnd[ch] = st.Gone || now.Sub(s.lastOf[ch]) >= timeout
	}
	return st
}

func (s *intakeSession) step(st gpuflog.Step) {
	if st.Now == 0 {
		st.Now = gpuflog.Now(s.in.now())
	}
	s.unfinished = nil
	s.dec.EndStep(st, s.batch)
	if n := s.countWaiting(); n > 0 && s.in.waiting.Load() > s.in.maxWaiting {
		s.in.tel.ReceiverGpuflogHeldOverflow.Add(context.Background(), int64(n))
		st.Flush = true
		s.dec.EndStep(st, s.batch)
		s.countWaiting()
	}
	if s.dec.Stopped() {
		s.unfinished = &st
	}
	s.changed = s.changed || !s.batch.Empty() || s.pending != nil
}

// countWaiting updates the session's share in intake.waiting. It returns the increase.
func (s *intakeSession) countWaiting() (more int) {
	rows, held := s.dec.Waiting()
	more = rows + held - s.waits
	s.in.waiting.Add(int64(more))
	s.waits += more
	return more
}

// collect makes a batch of the decoded data. There must be no pending batch.
func (s *intakeSession) collect() {
	if !s.batch.Empty() {
		s.pending = newPendingBatch(s.batch)
	}
}

// tryDeliver makes one attempt to deliver the decoded data, and lets the decoder finish its step.
// Without an error, refused is the permanent error of a part, if there was one.
func (s *intakeSession) tryDeliver(ctx context.Context) (refused, err error) {
	for {
		if s.pending == nil {
			s.collect()
		}
		if s.pending == nil {
			if s.unfinished == nil {
				return refused, nil
			}
			s.step(*s.unfinished)
			continue
		}
		r, err := s.tryDeliverPending(ctx)
		if err != nil {
			return nil, err
		}
		if r != nil {
			refused = r
		}
	}
}

// tryDeliverPending makes one attempt to deliver the pending batch.
func (s *intakeSession) tryDeliverPending(ctx context.Context) (refused, err error) {
	p := s.pending
	if p == nil {
		return nil, nil
	}
	_, project := s.owner()
	ctx, cancel := context.WithCancel(withProject(context.WithoutCancel(ctx), project))
	defer cancel()
	defer context.AfterFunc(s.in.base, cancel)()
	s.triedAt = s.in.now()
	if err := s.in.out.push(ctx, p); err != nil {
		if !p.failed {
			p.failed = true
			s.in.refused.Add(1)
		}
		return nil, err
	}
	if p.failed {
		s.in.refused.Add(-1)
	}
	if p.refused != nil {
		if s.unanswered != nil {
			s.unanswered.refused = true
		}
		if s.pendingOf != nil {
			s.pendingOf.accepted -= s.pendingLines
			s.pendingOf.refused += s.pendingLines
		}
	}
	s.pending, s.pendingOf = nil, nil
	return p.refused, nil
}

// deliver repeats tryDeliver.
func (s *intakeSession) deliver(ctx context.Context) (refused, err error) {
	return repeatedly(ctx, s.tryDeliver)
}

// repeatedly repeats an attempt until it succeeds, deliverWait has passed or the context ends.
func repeatedly(ctx context.Context, try func(context.Context) (refused, err error)) (refused, err error) {
	until := time.Now().Add(deliverWait)
	for wait := firstWait; ; wait *= 2 {
		refused, err = try(ctx)
		if err == nil || time.Now().Add(wait).After(until) {
			return refused, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func notAccepted(err error) *ingest.Refusal {
	return ingest.Unavailable("the next component did not accept the data: " + err.Error())
}

// feedBytes is the number of decoded bytes before a delivery, as for files.
const feedBytes = chunkBytes

// window decodes the new part of a window. The reply is nil if the client must retry.
func (s *intakeSession) window(ctx context.Context, b *ingest.Body, c ingest.Content, deletes bool) (*ingest.Reply, outcome, *ingest.Refusal) {
	if _, err := s.deliver(ctx); err != nil {
		return nil, "", notAccepted(err)
	}
	w := s.windows.get(chunkKey{sum: c.Sum, channel: c.Channel, known: c.Known})
	what := outcomeNew
	switch {
	case w.place.Offset >= c.Bytes && c.Bytes > 0:
		what = outcomeRepeated
	case w.place.Offset > 0:
		what = outcomeResumed
	}
	reply := &ingest.Reply{}
	ch := c.Channel
	if !c.Known {
		ch = gpuflog.Sass // only records of every channel: nothing waits for this one
	}
	owner, _ := s.owner()
	release, refusal := s.in.slot(ctx, owner, c.Longest)
	if refusal != nil {
		return nil, "", refusal
	}
	s.request = ctx
	err := s.resumeChunk(ctx, w, b, c, ch, reply)
	s.request = nil
	release()
	if errors.As(err, &refusal) {
		return nil, "", refusal
	}
	if !s.in.store.on() && deletes {
		refused, refusal := s.release(ctx)
		if refused && w.refused == 0 {
			w.accepted, w.refused = 0, w.accepted // which of its lines it was cannot be told
		}
		if refusal != nil {
			return nil, "", refusal
		}
	}
	if s.changed {
		if err := s.save(ctx); err != nil {
			s.in.storeFailed(ctx, s, err)
			return nil, "", ingest.Unavailable("the received data could not be stored")
		}
	}
	reply.Accepted, reply.Rejected = w.accepted, w.rejected
	if w.refused > 0 {
		return nil, what, permanentRefusal(fmt.Sprintf("%d of the window's lines", w.refused))
	}
	reply.WindowAcknowledged = true
	if !s.in.store.on() {
		reply.Waiting = s.waits
	}
	return reply, what, nil
}

// resumeChunk decodes and delivers a window from its last position. Every error is a *Refusal.
func (s *intakeSession) resumeChunk(ctx context.Context, w *chunkState, b *ingest.Body, c ingest.Content, ch gpuflog.Channel, reply *ingest.Reply) error {
	lines, err := b.Lines(w.place)
	if err != nil {
		return err
	}
	if w.place.Line == 0 && len(s.windows.order) == 1 {
		// The first lines of a session may precede the line that names the session. With files,
		// another channel has named it by then.
		if line, n := b.Header(); n > 1 && (bytes.Contains(line, s.encodedID) || !s.isOther(line)) {
			if _, done := s.feedLine(line, ch, 0, 0, gpuflog.Now(s.in.now())); !done {
				return errNotAccepted
			}
			w.header = n
		}
	}
	for w.place.Offset < c.Bytes {
		if s.in.closing.Load() {
			return errNotAccepted
		}
		accepted, rejected, err := s.feed(lines, ch, w, reply)
		if err != nil && !errors.Is(err, errNotAccepted) {
			return err
		}
		w.rejected += rejected
		s.changed = true
		s.last = s.in.now()
		s.lastOf[ch] = s.last
		if w.place.Offset >= c.Bytes {
			s.step(s.stepAt(s.last))
		}
		if s.partRefused {
			s.partRefused = false
			w.refused++
		}
		s.updateCounters(ctx)
		w.accepted += accepted
		if err != nil {
			return err
		}
		s.pendingOf, s.pendingLines = w, accepted
		if _, err := s.deliver(ctx); err != nil {
			return notAccepted(err)
		}
		s.pendingOf = nil
	}
	return nil
}

// errNotAccepted means that the pipelines did not accept a part of a line before the deadline. The
// window continues at that line and row.
var errNotAccepted = ingest.Unavailable("the next component did not accept the data in time")

// feed passes about feedBytes of lines of a window to the decoder, and updates the position.
func (s *intakeSession) feed(lines *ingest.Lines, ch gpuflog.Channel, w *chunkState, reply *ingest.Reply) (accepted, rejected int64, err error) {
	now := gpuflog.Now(s.in.now())
	from := lines.Place().Offset
	for w.place = lines.Place(); w.place.Offset-from < feedBytes; w.place = lines.Place() {
		at := lines.Place()
		line, err := lines.Next()
		var reason string
		switch {
		case errors.Is(err, io.EOF):
			return accepted, rejected, nil
		case errors.Is(err, ingest.ErrLineTooLong):
			reason = "line_too_long"
			s.in.counters.reject(context.Background(), reason, 1)
		case err != nil:
			return accepted, rejected, err
		case len(line) == 0:
			continue
		case at.Line+1 == w.header:
			accepted++
			continue
		case !bytes.Contains(line, s.encodedID) && s.isOther(line):
			reason = "other_session"
			s.in.counters.reject(context.Background(), reason, 1)
		default:
			var done bool
			if reason, done = s.feedLine(line, ch, w.row, at.Offset, now); !done {
				w.row = s.nextRow
				return accepted, rejected, errNotAccepted
			}
			w.row = 0
		}
		switch {
		case s.partRefused:
			s.partRefused = false
			w.refused++
			continue
		case reason == "":
			accepted++
			continue
		}
		rejected++
		typ := gpuflog.TypeOf(line)
		if len(reply.Errors) < ingest.MaxErrors {
			reply.Errors = append(reply.Errors, ingest.LineError{Line: at.Line + 1, Type: typ, Reason: reason})
		}
		s.quarantine(reason, ch, at.Line+1, line)
	}
	return accepted, rejected, nil
}

// isOther reports whether a line names another session.
func (s *intakeSession) isOther(line []byte) bool {
	id := gpuflog.SessionOf(line)
	return id != "" && id != s.id
}

// feedLine passes one line to the decoder, starting at a row. It returns why the complete line was
// rejected, or "". done is false if the pipelines do not accept data; the line continues at
// nextRow.
func (s *intakeSession) feedLine(line []byte, ch gpuflog.Channel, row, offset, now int64) (reason string, done bool) {
	before := s.dec.LinesRejected()
	s.nextRow, done = s.dec.FeedLine(ch, line, row, offset, now, s.batch)
	problems := s.dec.TakeProblems()
	if s.dec.LinesRejected() == before {
		return "", done
	}
	for _, p := range problems {
		switch p.Reason {
		case gpuflog.Malformed, gpuflog.MissingField, gpuflog.TooOld:
			return p.Reason.String() + ": " + p.Detail, done
		}
	}
	return gpuflog.Malformed.String(), done
}

// maxWarned bounds the reasons for which the first line was logged.
const maxWarned = 32

// quarantine rejects an invalid line. It logs the first line of each reason and counts the others.
func (s *intakeSession) quarantine(reason string, ch gpuflog.Channel, number int64, line []byte) {
	kind, _, _ := bytes.Cut([]byte(reason), []byte(":"))
	if _, ok := s.warned[string(kind)]; ok || len(s.warned) >= maxWarned {
		return
	}
	s.warned[string(kind)] = struct{}{}
	s.in.logger.Warn("line rejected; further lines with this session and reason are only counted",
		zap.String("session", s.id), zap.Stringer("channel", ch), zap.Int64("line", number),
		zap.String("reason", reason), zap.ByteString("text", line[:min(len(line), 256)]))
}

// release waits until no data of the session waits for another channel, or until releaseWait has
// passed. It is used without a storage, when the sender deletes its copy. It unlocks the session
// while it waits.
func (s *intakeSession) release(ctx context.Context) (permanent bool, refusal *ingest.Refusal) {
	for until := time.Now().Add(releaseWait); s.waits > 0 && time.Now().Before(until); {
		s.unlock()
		select {
		case <-time.After(tickEvery / 2):
		case <-ctx.Done():
		}
		s.lockC <- struct{}{} // held by others for a bounded time only
		if ctx.Err() != nil || s.gone {
			return false, ingest.Unavailable("the request was canceled")
		}
	}
	if s.waits > 0 {
		s.step(gpuflog.Step{Flush: true})
		s.updateCounters(ctx)
	}
	refused, err := s.deliver(ctx)
	if err != nil {
		return refused != nil, notAccepted(err)
	}
	return refused != nil, nil
}

var hashSeed = maphash.MakeSeed()

// line decodes a single line.
func (s *intakeSession) line(ctx context.Context, r *ingest.Record, body []byte) (*ingest.Reply, *ingest.Refusal) {
	if _, err := s.deliver(ctx); err != nil {
		return nil, notAccepted(err)
	}
	ch := r.Channel
	owner, _ := s.owner()
	release, refusal := s.in.slot(ctx, owner, len(r.Line))
	if refusal != nil {
		return nil, refusal
	}
	defer release()
	s.request = ctx
	defer func() { s.request = nil }()
	sum := maphash.Bytes(hashSeed, body)
	if last := s.lastLine[ch]; last.sum == sum { // its answer was lost
		return last.answer()
	}
	// The agent may change the time in the envelope when it retries.
	hash := maphash.Bytes(hashSeed, r.Line) + uint64(ch)
	if u := s.unanswered; u != nil && u.sum == hash {
		s.unanswered = nil
		s.lastLine[ch] = answeredLine{sum: sum, reply: u.reply, refused: u.refused}
		return u.answer()
	}
	line := &answeredLine{sum: hash, reply: ingest.Reply{Accepted: 1, WindowAcknowledged: true}}
	s.last = s.in.now()
	s.lastOf[ch] = s.last
	s.changed = true
	from := int64(0)
	if s.partial.sum == hash {
		from = s.partial.row
	}
	reason, done := s.feedLine(r.Line, ch, from, 0, gpuflog.Now(s.last))
	if s.partial.sum, s.partial.row = 0, 0; !done {
		s.partial.sum, s.partial.row = hash, s.nextRow
		return nil, errNotAccepted
	}
	if reason != "" {
		s.quarantine(reason, ch, 1, r.Line)
		line.reply.Accepted, line.reply.Rejected = 0, 1
		line.reply.Errors = []ingest.LineError{{Line: 1, Type: r.Type, Reason: reason}}
	}
	s.step(s.stepAt(s.last))
	s.updateCounters(ctx)
	line.refused, s.partRefused = s.partRefused, false
	s.unanswered = line
	if _, err := s.deliver(ctx); err != nil {
		return nil, notAccepted(err)
	}
	s.unanswered = nil
	if !s.in.store.on() {
		line.reply.Waiting = s.waits
	}
	line.sum = sum
	s.lastLine[ch] = *line
	return line.answer()
}

func (a *answeredLine) answer() (*ingest.Reply, *ingest.Refusal) {
	if a.refused {
		return nil, permanentRefusal("the line")
	}
	return &a.reply, nil
}

// permanentRefusal is a conflict. The agent then continues and keeps its file (format document,
// section 6.2). It repeats requests with any other error forever.
func permanentRefusal(what string) *ingest.Refusal {
	return &ingest.Refusal{
		Status: http.StatusConflict,
		Reason: "the next component permanently rejected the data of " + what + ": do not retry",
	}
}

// end receives the client's statement that the session is complete.
func (s *intakeSession) end(ctx context.Context) *ingest.Refusal {
	if _, err := s.deliver(ctx); err != nil {
		return notAccepted(err)
	}
	s.complete = true
	s.changed = true
	s.step(gpuflog.Step{AtEnd: allChannels, Quiet: time.Minute, Gone: true})
	s.updateCounters(ctx)
	refused, err := s.deliver(ctx)
	if err != nil {
		return notAccepted(err)
	}
	if err := s.save(ctx); err != nil {
		s.in.storeFailed(ctx, s, err)
		return ingest.Unavailable("the end of the session could not be stored")
	}
	if refused != nil {
		return permanentRefusal("the session's end")
	}
	return nil
}

func (s *intakeSession) updateCounters(ctx context.Context) {
	s.in.counters.update(ctx, s.dec.Stats(), &s.counted)
}
