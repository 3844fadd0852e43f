// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"os"
	"slices"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/settings"
)

// DefaultMaxRows is the most rows that one window sends, each a log record of about a kilobyte.
// There is one for each instruction and each of its stall reasons or metrics. A training step of
// PyTorch on an H200 has 43,000 in 51 functions; the 5,000 largest have 87 % of the samples, and
// 10,000 would have 93 %.
const DefaultMaxRows = 5_000

// Settings say what engines are told and what is made of their figures. The zero value works.
type Settings struct {
	// PeriodLog2 is the sampling period as a power of two of cycles, 0 for cupti.DefaultPeriodLog2.
	PeriodLog2 int
	// Serialize runs one kernel at a time in windows of PC sampling and distinguishes launches.
	Serialize bool
	// Metrics are those of windows of SASS metrics, empty for cupti.DefaultMetrics.
	Metrics []string
	// MaxRows is the most rows that one window sends; 0 is DefaultMaxRows. The rest is summed by
	// function.
	MaxRows int
	// Profiles says that windows are wanted as profiles too. The environment does not: it says so
	// where it says where telemetry goes.
	Profiles bool
	// LeaseDir is where processes of this user lease GPUs for PC sampling, "" for nowhere. The
	// environment does not say it.
	LeaseDir string
	// Dump is a folder where what CUPTI returned is kept, with the images that it is about, "" for
	// none. It is for tests without a GPU.
	Dump string
}

// Table returns the settings that users make. Reading it changes s.
func (s *Settings) Table() []settings.Setting {
	return []settings.Setting{
		{Variable: "GPUFLIGHT_DEEP_PERIOD", Set: settings.To(&s.PeriodLog2, parsePeriod)},
		{Variable: "GPUFLIGHT_DEEP_SERIALIZE", Set: settings.To(&s.Serialize, settings.Bool)},
		{Variable: "GPUFLIGHT_DEEP_METRICS", Set: settings.To(&s.Metrics, parseMetrics)},
		{Variable: "GPUFLIGHT_DEEP_ROWS", Set: settings.To(&s.MaxRows, settings.Int(1, cupti.DefaultMaxRows))},
		{Variable: "GPUFLIGHT_DEEP_DUMP", Set: settings.To(&s.Dump, parseFolder)},
	}
}

// SettingsFromEnv reads the settings. getenv works like os.Getenv: "" means not set. The error names
// each variable with an invalid value and the permitted values. Those settings have their defaults.
func SettingsFromEnv(getenv func(string) string) (Settings, error) {
	var s Settings
	err := settings.Read(s.Table(), getenv)
	return s, err
}

func parsePeriod(v string) (int, error) {
	n, err := settings.Int(cupti.MinPeriodLog2, cupti.MaxPeriodLog2)(v)
	if err != nil {
		return 0, settings.Want(fmt.Sprintf("N of %d to %d, for a sample every 2^N cycles; 16 is 65,536", cupti.MinPeriodLog2, cupti.MaxPeriodLog2))
	}
	return n, nil
}

// parseMetrics reads a list of metrics. It replaces "memory" by its metrics and omits duplicates.
func parseMetrics(v string) (metrics []string, err error) {
	list, err := settings.List(v)
	for _, name := range list {
		names := []string{name}
		if name == "memory" {
			names = cupti.MemoryMetrics
		}
		for _, name := range names {
			if !slices.Contains(metrics, name) {
				metrics = append(metrics, name)
			}
		}
	}
	return metrics, err
}

func parseFolder(v string) (string, error) {
	if info, err := os.Stat(v); err != nil || !info.IsDir() {
		return "", settings.Want("a folder that exists")
	}
	return v, nil
}
