// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// The ends of the pipelines take everything and keep nothing.

func sink() consumer.Traces {
	c, err := consumer.NewTraces(func(context.Context, ptrace.Traces) error { return nil })
	if err != nil {
		panic(err) // it only fails for a nil function
	}
	return c
}

func metricsSink() consumer.Metrics {
	c, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error { return nil })
	if err != nil {
		panic(err)
	}
	return c
}
