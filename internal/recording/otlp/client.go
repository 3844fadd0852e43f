// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

// Reasons why items were not sent.
const (
	ReasonQueueFull   = "queue_full"  // the queue was full.
	ReasonUnreachable = "unreachable" // the retries ended without an answer.
	ReasonRefused     = "refused"     // the endpoint rejected the whole request.
	ReasonRejected    = "rejected"    // the endpoint rejected a part of the request.
	ReasonShutdown    = "shutdown"    // queued when Shutdown timed out, or added later.
	ReasonDisk        = "disk"        // the file could not be written.
	ReasonFault       = "fault"       // they could not be encoded.
	ReasonUnsupported = "unsupported" // the endpoint does not support profiles.
)

const (
	defaultQueueBytes   = 64 << 20
	defaultRequestBytes = 3 << 20
	defaultRetryFor     = 5 * time.Minute
	// fileLine bounds a line of a file, in bytes. By default the Collector's otlp_json_file
	// receiver truncates lines at 1 MiB (max_log_size).
	fileLine = 1<<20 - 1
	// filePiece is the size of OTLP in bytes that goes into one line. JSON is about twice as long,
	// so a line of this size rarely needs another split. A split costs as much as encoding the
	// line.
	filePiece = 400 << 10
	// payloadBytes is added to the size of each payload. It keeps many small payloads within the
	// memory that the queue's limit suggests.
	payloadBytes = 512
	// logInterval is the shortest interval between two log messages about the state of one signal.
	// An endpoint that accepts every second request must not fill the program's log.
	logInterval = 30 * time.Second
	firstWait   = 500 * time.Millisecond
	longestWait = 30 * time.Second
	// traceRequests is the number of concurrent requests with spans. A Collector that answers after
	// its commit limits one request at a time to about 30,000 spans/s; four reach 100,000.
	traceRequests = 4
	// backlogFor is how long after the last accepted request a full queue still counts as a backlog: as
	// long as one request may take by default.
	backlogFor = defaultTimeout
)

// Stats counts the outcome of one signal's items: spans, log records, data points or profiles. Sent
// plus Unsent is the number of accepted items that are no longer queued.
type Stats struct {
	// Endpoint is the destination, without secrets.
	Endpoint string
	Sent     uint64
	// Unsent counts items by reason. It has only the reasons that occurred.
	Unsent map[string]uint64
	// LastError is the error of the last failed attempt, or "" if none failed.
	LastError string
}

// UnsentTotal returns the sum of Unsent.
func (s Stats) UnsentTotal() uint64 {
	var n uint64
	for _, v := range s.Unsent {
		n += v
	}
	return n
}

// Client sends telemetry in the background. Traces, Logs, Metrics, Profiles, Backlog, Stats and Check
// are safe for concurrent use. The first four never wait for the network or the disk. They take
// ownership of the data.
type Client struct {
	log     *slog.Logger
	queues  [numSignals]*signalQueue
	file    *file
	stop    context.CancelFunc
	workers sync.WaitGroup
	once    sync.Once
	outcome error
}

// signalQueue is one signal's queue and worker.
type signalQueue struct {
	signal   Signal
	endpoint Endpoint
	to       string
	off      bool
	limit    int // limit of the queued bytes
	request  int // limit of the bytes of one request
	retry    time.Duration
	attempt  time.Duration
	out      transport
	file     *file
	log      *slog.Logger

	mu       sync.Mutex
	queue    []waiting
	bytes    int
	closed   bool
	wake     chan struct{} // has capacity for one
	closing  chan struct{} // closed by Shutdown
	stats    Stats
	rejects  state
	outage   *state    // shared by the signals of one address
	full     bool      // logged since the queue was last empty
	until    time.Time // the deadline of Shutdown; zero for none
	accepted time.Time // when the endpoint last accepted items

	renewed atomic.Bool // the final attempt has requested a new connection
	noted   atomic.Bool // the server's message has been logged
}

