// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/semconv"
)

// world makes spans of several services that share devices, and scopes they run in.
type world struct {
	r      *rand.Rand
	work   []testSpan
	scopes map[uint64]testSpan // by span id; spans with an even id are sent
}

const worldDevices = 3

func newWorld(seed uint64, n int) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 99)), scopes: map[uint64]testSpan{}}
	id := uint64(1000)
	for range n / 8 {
		id++
		service := w.r.IntN(3)
		s := testSpan{
			service: fmt.Sprint("service-", service), instance: fmt.Sprint("i-", service, w.r.IntN(2)), host: fmt.Sprint("host-", service%2),
			name: w.scopeName(), op: semconv.CUDAOperationScope,
			trace: uint64(w.r.IntN(20) + 1), id: id, start: testEpoch, end: testEpoch + 1,
		}
		switch w.r.IntN(5) {
		case 0:
			s.op = semconv.CUDAOperationSession
		case 1:
			s.op = "" // any span that launches kernels
		}
		w.scopes[id] = s
	}
	var ids []uint64
	for id := range w.scopes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for range n {
		id++
		scope := w.scopes[ids[w.r.IntN(len(ids))]]
		// Intervals of an hour, some of them hours old, others days apart.
		start := testEpoch - int64(w.r.IntN(3))*int64(5*time.Hour) + w.r.Int64N(int64(time.Second))
		device := w.r.IntN(worldDevices)
		s := testSpan{
			service: scope.service, instance: scope.instance, host: scope.host, device: fmt.Sprint("GPU-", device), model: "NVIDIA H200",
			trace: scope.trace, parent: scope.id, id: id, start: start, end: start + w.r.Int64N(int64(3*time.Millisecond)),
			stream: int64(w.r.IntN(3)), queue: w.r.Int64N(1000) * int64(w.r.IntN(2)),
		}
		switch w.r.IntN(8) {
		case 0:
			s.op, s.name, s.bytes = semconv.CUDAOperationMemcpy, []string{"HtoD", "DtoH"}[w.r.IntN(2)], w.r.Int64N(1<<30)
		case 1:
			s.op = semconv.CUDAOperationMemset
		case 2:
			s.op = semconv.CUDAOperationGraph
		case 3:
			s.op = semconv.CUDAOperationSynchronize
		default:
			s.op, s.name = semconv.CUDAOperationKernel, fmt.Sprint("kernel-", w.r.IntN(12))
			s.node = w.r.IntN(4) == 0
		}
		switch w.r.IntN(10) {
		case 0:
			s.scope = fmt.Sprint("ProfilerStep#", w.r.IntN(1000))
		case 1:
			s.parent = 0
		case 2:
			s.end = s.start
		}
		w.work = append(w.work, s)
	}
	return w
}

// scopeName returns the name of a scope, in which a number may count steps.
func (w *world) scopeName() string {
	switch w.r.IntN(4) {
	case 0:
		return fmt.Sprint("step ", w.r.IntN(1000))
	case 1:
		return fmt.Sprintf("Epoch_%d/eval", w.r.IntN(1000))
	}
	return fmt.Sprint("scope-", w.r.IntN(6))
}

// scopeSeries is the name of the series of a scope.
func scopeSeries(name string) string {
	for _, s := range [][2]string{{"step ", "step *"}, {"Epoch_", "Epoch_*/eval"}, {"ProfilerStep#", "ProfilerStep#*"}} {
		if strings.HasPrefix(name, s[0]) {
			return s[1]
		}
	}
	return name
}

// reference are the sums over all spans at once, by plain arithmetic.
type reference struct {
	busy    map[string]int64
	time    map[string]int64
	calls   map[string]int64
	nodes   map[string]int64
	graphs  map[string]int64
	kernels map[string]int64
	counts  map[string]int64
	queue   int64
	bytes   map[string]int64
}

func seriesName(resource map[string]any, point map[string]any) string {
	for k, v := range point {
		if v == "" {
			delete(point, k)
		}
	}
	return fmt.Sprint(resource) + fmt.Sprint(point)
}

