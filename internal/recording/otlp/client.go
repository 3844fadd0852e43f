// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

// Why items were not sent.
const (
	ReasonQueueFull   = "queue_full"  // they came faster than they could be sent
	ReasonUnreachable = "unreachable" // nobody took them in time
	ReasonRefused     = "refused"     // the endpoint does not want the request
	ReasonRejected    = "rejected"    // the endpoint took the request and not these of it
	ReasonShutdown    = "shutdown"    // still waiting when Shutdown's time was over, or handed over after it
	ReasonDisk        = "disk"        // the file could not be written
	ReasonFault       = "fault"       // they could not be encoded
	ReasonUnsupported = "unsupported" // the endpoint does not know profiles
)

const (
	defaultQueueBytes   = 64 << 20
	defaultRequestBytes = 3 << 20
	defaultRetryFor     = 5 * time.Minute
	// fileLine is the longest line that is written to a file, in bytes: the Collector's otlp_json_file
	// receiver cuts longer ones than 1 MiB (max_log_size) unless it is told otherwise.
	fileLine = 1<<20 - 1
	// filePiece is how much OTLP, in bytes, goes into one line: twice as long in JSON, it rarely has to
	// be cut again, which costs as much as encoding it.
	filePiece = 400 << 10
	// payloadBytes is what a payload counts beside its content: many small ones must not add up to more
	// memory than the queue's limit lets one expect.
	payloadBytes = 512
	// tellEvery is how often one signal's state is told of at most. An endpoint that takes every second
	// request must not fill the program's log.
	tellEvery   = 30 * time.Second
	firstWait   = 500 * time.Millisecond
	longestWait = 30 * time.Second
)

// Stats say what became of one signal's items: spans, log records, metrics' points or profiles. Sent and
// Unsent together are all that were handed over and no longer wait.
type Stats struct {
	// Endpoint is where they go, without secrets.
	Endpoint string
	Sent     uint64
	// Unsent has the reasons that occurred.
	Unsent map[string]uint64
	// LastError is the last one that cost an attempt, "" if there was none.
	LastError string
}

// UnsentTotal is the sum of Unsent.
func (s Stats) UnsentTotal() uint64 {
	var n uint64
	for _, v := range s.Unsent {
		n += v
	}
	return n
}

// Client sends telemetry in the background. Traces, Logs, Metrics, Profiles, Stats and Check may be called by
// any goroutine; handing over never waits for the network or the disk, and the data is the client's
// from then on.
type Client struct {
	log     *slog.Logger
	lanes   [numSignals]*lane
	file    *file
	stop    context.CancelFunc
	workers sync.WaitGroup
	once    sync.Once
	outcome error
}

// lane is one signal's queue and worker.
type lane struct {
	signal  Signal
	to      string
	off     bool
	limit   int // bytes that may wait
	request int // bytes of one request
	retry   time.Duration
	attempt time.Duration
	out     transport
	file    *file
	log     *slog.Logger

	mu      sync.Mutex
	queue   []waiting
	bytes   int
	closed  bool
	wake    chan struct{} // has room for one
	closing chan struct{} // closed by Shutdown
	stats   Stats
	told    bool // a warning has been given and not taken back
	toldAt  time.Time
	full    bool      // has been told since the queue was last empty
	until   time.Time // when Shutdown's time is over; zero for never

	// Only the worker uses these.
	renewed bool // the last try's connection was asked for
	noted   bool // the endpoint's remark has been told
}

type waiting struct {
	payload payload
	bytes   int
}

