// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

const (
	// maxHeld is how many spans of a session may wait for the scope channel: partitions may be far
	// apart when a topic is read from its beginning.
	maxHeld = 1 << 17
	// maxWaiting bounds what waits in all sessions of a signal together: about 150 MiB.
	maxWaiting = 1 << 18
	// maxDictionary bounds the names of a session, in bytes.
	maxDictionary = 16 << 20
	// maxSessionID is longer than any id that the recorder writes.
	maxSessionID = 256
	// maxParts bounds what one message may return, in full batches: 65,536 spans or 262,144 data
	// points, about 128 MiB. Kafka's default bounds a message to 1 MiB, which is 25,000 kernels.
	maxParts = 8
	// sweepEvery is how often sessions are looked at of which nothing came.
	sweepEvery = 100 * time.Millisecond
	// keepEnded is how long a session that has ended is kept for what comes late or again.
	keepEnded = time.Minute
)

// reader decodes the messages of one signal. It is safe for concurrent use.
type reader struct {
	cfg    *Config
	opt    gpuflog.Options
	logger *zap.Logger
	tel    *metadata.TelemetryBuilder
	signal string
	attr   metric.MeasurementOption
	now    func() time.Time

	mu    sync.Mutex
	batch *gpuevent.Batch
	// out is what the message in progress returns, parts the full batches in it.
	out      output
	parts    int
	sessions map[string]*session
	returned returned
	waiting  int
	swept    time.Time
	warned   map[string]struct{}
	rejects  map[string]metric.MeasurementOption
}

func newReader(cfg *Config, logger *zap.Logger, tel *metadata.TelemetryBuilder, signal string, signals gpuevent.Signals) *reader {
	return &reader{
		cfg: cfg, logger: logger.With(zap.String("signal", signal)), tel: tel, signal: signal, now: time.Now,
		attr: metric.WithAttributeSet(attribute.NewSet(attribute.String("signal", signal))),
		opt: gpuflog.Options{
			MaxSpansPerTrace: cfg.MaxSpansPerTrace, JoinTimeout: cfg.JoinTimeout, ScopeWait: cfg.ChannelTimeout,
			SessionTimeout: cfg.SessionTimeout, MaxHeld: maxHeld, MaxRows: maxHeld, MaxDictionaryBytes: maxDictionary, MaxSessions: 1,
			// Of later layouts it only takes away what is the kernel's own name.
			KernelNameInPath: true,
		},
		batch: gpuevent.NewBatch(signals), sessions: map[string]*session{}, warned: map[string]struct{}{},
		rejects: map[string]metric.MeasurementOption{},
	}
}

// take decodes a message and returns what it makes complete.
func (r *reader) take(message []byte) output {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx := context.Background()
	r.tel.ExtensionGpuflogMessages.Add(ctx, 1, r.attr)
	now := r.now()
	lines, err := open(message, r.cfg.MaxMessageBytes)
	if err != nil {
		var bad *messageError
		if errors.As(err, &bad) {
			r.reject(ctx, bad.reason, 1)
			r.warn("message not taken", bad.reason, bad.err.Error(), message)
		}
	}
	hash := maphash.Bytes(seed, message)
	again, repeated := r.returned.get(hash)
	if repeated {
		r.tel.ExtensionGpuflogReturnedAgain.Add(ctx, 1, r.attr)
		if !ofEveryChannel(lines) {
			return again
		}
	}
	r.out, r.parts = newOutput(), 0
	touched, fresh := r.lines(ctx, lines, now)
	for _, s := range touched {
		s.touched = false
		if r.sessions[s.id] == s { // not closed meanwhile to make room
			r.step(ctx, s, now)
		}
	}
	if len(touched) > 0 {
		// Not for a message that completes nothing. It may be repeated forever, and would resemble a
		// message that is delivered again because its data was not accepted.
		r.sweep(ctx, now)
	}
	r.out.take(r.batch)
	out := r.out
	r.out = output{}
	if repeated {
		// The same line of another channel, or the same message: that cannot be told. Both get their due.
		out.append(again)
	}
	if !r.returned.put(hash, out) {
		// Too much to keep. If the message comes again, it is decoded again.
		for _, f := range fresh {
			f.session.recent.forget(f.hash)
		}
	}
	return out
}

// whenFull moves a full batch to what the message returns. False means that it returns enough.
func (r *reader) whenFull(b *gpuevent.Batch) bool {
	if r.parts++; r.parts >= maxParts { // the last part stays in the batch
		return false
	}
	r.out.take(b)
	return true
}