// state bounds the log messages about a problem and its end.
type state struct {
	mu       sync.Mutex
	warned   bool // a warning was logged and the problem has not ended
	loggedAt time.Time
}

// shouldLog reports whether to log the problem now.
func (s *state) shouldLog() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.warned || !s.loggedAt.IsZero() && now.Sub(s.loggedAt) < logInterval {
		return false
	}
	s.warned, s.loggedAt = true, now
	return true
}

// ended reports whether to log that the problem has ended.
func (s *state) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := s.warned
	s.warned = false
	return ended
}

type waiting struct {
	payload payload
	bytes   int
}

// New returns a running client. It connects when there is something to send. Errors concern
// settings only, such as a certificate that cannot be read. A nil logger discards all messages.
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
	outages := map[string]*state{}
	for signal := range numSignals {
		e := s.Signals[signal]
		l := &signalQueue{
			signal: signal, endpoint: e, to: e.String(), off: !s.Sends(signal), limit: s.QueueBytes, request: s.RequestBytes, retry: s.RetryFor, attempt: e.Timeout,
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
		if outages[l.address()] == nil {
			outages[l.address()] = new(state)
		}
		l.outage = outages[l.address()]
		c.queues[signal] = l
		if l.off || c.file != nil {
			continue
		}
		if e.URL == nil {
			c.closeTransports()
			return nil, fmt.Errorf("otlp: settings without an endpoint for %s: use FromEnv", signal)
		}
		var err error
		if l.out, err = newTransport(signal, e); err != nil {
			c.closeTransports()
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	for _, l := range c.queues {
		if l.off {
			continue
		}
		workers := 1
		if l.signal == Traces && c.file == nil {
			workers = traceRequests
		}
		for range workers {
			c.workers.Go(func() { l.run(ctx) })
		}
	}
	return c, nil
}

func (c *Client) closeTransports() {
	for _, l := range c.queues {
		if l != nil && l.out != nil {
			l.out.close()
		}
	}
	if c.file != nil {
		_ = c.file.close()
	}
}

// Traces enqueues spans.
func (c *Client) Traces(td ptrace.Traces) { c.queues[Traces].put(traces{td}) }

// Logs enqueues log records.
func (c *Client) Logs(ld plog.Logs) { c.queues[Logs].put(logs{ld}) }

// Metrics enqueues metrics.
func (c *Client) Metrics(md pmetric.Metrics) { c.queues[Metrics].put(metrics{md}) }

// Profiles enqueues profiles, if profiles are enabled. An endpoint need not support them: profiles
// that it rejects are counted and logged once. They are no error of Shutdown or Check.
func (c *Client) Profiles(p profile.Profiles) { c.queues[Profiles].put(profilesPayload{p}) }

// Backlog reports whether more than half of the queue for spans is in use while the endpoint accepts
// data. The caller can then wait for room. Waiting for an endpoint that accepts nothing does not
// help: Backlog returns false, and the queue drops what exceeds it.
func (c *Client) Backlog() bool {
	l := c.queues[Traces]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes > l.limit/2 && time.Since(l.accepted) < backlogFor
}

// Stats returns the counts of each signal.
func (c *Client) Stats() map[Signal]Stats {
	m := map[Signal]Stats{}
	for signal, l := range c.queues {
		m[Signal(signal)] = l.snapshot()
	}
	return m
}

// Shutdown stops accepting data, sends the queued data, and returns when that is done or ctx ends.
// It tries an unreachable endpoint once more and then gives up without waiting for ctx. Stats and
// the error report the data that was not sent.
func (c *Client) Shutdown(ctx context.Context) error {
	c.once.Do(func() {
		for _, l := range c.queues {
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
		c.outcome = c.unsentError()
	})
	return c.outcome
}

// unsentError returns one error for each address, or nil if everything was sent.
func (c *Client) unsentError() error {
	type loss struct {
		items, reasons []string
		last           string
	}
	var order []string
	losses := map[string]*loss{}
	for _, l := range c.queues {
		s := l.snapshot()
		if s.UnsentTotal() <= s.Unsent[ReasonUnsupported] {
			continue
		}
		to := l.destination()
		x := losses[to]
		if x == nil {
			x = &loss{}
			losses[to] = x
			order = append(order, to)
		}
		x.items = append(x.items, counted(s.UnsentTotal(), itemNames[l.signal]))
		for reason := range s.Unsent {
			if !slices.Contains(x.reasons, reason) {
				x.reasons = append(x.reasons, reason)
			}
		}
		x.last = cmp.Or(x.last, s.LastError)
	}
	var errs []error
	for _, to := range order {
		x := losses[to]
		slices.Sort(x.reasons)
		verb := "were"
		if len(x.items) == 1 && strings.HasPrefix(x.items[0], "1 ") {
			verb = "was"
		}
		text := fmt.Sprintf("%s %s not sent to %s (%s)", strings.Join(x.items, ", "), verb, to, strings.Join(x.reasons, ", "))
		if x.last != "" {
			text += ": " + x.last
		}
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}

func counted(n uint64, plural string) string {
	if n == 1 {
		plural = strings.TrimSuffix(plural, "s")
	}
	return fmt.Sprintf("%d %s", n, plural)
}

// destination is the address or the file of a signal.
func (l *signalQueue) destination() string {
	if l.file != nil {
		return l.to
	}
	return l.address()
}

var itemNames = [numSignals]string{"spans", "log records", "metric points", "profiles"}

// Check makes one attempt to send an empty request to each endpoint, concurrently, and returns the
// errors. It returns within the longest of their timeouts. New has already opened a file, so Check
// only tests whether the file still exists.
func (c *Client) Check(ctx context.Context) error {
	if c.file != nil {
		return c.file.check()
	}
	var errs [numSignals]error
	var checks sync.WaitGroup
	for signal, l := range c.queues {
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

func (l *signalQueue) snapshot() Stats {
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

// put enqueues a payload, or counts it as unsent. When the queue is full, it drops the newest
// payload: an older one may be part of a request already, and parents tend to precede their
// children.
func (l *signalQueue) put(p payload) {
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
			l.log.Warn("gpuflight: the send queue is full: the newest telemetry is dropped", "signal", l.signal.String(), "to", l.to)
		}
	default:
		l.queue = append(l.queue, waiting{p, bytes})
		l.bytes += bytes
		l.signalWork()
	}
}

// signalWork wakes one worker.
func (l *signalQueue) signalWork() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// unsent counts unsent items. The caller holds the lock.
func (l *signalQueue) unsent(reason string, items int) {
	if l.stats.Unsent == nil {
		l.stats.Unsent = map[string]uint64{}
	}
	l.stats.Unsent[reason] += uint64(items)
}

func (l *signalQueue) close(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.until, _ = ctx.Deadline()
	close(l.closing)
}

// next returns the oldest queued payload, merged with the following ones that fit into the same
// request. Their bytes count as queued until done is called. ok is false when no more data will
// come.
func (l *signalQueue) next(ctx context.Context) (p payload, done func(), ok bool) {
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
			if len(l.queue) > 0 {
				l.signalWork() // for the next worker
			}
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

func (l *signalQueue) run(ctx context.Context) {
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

// split divides a payload into requests. A panic of the encoder must not end the observed program,
// so it counts as a fault.
func (l *signalQueue) split(p payload) (pieces []payload) {
	items := p.items()
	defer func() {
		if r := recover(); r != nil {
			pieces = nil
			l.finish(0, ReasonFault, items, fmt.Errorf("fault: %v", r))
		}
	}()
	return split(p, l.request)
}

// deliver sends one request until it is accepted, rejected or given up.
func (l *signalQueue) deliver(ctx context.Context, p payload) {
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
	last := l.finalAttempt(ctx)
	for {
		attempt, cancel := context.WithTimeout(ctx, l.attempt)
		rejected, message, err := l.out.send(attempt, p)
		cancel()
		if err == nil {
			rejected = min(max(rejected, 0), int64(items))
			if rejected > 0 {
				err = fmt.Errorf("partial success: %.200q", message)
			} else if message != "" && l.noted.CompareAndSwap(false, true) {
				l.log.Warn("gpuflight: the endpoint accepted telemetry with a message", "signal", l.signal.String(), "to", l.to, "message", fmt.Sprintf("%.200q", message))
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
		pause := wait/2 + rand.N(wait) // half to one and a half: many programs must not reconnect at the same moment
		wait = min(2*wait, longestWait)
		closing := l.closing
		if last {
			// Little time is left: retry soon, unless the server named a delay.
			closing, pause = nil, min(pause, firstWait)
			if until := l.deadline(); !until.IsZero() && failure.after > time.Until(until) {
				l.finish(0, ReasonUnreachable, items, err)
				return
			}
		}
		l.failed(err)
		// The server may ask for a longer delay, but a request is given up after the retry limit.
		pause = min(max(pause, failure.after), max(0, time.Until(deadline)))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-closing:
		case <-ctx.Done():
		}
		timer.Stop()
		last = l.finalAttempt(ctx)
	}
}

// unsupported reports whether an attempt failed because the endpoint does not support an optional
// signal.
func (l *signalQueue) unsupported(err error) bool {
	var failure *sendError
	return l.signal == Profiles && errors.As(err, &failure) && failure.unknown
}

// optional reports whether a failed empty request is acceptable. An endpoint need not support
// profiles, and Pyroscope rejects requests without any.
func (l *signalQueue) optional(err error) bool {
	var failure *sendError
	return l.signal == Profiles && errors.As(err, &failure) && !failure.retry
}

// finalAttempt reports whether Shutdown has begun. On its first true result, it retries a
// connection in backoff immediately.
func (l *signalQueue) finalAttempt(ctx context.Context) bool {
	select {
	case <-l.closing:
	default:
		return false
	}
	if l.renewed.CompareAndSwap(false, true) {
		l.out.reconnect(ctx)
	}
	return true
}

// deadline returns the deadline of Shutdown, or zero if there is none.
func (l *signalQueue) deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// write appends a payload to the file. It splits a payload whose line would be too long for
// readers.
func (l *signalQueue) write(ctx context.Context, p payload) {
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

// finish counts a completed request and logs a change of state once.
func (l *signalQueue) finish(sent int, reason string, lost int, err error) {
	l.mu.Lock()
	l.stats.Sent += uint64(sent)
	if sent > 0 {
		l.accepted = time.Now()
	}
	if lost > 0 {
		l.unsent(reason, lost)
	}
	if err != nil {
		l.stats.LastError = err.Error()
	}
	l.mu.Unlock()
	if lost == 0 {
		rejected, unreachable := l.rejects.ended(), l.outage.ended()
		if rejected || unreachable {
			l.log.Info("gpuflight: telemetry is accepted again", "to", l.to)
		}
		return
	}
	problem := &l.rejects
	if reason == ReasonUnreachable {
		problem = l.outage
	}
	switch shouldLog := problem.shouldLog(); {
	case shouldLog && reason == ReasonUnsupported:
		l.log.Warn("gpuflight: the endpoint does not support profiles: profiles are dropped, other signals are sent", "to", l.to, "error", err)
	case shouldLog:
		l.log.Warn("gpuflight: telemetry is rejected and dropped", "signal", l.signal.String(), "to", l.to, "reason", reason, "error", err)
	}
}

// failed records an attempt that will be retried.
func (l *signalQueue) failed(err error) {
	l.mu.Lock()
	l.stats.LastError = err.Error()
	l.mu.Unlock()
	if l.outage.shouldLog() {
		l.log.Warn("gpuflight: telemetry cannot be sent and is retried", "to", l.to, "error", err)
	}
}
