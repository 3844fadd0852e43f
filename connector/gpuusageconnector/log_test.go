// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadata"
	"github.com/gpuflight/gpuflight/connector/gpuusageconnector/internal/metadatatest"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
	"github.com/gpuflight/gpuflight/semconv"
)

func launches(t testing.TB, r *rig) float64 {
	t.Helper()
	return total(points(t, r.flush())[semconv.MetricGPUCUDAKernelLaunchCalls])
}

func logKeys(st *memoryStorage) (n int) {
	for k := range st.kv {
		if strings.HasPrefix(k, "log/") {
			n++
		}
	}
	return n
}

// firstLog is the key of the second record.
func firstLog(kv map[string][]byte) string {
	for k := range kv {
		if strings.HasSuffix(k, "/1") {
			return k
		}
	}
	panic("there is none")
}

func TestStartTimesAreKeptOverARestart(t *testing.T) {
	cfg, st := testConfig(), newMemoryStorage()
	r := newRig(t, cfg, st)
	r.send(traces(kernelAt(0, "k", 0)))
	r.clock.advance(time.Hour)
	r = restart(t, r, cfg, st, true)
	r.clock.advance(time.Hour)
	r.send(traces(kernelAt(0, "k", 0), kernelAt(1, "k", 0)))
	md := r.flush()
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			if m.Name() == semconv.MetricGPUCUDAKernelLaunchCalls {
				p := m.Sum().DataPoints().At(0)
				assert.Equal(t, testEpoch, int64(p.StartTimestamp()))
				assert.Equal(t, testEpoch+int64(2*time.Hour), int64(p.Timestamp()))
				assert.Equal(t, int64(2), p.IntValue(), "one came twice")
			}
		}
	}
	r.shutdown()
}

func TestAFullDiskDoesNotStopTelemetry(t *testing.T) {
	cfg, st := testConfig(), newMemoryStorage()
	r := newRig(t, cfg, st)
	r.send(traces(kernelAt(0, "k", 0)))
	st.setFail(true)
	r.send(traces(kernelAt(1, "k", 0)))
	r.send(traces(kernelAt(2, "k", 0)))
	assert.InDelta(t, 3, launches(t, r), 0)
	keys := logKeys(st)
	st.setFail(false)
	r.send(traces(kernelAt(3, "k", 0)))
	assert.Equal(t, keys, logKeys(st), "a record after a gap would be of no use")
	r.flush() // writes a snapshot
	assert.Zero(t, logKeys(st))
	r.send(traces(kernelAt(4, "k", 0)))
	assert.Equal(t, 1, logKeys(st))
	r = restart(t, r, cfg, st, false)
	assert.InDelta(t, 5, launches(t, r), 0, "what came while nothing could be stored is in the snapshot")
	r.shutdown()
}

func TestStorageErrorsAreCountedAndLoggedOnceAMinute(t *testing.T) {
	tel := componenttest.NewTelemetry()
	core, logs := observer.New(zap.ErrorLevel)
	set := connectortest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	set.Logger = zap.New(core)
	cfg, st := testConfig(), newMemoryStorage()
	id := component.MustNewID("memory")
	cfg.Storage = &id
	c := newConnector(cfg, set, consumertest.NewNop())
	at := clock{at: testEpoch}
	c.now = at.now
	require.NoError(t, c.Start(t.Context(), storageHost{id: st}))
	st.setFail(true)
	for range 5 { // the first finds out, the others only try a snapshot
		c.flush(t.Context(), false)
		at.advance(16 * time.Second)
	}
	assert.Equal(t, 2, logs.Len())
	metadatatest.AssertEqualConnectorGpuUsageStorageErrors(t, tel, []metricdata.DataPoint[int64]{{Value: 6}}, metricdatatest.IgnoreTimestamp())
	require.NoError(t, c.Shutdown(t.Context()))
	require.NoError(t, tel.Shutdown(t.Context()))
}

