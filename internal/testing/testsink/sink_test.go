// SPDX-License-Identifier: Apache-2.0

package testsink_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

func spans(ids ...byte) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr("service.instance.id", "s1")
	ss := rs.ScopeSpans().AppendEmpty()
	for _, id := range ids {
		sp := ss.Spans().AppendEmpty()
		sp.SetTraceID(pcommon.TraceID{1})
		sp.SetSpanID(pcommon.SpanID{id})
		sp.SetName("gemm")
		sp.Attributes().PutInt("cuda.stream.id", 7)
	}
	return td
}

func TestStore_RepeatedSpansAndConflicts(t *testing.T) {
	s := testsink.NewStore()
	s.AddTraces(spans(1, 2))
	s.AddTraces(spans(2))
	changed := spans(2)
	changed.ResourceSpans().At(0).ScopeSpans().At(0).Spans().At(0).Attributes().PutInt("cuda.stream.id", 8)
	s.AddTraces(changed)

	assert.Equal(t, testsink.Counts{Spans: 4}, s.Counts())
	assert.Equal(t, testsink.Counts{Spans: 2}, s.Distinct())
	for _, sp := range s.Spans() {
		assert.Equal(t, "s1", sp.Session)
		assert.Equal(t, map[string]any{"cuda.stream.id": int64(7)}, sp.Attrs)
		switch sp.SpanKey.Span[0] {
		case 1:
			assert.Equal(t, 1, sp.Count)
			assert.Zero(t, sp.Conflicts)
		case 2:
			assert.Equal(t, 3, sp.Count)
			assert.Equal(t, 1, sp.Conflicts)
			require.NotNil(t, sp.Other)
			assert.Equal(t, map[string]any{"cuda.stream.id": int64(8)}, sp.Other.Attrs)
		}
	}
}

func TestDigest_AttributeOrder(t *testing.T) {
	record := func(put func(pcommon.Map)) plog.Logs {
		ld := plog.NewLogs()
		lr := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
		put(lr.Attributes())
		return ld
	}
	s := testsink.NewStore()
	s.AddLogs(record(func(m pcommon.Map) { m.PutInt("a", 1); m.PutInt("b", 2) }))
	s.AddLogs(record(func(m pcommon.Map) { m.PutInt("b", 2); m.PutInt("a", 1) }))
	assert.Equal(t, 1, s.Distinct().Logs)
	s.AddLogs(record(func(m pcommon.Map) { m.PutInt("a", 2); m.PutInt("b", 1) }))
	assert.Equal(t, 2, s.Distinct().Logs)
	s.AddLogs(record(func(m pcommon.Map) { m.PutStr("a", "2"); m.PutInt("b", 1) }))
	assert.Equal(t, 3, s.Distinct().Logs, "a string is not an integer")
}

func TestStore_PointsByTimeAndValue(t *testing.T) {
	point := func(at pcommon.Timestamp, v float64) pmetric.Metrics {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("hw.power")
		m.SetUnit("W")
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetTimestamp(at)
		p.SetDoubleValue(v)
		return md
	}
	s := testsink.NewStore()
	s.AddMetrics(point(1, 10))
	s.AddMetrics(point(1, 10))
	s.AddMetrics(point(2, 10))
	s.AddMetrics(point(2, 11))
	assert.Equal(t, testsink.Counts{Points: 4}, s.Counts())
	assert.Equal(t, testsink.Counts{Points: 3}, s.Distinct())
}

func TestServer_Modes(t *testing.T) {
	store := testsink.NewStore()
	server, err := testsink.Listen(store, "")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	conn, err := grpc.NewClient(server.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	client := ptraceotlp.NewGRPCClient(conn)
	send := func(ctx context.Context, id byte) *status.Status {
		_, err := client.Export(ctx, ptraceotlp.NewExportRequestFromTraces(spans(id)))
		return status.Convert(err)
	}
	ctx := t.Context()
	// when calls then once the condition holds. It holds when a request waits in the server.
	when := func(holds func() bool, then func()) {
		go func() {
			for !holds() && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			then()
		}()
	}

	assert.Equal(t, codes.OK, send(ctx, 1).Code())
	server.SetMode(testsink.Unavailable)
	assert.Equal(t, codes.Unavailable, send(ctx, 2).Code())
	server.SetMode(testsink.Invalid)
	assert.Equal(t, codes.InvalidArgument, send(ctx, 3).Code())
	server.SetMode(testsink.Exhausted)
	st := send(ctx, 4)
	assert.Equal(t, codes.ResourceExhausted, st.Code())
	require.Len(t, st.Details(), 1)
	info, ok := st.Details()[0].(*errdetails.RetryInfo)
	require.True(t, ok)
	assert.Equal(t, 50*time.Millisecond, info.GetRetryDelay().AsDuration())
	server.SetMode(testsink.Hang)
	canceled, cancel := context.WithCancel(ctx)
	when(func() bool { return server.Answers(testsink.Hang) == 1 }, cancel)
	assert.Equal(t, codes.Canceled, send(canceled, 5).Code())
	assert.Equal(t, 1, store.Distinct().Spans, "nothing but the first was taken")

	server.SetMode(testsink.Swallow)
	canceled, cancel = context.WithCancel(ctx)
	when(func() bool { return store.Distinct().Spans == 2 }, cancel)
	assert.Equal(t, codes.Canceled, send(canceled, 6).Code())
	assert.Equal(t, 2, store.Distinct().Spans, "taken although the answer was lost")

	server.SetMode(testsink.Hang)
	when(func() bool { return server.Answers(testsink.Hang) == 2 }, func() { server.SetMode(testsink.Accept) })
	assert.Equal(t, codes.Unavailable, send(ctx, 7).Code(), "let go by the change of mode")
	assert.Equal(t, codes.OK, send(ctx, 7).Code())
	assert.Equal(t, 2, server.Answers(testsink.Accept))
}
