// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpuflight/gpuflight/internal/histogram"
	"github.com/gpuflight/gpuflight/semconv"
)

// Config is the connector's configuration.
type Config struct {
	// MetricsFlushInterval is the time between two exports.
	MetricsFlushInterval time.Duration `mapstructure:"metrics_flush_interval"`
	// ResourceAttributes are kept from the resource of the spans; what differs in one of them is
	// another service. Device metrics keep those of them that describe the host.
	ResourceAttributes []string `mapstructure:"resource_attributes"`
	// KernelNames is how many kernels of a service have a histogram of their own; the others share
	// the one named _other.
	KernelNames int `mapstructure:"kernel_names"`
	// Histograms is the kind of the duration histograms.
	Histograms HistogramsConfig `mapstructure:"histograms"`
	// Exemplars is how many of the slowest spans of a series and interval are exported; 0 is none.
	Exemplars int `mapstructure:"exemplars"`
	// GapThreshold is the length from which a time without a kernel on a stream is a gap.
	GapThreshold time.Duration `mapstructure:"gap_threshold"`

	// SettleAfter is how long a span waits, by the wall clock, for others of the same time before its
	// device's time is divided among them. It should be longer than the longest kernel and than spans
	// need to arrive.
	SettleAfter time.Duration `mapstructure:"settle_after"`
	// IdleGap is the longest time without work that still counts as the device's idle time.
	IdleGap time.Duration `mapstructure:"idle_gap"`
	// LiveWithin is the longest delay of a device's newest span with which the device counts as live.
	// The idle time of a live device grows with the clock. A device whose spans are replayed is
	// accounted for up to its last work only.
	LiveWithin time.Duration `mapstructure:"live_within"`
	// ScopeWait is how long work waits for the span of its scope.
	ScopeWait time.Duration `mapstructure:"scope_wait"`

	// Limits bound the memory.
	Limits LimitsConfig `mapstructure:",squash"`
	// Cost turns device time into money.
	Cost CostConfig `mapstructure:"cost"`
	// Storage is the storage extension that keeps the state over a restart. Without one, all values
	// start at zero.
	Storage *component.ID `mapstructure:"storage"`
}

// HistogramsConfig is the kind of the duration histograms.
type HistogramsConfig struct {
	// Kind is exponential or explicit.
	Kind string `mapstructure:"kind"`
	// MaxSize is the number of buckets of an exponential histogram.
	MaxSize int `mapstructure:"max_size"`
}

// LimitsConfig bounds the memory. What passes a bound is counted under _other, or in the connector's
// own telemetry, and never lost from a sum.
type LimitsConfig struct {
	// Services is how many services have series of their own.
	Services int `mapstructure:"max_services"`
	// Scopes is how many scopes of a service have series of their own.
	Scopes int `mapstructure:"max_scopes"`
	// Requests is how many request operations of a service have series of their own.
	Requests int `mapstructure:"max_requests"`
	// Devices is how many devices are accounted for.
	Devices int `mapstructure:"max_devices"`
	// Series is how many series are held in all.
	Series int `mapstructure:"max_series"`
	// Streams is how many streams of a device are looked at for gaps.
	Streams int `mapstructure:"max_streams"`
	// RememberedSpans is how many spans are remembered to recognise duplicates.
	RememberedSpans int `mapstructure:"remembered_spans"`
	// RememberedParents is how many other spans are remembered as scopes of later device work.
	RememberedParents int `mapstructure:"remembered_parents"`
	// RememberedTraces is how many traces are remembered with their request's operation.
	RememberedTraces int `mapstructure:"remembered_traces"`
	// UnresolvedScopes is how many scopes may be waited for.
	UnresolvedScopes int `mapstructure:"unresolved_scopes"`
	// IntervalsPerDevice is how many separate busy intervals of a device are remembered.
	IntervalsPerDevice int `mapstructure:"intervals_per_device"`
	// PendingSpans is how many spans may wait to be settled.
	PendingSpans int `mapstructure:"pending_spans"`
}

// CostConfig turns device time into money.
type CostConfig struct {
	// Currency is an ISO 4217 code; prices need it.
	Currency string `mapstructure:"currency"`
	// Prices are tried in order; the first that fits a device is its price. A device that none fits
	// has no cost.
	Prices []PriceConfig `mapstructure:"prices"`
}

// PriceConfig is the price of some devices.
type PriceConfig struct {
	// Device is a pattern with * and ? for hw.name or hw.id; empty fits every device.
	Device string `mapstructure:"device"`
	// Attributes are resource attributes that the spans must have.
	Attributes map[string]string `mapstructure:"attributes"`
	// PricePerHour is the price of an hour of one device.
	PricePerHour float64 `mapstructure:"price_per_hour"`
}

