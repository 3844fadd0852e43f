// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

const scopeName = "github.com/gpuflight/gpuflight/examples/gpux"

// metrics are the figures of /metrics. Times have the trace of one request as exemplar.
type metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	wait, rows *prometheus.HistogramVec
}

// modelMetrics are those of one version of a model.
type modelMetrics struct {
	requests   *prometheus.CounterVec
	duration   prometheus.ObserverVec
	wait, rows prometheus.Observer
}

func newMetrics() *metrics {
	times := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	model := []string{"model", "version"}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpux_requests_total", Help: "Inference requests by HTTP status."}, append(model, "code")),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpux_request_duration_seconds", Help: "Time from the request to the response.", Buckets: times}, append(model, "code")),
		wait:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpux_queue_duration_seconds", Help: "Time that requests waited for a worker.", Buckets: times}, model),
		rows:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpux_run_rows", Help: "Rows of a run.", Buckets: prometheus.ExponentialBuckets(1, 2, 13)}, model),
	}
	m.registry.MustRegister(m.requests, m.duration, m.wait, m.rows)
	return m
}

// of returns the metrics of a version of a model. Waiting returns the requests in its queue.
func (m *metrics) of(model, version string, waiting func() float64) *modelMetrics {
	labels := prometheus.Labels{"model": model, "version": version}
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gpux_queue_requests", Help: "Requests that wait for a worker.", ConstLabels: labels,
	}, waiting))
	return &modelMetrics{m.requests.MustCurryWith(labels), m.duration.MustCurryWith(labels), m.wait.With(labels), m.rows.With(labels)}
}

func (m *modelMetrics) answered(ctx context.Context, code int, d time.Duration) {
	label := strconv.Itoa(code)
	m.requests.WithLabelValues(label).Inc()
	observe(ctx, m.duration.WithLabelValues(label), d)
}

func (m *modelMetrics) waited(ctx context.Context, d time.Duration) { observe(ctx, m.wait, d) }

func (m *modelMetrics) ran(rows int64) { m.rows.Observe(float64(max(rows, 1))) }

func observe(ctx context.Context, o prometheus.Observer, d time.Duration) {
	span := trace.SpanContextFromContext(ctx)
	if e, ok := o.(prometheus.ExemplarObserver); ok && span.IsSampled() {
		e.ObserveWithExemplar(d.Seconds(), prometheus.Labels{"trace_id": span.TraceID().String()})
		return
	}
	o.Observe(d.Seconds())
}