func TestDamagedStateBeginsAnewAndSaysSo(t *testing.T) {
	for name, damage := range map[string]func(map[string][]byte){
		"snapshot":       func(kv map[string][]byte) { kv[snapshotKey][20] ^= 1 },
		"short snapshot": func(kv map[string][]byte) { kv[snapshotKey] = []byte{1} },
		"record":         func(kv map[string][]byte) { kv[firstLog(kv)][30] ^= 1 },
		"short record":   func(kv map[string][]byte) { kv[firstLog(kv)] = []byte("x") },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, st := testConfig(), newMemoryStorage()
			r := newRig(t, cfg, st)
			for i := range 4 {
				r.send(traces(kernelAt(i, "k", 0)))
			}
			r.kill()
			damage(st.kv)

			core, logs := observer.New(zap.ErrorLevel)
			tel := componenttest.NewTelemetry()
			set := connectortest.NewNopSettings(metadata.Type)
			set.TelemetrySettings = tel.NewTelemetrySettings()
			set.Logger = zap.New(core)
			sink := &consumertest.MetricsSink{}
			c := newConnector(cfg, set, sink)
			c.now = func() time.Time { return time.Unix(0, testEpoch+1) }
			require.NoError(t, c.Start(t.Context(), storageHost{*cfg.Storage: st}))
			assert.Equal(t, 1, logs.Len())
			metadatatest.AssertEqualConnectorGpuUsageStateResets(t, tel, []metricdata.DataPoint[int64]{{Value: 1}}, metricdatatest.IgnoreTimestamp())
			require.NoError(t, c.ConsumeTraces(t.Context(), traces(kernelAt(9, "k", 0))))
			r.c = c
			r.kill()

			// Records of the old log are still there, and are not mistaken for the new one's.
			r = newRig(t, cfg, st)
			assert.InDelta(t, 1, launches(t, r), 0)
			r.shutdown()
			require.NoError(t, tel.Shutdown(t.Context()))
		})
	}
}

func TestOtherSettings(t *testing.T) {
	cfg, st := testConfig(perSecond), newMemoryStorage()
	r := newRig(t, cfg, st)
	r.send(example())
	r.clock.advance(time.Minute)
	r.flush()

	// Another price counts from now on; what has been charged stays charged.
	r.kill()
	dearer := testConfig(perSecond, func(c *Config) { c.Cost.Prices[0].PricePerHour *= 2 })
	r = newRigAt(t, dearer, st, testEpoch+int64(2*time.Minute))
	assert.InDelta(t, 0.013, total(points(t, r.flush())[semconv.MetricGPUCUDACost]), 1e-12)
	more := kernelAt(5, "k", 0)
	more.start = testEpoch - int64(time.Hour) + 13e9
	more.end = more.start + 1e9
	r.send(traces(more))
	assert.InDelta(t, 0.015, total(points(t, r.finish())[semconv.MetricGPUCUDACost]), 1e-12)

	// Another currency restarts the cost and leaves the rest.
	r.kill()
	euro := testConfig(perSecond, func(c *Config) { c.Cost.Currency = "EUR" })
	r = newRigAt(t, euro, st, testEpoch+int64(3*time.Minute))
	got := points(t, r.flush())
	assert.Zero(t, total(got[semconv.MetricGPUCUDACost]))
	assert.InDelta(t, 10, total(got[semconv.MetricGPUCUDABusyTime]), 1e-9)

	// Other histograms cannot be made of these.
	r.kill()
	explicit := testConfig(func(c *Config) { c.Histograms.Kind = kindExplicit })
	r = newRigAt(t, explicit, st, testEpoch+int64(4*time.Minute))
	assert.Empty(t, points(t, r.flush()))
	r.send(example())
	want := points(t, r.flush())
	r.kill()
	r = newRigAt(t, explicit, st, r.clock.at)
	assert.Equal(t, want, points(t, r.flush()))
	r.shutdown()
}

// The log is replaced by a snapshot when it has grown, and by a small one too after many flushes.
func TestTheLogDoesNotGrowForEver(t *testing.T) {
	cfg, st := testConfig(), newMemoryStorage()
	r := newRig(t, cfg, st)
	r.c.log.bytes = minLogBytes
	r.send(traces(kernelAt(0, "k", 0)))
	assert.Equal(t, 1, logKeys(st))
	r.flush()
	assert.Zero(t, logKeys(st))
	r.c.log.records = maxLogRecords
	r.flush()
	assert.Zero(t, logKeys(st))
	r = restart(t, r, cfg, st, false)
	assert.InDelta(t, 1, launches(t, r), 0)
	r.shutdown()
}

// With the storage extension that the distribution has.
func TestFileStorage(t *testing.T) {
	f := filestorage.NewFactory()
	fc := f.CreateDefaultConfig().(*filestorage.Config)
	fc.Directory = filepath.Join(t.TempDir(), "s")
	fc.CreateDirectory = true
	id := component.NewID(f.Type())
	cfg := testConfig(perSecond)
	cfg.Storage = &id
	var want map[string]map[string]float64
	for round := range 3 {
		ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), fc)
		require.NoError(t, err)
		require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
		sink := &consumertest.MetricsSink{}
		c := newConnector(cfg, connectortest.NewNopSettings(metadata.Type), sink)
		c.now = func() time.Time { return time.Unix(0, testEpoch).Add(time.Duration(round) * time.Hour) }
		require.NoError(t, c.Start(t.Context(), storageHost{id: ext}))
		require.NoError(t, c.ConsumeTraces(t.Context(), example()))
		c.flush(context.Background(), true)
		got := points(t, sink.AllMetrics()[0])
		if round == 0 {
			want = got
		}
		assert.Equal(t, want, got, "the same spans again")
		if round == 1 { // as a kill, but for the file's lock
			c.cancel()
			<-c.done
			require.NoError(t, c.log.close(t.Context()))
		} else {
			require.NoError(t, c.Shutdown(t.Context()))
		}
		require.NoError(t, ext.Shutdown(t.Context()))
	}
}

