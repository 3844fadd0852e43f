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

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadata"
)

// NewFactory returns the factory of the cuda receiver.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(metadata.Type, createDefaultConfig, receiver.WithMetrics(createMetrics, metadata.MetricsStability))
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	c := cfg.(*Config)
	r, err := newReceiver(c, set)
	if err != nil {
		return nil, err
	}
	return newController(r, next)
}

// newController has the receiver's snapshots read at the pace of the settings.
func newController(r *cudaReceiver, next consumer.Metrics) (receiver.Metrics, error) {
	s, err := scraper.NewMetrics(r.scrape, scraper.WithStart(r.Start), scraper.WithShutdown(r.Shutdown))
	if err != nil {
		return nil, err
	}
	c, err := scraperhelper.NewMetricsController(&r.cfg.ControllerConfig, r.set, next, scraperhelper.AddMetricsScraper(metadata.Type, s))
	if err != nil {
		return nil, err
	}
	return &controller{Metrics: c}, nil
}

// controller lets scraperhelper's controller be shut down more than once.
type controller struct {
	receiver.Metrics
	stop sync.Once
	err  error
}

// Shutdown ends the collections and detaches.
func (c *controller) Shutdown(ctx context.Context) error {
	c.stop.Do(func() { c.err = c.Metrics.Shutdown(ctx) })
	return c.err
}
