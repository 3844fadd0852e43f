// SPDX-License-Identifier: Apache-2.0

// Command spans measures the spans per second of the occupancy processor and the gpu_usage
// connector. It compares each with contrib's span_metrics connector on the same spans in the same
// run.
//
// The spans are those of a generated training session, as the gpuflog receiver sends them. In each
// round every component receives its own copy with new ids and times, since gpu_usage ignores
// repeated spans. Only the consume calls and the shutdown are timed; gpu_usage sends its metrics at
// shutdown, span_metrics does not. The exit status is 1 if a ratio is below 1 or memory exceeds its
// limit.
//
// The second part sends a million kernels with as many names and measures the memory of gpu_usage,
// which has a limit. For comparison, span_metrics receives a tenth of them.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pipeline"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/open-telemetry/opentelemetry-collector-contrib/connector/spanmetricsconnector"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/processor/occupancyprocessor"
	"github.com/gpuflight/gpuflight/semconv"
)

// maxHeld is the bound on what gpu_usage holds after a million kernel names.
const maxHeld = 128 << 20

func main() {
	kernels := flag.Int64("kernels", 100_000, "kernels of the generated session")
	rounds := flag.Int("rounds", 5, "rounds; the medians are printed")
	names := flag.Int("names", 1_000_000, "distinct kernel names of the memory part")
	flag.Parse()
	missed, err := bench(*kernels, *rounds, *names)
	if err != nil {
		fmt.Fprintln(os.Stderr, "spans:", err)
		os.Exit(2)
	}
	if missed {
		os.Exit(1)
	}
}

// traces is a running component.
type traces interface {
	component.Component
	consumer.Traces
}

// subject is one of the components compared.
type subject struct {
	name string
	make func() (traces, error)
}

var subjects = []subject{
	{"span_metrics", func() (traces, error) {
		// The dimensions that answer what gpu_usage answers, as far as sums over single spans can.
		return connected(spanmetricsconnector.NewFactory(), map[string]any{
			"metrics_flush_interval": "1h",
			"histogram":              map[string]any{"exponential": map[string]any{"max_size": 160}},
			"exemplars":              map[string]any{"enabled": true, "max_per_data_point": 4},
			"dimensions": []any{
				map[string]any{"name": semconv.CUDAOperation}, map[string]any{"name": semconv.CUDAScopeName},
				map[string]any{"name": semconv.CUDAKernelName}, map[string]any{"name": semconv.HWID},
			},
		})
	}},
	{"occupancy", func() (traces, error) {
		f := occupancyprocessor.NewFactory()
		return f.CreateTraces(context.Background(), processor.Settings{ID: component.NewID(f.Type()), TelemetrySettings: telemetry()},
			f.CreateDefaultConfig(), sink())
	}},
	{"gpu_usage", func() (traces, error) {
		return connected(gpuusageconnector.NewFactory(), map[string]any{
			"metrics_flush_interval": "1h",
			"cost": map[string]any{
				"currency": "EUR", "prices": []any{map[string]any{"device": "*", "price_per_hour": 3.6}},
			},
		})
	}},
}

func bench(kernels int64, rounds, names int) (missed bool, err error) {
	session, spans, err := generate(kernels)
	if err != nil {
		return false, err
	}
	fmt.Printf("%d spans in %d batches\n", spans, len(session))
	perSpan := make([][]float64, len(subjects))
	for round := range rounds + 1 {
		for i, s := range subjects {
			took, err := run(s, session, uint32(round*len(subjects)+i+1))
			if err != nil {
				return false, fmt.Errorf("%s: %w", s.name, err)
			}
			if round > 0 { // the first fills the processor's caches and the heap
				perSpan[i] = append(perSpan[i], float64(took.Nanoseconds())/float64(spans))
			}
		}
	}
	base := median(perSpan[0])
	for i, s := range subjects {
		ratio := base / median(perSpan[i])
		verdict := ""
		if ratio < 1 {
			verdict, missed = " (at least 1 wanted: MISSED)", true
		}
		fmt.Printf("%-12s %6.0f ns a span, %5.2f million spans a second, %.2f times span_metrics%s\n",
			s.name, median(perSpan[i]), 1e3/median(perSpan[i]), ratio, verdict)
	}

	for _, s := range subjects {
		n := names
		switch s.name {
		case "occupancy":
			continue
		case "span_metrics":
			n /= 10
		}
		held, err := holds(s, n)
		if err != nil {
			return false, fmt.Errorf("%s: %w", s.name, err)
		}
		verdict := ""
		if s.name == "gpu_usage" && held > maxHeld {
			verdict, missed = fmt.Sprintf(" (at most %d wanted: MISSED)", maxHeld>>20), true
		}
		fmt.Printf("%-12s holds %d MiB after %d kernel names%s\n", s.name, held>>20, n, verdict)
	}
	return missed, nil
}

// run feeds the whole session and returns the time that the component took.
func run(s subject, session []ptrace.Traces, salt uint32) (time.Duration, error) {
	ctx := context.Background()
	c, err := s.make()
	if err != nil {
		return 0, err
	}
	if err := c.Start(ctx, componenttest.NewNopHost()); err != nil {
		return 0, err
	}
	runtime.GC()
	var took time.Duration
	for _, batch := range session {
		own := ptrace.NewTraces()
		batch.CopyTo(own)
		renumber(own, salt)
		begin := time.Now()
		if err := c.ConsumeTraces(ctx, own); err != nil {
			return 0, errors.Join(err, c.Shutdown(ctx))
		}
		took += time.Since(begin)
	}
	begin := time.Now()
	err = c.Shutdown(ctx)
	return took + time.Since(begin), err
}