func (w *world) reference() *reference {
	ref := &reference{
		busy: map[string]int64{}, time: map[string]int64{}, calls: map[string]int64{}, nodes: map[string]int64{}, graphs: map[string]int64{},
		kernels: map[string]int64{}, counts: map[string]int64{}, bytes: map[string]int64{},
	}
	type interval struct{ start, end int64 }
	intervals := map[string][]interval{}
	for _, s := range w.work {
		if s.op == semconv.CUDAOperationSynchronize {
			continue
		}
		scope := s.scope
		if p, ok := w.scopes[s.parent]; ok && scope == "" && s.parent%2 == 0 && p.op != semconv.CUDAOperationSession {
			scope = p.name
		}
		scope = scopeSeries(scope)
		resource := map[string]any{semconv.ServiceName: s.service, semconv.HostName: s.host}
		point := func(more ...string) string {
			m := map[string]any{semconv.HWID: s.device, semconv.HWName: s.model}
			for i := 0; i < len(more); i += 2 {
				m[more[i]] = more[i+1]
			}
			return seriesName(resource, m)
		}
		d := s.end - s.start
		ref.time[point(semconv.CUDAScopeName, scope, semconv.CUDAOperation, s.op)] += d
		switch {
		case s.op == semconv.CUDAOperationGraph:
			ref.graphs[point(semconv.CUDAScopeName, scope)]++
		case s.op == semconv.CUDAOperationKernel && s.node:
			ref.nodes[point(semconv.CUDAScopeName, scope)]++
		case s.op == semconv.CUDAOperationKernel:
			ref.calls[point(semconv.CUDAScopeName, scope)]++
		case s.op == semconv.CUDAOperationMemcpy && s.bytes > 0:
			ref.bytes[point(semconv.CUDAMemcpyKind, s.name)] += s.bytes - 1
		}
		if s.op == semconv.CUDAOperationKernel {
			ref.kernels[point(semconv.CUDAKernelName, s.name)] += d
			ref.counts[point(semconv.CUDAKernelName, s.name)]++
		}
		if s.op == semconv.CUDAOperationKernel || s.op == semconv.CUDAOperationGraph {
			intervals[s.device] = append(intervals[s.device], interval{s.start, s.end})
		}
		if s.queue > 0 {
			ref.queue += s.queue - 1
		}
	}
	for device, list := range intervals {
		slices.SortFunc(list, func(a, b interval) int { return int(a.start - b.start) })
		end := int64(0)
		for _, i := range list {
			if i.end > end {
				ref.busy[device] += i.end - max(i.start, end)
				end = i.end
			}
		}
	}
	return ref
}

// stream is all spans in a random order, some of them twice, in random batches.
func (w *world) stream() [][]testSpan {
	all := slices.Clone(w.work)
	for id, s := range w.scopes {
		if id%2 == 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b testSpan) int { return int(a.id) - int(b.id) }) // a map has no order
	for range len(all) / 5 {
		all = append(all, all[w.r.IntN(len(all))])
	}
	w.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var batches [][]testSpan
	for len(all) > 0 {
		n := min(len(all), 1+w.r.IntN(60))
		batches = append(batches, all[:n])
		all = all[n:]
	}
	return batches
}

// same compares a metric with what it should be, to the nanosecond.
func same(t *testing.T, what string, want map[string]int64, got map[string]float64, unit float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for k, v := range want {
		g, ok := got[k]
		require.True(t, ok, "%s lacks %s; has %v", what, k, got)
		require.Equal(t, v, int64(math.Round(g*unit)), "%s of %s", what, k)
	}
}

func (ref *reference) check(t *testing.T, got map[string]map[string]float64) {
	t.Helper()
	same(t, "device seconds", ref.time, got[semconv.MetricGPUCUDATime], 1e9)
	same(t, "launches", ref.calls, got[semconv.MetricGPUCUDAKernelLaunchCalls], 1)
	same(t, "graph nodes", ref.nodes, got[semconv.MetricGPUCUDAGraphNodeLaunches], 1)
	same(t, "graph launches", ref.graphs, got[semconv.MetricGPUCUDAGraphLaunchCalls], 1)
	same(t, "kernel durations", ref.kernels, got[semconv.MetricGPUCUDAKernelDuration], 1e9)
	same(t, "kernels", ref.counts, got[semconv.MetricGPUCUDAKernelDuration+"#"], 1)
	same(t, "copied bytes", ref.bytes, got[semconv.MetricGPUCUDAMemoryCopies], 1)
	require.Equal(t, ref.queue, ns(total(got[semconv.MetricGPUCUDAQueueDuration])), "queue")
	busy := map[string]int64{}
	for k, v := range got[semconv.MetricGPUCUDABusyTime] {
		for d := range worldDevices {
			if device := fmt.Sprint("GPU-", d); contains(k, device) {
				busy[device] += int64(math.Round(v * 1e9))
			}
		}
	}
	require.Equal(t, ref.busy, busy, "busy time")
}

func contains(s, part string) bool {
	for i := range len(s) - len(part) + 1 {
		if s[i:i+len(part)] == part {
			return true
		}
	}
	return false
}

func priced(c *Config) {
	c.Cost = CostConfig{Currency: "EUR", Prices: []PriceConfig{{Device: "GPU-0", PricePerHour: 3}, {Device: "NVIDIA *", PricePerHour: 7.5}}}
}

// checkCost compares the sum of all bills, idle time among them, with the devices' observed time.
func checkCost(t *testing.T, got map[string]map[string]float64) {
	t.Helper()
	want := 0.0
	for k, v := range got[semconv.MetricGPUCUDAObservedTime] {
		price := 7.5
		if contains(k, "GPU-0") {
			price = 3
		}
		want += v * price / 3600
	}
	require.Positive(t, want)
	require.InEpsilon(t, want, total(got[semconv.MetricGPUCUDACost]), 1e-9)
}

// restart replaces a connector by a new one on the same storage: after Shutdown, or after a kill.
func restart(t *testing.T, r *rig, cfg *Config, st *memoryStorage, clean bool) *rig {
	t.Helper()
	if clean {
		r.shutdown()
	} else {
		r.kill()
	}
	return newRigAt(t, cfg, st, r.clock.at)
}

