// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// intake holds the sessions that come over HTTP: a decoder each, fed by one request at a time. It is
// safe for concurrent use.
type intake struct {
	cfg      *HTTPConfig
	opt      gpuflog.Options
	logger   *zap.Logger
	out      *outputs
	tel      *metadata.TelemetryBuilder
	counters *counters
	store    *intakeStore

	// base ends when a delivery under way must end.
	base context.Context

	// slots bounds the requests that decode and deliver at a time, and so their memory.
	slots *turns
	// closing: requests in progress end before the next part of their data.
	closing atomic.Bool
	// long bounds those of them that have a long line.
	long *turns
	// refused counts the sessions whose data the pipelines have not accepted yet.
	refused atomic.Int64
	// waiting counts the rows and spans of all sessions that wait for something else; maxWaiting bounds them.
	waiting    atomic.Int64
	maxWaiting int64

	now func() time.Time

	mu       sync.Mutex
	sessions map[string]*intakeSession
	finished *finished
	// leaving are closed sessions whose last data the pipelines have not accepted yet.
	leaving map[string]*intakeSession
}

const (
	// decodeSlots, of one principal, lets a slow pipeline hold up some requests without holding up
	// all.
	decodeSlots = 8
	// longLine is the length from which a line needs more memory than the chunks that files and
	// bodies are read in.
	longLine = 2 << 20
	// maxRefused is how many sessions may have a batch that the pipelines do not take, before
	// nothing more is decoded: a batch is made of about a MiB of lines.
	maxRefused = 8
	// lockWait is how long a request waits for another one of its session, or for a slot.
	lockWait = 10 * time.Second
	// deliverWait is how long a request tries to deliver until it is answered that it must come
	// again.
	deliverWait = 2 * time.Second
	// releaseWait is how long a window whose sender deletes it waits for its scopes, where there
	// is no storage to keep what waits.
	releaseWait = 2 * time.Second
	// maxHeldHTTP is how many spans of a session may wait for the scope channel: the client sends
	// the device channel first, and whole.
	maxHeldHTTP = 1 << 17
	// maxWaiting bounds what waits in all sessions together: about 150 MiB.
	maxWaiting = 1 << 18
	// maxSessionID is longer than any id that the recorder writes.
	maxSessionID = 256
	// keepEnded is how long the decoder of a session that has ended is kept for what comes late.
	keepEnded = time.Minute
)

func newIntake(base context.Context, cfg *Config, logger *zap.Logger, out *outputs, tel *metadata.TelemetryBuilder, store *intakeStore, now func() time.Time) *intake {
	h := cfg.Protocols.HTTP.Get()
	return &intake{
		base: base, cfg: h, logger: logger, out: out, tel: tel, counters: newCounters(tel), store: store,
		opt: gpuflog.Options{
			MaxSpansPerTrace: cfg.MaxSpansPerTrace, JoinTimeout: cfg.JoinTimeout, SessionTimeout: cfg.SessionTimeout,
			MaxHeld: maxHeldHTTP, MaxRows: maxHeldHTTP, MaxSessions: 1,
		},
		now:        now,
		slots:      newTurns(decodeSlots),
		long:       newTurns(1),
		maxWaiting: maxWaiting,
		sessions:   map[string]*intakeSession{},
		leaving:    map[string]*intakeSession{},
		finished:   newFinished(),
	}
}

// pressed refuses while the pipelines do not take what was decoded already.
func (in *intake) pressed() *ingest.Refusal {
	if in.refused.Load() >= maxRefused {
		return ingest.Unavailable("the next component does not accept data at present")
	}
	return nil
}

// slot waits for a principal's place among those that decode; give must be called if there is no
// refusal. Requests of a principal with a line of more than longLine bytes decode one at a time. They
// wait for that before they take one of the places, so they delay each other and no other request.
func (in *intake) slot(ctx context.Context, who principal, longest int) (give func(), refusal *ingest.Refusal) {
	busy := ingest.Unavailable("too many requests wait to be decoded: try again later")
	isLong := longest > longLine
	if isLong && !in.long.take(ctx, who, lockWait) {
		return nil, busy
	}
	if in.slots.take(ctx, who, lockWait) {
		return func() {
			in.slots.give(who)
			if isLong {
				in.long.give(who)
			}
		}, nil
	}
	if isLong {
		in.long.give(who)
	}
	return nil, busy
}

// open returns a principal's session with an id, locked. It makes the session if there is none.
// lines says that it comes line by line.
func (in *intake) open(ctx context.Context, id string, who principal, lines bool) (*intakeSession, *ingest.Refusal) {
	if id == "" {
		return nil, ingest.Unreadable("the request names no session: set X-GpuFlight-Session-Id")
	}
	if !utf8.ValidString(id) {
		return nil, ingest.Unreadable("the session's id is not UTF-8")
	}
	if len(id) > maxSessionID {
		return nil, ingest.Unreadable("the session's id is longer than %d bytes", maxSessionID)
	}
	for {
		s, refusal := in.find(ctx, id, who, lines)
		if refusal != nil {
			return nil, refusal
		}
		if !s.lock(ctx, lockWait) {
			return nil, ingest.Busy("another request of this session is under way")
		}
		if !s.gone {
			s.changed = s.changed || s.stored && s.storedOwner != s.owner()
			return s, nil
		}
		s.unlock() // evicted meanwhile
	}
}

