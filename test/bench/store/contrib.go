// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/clickhouseexporter"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// contrib is the default tables of contrib's exporter in ClickHouse's engine.
type contrib struct {
	engine *front.Engine
	server *front.Server
	to     exporter.Traces
}

func openContrib(ctx context.Context, launcher, dir string) (_ peer, err error) {
	c := &contrib{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.engine, err = front.Start(launcher, dir); err != nil {
		return nil, err
	}
	c.server = &front.Server{Engine: c.engine}
	if err = c.server.Listen(""); err != nil {
		return nil, err
	}
	factory := clickhouseexporter.NewFactory()
	cfg := factory.CreateDefaultConfig()
	settings := map[string]any{
		"endpoint": c.server.URL(), "timeout": "5m", "sending_queue": map[string]any{"enabled": false},
		"retry_on_failure": map[string]any{"enabled": false},
	}
	if err = confmap.NewFromStringMap(settings).Unmarshal(cfg); err != nil {
		return nil, err
	}
	to, err := factory.CreateTraces(ctx, exportertest.NewNopSettings(factory.Type()), cfg)
	if err != nil {
		return nil, err
	}
	if err = to.Start(ctx, componenttest.NewNopHost()); err != nil {
		return nil, err
	}
	c.to = to
	return c, nil
}

func (c *contrib) close() (err error) {
	ctx := context.Background()
	if c.to != nil {
		err = c.to.Shutdown(ctx)
	}
	if c.server != nil {
		err = errors.Join(err, c.server.Close())
	}
	if c.engine != nil {
		err = errors.Join(err, c.engine.Close())
	}
	return err
}

func (c *contrib) write(ctx context.Context, td ptrace.Traces) error {
	return c.to.ConsumeTraces(ctx, td)
}

func (c *contrib) run(ctx context.Context, sql string) ([]byte, error) {
	return c.engine.Run(ctx, front.Statement{SQL: sql, Format: "JSONEachRow"}, nil)
}

// fresh does nothing: the engine keeps no answers.
func (c *contrib) fresh(context.Context) error { return nil }

func (c *contrib) merge(ctx context.Context) error {
	_, err := c.run(ctx, "OPTIMIZE TABLE otel_traces FINAL")
	return err
}

// usage has the processor time of the engine and of this process, in which the exporter runs.
func (c *contrib) usage(ctx context.Context) (time.Duration, int64, error) {
	out, err := c.run(ctx, "SELECT sum(bytes_on_disk) AS n FROM system.parts WHERE active AND database = 'default'")
	if err != nil {
		return 0, 0, err
	}
	var size struct{ N int64 }
	err = json.Unmarshal(out, &size)
	return processorTime() + c.engine.ProcessorTime(), size.N, err
}

func (c *contrib) ask(ctx context.Context, name string, q question) (int, error) {
	const kernels = " WHERE ResourceAttributes['service.instance.id'] = 'training' AND SpanAttributes['cuda.operation'] = 'kernel'"
	start := "toUnixTimestamp64Nano(Timestamp)"
	sql := map[string]string{
		"timeline, 100 %": fmt.Sprintf("SELECT SpanAttributes['cuda.stream.id'] AS Stream, intDiv(%s - %d, %d) AS Bin, count() AS N, sum(Duration) AS Busy, "+
			"max(Duration) AS Top, argMax(SpanName, Duration) AS TopName FROM otel_traces%s GROUP BY Stream, Bin", start, q.from, (q.to-q.from)/2000+1, kernels),
		"kernels by name, p50, p99": "SELECT SpanName, count() AS N, sum(Duration) AS Ns, quantile(0.5)(Duration) AS P50, quantile(0.99)(Duration) AS P99, max(Duration) AS Longest " +
			"FROM otel_traces" + kernels + " GROUP BY SpanName ORDER BY Ns DESC LIMIT 50",
		"scope tree": "SELECT SpanAttributes['" + scopePath + "'] AS Path, count() AS N, sum(Duration) AS Ns FROM otel_traces" + kernels + " GROUP BY Path",
		"session list": "SELECT ResourceAttributes['service.instance.id'] AS Session, any(ServiceName) AS Service, min(Timestamp) AS First, max(Timestamp) AS Last, count() AS N " +
			"FROM otel_traces GROUP BY Session",
		"span by id and time": fmt.Sprintf("SELECT * FROM otel_traces WHERE SpanId = '%016x' AND Timestamp = fromUnixTimestamp64Nano(%d)", uint64(q.last.Span), q.last.StartNs),
	}[name]
	out, err := c.run(ctx, sql)
	return bytes.Count(out, []byte("\n")), err
}
