// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
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

// piece is a number of items that are sent together; send tries it once.
type piece struct {
	items int
	send  func(ctx context.Context, o *outputs) error
}

// queue is what is left of one signal.
type queue struct {
	signal string
	pieces []piece
}

// next forgets the first piece, and lets its memory go.
func (q *queue) next() {
	q.pieces[0] = piece{}
	q.pieces = q.pieces[1:]
}

func (q *queue) left() (n int) {
	for _, p := range q.pieces {
		n += p.items
	}
	return n
}

// parcel is one batch on its way to the pipelines, in pieces. What a pipeline has accepted, or refused for
// good, is not in it any more.
type parcel struct {
	traces, logs, metrics queue
	// refused is the last error with which a pipeline refused a part of it for good.
	refused error
	// failed says that a pipeline did not take a part of it at some time.
	failed bool
}

func newParcel(b *gpuevent.Batch) *parcel {
	td, ld, md := b.Take()
	p := &parcel{traces: queue{signal: "traces"}, logs: queue{signal: "logs"}, metrics: queue{signal: "metrics"}}
	for _, td := range cutTraces(td) {
		n := td.SpanCount()
		p.traces.add(n, func(ctx context.Context, o *outputs) error {
			ctx = o.obs.StartTracesOp(ctx)
			err := o.traces.ConsumeTraces(ctx, td)
			o.obs.EndTracesOp(ctx, dataFormat, n, err)
			return err
		})
	}
	for _, ld := range cutLogs(ld) {
		n := ld.LogRecordCount()
		p.logs.add(n, func(ctx context.Context, o *outputs) error {
			ctx = o.obs.StartLogsOp(ctx)
			err := o.logs.ConsumeLogs(ctx, ld)
			o.obs.EndLogsOp(ctx, dataFormat, n, err)
			return err
		})
	}
	for _, md := range cutMetrics(md) {
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

// add appends a piece, unless there is nothing in it.
func (q *queue) add(items int, send func(ctx context.Context, o *outputs) error) {
	if items > 0 {
		q.pieces = append(q.pieces, piece{items, send})
	}
}

func (p *parcel) queues() [3]*queue { return [3]*queue{&p.traces, &p.logs, &p.metrics} }

// items counts what is still to be sent.
func (p *parcel) items() int { return p.traces.left() + p.logs.left() + p.metrics.left() }

// push tries once to send what is left of a parcel. The error is the first that may pass. Items that are
// refused for good are counted and gone.
func (o *outputs) push(ctx context.Context, p *parcel) (err error) {
	for _, q := range p.queues() {
		for len(q.pieces) > 0 {
			items := q.pieces[0].items
			e := q.pieces[0].send(ctx, o)
			if e != nil && !consumererror.IsPermanent(e) {
				if err == nil {
					err = e
				}
				break
			}
			if e != nil {
				p.refused = e
				o.tel.ReceiverGpuflogDropped.Add(ctx, int64(items))
				o.logger.Error("data refused for good", zap.Int("items", items), zap.Error(e))
			}
			q.next()
		}
	}
	return err
}

// The waits between attempts grow from the first to the last. They vary by a quarter, so that many receivers do
// not retry at the same moment.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

// retry sends what is left of a parcel again until each pipeline has accepted it or refused it permanently. err
// is the error of the first attempt. It returns false if ctx or stop ended it first: the rest is then lost to
// this process and is read again from the checkpoint.
func (o *outputs) retry(ctx context.Context, stop <-chan struct{}, p *parcel, err error) bool {
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