// holds returns the heap that a component holds after n kernels of as many names.
func holds(s subject, n int) (uint64, error) {
	ctx := context.Background()
	before := heap()
	c, err := s.make()
	if err != nil {
		return 0, err
	}
	if err := c.Start(ctx, componenttest.NewNopHost()); err != nil {
		return 0, err
	}
	for i := 0; i < n; i += 1000 {
		if err := c.ConsumeTraces(ctx, named(i, i+1000)); err != nil {
			return 0, errors.Join(err, c.Shutdown(ctx))
		}
	}
	held := heap() - before
	return held, c.Shutdown(ctx)
}

// named makes kernels from..to, each with a name of its own.
func named(from, to int) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr(semconv.ServiceName, "bench")
	list := rs.ScopeSpans().AppendEmpty().Spans()
	for i := from; i < to; i++ {
		sp := list.AppendEmpty()
		var id [16]byte
		binary.BigEndian.PutUint64(id[8:], uint64(i)+1)
		sp.SetTraceID(id)
		sp.SetSpanID(pcommon.SpanID(id[8:]))
		sp.SetName("k")
		sp.SetStartTimestamp(pcommon.Timestamp(1_700_000_000_000_000_000 + i*10_000))
		sp.SetEndTimestamp(sp.StartTimestamp() + 5_000)
		a := sp.Attributes()
		a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationKernel)
		a.PutStr(semconv.CUDAKernelName, "void generated_kernel_with_a_usual_length<float, "+strconv.Itoa(i)+">(float*, int)")
		a.PutStr(semconv.HWID, "GPU-00000000-0000-0000-0000-000000000001")
	}
	return td
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// renumber gives every span new ids, and moves all times on by the salt's number of days.
func renumber(td ptrace.Traces, salt uint32) {
	day := pcommon.Timestamp(24 * time.Hour.Nanoseconds())
	for i := range td.ResourceSpans().Len() {
		rs := td.ResourceSpans().At(i)
		for j := range rs.ScopeSpans().Len() {
			spans := rs.ScopeSpans().At(j).Spans()
			for k := range spans.Len() {
				sp := spans.At(k)
				sp.SetTraceID(pcommon.TraceID(salted(sp.TraceID(), salt)))
				id, parent := sp.SpanID(), sp.ParentSpanID()
				sp.SetSpanID(pcommon.SpanID(salted8(id, salt)))
				if !parent.IsEmpty() {
					sp.SetParentSpanID(pcommon.SpanID(salted8(parent, salt)))
				}
				sp.SetStartTimestamp(sp.StartTimestamp() + day*pcommon.Timestamp(salt))
				sp.SetEndTimestamp(sp.EndTimestamp() + day*pcommon.Timestamp(salt))
			}
		}
	}
}

func salted(id [16]byte, salt uint32) [16]byte {
	binary.LittleEndian.PutUint32(id[:], binary.LittleEndian.Uint32(id[:])+salt)
	return id
}

func salted8(id [8]byte, salt uint32) [8]byte {
	binary.LittleEndian.PutUint32(id[:], binary.LittleEndian.Uint32(id[:])+salt)
	return id
}

// generate writes a session and decodes it, as the receiver does.
func generate(kernels int64) (batches []ptrace.Traces, spans int, err error) {
	dir, err := os.MkdirTemp("", "gpuflight-bench-")
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg := gpuflgen.Config{Dir: dir, Kernels: kernels, StackBytes: 500, Samples: -1, RotateBytes: -1, NoCompress: true}
	if _, err := gpuflgen.Run(context.Background(), cfg); err != nil {
		return nil, 0, err
	}
	channels := map[string]gpuflog.Channel{"device": gpuflog.Device, "scope": gpuflog.Scope, "system": gpuflog.System}
	file := regexp.MustCompile(`^([a-z]+)\b.*\.log$`)
	var data [gpuflog.NumChannels][]byte
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if m := file.FindStringSubmatch(e.Name()); err == nil && m != nil {
			if ch, ok := channels[m[1]]; ok {
				data[ch], err = os.ReadFile(path)
			}
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	d := gpuflog.NewDecoder(gpuflog.Options{})
	out := gpuevent.NewBatch(gpuevent.Signals{Traces: true})
	var off [gpuflog.NumChannels]int
	take := func() {
		spans += out.Spans()
		if td, _, _ := out.Take(); td.SpanCount() > 0 {
			batches = append(batches, td)
		}
	}
	for {
		ch := d.Want()
		if off[ch] == len(data[ch]) {
			ch = gpuflog.Device + gpuflog.Scope - ch
		}
		rest := data[ch][off[ch]:]
		if len(rest) == 0 {
			break
		}
		if len(rest) > 1<<20 {
			rest = rest[:strings.LastIndexByte(string(rest[:1<<20]), '\n')+1]
		}
		d.Feed(ch, rest, int64(off[ch]), 0, out)
		off[ch] += len(rest)
		d.EndStep(gpuflog.Step{}, out)
		take()
	}
	if int64(spans) < kernels {
		return nil, 0, fmt.Errorf("%d spans of %d kernels", spans, kernels)
	}
	return batches, spans, nil
}

func connected(f connector.Factory, settings map[string]any) (traces, error) {
	cfg := f.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(settings).Unmarshal(cfg); err != nil {
		return nil, err
	}
	next := connector.NewMetricsRouter(map[pipeline.ID]consumer.Metrics{pipeline.NewID(pipeline.SignalMetrics): metricsSink()})
	return f.CreateTracesToMetrics(context.Background(), connector.Settings{ID: component.NewID(f.Type()), TelemetrySettings: telemetry()}, cfg, next)
}

func telemetry() component.TelemetrySettings {
	return component.TelemetrySettings{
		Logger: zap.NewNop(), MeterProvider: noop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider(), Resource: pcommon.NewResource(),
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}