// exampleRecord is the payload of the worked example.
func exampleRecord() []byte {
	p := newParser(newResourceKeys(testConfig(perSecond)))
	p.parse(example())
	return p.b.append(nil)
}

func TestABatchComesBackFromItsRecord(t *testing.T) {
	cfg := testConfig(priced)
	for seed := range uint64(20) {
		w := newWorld(seed, 100)
		p := newParser(newResourceKeys(cfg))
		p.parse(traces(append(w.work, w.scopes[1001], w.scopes[1002])...))
		var b batch
		require.NoError(t, b.load(p.b.append(nil)))
		assert.Equal(t, p.b, b)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(exampleRecord())
	w := newWorld(1, 30)
	p := newParser(newResourceKeys(testConfig(perSecond)))
	p.parse(traces(w.work...))
	f.Add(p.b.append(nil))
	f.Fuzz(func(t *testing.T, payload []byte) {
		r := append(appendBatchRecord(nil, &batch{strings: []string{""}})[:headerBytes], payload...)
		binary.LittleEndian.PutUint64(r[1:], uint64(testEpoch))
		alloctest.Limit{PerByte: 1 << 10, Constant: 1 << 20}.Check(t, len(r), func() {
			var b batch
			_ = newState(testConfig(perSecond)).replay(r, &b)
		})
		s := newState(testConfig(perSecond))
		var b batch
		if err := s.replay(r, &b); err != nil {
			return
		}
		s.flush(testEpoch+int64(time.Minute), true)
		s.emit()
		// What can be read can be written, and is the same again.
		var again batch
		if err := again.load(b.append(nil)); err != nil || len(again.spans) != len(b.spans) {
			t.Fatalf("%d spans became %d: %v", len(b.spans), len(again.spans), err)
		}
	})
}

func FuzzSnapshot(f *testing.F) {
	cfg := testConfig(perSecond)
	s := newState(cfg)
	head := func(s *state) []byte { return appendSnapshotHead(nil, s, 1, 2) }
	f.Add(s.append(head(s)))
	var b batch
	require.NoError(f, b.load(exampleRecord()))
	b.arrived = testEpoch
	s.apply(&b)
	f.Add(s.append(head(s)))
	s.flush(testEpoch+int64(time.Minute), true)
	f.Add(s.append(head(s)))
	f.Fuzz(func(t *testing.T, snap []byte) {
		_, rest, err := loadSnapshotHead(snap)
		if err != nil {
			return
		}
		alloctest.Limit{PerByte: 1 << 10, Constant: 1 << 20}.Check(t, len(snap), func() { _ = newState(cfg).load(rest) })
		s := newState(cfg)
		if s.load(rest) != nil {
			return
		}
		// It can be used as if it were true.
		var b batch
		if err := b.load(exampleRecord()); err != nil {
			t.Fatal(err)
		}
		b.arrived = testEpoch
		s.apply(&b)
		s.flush(testEpoch+int64(time.Minute), true)
		s.emit()
		if err := newState(cfg).load(s.append(nil)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestChecked(t *testing.T) {
	b := []byte("state")
	b = binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
	got, err := checked(b)
	require.NoError(t, err)
	assert.Equal(t, []byte("state"), got)
	_, err = checked(b[:len(b)-1])
	assert.ErrorIs(t, err, errDamaged)
}

// TestRestart_ClockSetBack restarts with a clock that is an hour, and 60 years, behind the stored state.
// No sum may be lost, counted twice or fall.
func TestRestart_ClockSetBack(t *testing.T) {
	for name, back := range map[string]time.Duration{"an hour": time.Hour, "60 years": 60 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			st := newMemoryStorage()
			r := newRig(t, testConfig(), st)
			r.send(traces(kernelAt(0, "k", 0), kernelAt(1, "k", 0)))
			r.flush()
			r.shutdown()
			r = newRigAt(t, testConfig(), st, testEpoch-int64(back))
			r.send(traces(kernelAt(2, "k", 0)))
			r.clock.advance(time.Minute)
			r.flush()
			r.shutdown()
			// And once more, from what was stored with that clock.
			r = newRigAt(t, testConfig(), st, testEpoch-int64(2*back))
			got := points(t, r.finish())
			assert.InDelta(t, 3, total(got[semconv.MetricGPUCUDAKernelLaunchCalls]), 0)
			assert.Equal(t, int64(3e6), ns(total(got[semconv.MetricGPUCUDABusyTime])))
			r.shutdown()
		})
	}
}
