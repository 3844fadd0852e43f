// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/awss3exporter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/featuregate"
)

// export sends 7 requests of the three signals through one of the Collector's exporters: 60 spans, 12
// log records and 30 data points.
func export(t *testing.T, factory exporter.Factory, settings map[string]any) {
	t.Helper()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(settings).Unmarshal(cfg))
	set := exportertest.NewNopSettings(factory.Type())
	ctx := context.Background()
	traces, err := factory.CreateTraces(ctx, set, cfg)
	require.NoError(t, err)
	logs, err := factory.CreateLogs(ctx, set, cfg)
	require.NoError(t, err)
	metrics, err := factory.CreateMetrics(ctx, set, cfg)
	require.NoError(t, err)
	all := []component.Component{traces, logs, metrics}
	for _, c := range all {
		require.NoError(t, c.Start(ctx, componenttest.NewNopHost()))
	}
	for i := range 3 {
		require.NoError(t, traces.ConsumeTraces(ctx, spans(20*i, 20)))
		require.NoError(t, metrics.ConsumeMetrics(ctx, points(10*i, 10)))
	}
	require.NoError(t, logs.ConsumeLogs(ctx, records(0, 12)))
	for _, c := range all {
		require.NoError(t, c.Shutdown(ctx))
	}
}

func checkExported(t *testing.T, s Source) {
	t.Helper()
	c := newCollector()
	counts := run(t, Options{Sources: []Source{s}, Sender: c, Problem: func(p Problem) { t.Error(p) }})
	assert.Equal(t, 60, counts.Spans)
	assert.Equal(t, 12, counts.LogRecords)
	assert.Equal(t, 30, counts.DataPoints)
	assert.Empty(t, counts.Rejected)
	want := newCollector()
	_, err := want.Traces(t.Context(), spans(0, 60))
	require.NoError(t, err)
	_, err = want.Logs(t.Context(), records(0, 12))
	require.NoError(t, err)
	_, err = want.Metrics(t.Context(), points(0, 30))
	require.NoError(t, err)
	assert.Equal(t, want.spans, c.spans)
	assert.Equal(t, want.records, c.records)
	assert.Equal(t, want.points, c.points)
}

func TestReplayReadsWhatTheFileExporterWrites(t *testing.T) {
	gate := ""
	featuregate.GlobalRegistry().VisitAll(func(g *featuregate.Gate) {
		if g.ID() == "exporter.file.nativeCompression" {
			gate = g.ID()
		}
	})
	for _, format := range []string{"json", "proto"} {
		for _, compression := range []string{"", "zstd"} {
			for _, native := range []bool{false, true} {
				if native && (gate == "" || compression == "") {
					continue
				}
				t.Run(fmt.Sprint(format, " ", compression, " ", native), func(t *testing.T) {
					if native {
						require.NoError(t, featuregate.GlobalRegistry().Set(gate, true))
						defer func() { require.NoError(t, featuregate.GlobalRegistry().Set(gate, false)) }()
					}
					// The name says nothing: it is the user's own choice.
					path := filepath.Join(t.TempDir(), "telemetry")
					export(t, fileexporter.NewFactory(), map[string]any{"path": path, "format": format, "compression": compression})
					checkExported(t, source(t, path))
				})
			}
		}
	}
	assert.NotEmpty(t, gate, "the exporter's compression of whole files is tested too")
}

func TestReplayReadsWhatTheS3ExporterWrites(t *testing.T) {
	for _, marshaler := range []string{"otlp_json", "otlp_proto"} {
		for _, compression := range []string{"none", "gzip", "zstd"} {
			t.Run(marshaler+" "+compression, func(t *testing.T) {
				s := startS3(t)
				s.pageSize = 2
				uploader := map[string]any{
					"region": "us-east-1", "s3_bucket": "telemetry", "s3_prefix": "gpu", "endpoint": s.URL,
					"s3_force_path_style": true, "disable_ssl": true, "s3_partition_timezone": "UTC", "file_prefix": "a_b-",
				}
				if compression != "none" {
					uploader["compression"] = compression
				}
				began := time.Now()
				export(t, awss3exporter.NewFactory(), map[string]any{
					"s3uploader": uploader, "marshaler": marshaler, "sending_queue": map[string]any{"enabled": false},
				})
				assert.Len(t, s.objects, 7)
				checkExported(t, source(t, "s3://telemetry/gpu"))
				assert.Equal(t, 4, s.listing, "7 objects, 2 a page")

				counts := run(t, Options{Sources: []Source{source(t, "s3://telemetry/gpu")}, From: began.Add(-time.Minute), To: time.Now().Add(time.Minute)})
				assert.Equal(t, 60, counts.Spans)
				counts = run(t, Options{Sources: []Source{source(t, "s3://telemetry")}, To: began.Add(-time.Minute)})
				assert.Zero(t, counts.Spans)
				assert.Equal(t, map[string]int{SkippedTime: 7}, counts.Skipped)

				one := slices.Sorted(maps.Keys(s.objects))[0]
				counts = run(t, Options{Sources: []Source{source(t, "s3://"+one)}})
				assert.Equal(t, 1, counts.Objects)
			})
		}
	}
}
