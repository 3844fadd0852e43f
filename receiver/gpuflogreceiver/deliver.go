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

// deliver sends what the batch holds to the pipelines and returns when each has accepted it or
// refused it for good. Until then an error that may pass is met with patience: the reading waits.
// It returns false if ctx or stop ended it first; the batch is then lost to this process and is
// made again from the checkpoint.
func (o *outputs) deliver(ctx context.Context, stop <-chan struct{}, b *gpuevent.Batch) bool {
	p := newParcel(b)
	for _, q := range p.queues() {
		for len(q.items) > 0 {
			if !o.retry(ctx, stop, q.signal, q.items[0], func() error { return q.send(ctx, o, q.items[0]) }) {
				return false
			}
			q.next()
		}
	}
	return true
}

// queue is what is left of one signal, in pieces.
type queue struct {
	signal string
	// items are the numbers of items in the pieces.
	items []int
	// send tries once to send the first piece, next forgets it.
	send func(ctx context.Context, o *outputs, n int) error
	drop func()
}

func (q *queue) next() {
	q.drop()
	q.items = q.items[1:]
}

func (q *queue) left() (n int) {
	for _, items := range q.items {
		n += items
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
	p := &parcel{}
	if td.SpanCount() > 0 {
		pieces, items := cutTraces(td)
		p.traces = queue{"traces", items, func(ctx context.Context, o *outputs, n int) error {
			ctx = o.obs.StartTracesOp(ctx)
			err := o.traces.ConsumeTraces(ctx, pieces[0])
			o.obs.EndTracesOp(ctx, dataFormat, n, err)
			return err
		}, func() { pieces = pieces[1:] }}
	}
	if ld.LogRecordCount() > 0 {
		pieces, items := cutLogs(ld)
		p.logs = queue{"logs", items, func(ctx context.Context, o *outputs, n int) error {
			ctx = o.obs.StartLogsOp(ctx)
			err := o.logs.ConsumeLogs(ctx, pieces[0])
			o.obs.EndLogsOp(ctx, dataFormat, n, err)
			return err
		}, func() { pieces = pieces[1:] }}
	}
	if md.DataPointCount() > 0 {
		pieces, items := cutMetrics(md)
		p.metrics = queue{"metrics", items, func(ctx context.Context, o *outputs, n int) error {
			ctx = o.obs.StartMetricsOp(ctx)
			err := o.metrics.ConsumeMetrics(ctx, pieces[0])
			o.obs.EndMetricsOp(ctx, dataFormat, n, err)
			return err
		}, func() { pieces = pieces[1:] }}
	}
	return p
}

func (p *parcel) queues() [3]*queue { return [3]*queue{&p.traces, &p.logs, &p.metrics} }

// items counts what is still to be sent.
func (p *parcel) items() int { return p.traces.left() + p.logs.left() + p.metrics.left() }

// push tries once to send what is left of a parcel. The error is the first that may pass. Items that are
// refused for good are counted and gone.
func (o *outputs) push(ctx context.Context, p *parcel) (err error) {
	for _, q := range p.queues() {
		for len(q.items) > 0 {
			e := q.send(ctx, o, q.items[0])
			if e != nil && !consumererror.IsPermanent(e) {
				if err == nil {
					err = e
				}
				break
			}
			if e != nil {
				p.refused = e
				o.tel.ReceiverGpuflogDropped.Add(ctx, int64(q.items[0]))
				o.logger.Error("data refused for good", zap.Int("items", q.items[0]), zap.Error(e))
			}
			q.next()
		}
	}
	return err
}

// The waits between attempts grow from the first to the last and are spread by a quarter, so that
// many receivers do not come back at the same moment.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

func (o *outputs) retry(ctx context.Context, stop <-chan struct{}, signal string, n int, send func() error) bool {
	wait := firstWait
	for attempt := 1; ; attempt++ {
		err := send()
		if err == nil {
			if attempt > 1 {
				o.logger.Info("delivery goes on", zap.String("signal", signal), zap.Int("attempts", attempt))
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if consumererror.IsPermanent(err) {
			o.tel.ReceiverGpuflogDropped.Add(ctx, int64(n))
			o.logger.Error("data refused for good", zap.String("signal", signal), zap.Int("items", n), zap.Error(err))
			return true
		}
		if attempt == 1 {
			o.logger.Warn("data not accepted; reading waits", zap.String("signal", signal), zap.Error(err))
		}
		spread := time.Duration(float64(wait) * (0.75 + 0.5*rand.Float64()))
		select {
		case <-time.After(spread):
		case <-ctx.Done():
			return false
		case <-stop:
			return false
		}
		wait = min(wait*2, lastWait)
	}
}
