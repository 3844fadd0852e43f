// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// outputs are the pipelines. A signal without a pipeline is nil and is not built.
type outputs struct {
	traces  consumer.Traces
	logs    consumer.Logs
	metrics consumer.Metrics

	obs    *receiverhelper.ObsReport
	tel    *metadata.TelemetryBuilder
	logger *zap.Logger
}

const dataFormat = "gpuflight"

func (o *outputs) signals() gpuevent.Signals {
	return gpuevent.Signals{Traces: o.traces != nil, Logs: o.logs != nil, Metrics: o.metrics != nil}
}

// request is a number of items that are sent together. send makes one attempt.
type request struct {
	items int
	send  func(ctx context.Context, o *outputs) error
}

// queue holds the remaining requests of one signal.
type queue struct {
	signal   string
	requests []request
}

// next removes the first request and releases its memory.
func (q *queue) next() {
	q.requests[0] = request{}
	q.requests = q.requests[1:]
}

func (q *queue) left() (n int) {
	for _, p := range q.requests {
		n += p.items
	}
	return n
}

// pendingBatch is one batch in delivery, as requests. Accepted and permanently rejected requests
// are removed.
type pendingBatch struct {
	traces, logs, metrics queue
	// refused is the last permanent error.
	refused error
	// failed means that a pipeline once rejected a part of the batch.
	failed bool
}

func newPendingBatch(b *gpuevent.Batch) *pendingBatch {
	td, ld, md := b.Take()
	p := &pendingBatch{traces: queue{signal: "traces"}, logs: queue{signal: "logs"}, metrics: queue{signal: "metrics"}}
	for _, td := range splitTraces(td) {
		n := td.SpanCount()
		p.traces.add(n, func(ctx context.Context, o *outputs) error {
			ctx = o.obs.StartTracesOp(ctx)
			err := o.traces.ConsumeTraces(ctx, td)
			o.obs.EndTracesOp(ctx, dataFormat, n, err)
			return err
		})
	}
	for _, ld := range splitLogs(ld) {
		p.addLogs(ld)
	}
	for _, md := range splitMetrics(md) {
		n := md.DataPointCount()
		p.metrics.add(n, func(ctx context.Context, o *outputs) error {
			ctx = o.obs.StartMetricsOp(ctx)
			err := o.metrics.ConsumeMetrics(ctx, md)
			o.obs.EndMetricsOp(ctx, dataFormat, n, err)
			return err
		})
	}
	return p
}

func (p *pendingBatch) addLogs(ld plog.Logs) {
	n := ld.LogRecordCount()
	p.logs.add(n, func(ctx context.Context, o *outputs) error {
		ctx = o.obs.StartLogsOp(ctx)
		err := o.logs.ConsumeLogs(ctx, ld)
		o.obs.EndLogsOp(ctx, dataFormat, n, err)
		return err
	})
}

// add appends a request unless it is empty.
func (q *queue) add(items int, send func(ctx context.Context, o *outputs) error) {
	if items > 0 {
		q.requests = append(q.requests, request{items, send})
	}
}

func (p *pendingBatch) queues() [3]*queue { return [3]*queue{&p.traces, &p.logs, &p.metrics} }

// items counts the items that are still to be sent.
func (p *pendingBatch) items() int { return p.traces.left() + p.logs.left() + p.metrics.left() }

// push makes one attempt to send the rest of a batch. It returns the first temporary error. It
// counts and removes permanently rejected items.
func (o *outputs) push(ctx context.Context, p *pendingBatch) (err error) {
	for _, q := range p.queues() {
		for len(q.requests) > 0 {
			items := q.requests[0].items
			e := q.requests[0].send(ctx, o)
			if e != nil && !consumererror.IsPermanent(e) {
				if err == nil {
					err = e
				}
				break
			}
			if e != nil {
				p.refused = e
				o.tel.ReceiverGpuflogDropped.Add(ctx, int64(items))
				o.logger.Error("data rejected permanently", zap.Int("items", items), zap.Error(e))
			}
			q.next()
		}
	}
	return err
}

// The delay between attempts grows from the first to the last. It varies by a quarter, so that many
// receivers do not retry at the same moment.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

// retry sends the rest of a batch until each pipeline has accepted it or rejected it permanently.
// err is the error of the first attempt. It returns false if ctx or stop ended it first. This
// process then drops the rest, and the next one reads it again from the checkpoint.
func (o *outputs) retry(ctx context.Context, stop <-chan struct{}, p *pendingBatch, err error) bool {
	o.logger.Warn("data not accepted; retrying", zap.Int("items", p.items()), zap.Error(err))
	wait := firstWait
	for attempt := 2; ; attempt++ {
		spread := time.Duration(float64(wait) * (0.75 + 0.5*rand.Float64()))
		select {
		case <-time.After(spread):
		case <-ctx.Done():
			return false
		case <-stop:
			return false
		}
		if o.push(ctx, p) == nil {
			o.logger.Info("data accepted after retries", zap.Int("attempts", attempt))
			return true
		}
		wait = min(wait*2, lastWait)
	}
}
