// SPDX-License-Identifier: Apache-2.0

package gpustorageexporter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpuflight/gpuflight/exporter/gpustorageexporter/internal/metadatatest"
	"github.com/gpuflight/gpuflight/internal/store"
)

// storage is an extension with one store, which is a writer only.
type storage struct {
	component.StartFunc
	component.ShutdownFunc
	store.Backend
	write func(batches []*store.Batch) error
}

func (s *storage) Write(_ context.Context, batches []*store.Batch) (store.Result, error) {
	return store.Result{}, s.write(batches)
}

type host struct{ *storage }

func (h host) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("gpu_storage"): extension(h)}
}

type extension struct{ *storage }

func (e extension) Backend(string) (store.Backend, error) { return e.storage, nil }

func traces(n int) ptrace.Traces {
	td := ptrace.NewTraces()
	spans := td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans()
	for i := range n {
		s := spans.AppendEmpty()
		s.SetSpanID([8]byte{byte(i + 1)})
		s.SetStartTimestamp(pcommon.Timestamp(i + 1))
	}
	return td
}

func start(t *testing.T, write func([]*store.Batch) error) (*gpuExporter, *componenttest.Telemetry) {
	t.Helper()
	tel := componenttest.NewTelemetry()
	e, err := newExporter(&Config{}, metadatatest.NewSettings(tel))
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), host{&storage{write: write}}))
	t.Cleanup(func() {
		require.NoError(t, e.Shutdown(context.Background()))
		require.NoError(t, tel.Shutdown(context.Background()))
	})
	return e, tel
}

func points(n int64, a ...attribute.KeyValue) []metricdata.DataPoint[int64] {
	return []metricdata.DataPoint[int64]{{Attributes: attribute.NewSet(a...), Value: n}}
}

func TestExporter_FailedRows(t *testing.T) {
	for _, tt := range []struct {
		name      string
		err       error
		permanent bool
	}{{"full disk", store.ErrRetry, false}, {"other", errors.New("broken"), true}} {
		t.Run(tt.name, func(t *testing.T) {
			e, tel := start(t, func([]*store.Batch) error { return tt.err })
			err := e.pushTraces(t.Context(), traces(3))
			require.ErrorIs(t, err, tt.err)
			assert.Equal(t, tt.permanent, consumererror.IsPermanent(err))
			if tt.permanent {
				metadatatest.AssertEqualExporterGpuStorageFailedRows(t, tel, points(3), metricdatatest.IgnoreTimestamp())
				return
			}
			_, err = tel.GetMetric("otelcol_exporter_gpu_storage_failed_rows")
			assert.Error(t, err, "the sender delivers the rows again")
		})
	}
}

func TestExporter_Incomplete(t *testing.T) {
	e, tel := start(t, func([]*store.Batch) error { return nil })
	td := traces(1)
	v := td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).Attributes().PutEmpty("deep")
	for range store.MaxDepth + 1 {
		v = v.SetEmptySlice().AppendEmpty()
	}
	require.NoError(t, e.pushTraces(t.Context(), td))
	metadatatest.AssertEqualExporterGpuStorageIncomplete(t, tel, points(1, attribute.String("what", "nested_values")), metricdatatest.IgnoreTimestamp())
}

func TestExporter_Waiting(t *testing.T) {
	running, proceed := make(chan struct{}, 8), make(chan struct{})
	e, tel := start(t, func([]*store.Batch) error {
		running <- struct{}{}
		<-proceed
		return nil
	})
	done := make(chan error, 3)
	push := func(n int) { go func() { done <- e.pushTraces(context.Background(), traces(n)) }() }
	push(1)
	<-running
	push(2)
	push(3)
	require.Eventually(t, func() bool { _, rows := e.batcher.waiting(); return rows == 5 }, time.Minute, time.Millisecond)
	metadatatest.AssertEqualExporterGpuStorageWaitingRequests(t, tel, points(2), metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualExporterGpuStorageWaitingRows(t, tel, points(5), metricdatatest.IgnoreTimestamp())
	close(proceed)
	for range 3 {
		require.NoError(t, <-done)
	}
}