func TestSumsEqualPlainArithmeticOverAllSpans(t *testing.T) {
	for _, mode := range []string{"memory", "storage", "clean restarts", "kills"} {
		t.Run(mode, func(t *testing.T) {
			for seed := range uint64(25) {
				w := newWorld(seed, 400)
				ref := w.reference()
				cfg := testConfig(priced, func(c *Config) { c.ScopeWait = 1000 * time.Hour })
				var st *memoryStorage
				if mode != "memory" {
					st = newMemoryStorage()
				}
				r := newRig(t, cfg, st)
				for _, batch := range w.stream() {
					r.send(traces(batch...))
					r.clock.advance(time.Duration(w.r.IntN(5)) * time.Second)
					switch w.r.IntN(12) {
					case 0, 1, 2:
						r.flush()
					case 3:
						if mode == "clean restarts" || mode == "kills" {
							r = restart(t, r, cfg, st, mode != "kills")
						}
					}
				}
				got := points(t, r.finish())
				ref.check(t, got)
				checkCost(t, got)
				r.shutdown()
			}
		})
	}
}

// What a killed connector had exported, and what its successor exports, are the same at the same
// moment: cost and gaps included, which depend on when things were settled.
func TestAKillChangesNothing(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(seed+500, 300)
		cfg, cfg2 := testConfig(priced), testConfig(priced)
		st := newMemoryStorage()
		a, b := newRig(t, cfg, nil), newRig(t, cfg2, st)
		for _, batch := range w.stream() {
			a.send(traces(batch...))
			b.send(traces(batch...))
			d := time.Duration(w.r.IntN(5)) * time.Second
			a.clock.advance(d)
			b.clock.advance(d)
			switch w.r.IntN(10) {
			case 0, 1, 2:
				require.Equal(t, points(t, a.flush()), points(t, b.flush()))
			case 3:
				b = restart(t, b, cfg2, st, false)
			}
		}
		require.Equal(t, points(t, a.finish()), points(t, b.finish()))
		a.shutdown()
		b.shutdown()
	}
}

// Devices that are live cost their price for each second of the wall clock, whoever uses them.
func TestCostOfLiveDevicesIsTheirTime(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 5))
		cfg := testConfig(priced)
		g := newRig(t, cfg, nil)
		const seconds = 300
		id := uint64(1)
		starts := map[string]int64{}
		for range seconds {
			var batch []testSpan
			for range r.IntN(40) {
				id++
				device := fmt.Sprint("GPU-", r.IntN(worldDevices))
				start := g.clock.at + r.Int64N(int64(900*time.Millisecond))
				s := testSpan{
					service: fmt.Sprint("service-", r.IntN(3)), host: "h", device: device, model: "NVIDIA H200",
					op: []string{semconv.CUDAOperationKernel, semconv.CUDAOperationMemcpy}[r.IntN(2)], name: "x",
					trace: 1, id: id, start: start, end: start + r.Int64N(int64(200*time.Millisecond)),
				}
				batch = append(batch, s)
				if at, ok := starts[device]; !ok || start < at {
					starts[device] = start
				}
			}
			g.clock.advance(time.Second + 200*time.Millisecond)
			r.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
			g.send(traces(batch...))
			if r.IntN(10) == 0 {
				checkCostIfAny(t, points(t, g.flush()))
			}
		}
		g.clock.advance(10 * time.Minute) // nothing runs any more, and still costs
		got := points(t, g.flush())
		checkCost(t, got)
		settled := g.clock.at - int64(cfg.SettleAfter)
		for k, v := range got[semconv.MetricGPUCUDAObservedTime] {
			for device, start := range starts {
				if contains(k, device) {
					require.Equal(t, settled-start, ns(v), "observed time of %s", device)
				}
			}
		}
		require.Len(t, got[semconv.MetricGPUCUDAObservedTime], worldDevices)
		g.shutdown()
	}
}

func checkCostIfAny(t *testing.T, got map[string]map[string]float64) {
	t.Helper()
	if total(got[semconv.MetricGPUCUDAObservedTime]) > 0 {
		checkCost(t, got)
	}
}

func TestConcurrentSendersLoseNothing(t *testing.T) {
	w := newWorld(77, 2000)
	ref := w.reference()
	r := newRig(t, testConfig(priced, func(c *Config) { c.ScopeWait = time.Hour }), newMemoryStorage())
	batches := w.stream()
	errs := make(chan error)
	const senders = 4
	for k := range senders {
		go func() {
			var err error
			for i := k; i < len(batches) && err == nil; i += senders {
				err = r.c.ConsumeTraces(context.Background(), traces(batches[i]...))
				if i%16 == k {
					r.c.flush(context.Background(), false)
				}
			}
			errs <- err
		}()
	}
	for range senders {
		require.NoError(t, <-errs)
	}
	got := points(t, r.finish())
	ref.check(t, got)
	checkCost(t, got)
	r.shutdown()
}