// New returns a running client. It connects when there is something to send; errors are about
// settings only, such as a certificate that cannot be read. A nil logger drops everything.
func New(s Settings, logger *slog.Logger) (*Client, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if s.QueueBytes <= 0 {
		s.QueueBytes = defaultQueueBytes
	}
	if s.RequestBytes <= 0 {
		s.RequestBytes = defaultRequestBytes
	}
	if s.RetryFor <= 0 {
		s.RetryFor = defaultRetryFor
	}
	c := &Client{log: logger}
	if s.File != "" {
		var err error
		if c.file, err = openFile(s.File); err != nil {
			return nil, fmt.Errorf("GPUFLIGHT_OUTPUT: %w", err)
		}
	}
	for signal := range numSignals {
		e := s.Signals[signal]
		l := &lane{
			signal: signal, to: e.String(), off: !s.Sends(signal), limit: s.QueueBytes, request: s.RequestBytes, retry: s.RetryFor, attempt: e.Timeout,
			file: c.file, log: logger, wake: make(chan struct{}, 1), closing: make(chan struct{}),
		}
		if l.attempt <= 0 {
			l.attempt = defaultTimeout
		}
		if signal != Traces {
			l.limit /= 4
		}
		if c.file != nil {
			l.to, l.request = s.File, min(l.request, filePiece)
		}
		c.lanes[signal] = l
		if l.off || c.file != nil {
			continue
		}
		if e.URL == nil {
			c.closeTransports()
			return nil, fmt.Errorf("otlp: settings without an endpoint for %s: make them by FromEnv", signal)
		}
		var err error
		if l.out, err = newTransport(signal, e); err != nil {
			c.closeTransports()
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	for _, l := range c.lanes {
		if !l.off {
			c.workers.Go(func() { l.run(ctx) })
		}
	}
	return c, nil
}

func (c *Client) closeTransports() {
	for _, l := range c.lanes {
		if l != nil && l.out != nil {
			l.out.close()
		}
	}
	if c.file != nil {
		_ = c.file.close()
	}
}

// Traces hands spans over.
func (c *Client) Traces(td ptrace.Traces) { c.lanes[Traces].put(traces{td}) }

// Logs hands log records over.
func (c *Client) Logs(ld plog.Logs) { c.lanes[Logs].put(logs{ld}) }

// Metrics hands metrics over.
func (c *Client) Metrics(md pmetric.Metrics) { c.lanes[Metrics].put(metrics{md}) }

// Profiles hands profiles over, if they are sent at all. An endpoint need not know them: what it does not take is
// counted, told of once, and no error of Shutdown or Check.
func (c *Client) Profiles(p profile.Profiles) { c.lanes[Profiles].put(profilesPayload{p}) }

// Stats returns what became of each signal so far.
func (c *Client) Stats() map[Signal]Stats {
	m := map[Signal]Stats{}
	for signal, l := range c.lanes {
		m[Signal(signal)] = l.snapshot()
	}
	return m
}

// Shutdown takes nothing more, sends what waits, and returns when that is done or ctx is. An
// endpoint that is away is tried once more and then given up, without waiting for ctx. What was not
// sent is in Stats; the error says so too.
func (c *Client) Shutdown(ctx context.Context) error {
	c.once.Do(func() {
		for _, l := range c.lanes {
			l.close(ctx)
		}
		done := make(chan struct{})
		go func() { c.workers.Wait(); close(done) }()
		select {
		case <-done:
		case <-ctx.Done():
		}
		c.stop()
		<-done
		c.closeTransports()
		var errs []error
		for _, l := range c.lanes {
			if s := l.snapshot(); s.UnsentTotal() > s.Unsent[ReasonUnsupported] {
				errs = append(errs, fmt.Errorf("%d %s were not sent to %s: %v: %s", s.UnsentTotal(), itemNames[l.signal], s.Endpoint, s.Unsent, s.LastError))
			}
		}
		c.outcome = errors.Join(errs...)
	})
	return c.outcome
}

var itemNames = [numSignals]string{"spans", "log records", "metric points", "profiles"}

// Check makes one attempt to send an empty request to each endpoint, all at a time, and returns what
// is wrong. It takes no longer than the longest of their timeouts. A file has been opened by New: of
// that it tells whether it is still there.
func (c *Client) Check(ctx context.Context) error {
	if c.file != nil {
		return c.file.check()
	}
	var errs [numSignals]error
	var checks sync.WaitGroup
	for signal, l := range c.lanes {
		if l.off {
			continue
		}
		checks.Go(func() {
			attempt, cancel := context.WithTimeout(ctx, l.attempt)
			defer cancel()
			if _, _, err := l.out.send(attempt, empty(l.signal)); err != nil && !l.optional(err) {
				errs[signal] = fmt.Errorf("%s to %s: %w", l.signal, l.to, err)
			}
		})
	}
	checks.Wait()
	return errors.Join(errs[:]...)
}

func (l *lane) snapshot() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Endpoint = l.to
	s.Unsent = map[string]uint64{}
	for k, v := range l.stats.Unsent {
		s.Unsent[k] = v
	}
	return s
}

// put queues a payload, or counts it as unsent. What comes last is what goes when there is no room:
// those before it may be in a request already, and parents tend to come before their children.
func (l *lane) put(p payload) {
	items := p.items()
	if l.off || items == 0 {
		return
	}
	bytes := p.size() + payloadBytes
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		l.unsent(ReasonShutdown, items)
	case l.bytes+bytes > l.limit:
		l.unsent(ReasonQueueFull, items)
		if !l.full {
			l.full = true
			l.log.Warn("gpuflight: telemetry comes faster than it is taken, the newest is dropped", "signal", l.signal.String(), "to", l.to)
		}
	default:
		l.queue = append(l.queue, waiting{p, bytes})
		l.bytes += bytes
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// unsent counts; the caller holds the lock.
func (l *lane) unsent(reason string, items int) {
	if l.stats.Unsent == nil {
		l.stats.Unsent = map[string]uint64{}
	}
	l.stats.Unsent[reason] += uint64(items)
}

func (l *lane) close(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.until, _ = ctx.Deadline()
	close(l.closing)
}

// next returns the oldest waiting payload, together with those behind it that fit into the same
// request. Their bytes count as waiting until done is called. ok is false when nothing will come.
func (l *lane) next(ctx context.Context) (p payload, done func(), ok bool) {
	for {
		l.mu.Lock()
		if n := len(l.queue); n > 0 {
			first := l.queue[0]
			bytes, taken := first.bytes, 1
			for taken < n && bytes+l.queue[taken].bytes <= l.request && first.payload.merge(l.queue[taken].payload) {
				bytes += l.queue[taken].bytes
				taken++
			}
			copy(l.queue, l.queue[taken:])
			clear(l.queue[n-taken:])
			l.queue = l.queue[:n-taken]
			l.mu.Unlock()
			return first.payload, func() {
				l.mu.Lock()
				l.bytes -= bytes
				l.mu.Unlock()
			}, true
		}
		closed := l.closed
		l.full = l.full && l.bytes > 0
		l.mu.Unlock()
		if closed {
			return nil, nil, false
		}
		select {
		case <-l.wake:
		case <-l.closing:
		case <-ctx.Done():
			return nil, nil, false
		}
	}
}

func (l *lane) run(ctx context.Context) {
	for {
		p, done, ok := l.next(ctx)
		if !ok {
			return
		}
		for _, piece := range l.split(p) {
			l.deliver(ctx, piece)
		}
		done()
	}
}

// split never fails: a fault of the encoder must not end the program that we are in.
func (l *lane) split(p payload) (pieces []payload) {
	items := p.items()
	defer func() {
		if r := recover(); r != nil {
			pieces = nil
			l.finish(0, ReasonFault, items, fmt.Errorf("fault: %v", r))
		}
	}()
	return split(p, l.request)
}

// deliver sends one request until it is taken, refused or given up.
func (l *lane) deliver(ctx context.Context, p payload) {
	items := p.items()
	defer func() {
		if r := recover(); r != nil {
			l.finish(0, ReasonFault, items, fmt.Errorf("fault: %v", r))
		}
	}()
	if ctx.Err() != nil {
		l.finish(0, ReasonShutdown, items, nil)
		return
	}
	if l.file != nil {
		l.write(ctx, p)
		return
	}
	wait := firstWait
	deadline := time.Now().Add(l.retry)
	last := l.lastTry(ctx)
	for {
		attempt, cancel := context.WithTimeout(ctx, l.attempt)
		rejected, message, err := l.out.send(attempt, p)
		cancel()
		if err == nil {
			rejected = min(max(rejected, 0), int64(items))
			if rejected > 0 {
				err = fmt.Errorf("partial success: %.200q", message)
			} else if message != "" && !l.noted {
				l.noted = true
				l.log.Warn("gpuflight: the endpoint takes telemetry with a remark", "signal", l.signal.String(), "to", l.to, "message", fmt.Sprintf("%.200q", message))
			}
			l.finish(items-int(rejected), ReasonRejected, int(rejected), err)
			return
		}
		var failure *sendError
		if !errors.As(err, &failure) {
			failure = &sendError{err: err}
		}
		switch {
		case ctx.Err() != nil:
			l.finish(0, ReasonShutdown, items, err)
			return
		case l.unsupported(err):
			l.finish(0, ReasonUnsupported, items, err)
			return
		case !failure.retry:
			l.finish(0, ReasonRefused, items, err)
			return
		case last && failure.away, !time.Now().Before(deadline):
			l.finish(0, ReasonUnreachable, items, err)
			return
		}
		pause := wait/2 + rand.N(wait) // half to one and a half: many programs must not come back at once
		wait = min(2*wait, longestWait)
		closing := l.closing
		if last {
			// The time is short: come back soon, unless the server said when.
			closing, pause = nil, min(pause, firstWait)
			if until := l.deadline(); !until.IsZero() && failure.after > time.Until(until) {
				l.finish(0, ReasonUnreachable, items, err)
				return
			}
		}
		l.failed(err)
		// However long the server wants to be left alone: what waits any longer is given up.
		pause = min(max(pause, failure.after), max(0, time.Until(deadline)))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-closing:
		case <-ctx.Done():
		}
		timer.Stop()
		last = l.lastTry(ctx)
	}
}

// unsupported reports whether an attempt failed because the endpoint does not know the signal, which it need not.
func (l *lane) unsupported(err error) bool {
	var failure *sendError
	return l.signal == Profiles && errors.As(err, &failure) && failure.unknown
}

// optional reports whether an empty request failed and need not succeed: whoever answers need not know profiles, and
// Pyroscope refuses those that have none.
func (l *lane) optional(err error) bool {
	var failure *sendError
	return l.signal == Profiles && errors.As(err, &failure) && !failure.retry
}

// lastTry reports whether Shutdown has begun. The first time it has, a connection that is waiting to be
// tried again is tried at once.
func (l *lane) lastTry(ctx context.Context) bool {
	select {
	case <-l.closing:
	default:
		return false
	}
	if !l.renewed {
		l.renewed = true
		l.out.again(ctx)
	}
	return true
}

// deadline is when Shutdown's time is over, zero if that is not known.
func (l *lane) deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// write appends a payload to the file, cut in two where its line would be too long for readers.
func (l *lane) write(ctx context.Context, p payload) {
	items := p.items()
	line, err := p.json()
	if err != nil {
		l.finish(0, ReasonFault, items, err)
		return
	}
	if len(line) > fileLine {
		if second := p.halve(); second != nil {
			l.write(ctx, p)
			l.write(ctx, second)
			return
		}
	}
	if err := l.file.append(ctx, line); err != nil {
		reason := ReasonDisk
		if ctx.Err() != nil {
			reason = ReasonShutdown
		}
		l.finish(0, reason, items, err)
		return
	}
	l.finish(items, "", 0, nil)
}

// finish counts a request that is over and tells once when things change.
func (l *lane) finish(sent int, reason string, lost int, err error) {
	l.mu.Lock()
	l.stats.Sent += uint64(sent)
	if lost > 0 {
		l.unsent(reason, lost)
	}
	if err != nil {
		l.stats.LastError = err.Error()
	}
	recovered := lost == 0 && l.told
	if recovered {
		l.told = false
	}
	tell := lost > 0 && l.mayTell()
	l.mu.Unlock()
	switch {
	case tell && reason == ReasonUnsupported:
		l.log.Warn("gpuflight: the endpoint does not know profiles, which are dropped; the other signals are not concerned", "to", l.to, "error", err)
	case tell:
		l.log.Warn("gpuflight: telemetry is not being taken", "signal", l.signal.String(), "to", l.to, "reason", reason, "error", err)
	case recovered:
		l.log.Info("gpuflight: telemetry is being taken again", "signal", l.signal.String(), "to", l.to)
	}
}

// failed notes an attempt that will be made again.
func (l *lane) failed(err error) {
	l.mu.Lock()
	tell := l.mayTell()
	l.stats.LastError = err.Error()
	l.mu.Unlock()
	if tell {
		l.log.Warn("gpuflight: telemetry cannot be sent, trying on", "signal", l.signal.String(), "to", l.to, "error", err)
	}
}

// mayTell reports whether a failure is news, and takes it for told. The caller holds the lock.
func (l *lane) mayTell() bool {
	now := time.Now()
	if l.told || !l.toldAt.IsZero() && now.Sub(l.toldAt) < tellEvery {
		return false
	}
	l.told, l.toldAt = true, now
	return true
}
