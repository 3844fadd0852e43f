// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/clickhouseexporter"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver"
)

const (
	// batchSpans is the number of spans per INSERT, about max_size in config/clickhouse.yaml.
	batchSpans = 8000
	// stallLimit ends a run without progress.
	stallLimit = time.Minute
	// quiet is the time without new data after which a run is complete.
	quiet = time.Second
)

// batches collects spans and passes them to an exporter. The receiver calls it from one goroutine.
type batches struct {
	to      exporter.Traces
	pending ptrace.Traces
	// spans and took are the number of exported spans and the time of the export calls.
	spans int
	took  time.Duration
	read  chan int
}

func (b *batches) consume(ctx context.Context, td ptrace.Traces) error {
	n := td.SpanCount()
	td.ResourceSpans().MoveAndAppendTo(b.pending.ResourceSpans())
	b.read <- n
	if b.pending.SpanCount() < batchSpans {
		return nil
	}
	return b.flush(ctx)
}

func (b *batches) flush(ctx context.Context) error {
	n, begin := b.pending.SpanCount(), time.Now()
	if n == 0 {
		return nil
	}
	err := b.to.ConsumeTraces(ctx, b.pending)
	b.took += time.Since(begin)
	b.spans += n
	b.pending = ptrace.NewTraces()
	return err
}

// write reads logs and writes their spans to ClickHouse. took is the time of the exporter, which
// creates missing tables.
func write(ctx context.Context, endpoint, logs string, kernels int64) (spans int, took time.Duration, err error) {
	factory := clickhouseexporter.NewFactory()
	cfg := factory.CreateDefaultConfig()
	settings := map[string]any{
		"endpoint": endpoint, "timeout": "5m", "sending_queue": map[string]any{"enabled": false},
		"retry_on_failure": map[string]any{"enabled": false},
	}
	if err := confmap.NewFromStringMap(settings).Unmarshal(cfg); err != nil {
		return 0, 0, err
	}
	to, err := factory.CreateTraces(ctx, exportertest.NewNopSettings(factory.Type()), cfg)
	if err != nil {
		return 0, 0, err
	}
	if err := to.Start(ctx, componenttest.NewNopHost()); err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, to.Shutdown(ctx)) }()

	b := &batches{to: to, pending: ptrace.NewTraces(), read: make(chan int, 100)}
	if err := b.follow(ctx, logs, kernels); err != nil {
		return 0, 0, err
	}
	err = b.flush(ctx)
	return b.spans, b.took, err
}

// follow runs the log receiver until it has read at least the given number of spans and no more
// arrive.
func (b *batches) follow(ctx context.Context, logs string, kernels int64) error {
	factory := gpuflogreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(map[string]any{"include": []any{logs}, "poll_interval": "50ms"}).Unmarshal(cfg); err != nil {
		return err
	}
	failed := make(chan error, 1)
	next, err := consumer.NewTraces(func(ctx context.Context, td ptrace.Traces) error {
		err := b.consume(ctx, td)
		if err != nil {
			select {
			case failed <- err:
			default: // the first error is enough
			}
		}
		return err
	}, consumer.WithCapabilities(consumer.Capabilities{MutatesData: true})) // it moves the spans out
	if err != nil {
		return err
	}
	in, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), cfg, next)
	if err != nil {
		return err
	}
	if err := in.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	err = b.wait(failed, kernels)
	stopped := make(chan error, 1)
	go func(c component.Component) { stopped <- c.Shutdown(ctx) }(in)
	for {
		select {
		case <-b.read: // the receiver must not block on the channel
		case e := <-stopped:
			return errors.Join(err, e)
		}
	}
}

func (b *batches) wait(failed <-chan error, kernels int64) error {
	var read int64
	for {
		limit := stallLimit
		if read >= kernels {
			limit = quiet
		}
		select {
		case n := <-b.read:
			read += int64(n)
		case err := <-failed:
			return err
		case <-time.After(limit):
			if read >= kernels {
				return nil
			}
			return fmt.Errorf("%d spans, and no more for %v", read, stallLimit)
		}
	}
}