// receiving notes that a body of a session is on its way, until the returned function is called: what
// waits for another channel goes on waiting.
func (in *intake) receiving(id string, who principal) (done func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.sessions[id]
	if s == nil || !s.windows.isOf(who) {
		return func() {}
	}
	s.receiving.Add(1)
	return func() { s.receiving.Add(-1) }
}

// living reports whether a principal's session is in memory.
func (in *intake) living(id string, who principal) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.sessions[id]
	if s == nil {
		s = in.leaving[id]
	}
	return s != nil && s.windows.isOf(who)
}

// foreign refuses a session that another principal has opened. The agent then goes on with its
// other sessions and keeps its file.
func foreign() *ingest.Refusal {
	return &ingest.Refusal{
		Status: http.StatusConflict,
		Reason: "the session was opened with other credentials: send it with those",
	}
}

func (in *intake) find(ctx context.Context, id string, who principal, lines bool) (*intakeSession, *ingest.Refusal) {
	in.mu.Lock()
	if s := in.sessions[id]; s != nil {
		defer in.mu.Unlock()
		if !s.windows.claim(who) {
			return nil, foreign()
		}
		return s, nil
	}
	if s := in.leaving[id]; s != nil {
		defer in.mu.Unlock()
		if !s.windows.isOf(who) {
			return nil, foreign()
		}
		return nil, ingest.Unavailable("the session is being closed: its last data is on its way to the next component")
	}
	if w := in.finished.m[id]; w != nil && !w.claim(who) {
		in.mu.Unlock()
		return nil, foreign()
	}
	var victim *intakeSession
	if candidates := in.candidates(who); candidates != nil {
		if victim = in.victim(candidates); victim == nil || len(in.leaving) >= maxRefused {
			if victim != nil {
				victim.unlock()
			}
			in.mu.Unlock()
			return nil, ingest.Busy(fmt.Sprintf("all sessions that could make room are busy: at most %d may be in memory", in.cfg.MaxSessions))
		}
		in.remove(victim)
	}
	s := in.newSession(id, lines)
	if w := in.finished.take(id); w != nil {
		s.windows = w
	}
	s.windows.claim(who)
	in.sessions[id] = s
	in.mu.Unlock()
	if victim != nil {
		in.evict(ctx, victim)
		victim.unlock()
	}
	return s, nil
}

// remove takes a locked session out of the table. The caller has locked mu, and calls leave next.
func (in *intake) remove(s *intakeSession) {
	s.gone = true
	delete(in.sessions, s.id)
	in.leaving[s.id] = s
}

// candidates returns the sessions of which one is closed to make room for a principal's new one,
// nil if there is room. One principal may have max_sessions; beyond that its own sessions make
// room. All together may have a quarter more, so that no principal can occupy every place; beyond
// that those of the principal with the most make room.
func (in *intake) candidates(who principal) []*intakeSession {
	byOwner := map[principal][]*intakeSession{}
	var most []*intakeSession
	for _, s := range in.sessions {
		list := append(byOwner[s.windows.owner], s)
		byOwner[s.windows.owner] = list
		if len(list) > len(most) {
			most = list
		}
	}
	own := byOwner[who]
	switch limit := in.cfg.MaxSessions; {
	case len(own) >= limit || (len(in.sessions) >= limit+max(limit/4, 1) && len(own) == len(most)):
		return own
	case len(in.sessions) >= limit+max(limit/4, 1):
		return most
	}
	return nil
}

// victim returns, locked, the session of a list that is closed to make room: one that has ended, or
// else the one that has been silent longest. It is nil if all are in use.
func (in *intake) victim(list []*intakeSession) *intakeSession {
	var best *intakeSession
	for _, s := range list {
		if s.receiving.Load() > 0 || !s.tryLock() {
			continue
		}
		if s.parcel != nil || (best != nil && !s.before(best)) {
			s.unlock()
			continue
		}
		if best != nil {
			best.unlock()
		}
		best = s
	}
	return best
}

// evict closes a locked session that is no longer among the living.
func (in *intake) evict(ctx context.Context, s *intakeSession) {
	if !s.dec.Finished() {
		in.tel.ReceiverGpuflogHTTPSessionsEvicted.Add(ctx, 1)
		in.logger.Warn("a session is closed before its end to make room for another", zap.String("session", s.id))
	}
	s.step(gpuflog.Step{Gone: true, AtEnd: allChannels, Flush: true})
	in.leave(ctx, s)
}

