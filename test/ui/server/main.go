// SPDX-License-Identifier: Apache-2.0

// Command server serves the UI and the query API from a DuckDB store with the given recordings
// (.otlp.jsonl.gz). It is the shipped extension without a Collector around it, for work on the UI
// and for its screenshots. It prints its address after the recordings are stored.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/extension/gpuqueryextension"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/store/rows"
)

func main() {
	endpoint := flag.String("endpoint", "127.0.0.1:8686", "address to listen on")
	flag.Parse()
	if err := run(*endpoint, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(endpoint string, recordings []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "gpuflight-ui-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := duckstore.Open(ctx, duckstore.Config{Directory: dir})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close(context.Background()) }()
	for _, name := range recordings {
		if err := load(ctx, s, name); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	factory := gpuqueryextension.NewFactory()
	cfg := factory.CreateDefaultConfig().(*gpuqueryextension.Config)
	cfg.Endpoint = endpoint
	ext, err := factory.Create(ctx, extensiontest.NewNopSettings(factory.Type()), cfg)
	if err != nil {
		return err
	}
	if err := ext.Start(ctx, host{component.MustNewID("gpu_storage"): storage{Extension: nil, backend: s}}); err != nil {
		return err
	}
	fmt.Println("http://" + endpoint)
	<-ctx.Done()
	return ext.Shutdown(context.Background())
}

// load stores a recording, one request of OTLP per line.
func load(ctx context.Context, w store.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	lines := bufio.NewReader(z)
	var d rows.Decoder
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			batches, err := decode(&d, line)
			if err != nil {
				return err
			}
			if _, err := w.Write(ctx, batches); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func decode(d *rows.Decoder, line []byte) ([]*store.Batch, error) {
	start := line[:min(len(line), 30)]
	switch {
	case bytes.Contains(start, []byte("resourceSpans")):
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
		if err != nil {
			return nil, err
		}
		return d.Traces("", td), nil
	case bytes.Contains(start, []byte("resourceLogs")):
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
		if err != nil {
			return nil, err
		}
		return d.Logs("", ld), nil
	}
	md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
	if err != nil {
		return nil, err
	}
	return d.Metrics("", md), nil
}

// host is a Collector with the store only.
type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

type storage struct {
	extension.Extension
	backend store.Backend
}

func (s storage) Backend(string) (store.Backend, error) { return s.backend, nil }
