// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpuflight/gpuflight/internal/collector/sharedcomponent"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadata"
)

// NewFactory returns the factory of the cuda receiver.
func NewFactory() receiver.Factory {
	f := &factory{}
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(f.metrics, metadata.MetricsStability), receiver.WithTraces(f.traces, metadata.TracesStability))
}

// factory shares one receiver among the pipelines of one configuration, so that the driver is
// attached only once.
type factory struct {
	receivers sharedcomponent.Map[*Config, *cudaReceiver]
}

func (f *factory) get(set receiver.Settings, cfg component.Config) (*sharedcomponent.Shared[*cudaReceiver], error) {
	c := cfg.(*Config)
	return f.receivers.Get(c, func() (*cudaReceiver, error) { return newReceiver(c, set) })
}

func (f *factory) metrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	shared, err := f.get(set, cfg)
	if err != nil {
		return nil, err
	}
	return newController(shared.Unwrap(), shared, next)
}

func (f *factory) traces(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Traces) (receiver.Traces, error) {
	shared, err := f.get(set, cfg)
	if err != nil {
		return nil, err
	}
	r := shared.Unwrap()
	r.tracer, err = newTracer(r.cfg, r.set, r.telemetry, next)
	return shared, err
}

// newController collects the receiver's snapshots at the configured interval. life is started and
// shut down together with it.
func newController(r *cudaReceiver, life component.Component, next consumer.Metrics) (receiver.Metrics, error) {
	shutdown := func(ctx context.Context) error {
		r.last(ctx, next)
		return life.Shutdown(ctx)
	}
	s, err := scraper.NewMetrics(r.scrape, scraper.WithStart(life.Start), scraper.WithShutdown(shutdown))
	if err != nil {
		return nil, err
	}
	c, err := scraperhelper.NewMetricsController(&r.cfg.ControllerConfig, r.set, next, scraperhelper.AddMetricsScraper(metadata.Type, s))
	if err != nil {
		return nil, err
	}
	return &controller{Metrics: c}, nil
}

// controller makes Shutdown of scraperhelper's controller idempotent.
type controller struct {
	receiver.Metrics
	stop sync.Once
	err  error
}

// Shutdown stops the collections and detaches.
func (c *controller) Shutdown(ctx context.Context) error {
	c.stop.Do(func() { c.err = c.Metrics.Shutdown(ctx) })
	return c.err
}
