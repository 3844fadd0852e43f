// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
)

const demoPath = "/api/v1/demo"

// demo is the recordings of examples/recordings with occupancy, as scripts/demo-recordings makes it.
// The last session is what the demo opens.
//
//go:embed demo/recordings.otlp.jsonl.zst
var demo []byte

// loadDemo writes the recorded sessions to the store, as if a program had sent them. Loading them
// again changes nothing.
func (s *server) loadDemo(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	session := ""
	err := eachDemoBatch(r.project, func(batches []*store.Batch) error {
		for _, b := range batches {
			if b.Session != "" {
				session = b.Session
			}
		}
		_, err := s.store.Write(ctx, batches)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("load the demo: %w", err)
	}
	return map[string]string{"session": session}, nil
}

func eachDemoBatch(project string, write func([]*store.Batch) error) error {
	z, err := zstd.NewReader(bytes.NewReader(demo), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	var d rows.Decoder
	for lines.Scan() {
		line := lines.Bytes()
		var batches []*store.Batch
		switch {
		case bytes.HasPrefix(line, []byte(`{"resourceSpans"`)):
			td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
			if err != nil {
				return err
			}
			batches = d.Traces(project, td)
		case bytes.HasPrefix(line, []byte(`{"resourceLogs"`)):
			ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(line)
			if err != nil {
				return err
			}
			batches = d.Logs(project, ld)
		case bytes.HasPrefix(line, []byte(`{"resourceMetrics"`)):
			md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
			if err != nil {
				return err
			}
			batches = d.Metrics(project, md)
		default:
			return errors.New("a line of the recording is no telemetry")
		}
		if err := write(batches); err != nil {
			return err
		}
	}
	return lines.Err()
}