// ofEveryChannel reports whether lines are one that the recorder writes into every channel.
func ofEveryChannel(lines []byte) bool {
	lines = bytes.TrimSpace(lines)
	return bytes.IndexByte(lines, '\n') < 0 && everyChannel[gpuflog.TypeOf(lines)]
}

// freshLine is a line that had not come before.
type freshLine struct {
	session *session
	hash    uint64
}

// lines feeds the lines of a message. It returns the sessions that they are of.
func (r *reader) lines(ctx context.Context, lines []byte, now time.Time) (touched []*session, fresh []freshLine) {
	taken, repeated := int64(0), int64(0)
	for len(lines) > 0 {
		line, rest, _ := bytes.Cut(lines, []byte{'\n'})
		lines = rest
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		typ, id := gpuflog.TypeOf(line), gpuflog.SessionOf(line)
		reason := ""
		switch {
		case typ == "":
			reason = reasonMalformed
		case id == "":
			reason = reasonNoSession
		case len(id) > maxSessionID:
			reason = reasonSessionID
		}
		if reason != "" {
			r.reject(ctx, reason, 1)
			r.warn("line not taken", reason, "", line)
			continue
		}
		s := r.session(ctx, id, now)
		if !everyChannel[typ] {
			hash := maphash.Bytes(seed, line)
			if s.recent.seen(hash) {
				s.last = now
				repeated++
				continue
			}
			fresh = append(fresh, freshLine{s, hash})
		}
		taken++
		late, done := s.feed(line, typ, now, r.batch)
		if late {
			r.reject(ctx, reasonAfterEnd, 1)
		}
		if !done {
			r.reject(ctx, reasonExpands, 1)
			r.warn("a message becomes too large; its last lines are cut", reasonExpands, "", line)
		}
		if !s.touched {
			s.touched = true
			touched = append(touched, s)
		}
	}
	if taken > 0 {
		r.tel.ExtensionGpuflogLines.Add(ctx, taken, r.attr)
	}
	if repeated > 0 {
		r.tel.ExtensionGpuflogRepeated.Add(ctx, repeated, r.attr)
	}
	return touched, fresh
}

// session returns the session with an id, made if need be.
func (r *reader) session(ctx context.Context, id string, now time.Time) *session {
	if s := r.sessions[id]; s != nil {
		return s
	}
	if len(r.sessions) >= r.cfg.MaxSessions {
		var victim *session
		for _, s := range r.sessions {
			if victim == nil || s.before(victim) {
				victim = s
			}
		}
		if !victim.dec.Finished() {
			r.tel.ExtensionGpuflogEvicted.Add(ctx, 1, r.attr)
			r.warn("session closed before its end: too many sessions", "evicted", victim.id, nil)
		}
		if victim.finish(now, r.batch); victim.dec.Stopped() {
			n := victim.waiting()
			r.reject(ctx, reasonExpands, int64(n))
			r.warn("a session is closed with more data than a message may return; the rest is lost", reasonExpands, victim.id, nil)
		}
		r.remove(ctx, victim)
	}
	s := r.newSession(id, now)
	r.sessions[id] = s
	return s
}

func (r *reader) newSession(id string, now time.Time) *session {
	s := newSession(id, r.opt, r.cfg.RememberedLines, now)
	s.dec.WhenFull(r.whenFull)
	return s
}

func (r *reader) remove(ctx context.Context, s *session) {
	r.report(ctx, s)
	r.waiting -= s.waits
	delete(r.sessions, s.id)
}

// step does what a time brings about in a session, and keeps count.
func (r *reader) step(ctx context.Context, s *session, now time.Time) {
	if s.step(now, r.cfg.ChannelTimeout, r.batch) {
		r.reject(ctx, reasonEarlyEnd, 1)
	}
	n := s.waiting()
	if more := n - s.waits; more > 0 && r.waiting+more > maxWaiting {
		r.tel.ExtensionGpuflogHeldOverflow.Add(ctx, int64(n), r.attr)
		s.dec.EndStep(gpuflog.Step{Now: gpuflog.Now(now), Flush: true}, r.batch)
		n = s.waiting()
	}
	r.waiting += n - s.waits
	s.waits = n
	r.report(ctx, s)
}

// sweep looks at all sessions now and then: there is no clock here but that of messages.
func (r *reader) sweep(ctx context.Context, now time.Time) {
	if now.Sub(r.swept) < sweepEvery {
		return
	}
	r.swept = now
	for _, id := range slices.Sorted(maps.Keys(r.sessions)) {
		s := r.sessions[id]
		if s.dec.Finished() && s.end == nil && s.waits == 0 {
			if now.Sub(s.last) > max(keepEnded, r.cfg.ChannelTimeout) {
				r.remove(ctx, s)
			}
			continue
		}
		r.step(ctx, s, now)
	}
	r.tel.ExtensionGpuflogSessions.Record(ctx, int64(len(r.sessions)), r.attr)
	r.tel.ExtensionGpuflogWaiting.Record(ctx, int64(r.waiting), r.attr)
}

