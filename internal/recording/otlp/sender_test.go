// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

func sender(t *testing.T, s Settings) *Sender {
	t.Helper()
	w, err := NewSender(s)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

func TestSenderSendsAllSignalsAndSaysHowMuch(t *testing.T) {
	store, server := sink(t, "")
	s := settings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+server.Endpoint(), "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	s.RequestBytes = 2000 // several requests a call
	w := sender(t, s)
	var requests, items int
	w.Pace = func(_ context.Context, n int) error {
		requests++
		items += n
		return nil
	}
	answer, err := w.Traces(within(t, time.Minute), spans(0, 500))
	require.NoError(t, err)
	assert.Equal(t, Answer{Sent: 500}, answer)
	assert.Len(t, store.Spans(), 500)
	assert.Greater(t, requests, 5)
	assert.Equal(t, 500, items)
	answer, err = w.Logs(within(t, time.Minute), logRecords(7))
	require.NoError(t, err)
	assert.Equal(t, 7, answer.Sent)
	answer, err = w.Metrics(within(t, time.Minute), points(9))
	require.NoError(t, err)
	assert.Equal(t, 9, answer.Sent)
	assert.Len(t, store.LogRecords(), 7)
	assert.Len(t, store.Points(), 9)
}

func TestSenderWaitsAsLongAsTheEndpointAsks(t *testing.T) {
	var times []time.Time
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		times = append(times, time.Now())
		switch len(times) {
		case 1:
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	w := sender(t, settings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL))
	var told []error
	w.Retried = func(err error, _ time.Duration) { told = append(told, err) }
	answer, err := w.Traces(within(t, time.Minute), spans(0, 3))
	require.NoError(t, err)
	assert.Equal(t, 3, answer.Sent)
	require.Len(t, times, 3)
	assert.GreaterOrEqual(t, times[1].Sub(times[0]), 2*time.Second)
	require.Len(t, told, 2)
	assert.EqualError(t, told[0], "429 Too Many Requests")
	assert.EqualError(t, told[1], "503 Service Unavailable")
}

func TestSenderGivesUpRefusedAndAwayEndpoints(t *testing.T) {
	_, server := sink(t, "")
	server.SetMode(testsink.Invalid)
	s := settings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+server.Endpoint(), "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	_, err := sender(t, s).Traces(within(t, time.Minute), spans(0, 3))
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	assert.ErrorContains(t, err, "invalid")

	server.SetMode(testsink.Unavailable)
	s.RetryFor = 100 * time.Millisecond
	_, err = sender(t, s).Traces(within(t, time.Minute), spans(0, 3))
	require.ErrorContains(t, err, "given up after 100ms")
	assert.NotErrorAs(t, err, &refused)
	assert.Equal(t, 1, server.Answers(testsink.Unavailable))

	s.RetryFor = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err = sender(t, s).Traces(ctx, spans(0, 3))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestSenderCountsWhatARequestWasTakenWithout(t *testing.T) {
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer := ptraceotlp.NewExportResponse()
		answer.PartialSuccess().SetRejectedSpans(2)
		answer.PartialSuccess().SetErrorMessage("two are too old")
		body, err := answer.MarshalProto()
		if err != nil || n.Add(1) > 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(body)
	}))
	defer server.Close()
	w := sender(t, settings(t, "OTEL_EXPORTER_OTLP_ENDPOINT", server.URL))
	answer, err := w.Traces(within(t, time.Minute), spans(0, 5))
	require.NoError(t, err)
	assert.Equal(t, Answer{Sent: 3, Rejected: 2, Message: "two are too old"}, answer)
}

func TestSenderWithoutAnEndpointForASignal(t *testing.T) {
	w := sender(t, settings(t, "OTEL_LOGS_EXPORTER", "none"))
	assert.False(t, w.Takes(Logs))
	assert.True(t, w.Takes(Traces))
	_, err := w.Logs(context.Background(), logRecords(1))
	require.EqualError(t, err, "no endpoint for logs")
}
