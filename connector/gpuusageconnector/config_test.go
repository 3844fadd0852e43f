// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
)

func TestConfigIsReadAsTheReadmeWritesIt(t *testing.T) {
	conf, err := confmaptest.LoadConf("testdata/config.yaml")
	require.NoError(t, err)
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, conf.Unmarshal(cfg))
	require.NoError(t, cfg.Validate())

	want := createDefaultConfig().(*Config)
	id := component.MustNewIDWithName("file_storage", "usage")
	want.Storage = &id
	want.Cost = CostConfig{Currency: "USD", Prices: []PriceConfig{
		{Device: "NVIDIA H200*", Attributes: map[string]string{"cloud.region": "eu-west-1"}, PricePerHour: 4.2},
		{Device: "NVIDIA H200*", PricePerHour: 3.6},
		{PricePerHour: 1},
	}}
	assert.Equal(t, want, cfg, "the file has every setting, with its default where there is one")
}

func TestConfigDefaultsAreValid(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, cfg.Validate())
	assert.Equal(t, 15*time.Second, cfg.MetricsFlushInterval)
	assert.Equal(t, []string{"service.namespace", "service.name", "deployment.environment.name", "host.name"}, cfg.ResourceAttributes)
}

func TestConfigMistakesAreToldInOneSentence(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"metrics_flush_interval is 0s: it must be above zero":                             func(c *Config) { c.MetricsFlushInterval = 0 },
		"settle_after is -1s: it must be above zero":                                      func(c *Config) { c.SettleAfter = -time.Second },
		"gap_threshold is -1ns: it must not be below zero":                                func(c *Config) { c.GapThreshold = -1 },
		"resource_attributes is empty: name at least service.name":                        func(c *Config) { c.ResourceAttributes = nil },
		"resource_attributes has an empty name: leave it out":                             func(c *Config) { c.ResourceAttributes = []string{""} },
		"resource_attributes names a twice: leave one out":                                func(c *Config) { c.ResourceAttributes = []string{"a", "a"} },
		"kernel_names is 0: it must be between 1 and 100000":                              func(c *Config) { c.KernelNames = 0 },
		"histograms::max_size is 1: it must be between 8 and 4096":                        func(c *Config) { c.Histograms.MaxSize = 1 },
		`histograms::kind is "log": write exponential or explicit`:                        func(c *Config) { c.Histograms.Kind = "log" },
		"max_services is 4096: it must be between 1 and 4095":                             func(c *Config) { c.Limits.Services = 4096 },
		"max_scopes is 600000: it must be between 1 and 524286":                           func(c *Config) { c.Limits.Scopes = 600_000 },
		"pending_spans is 0: it must be between 1 and 1073741824":                         func(c *Config) { c.Limits.PendingSpans = 0 },
		"cost::currency is empty: prices need one, for example USD":                       func(c *Config) { c.Cost.Prices = []PriceConfig{{PricePerHour: 1}} },
		"cost::prices[0]::price_per_hour is -1: it must be between 0 and 1e9":             func(c *Config) { c.Cost = CostConfig{"USD", []PriceConfig{{PricePerHour: -1}}} },
		"cost::prices[0]::price_per_hour is NaN: it must be between 0 and 1e9":            func(c *Config) { c.Cost = CostConfig{"USD", []PriceConfig{{PricePerHour: math.NaN()}}} },
		"idle_gap is 0s: it must be above zero\nlive_within is 0s: it must be above zero": func(c *Config) { c.IdleGap, c.LiveWithin = 0, 0 },
		"exemplars is 101: it must be between 0 and 100":                                  func(c *Config) { c.Exemplars = 101 },
	} {
		assert.EqualError(t, testConfig(change).Validate(), want)
	}
}