// report adds what a session's decoder counted to the telemetry.
func (r *reader) report(ctx context.Context, s *session) {
	st, old := s.dec.Stats(), s.told
	if st == old {
		return
	}
	s.told = st
	for _, c := range []struct {
		counter     metric.Int64Counter
		now, before uint64
	}{
		{r.tel.ExtensionGpuflogJoinsExpired, st.JoinsExpired, old.JoinsExpired},
		{r.tel.ExtensionGpuflogScopesMissed, st.ScopesMissed, old.ScopesMissed},
		{r.tel.ExtensionGpuflogHeldOverflow, st.HeldOverflow, old.HeldOverflow},
	} {
		if c.now > c.before {
			c.counter.Add(ctx, int64(c.now-c.before), r.attr)
		}
	}
	if st.Rejects == old.Rejects {
		return
	}
	for i := range st.Rejects {
		if n := st.Rejects[i] - old.Rejects[i]; n > 0 {
			r.reject(ctx, gpuflog.Reason(i).String(), int64(n))
		}
	}
	for _, p := range s.dec.TakeProblems() {
		r.warn("line not taken as it stands", p.Reason.String(), p.Detail, nil)
	}
}

func (r *reader) reject(ctx context.Context, reason string, n int64) {
	opt, ok := r.rejects[reason]
	if !ok {
		opt = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason), attribute.String("signal", r.signal)))
		r.rejects[reason] = opt
	}
	r.tel.ExtensionGpuflogRejects.Add(ctx, n, opt)
}

// warn tells of the first thing of each reason; the others are only counted.
func (r *reader) warn(what, reason, detail string, data []byte) {
	if _, ok := r.warned[reason]; ok {
		return
	}
	r.warned[reason] = struct{}{}
	r.logger.Warn(what+"; further ones of this reason are only counted", zap.String("reason", reason),
		zap.String("detail", detail), zap.ByteString("data", data[:min(len(data), 256)]))
}

// stored is a session as it is kept in the storage.
type stored struct {
	ID           string
	Flat, Ended  bool
	Ends         int
	End          []byte
	State, Names []byte
}

// key is where a reader's sessions are kept.
func (r *reader) key() string { return "sessions/" + r.signal }

// close keeps what is known of sessions, or counts what is lost without a storage.
func (r *reader) close(ctx context.Context, client storage.Client) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if client == nil {
		if r.waiting > 0 {
			r.tel.ExtensionGpuflogLost.Add(ctx, int64(r.waiting), r.attr)
			r.logger.Warn("what waits for other messages of its session is lost at the shutdown: set storage to keep it", zap.Int("items", r.waiting))
		}
		return nil
	}
	var list []stored
	for _, id := range slices.Sorted(maps.Keys(r.sessions)) {
		s := r.sessions[id]
		list = append(list, stored{
			ID: id, Flat: s.flat, Ended: s.ended, Ends: s.ends, End: s.end,
			State: s.dec.AppendState(nil), Names: s.dec.AppendDictionaries(nil),
		})
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return client.Set(ctx, r.key(), b)
}

// load takes up what was kept, and deletes it: after a kill it would be of another time than the
// messages that come next.
func (r *reader) load(ctx context.Context, client storage.Client) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := client.Get(ctx, r.key())
	if err != nil || b == nil {
		return err
	}
	var list []stored
	if err := json.Unmarshal(b, &list); err != nil {
		r.reject(ctx, reasonState, 1)
		r.warn("what was stored of sessions cannot be read", reasonState, err.Error(), nil)
	}
	now := r.now()
	for _, st := range list {
		if len(r.sessions) >= r.cfg.MaxSessions {
			r.tel.ExtensionGpuflogEvicted.Add(ctx, 1, r.attr)
			continue
		}
		s := r.newSession(st.ID, now)
		if err := s.dec.LoadState(st.State, st.Names); err != nil {
			r.reject(ctx, reasonState, 1)
			r.warn("what was stored of a session cannot be read", reasonState, err.Error(), nil)
			continue
		}
		s.dec.Resume(gpuflog.Now(now))
		s.flat, s.ended, s.ends, s.end = st.Flat, st.Ended, st.Ends, st.End
		s.waits = s.waiting()
		r.waiting += s.waits
		r.sessions[st.ID] = s
	}
	return client.Delete(ctx, r.key())
}
