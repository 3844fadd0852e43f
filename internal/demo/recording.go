// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"

	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/semconv"
)

// work is what a pipeline is expected to bring into Jaeger.
type work struct {
	services []string
	kernels  int64
	nanos    int64 // of all kernels
	devices  []string
}

// readRecordings says what the recordings in a folder hold. The collector reads them by its own
// receiver, so the demo counts them by another reader.
func readRecordings(dir string) (work, error) {
	var w work
	files, err := filepath.Glob(filepath.Join(dir, "*.otlp.jsonl.gz"))
	if err != nil {
		return w, err
	}
	if len(files) == 0 {
		return w, fmt.Errorf("no recording (*.otlp.jsonl.gz) lies in %s: run the demo in the repository's root, or set -recordings", dir)
	}
	services, devices := map[string]bool{}, map[string]bool{}
	seen := map[[8]byte]bool{}
	for _, file := range files {
		stats, err := otlp.ReadFile(file, otlp.Handler{Traces: func(td ptrace.Traces) {
			for _, rs := range td.ResourceSpans().All() {
				if name, ok := rs.Resource().Attributes().Get(semconv.ServiceName); ok {
					services[name.Str()] = true
				}
				if name, ok := rs.Resource().Attributes().Get(semconv.HWName); ok {
					devices[name.Str()] = true
				}
				for _, ss := range rs.ScopeSpans().All() {
					for _, s := range ss.Spans().All() {
						operation, ok := s.Attributes().Get(semconv.CUDAOperation)
						if !ok || operation.Str() != semconv.CUDAOperationKernel || seen[s.SpanID()] {
							continue
						}
						seen[s.SpanID()] = true
						w.kernels++
						w.nanos += int64(s.EndTimestamp() - s.StartTimestamp())
					}
				}
			}
		}})
		if err != nil {
			return w, err
		}
		if stats.Bad > 0 || stats.Torn {
			return w, fmt.Errorf("%s: %d bad lines, torn: %t: %v", file, stats.Bad, stats.Torn, stats.Errors)
		}
	}
	w.services, w.devices = sortedKeys(services), sortedKeys(devices)
	return w, nil
}