// leave forgets a locked session that was removed, once its data is delivered. Until then it is called
// again with each tick.
func (in *intake) leave(ctx context.Context, s *intakeSession) {
	s.tell(ctx)
	if _, err := s.settle(ctx); err != nil {
		return
	}
	in.waiting.Add(-int64(s.waits))
	s.waits = 0
	in.mu.Lock()
	dropped := in.finished.put(s.id, s.windows)
	in.mu.Unlock()
	if err := in.store.finish(ctx, s, dropped); err != nil {
		in.storeFailed(ctx, s, err)
	}
	in.mu.Lock()
	delete(in.leaving, s.id)
	in.mu.Unlock()
}

func (in *intake) storeFailed(ctx context.Context, s *intakeSession, err error) {
	in.tel.ReceiverGpuflogCheckpointErrors.Add(ctx, 1)
	in.logger.Warn("the state of a session could not be stored", zap.String("session", s.id), zap.Error(err))
}

// tickEvery is how often what waits for the clock is looked at; saveEvery bounds how much of a
// session that comes line by line is not stored yet.
const (
	tickEvery = 100 * time.Millisecond
	saveEvery = time.Second
)

// run does what time brings about, until stop.
func (in *intake) run(ctx context.Context, stop <-chan struct{}) {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			in.tick(ctx)
		case <-stop:
			return
		}
	}
}

func (in *intake) tick(ctx context.Context) {
	now := in.now()
	in.mu.Lock()
	list := slices.Collect(maps.Values(in.sessions))
	leaving := slices.Collect(maps.Values(in.leaving))
	in.mu.Unlock()
	in.tel.ReceiverGpuflogHTTPSessions.Record(ctx, int64(len(list)))
	for _, s := range leaving {
		if s.tryLock() {
			if now.Sub(s.triedAt) >= saveEvery {
				in.leave(ctx, s)
			}
			s.unlock()
		}
	}
	for _, s := range list {
		if !s.tryLock() {
			continue // a request is doing it
		}
		if !s.gone {
			in.tickSession(ctx, s, now)
		}
		s.unlock()
	}
}

func (in *intake) tickSession(ctx context.Context, s *intakeSession, now time.Time) {
	if s.parcel == nil && !s.rests() {
		s.step(s.stepAt(now))
		s.tell(ctx)
	}
	if s.parcel != nil && now.Sub(s.triedAt) < saveEvery {
		return
	}
	if _, err := s.settle(ctx); err != nil {
		return
	}
	if s.changed && now.Sub(s.savedAt) >= saveEvery {
		if err := s.save(ctx); err != nil {
			in.storeFailed(ctx, s, err)
		}
	}
	if s.dec.Finished() && s.receiving.Load() == 0 && now.Sub(s.last) > keepEnded {
		in.mu.Lock()
		in.remove(s)
		in.mu.Unlock()
		in.leave(ctx, s)
	}
}

// restore takes up the sessions that were stored.
func (in *intake) restore(ctx context.Context) error {
	living, done, errs := in.store.open(ctx)
	for _, d := range done {
		in.finished.put(d.id, d.windows)
	}
	for _, b := range living {
		s, err := in.load(b)
		if err != nil {
			in.store.forget(b.id) // and its windows with it: if they come again they are read again
			errs = append(errs, err)
			continue
		}
		in.sessions[s.id] = s
	}
	in.counters.reject(ctx, "checkpoint", int64(len(errs)))
	return errors.Join(errs...)
}

// shutdown delivers what can be delivered within the context's time and stores the rest. No request
// is under way any more.
func (in *intake) shutdown(ctx context.Context) {
	in.mu.Lock()
	list := slices.AppendSeq(slices.Collect(maps.Values(in.leaving)), maps.Values(in.sessions))
	in.mu.Unlock()
	for _, s := range list {
		if !s.lock(ctx, time.Second) {
			in.logger.Warn("a request did not end in time; what it was about is sent again by its client", zap.String("session", s.id))
			continue
		}
		in.shutdownSession(ctx, s)
		s.unlock()
	}
}

func (in *intake) shutdownSession(ctx context.Context, s *intakeSession) {
	if s.parcel == nil && !in.store.on() {
		// What waits would be lost, and what is open would never be told.
		s.step(gpuflog.Step{AtEnd: allChannels, Quiet: in.opt.SessionTimeout, Flush: true})
		s.tell(ctx)
	}
	if _, err := s.deliver(ctx); err != nil {
		if in.store.on() {
			in.logger.Warn("data was not accepted before the shutdown; it is made again from what is stored and sent again",
				zap.String("session", s.id), zap.Int("items", s.parcel.items()), zap.Error(err))
			return
		}
		in.tel.ReceiverGpuflogDropped.Add(ctx, int64(s.parcel.items()))
		in.logger.Error("data was not accepted before the shutdown and is lost: set storage to keep it",
			zap.String("session", s.id), zap.Int("items", s.parcel.items()), zap.Error(err))
		return
	}
	if s.changed {
		if err := s.save(ctx); err != nil {
			in.storeFailed(ctx, s, err)
		}
	}
}

var allChannels = [gpuflog.NumChannels]bool{true, true, true, true}
