// SPDX-License-Identifier: Apache-2.0

// Package prometheus_test tests the data flow of usage metrics: spans into the distribution's
// binary with config/prometheus.yaml, a real Prometheus that scrapes it, and Prometheus' HTTP API.
// It checks the dashboard in examples/grafana with the same data.
package prometheus_test
