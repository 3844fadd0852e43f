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

	"go.opentelemetry.io/collector/client"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// intake holds the sessions over HTTP. Each has a decoder, which serves one request at a time. It
// is safe for concurrent use.
type intake struct {
	cfg      *HTTPConfig
	opt      gpuflog.Options
	logger   *zap.Logger
	out      *outputs
	tel      *metadata.TelemetryBuilder
	counters *counters
	store    *intakeStore

	// base ends when deliveries in progress must end.
	base context.Context

	// slots bounds the requests that decode and deliver concurrently, and so their memory.
	slots *fairSlots
	// closing makes requests in progress end before the next part of their data.
	closing atomic.Bool
	// long bounds the requests among them with a long line.
	long *fairSlots
	// refused counts the sessions with data that the pipelines have not accepted yet.
	refused atomic.Int64
	// waiting counts the waiting rows and spans of all sessions. maxWaiting bounds them.
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
	// decodeSlots bounds the requests of one principal that decode concurrently. A slow pipeline
	// then blocks only some requests.
	decodeSlots = 8
	// longLine is the length from which a line needs more memory than the chunks of files and
	// bodies.
	longLine = 2 << 20
	// maxRefused bounds the sessions with a batch that the pipelines have rejected. Above it
	// nothing more is decoded. A batch holds about a MiB of lines.
	maxRefused = 8
	// lockWait is how long a request waits for another request of its session, or for a slot.
	lockWait = 10 * time.Second
	// deliverWait is how long a request tries to deliver before its client is asked to retry.
	deliverWait = 2 * time.Second
	// releaseWait is how long a window waits for its scopes if its sender deletes it and no storage
	// keeps the waiting data.
	releaseWait = 2 * time.Second
	// maxHeldHTTP bounds the spans of a session that wait for the scope channel. The client sends
	// the complete device channel first.
	maxHeldHTTP = 1 << 17
	// maxWaiting bounds the waiting data of all sessions together: about 150 MiB.
	maxWaiting = 1 << 18
	// maxSessionID is longer than any id that the recorder writes.
	maxSessionID = 256
	// keepEnded is how long the decoder of an ended session is kept for late data.
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
		slots:      newFairSlots(decodeSlots),
		long:       newFairSlots(1),
		maxWaiting: maxWaiting,
		sessions:   map[string]*intakeSession{},
		leaving:    map[string]*intakeSession{},
		finished:   newFinished(),
	}
}

// overloaded rejects requests while the pipelines do not accept decoded data.
func (in *intake) overloaded() *ingest.Refusal {
	if in.refused.Load() >= maxRefused {
		return ingest.Unavailable("the next component does not accept data")
	}
	return nil
}

// slot waits for a decoding slot of a principal. Without a refusal the caller must call release.
// Requests of a principal with a line of more than longLine bytes decode sequentially. They wait
// for that before they occupy a slot, so they delay each other and no other request.
func (in *intake) slot(ctx context.Context, who principal, longest int) (release func(), refusal *ingest.Refusal) {
	busy := ingest.Unavailable("too many requests wait to be decoded: retry later")
	isLong := longest > longLine
	if isLong && !in.long.acquire(ctx, who, lockWait) {
		return nil, busy
	}
	if in.slots.acquire(ctx, who, lockWait) {
		return func() {
			in.slots.release(who)
			if isLong {
				in.long.release(who)
			}
		}, nil
	}
	if isLong {
		in.long.release(who)
	}
	return nil, busy
}

// open returns a principal's session with an id, locked. It creates the session if necessary. lines
// means that the session is sent line by line.
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
			return nil, ingest.Busy("another request of this session is in progress")
		}
		if !s.gone {
			owner, _ := s.owner()
			s.changed = s.changed || s.stored && s.storedOwner != owner
			return s, nil
		}
		s.unlock() // evicted meanwhile
	}
}

// receiving marks a body of a session as in progress until the returned function is called. In this
// time, data that waits for another channel keeps waiting.
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

// active reports whether a principal's session is in memory.
func (in *intake) active(id string, who principal) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := in.sessions[id]
	if s == nil {
		s = in.leaving[id]
	}
	return s != nil && s.windows.isOf(who)
}

// foreign rejects a session that another principal has opened. The agent then continues with its
// other sessions and keeps its file.
func foreign() *ingest.Refusal {
	return &ingest.Refusal{
		Status: http.StatusConflict,
		Reason: "the session was opened with other credentials: send it with those",
	}
}