const (
	kindExponential = "exponential"
	kindExplicit    = "explicit"
)

// A payer is packed into 32 bits (state.go): these are the most that fit.
const (
	maxServices = 1 << 12
	maxScopes   = 1 << 19
)

func createDefaultConfig() component.Config {
	return &Config{
		MetricsFlushInterval: 15 * time.Second,
		ResourceAttributes: []string{
			semconv.ServiceNamespace, semconv.ServiceName,
			semconv.DeploymentEnvironmentName, semconv.HostName,
		},
		KernelNames:  200,
		Histograms:   HistogramsConfig{Kind: kindExponential, MaxSize: 160},
		Exemplars:    4,
		GapThreshold: 10 * time.Microsecond,
		SettleAfter:  30 * time.Second,
		IdleGap:      24 * time.Hour,
		LiveWithin:   2 * time.Minute,
		ScopeWait:    10 * time.Second,
		Limits: LimitsConfig{
			Services: 500, Scopes: 1000, Requests: 1000, Devices: 1024, Series: 100_000, Streams: 4096,
			RememberedSpans: 1_000_000, RememberedParents: 100_000, RememberedTraces: 100_000,
			UnresolvedScopes: 100_000, IntervalsPerDevice: 200_000, PendingSpans: 500_000,
		},
	}
}

// Validate reports each mistake in one sentence that says what to write instead.
func (c *Config) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"metrics_flush_interval", c.MetricsFlushInterval}, {"settle_after", c.SettleAfter}, {"idle_gap", c.IdleGap},
		{"live_within", c.LiveWithin}, {"scope_wait", c.ScopeWait},
	} {
		if d.value <= 0 {
			add("%s is %s: it must be above zero", d.name, d.value)
		}
	}
	if c.GapThreshold < 0 {
		add("gap_threshold is %s: it must not be below zero", c.GapThreshold)
	}
	if len(c.ResourceAttributes) == 0 {
		add("resource_attributes is empty: name at least %s", semconv.ServiceName)
	}
	for i, k := range c.ResourceAttributes {
		if k == "" {
			add("resource_attributes has an empty name: leave it out")
		} else if slices.Contains(c.ResourceAttributes[:i], k) {
			add("resource_attributes names %s twice: leave one out", k)
		}
	}
	l := &c.Limits
	for _, n := range []struct {
		name          string
		value, lo, hi int
	}{
		{"kernel_names", c.KernelNames, 1, 100_000},
		{"exemplars", c.Exemplars, 0, 100},
		{"histograms::max_size", c.Histograms.MaxSize, histogram.MinSize, histogram.MaxSize},
		{"max_services", l.Services, 1, maxServices - 1},
		{"max_scopes", l.Scopes, 1, maxScopes - 2},
		{"max_requests", l.Requests, 1, 1 << 20},
		{"max_devices", l.Devices, 1, 1 << 20},
		{"max_series", l.Series, 1, 1 << 30},
		{"max_streams", l.Streams, 1, 1 << 20},
		{"remembered_spans", l.RememberedSpans, 1, 1 << 30},
		{"remembered_parents", l.RememberedParents, 1, 1 << 30},
		{"remembered_traces", l.RememberedTraces, 1, 1 << 30},
		{"unresolved_scopes", l.UnresolvedScopes, 1, 1 << 30},
		{"intervals_per_device", l.IntervalsPerDevice, 1, 1 << 30},
		{"pending_spans", l.PendingSpans, 1, 1 << 30},
	} {
		if n.value < n.lo || n.value > n.hi {
			add("%s is %d: it must be between %d and %d", n.name, n.value, n.lo, n.hi)
		}
	}
	if c.Histograms.Kind != kindExponential && c.Histograms.Kind != kindExplicit {
		add("histograms::kind is %q: write %s or %s", c.Histograms.Kind, kindExponential, kindExplicit)
	}
	if len(c.Cost.Prices) > 0 && c.Cost.Currency == "" {
		errs = append(errs, errors.New("cost::currency is empty: prices need one, for example USD"))
	}
	for i, p := range c.Cost.Prices {
		// Written so that NaN is refused too.
		if !(p.PricePerHour >= 0 && p.PricePerHour <= 1e9) {
			add("cost::prices[%d]::price_per_hour is %v: it must be between 0 and 1e9", i, p.PricePerHour)
		}
	}
	return errors.Join(errs...)
}
