// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
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
	td, ld, md := b.Take()
	if n := td.SpanCount(); n > 0 {
		ok := o.retry(ctx, stop, "traces", n, func() error {
			c := o.obs.StartTracesOp(ctx)
			err := o.traces.ConsumeTraces(c, td)
			o.obs.EndTracesOp(c, dataFormat, n, err)
			return err
		})
		if !ok {
			return false
		}
	}
	if n := ld.LogRecordCount(); n > 0 {
		ok := o.retry(ctx, stop, "logs", n, func() error {
			c := o.obs.StartLogsOp(ctx)
			err := o.logs.ConsumeLogs(c, ld)
			o.obs.EndLogsOp(c, dataFormat, n, err)
			return err
		})
		if !ok {
			return false
		}
	}
	if n := md.DataPointCount(); n > 0 {
		ok := o.retry(ctx, stop, "metrics", n, func() error {
			c := o.obs.StartMetricsOp(ctx)
			err := o.metrics.ConsumeMetrics(c, md)
			o.obs.EndMetricsOp(c, dataFormat, n, err)
			return err
		})
		if !ok {
			return false
		}
	}
	return true
}

// parcel is one batch on its way to the pipelines. What a pipeline has accepted, or refused for good,
// is not in it any more.
type parcel struct {
	traces  ptrace.Traces
	logs    plog.Logs
	metrics pmetric.Metrics
	// left counts the items of each that are still to be sent.
	left [3]int
	// refused is the last error with which a pipeline refused a part of it for good.
	refused error
	// failed says that a pipeline did not take a part of it at some time.
	failed bool
}

func newParcel(b *gpuevent.Batch) *parcel {
	p := &parcel{}
	p.traces, p.logs, p.metrics = b.Take()
	p.left = [3]int{p.traces.SpanCount(), p.logs.LogRecordCount(), p.metrics.DataPointCount()}
	return p
}

func (p *parcel) items() int { return p.left[0] + p.left[1] + p.left[2] }

// push tries once to send what is left of a parcel. The error is the first that may pass. Items that are
// refused for good are counted and gone.
func (o *outputs) push(ctx context.Context, p *parcel) (err error) {
	sends := [...]func(ctx context.Context, n int) error{
		func(ctx context.Context, n int) error {
			ctx = o.obs.StartTracesOp(ctx)
			err := o.traces.ConsumeTraces(ctx, p.traces)
			o.obs.EndTracesOp(ctx, dataFormat, n, err)
			return err
		},
		func(ctx context.Context, n int) error {
			ctx = o.obs.StartLogsOp(ctx)
			err := o.logs.ConsumeLogs(ctx, p.logs)
			o.obs.EndLogsOp(ctx, dataFormat, n, err)
			return err
		},
		func(ctx context.Context, n int) error {
			ctx = o.obs.StartMetricsOp(ctx)
			err := o.metrics.ConsumeMetrics(ctx, p.metrics)
			o.obs.EndMetricsOp(ctx, dataFormat, n, err)
			return err
		},
	}
	for i, n := range p.left {
		if n == 0 {
			continue
		}
		switch e := sends[i](ctx, n); {
		case e == nil:
			p.left[i] = 0
		case consumererror.IsPermanent(e):
			p.left[i] = 0
			p.refused = e
			o.tel.ReceiverGpuflogDropped.Add(ctx, int64(n))
			o.logger.Error("data refused for good", zap.Int("items", n), zap.Error(e))
		case err == nil:
			err = e
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