func (in *intake) find(ctx context.Context, id string, who principal, lines bool) (*intakeSession, *ingest.Refusal) {
	project := projectOf(client.FromContext(ctx))
	in.mu.Lock()
	if s := in.sessions[id]; s != nil {
		defer in.mu.Unlock()
		if !s.windows.claim(who, project) {
			return nil, foreign()
		}
		return s, nil
	}
	if s := in.leaving[id]; s != nil {
		defer in.mu.Unlock()
		if !s.windows.isOf(who) {
			return nil, foreign()
		}
		return nil, ingest.Unavailable("the session is being closed: its last data is in flight")
	}
	if w := in.finished.m[id]; w != nil && !w.claim(who, project) {
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
			return nil, ingest.Busy(fmt.Sprintf("all sessions are busy: at most %d may be in memory", in.cfg.MaxSessions))
		}
		in.remove(victim)
	}
	s := in.newSession(id, lines)
	if w := in.finished.take(id); w != nil {
		s.windows = w
	}
	s.windows.claim(who, project)
	in.sessions[id] = s
	in.mu.Unlock()
	if victim != nil {
		in.evict(ctx, victim)
		victim.unlock()
	}
	return s, nil
}

// remove removes a locked session from the table. The caller holds mu, and calls retire next.
func (in *intake) remove(s *intakeSession) {
	s.gone = true
	delete(in.sessions, s.id)
	in.leaving[s.id] = s
}

// candidates returns the sessions of which one is closed for a principal's new one, or nil below
// the bounds. One principal may have max_sessions; above that the candidates are its own sessions.
// All together may have a quarter more, so that no principal can occupy every place. Above that the
// candidates are the sessions of the principal with the most.
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

// victim returns, locked, the session of a list that is closed: an ended one, or the one that has
// been idle longest. It is nil if all are in use.
func (in *intake) victim(list []*intakeSession) *intakeSession {
	var best *intakeSession
	for _, s := range list {
		if s.receiving.Load() > 0 || !s.tryLock() {
			continue
		}
		if s.pending != nil || (best != nil && !s.before(best)) {
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

// evict closes a locked session that was removed from the table.
func (in *intake) evict(ctx context.Context, s *intakeSession) {
	if !s.dec.Finished() {
		in.tel.ReceiverGpuflogHTTPSessionsEvicted.Add(ctx, 1)
		in.logger.Warn("session closed before its end: too many sessions", zap.String("session", s.id))
	}
	s.step(gpuflog.Step{Gone: true, AtEnd: allChannels, Flush: true})
	in.retire(ctx, s)
}

// retire releases a removed, locked session once its data is delivered. Until then it is called
// again with each tick.
func (in *intake) retire(ctx context.Context, s *intakeSession) {
	s.updateCounters(ctx)
	if _, err := s.tryDeliver(ctx); err != nil {
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

// tickEvery is the interval of timed work. saveEvery bounds the age of unstored data in a session
// that is sent line by line.
const (
	tickEvery = 100 * time.Millisecond
	saveEvery = time.Second
)

// run runs the timed work until stop.
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
				in.retire(ctx, s)
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
	if s.pending == nil && !s.idle() {
		s.step(s.stepAt(now))
		s.updateCounters(ctx)
	}
	if s.pending != nil && now.Sub(s.triedAt) < saveEvery {
		return
	}
	if _, err := s.tryDeliver(ctx); err != nil {
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
		in.retire(ctx, s)
	}
}

// restore loads the stored sessions.
func (in *intake) restore(ctx context.Context) error {
	active, done, errs := in.store.open(ctx)
	for _, d := range done {
		in.finished.put(d.id, d.windows)
	}
	for _, b := range active {
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

// shutdown delivers data until the context ends and stores the rest. No request is in progress.
func (in *intake) shutdown(ctx context.Context) {
	in.mu.Lock()
	list := slices.AppendSeq(slices.Collect(maps.Values(in.leaving)), maps.Values(in.sessions))
	in.mu.Unlock()
	for _, s := range list {
		if !s.lock(ctx, time.Second) {
			in.logger.Warn("request timed out; its client sends it again", zap.String("session", s.id))
			continue
		}
		in.shutdownSession(ctx, s)
		s.unlock()
	}
}

func (in *intake) shutdownSession(ctx context.Context, s *intakeSession) {
	if s.pending == nil && !in.store.on() {
		// Without storage waiting data would be lost, and open scopes would never be sent.
		s.step(gpuflog.Step{AtEnd: allChannels, Quiet: in.opt.SessionTimeout, Flush: true})
		s.updateCounters(ctx)
	}
	if _, err := s.deliver(ctx); err != nil {
		if in.store.on() {
			in.logger.Warn("data was not accepted before the shutdown; it is restored from the storage and sent again",
				zap.String("session", s.id), zap.Int("items", s.pending.items()), zap.Error(err))
			return
		}
		in.tel.ReceiverGpuflogDropped.Add(ctx, int64(s.pending.items()))
		in.logger.Error("data was not accepted before the shutdown and is lost: set storage to keep it",
			zap.String("session", s.id), zap.Int("items", s.pending.items()), zap.Error(err))
		return
	}
	if s.changed {
		if err := s.save(ctx); err != nil {
			in.storeFailed(ctx, s, err)
		}
	}
}

var allChannels = [gpuflog.NumChannels]bool{true, true, true, true}
