// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpuflight/gpuflight/internal/collector/sharedcomponent"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// NewFactory returns the factory of the gpuflog receiver.
func NewFactory() receiver.Factory {
	f := &factory{}
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithTraces(f.traces, metadata.TracesStability),
		receiver.WithLogs(f.logs, metadata.LogsStability),
		receiver.WithMetrics(f.metrics, metadata.MetricsStability),
	)
}

// factory shares one reader among the pipelines of one configuration, so that files are read once.
type factory struct {
	receivers sharedcomponent.Map[*Config, *gpuflogReceiver]
}

func (f *factory) get(set receiver.Settings, cfg component.Config) (*sharedcomponent.Shared[*gpuflogReceiver], error) {
	c := cfg.(*Config)
	return f.receivers.Get(c, func() (*gpuflogReceiver, error) { return newReceiver(c, set) })
}

// errRaw rejects the pipelines that would get nothing.
var errRaw = errors.New("raw is for pipelines of logs: remove the receiver from this pipeline, or use another gpuflog in it")

func (f *factory) traces(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Traces) (receiver.Traces, error) {
	if cfg.(*Config).Raw {
		return nil, errRaw
	}
	r, err := f.get(set, cfg)
	if err == nil {
		r.Unwrap().out.traces = next
	}
	return r, err
}

func (f *factory) logs(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
	r, err := f.get(set, cfg)
	if err == nil {
		r.Unwrap().out.logs = next
	}
	return r, err
}

func (f *factory) metrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	if cfg.(*Config).Raw {
		return nil, errRaw
	}
	r, err := f.get(set, cfg)
	if err == nil {
		r.Unwrap().out.metrics = next
	}
	return r, err
}
