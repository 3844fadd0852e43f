// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpuflight/gpuflight/internal/collector/sharedcomponent"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/metadata"
)

// NewFactory returns the factory of the nvml receiver.
func NewFactory() receiver.Factory {
	f := &factory{}
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(f.metrics, metadata.MetricsStability),
		receiver.WithLogs(f.logs, metadata.LogsStability),
	)
}

// factory shares one reader among the pipelines of one configuration, so that each value is read
// once.
type factory struct {
	receivers sharedcomponent.Map[*Config, *nvmlReceiver]
}

func (f *factory) get(set receiver.Settings, cfg component.Config) (*sharedcomponent.Shared[*nvmlReceiver], error) {
	c := cfg.(*Config)
	return f.receivers.Get(c, func() (*nvmlReceiver, error) { return newReceiver(c, set) })
}

func (f *factory) metrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	r, err := f.get(set, cfg)
	if err != nil {
		return nil, err
	}
	s, err := scraper.NewMetrics(r.Unwrap().scrape, scraper.WithStart(r.Start), scraper.WithShutdown(r.Shutdown))
	if err != nil {
		return nil, err
	}
	settings := cfg.(*Config).ControllerConfig
	settings.Timeout = cfg.(*Config).timeout()
	c, err := scraperhelper.NewMetricsController(&settings, set, next,
		scraperhelper.AddMetricsScraper(metadata.Type, s))
	if err != nil {
		return nil, err
	}
	return &controller{Metrics: c}, nil
}

func (f *factory) logs(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
	r, err := f.get(set, cfg)
	if err != nil {
		return nil, err
	}
	r.Unwrap().logs = next
	return r, nil
}

// controller makes Shutdown of scraperhelper's controller idempotent.
type controller struct {
	receiver.Metrics
	stop sync.Once
	err  error
}

// Shutdown stops the scrapes.
func (c *controller) Shutdown(ctx context.Context) error {
	c.stop.Do(func() { c.err = c.Metrics.Shutdown(ctx) })
	return c.err
}
