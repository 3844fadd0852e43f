// SPDX-License-Identifier: Apache-2.0

// Package prometheus_test goes the way of the usage metrics: spans into the distribution's binary
// with config/prometheus.yaml, a real Prometheus that scrapes it, and Prometheus' own HTTP API to
// see what has become of them. It holds the dashboard in examples/grafana to the same data.
package prometheus_test
