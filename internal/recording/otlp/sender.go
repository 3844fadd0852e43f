// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// RefusedError says that the endpoint does not want a request and will not want it later either.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return "refused: " + e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Answer says what became of what was sent, in spans, log records or metrics' points.
type Answer struct {
	// Sent were taken. Rejected came back as not wanted out of requests that were taken otherwise.
	Sent, Rejected int
	// Message is the endpoint's own word about the last rejection, "" if it gave none.
	Message string
}

// Sender sends telemetry and waits for the answer, for programs that have nothing else to do: what is
// handed over next is the caller's affair, so nothing is queued and nothing is dropped. It belongs to
// one goroutine.
type Sender struct {
	// Pace, if set, is called before each request with the number of its items, and waits as long as it
	// likes. Its error ends the sending. Requests that are tried again do not pass it again.
	Pace func(ctx context.Context, items int) error
	// Retried, if set, is told of each attempt that will be made again, and of when.
	Retried func(err error, wait time.Duration)

	to      [numSignals]transport
	attempt [numSignals]time.Duration
	names   [numSignals]string
	request int
	retry   time.Duration
}

// NewSender returns a Sender. Settings.File and QueueBytes have no meaning for it. It connects when
// there is something to send; errors are about settings only.
func NewSender(s Settings) (*Sender, error) {
	w := &Sender{request: s.RequestBytes, retry: s.RetryFor}
	if w.request <= 0 {
		w.request = defaultRequestBytes
	}
	if w.retry <= 0 {
		w.retry = defaultRetryFor
	}
	for signal := range numSignals {
		e := s.Signals[signal]
		if e.Off || signal == Profiles { // nobody sends these by a Sender
			continue
		}
		if e.URL == nil {
			w.Close()
			return nil, fmt.Errorf("otlp: settings without an endpoint for %s: make them by FromEnv", signal)
		}
		to, err := newTransport(signal, e)
		if err != nil {
			w.Close()
			return nil, err
		}
		w.to[signal], w.names[signal], w.attempt[signal] = to, e.String(), e.Timeout
		if w.attempt[signal] <= 0 {
			w.attempt[signal] = defaultTimeout
		}
	}
	return w, nil
}

// Close closes the connections.
func (w *Sender) Close() {
	for _, to := range w.to {
		if to != nil {
			to.close()
		}
	}
}

// Takes reports whether a signal has an endpoint.
func (w *Sender) Takes(signal Signal) bool { return w.to[signal] != nil }

// Traces sends spans; the data is the Sender's. It cuts what is too large for one request. It tries
// again what the endpoint cannot take now, as late as that asks, for Settings.RetryFor per request.
//
// An error ends the sending, and the Answer is of the requests before it: a [RefusedError], the
// context's, or the last one of an endpoint that stayed away. Spans of a signal without an endpoint
// are an error too.
func (w *Sender) Traces(ctx context.Context, td ptrace.Traces) (Answer, error) {
	return w.send(ctx, Traces, traces{td})
}

// Logs sends log records as Traces sends spans.
func (w *Sender) Logs(ctx context.Context, ld plog.Logs) (Answer, error) {
	return w.send(ctx, Logs, logs{ld})
}

// Metrics sends metrics as Traces sends spans.
func (w *Sender) Metrics(ctx context.Context, md pmetric.Metrics) (Answer, error) {
	return w.send(ctx, Metrics, metrics{md})
}

func (w *Sender) send(ctx context.Context, signal Signal, p payload) (answer Answer, err error) {
	defer func() {
		// The encoder is not ours; a fault of it must cost no more than the batch.
		if r := recover(); r != nil {
			err = &RefusedError{fmt.Errorf("cannot be encoded: %v", r)}
		}
	}()
	if p.items() == 0 {
		return Answer{}, nil
	}
	if w.to[signal] == nil {
		return Answer{}, fmt.Errorf("no endpoint for %s", signal)
	}
	for _, piece := range split(p, w.request) {
		if w.Pace != nil {
			if err := w.Pace(ctx, piece.items()); err != nil {
				return answer, err
			}
		}
		rejected, message, err := w.deliver(ctx, signal, piece)
		if err != nil {
			return answer, fmt.Errorf("%s to %s: %w", signal, w.names[signal], err)
		}
		answer.Sent += piece.items() - rejected
		answer.Rejected += rejected
		if rejected > 0 {
			answer.Message = message
		}
	}
	return answer, nil
}

// deliver sends one request until it is taken, refused or given up.
func (w *Sender) deliver(ctx context.Context, signal Signal, p payload) (rejected int, message string, err error) {
	deadline := time.Now().Add(w.retry)
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		attempt, cancel := context.WithTimeout(ctx, w.attempt[signal])
		n, message, err := w.to[signal].send(attempt, p)
		cancel()
		if err == nil {
			return int(min(max(n, 0), int64(p.items()))), message, nil
		}
		if ctx.Err() != nil {
			return 0, "", ctx.Err()
		}
		var failure *sendError
		if !errors.As(err, &failure) || !failure.retry {
			return 0, "", &RefusedError{err}
		}
		// Half to one and a half: many senders must not come back at once.
		pause := max(wait/2+rand.N(wait), failure.after)
		if time.Now().Add(pause).After(deadline) {
			return 0, "", fmt.Errorf("given up after %v: %w", w.retry, err)
		}
		if w.Retried != nil {
			w.Retried(err, pause)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, "", ctx.Err()
		}
	}
}
