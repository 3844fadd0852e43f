// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

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

// SettingsFromEnv reads the settings by getenv, which is os.Getenv or like it: "" is not set. Its
// error names each variable with a bad value and what would be good; the Settings beside it have
// the default there.
func SettingsFromEnv(getenv func(string) string) (Settings, error) {
	s := Settings{Dump: getenv("GPUFLIGHT_DEEP_DUMP")}
	var errs []error
	bad := func(name, value, want string) {
		errs = append(errs, settings.Bad(name, value, want))
	}
	if v := getenv("GPUFLIGHT_DEEP_PERIOD"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < cupti.MinPeriodLog2 || n > cupti.MaxPeriodLog2 {
			bad("GPUFLIGHT_DEEP_PERIOD", v, fmt.Sprintf("N of %d to %d, for a sample every 2^N cycles; 16 is 65,536", cupti.MinPeriodLog2, cupti.MaxPeriodLog2))
		} else {
			s.PeriodLog2 = n
		}
	}
	if v := getenv("GPUFLIGHT_DEEP_ROWS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > cupti.DefaultMaxRows {
			bad("GPUFLIGHT_DEEP_ROWS", v, fmt.Sprintf("a whole number of 1 to %d", cupti.DefaultMaxRows))
		} else {
			s.MaxRows = n
		}
	}
	switch v := getenv("GPUFLIGHT_DEEP_SERIALIZE"); strings.ToLower(v) {
	case "", "0", "false", "no", "off":
	case "1", "true", "yes", "on":
		s.Serialize = true
	default:
		bad("GPUFLIGHT_DEEP_SERIALIZE", v, "true or false")
	}
	for name := range strings.SplitSeq(getenv("GPUFLIGHT_DEEP_METRICS"), ",") {
		names := []string{strings.TrimSpace(name)}
		switch names[0] {
		case "":
			continue
		case "memory":
			names = cupti.MemoryMetrics
		}
		for _, name := range names {
			if !slices.Contains(s.Metrics, name) {
				s.Metrics = append(s.Metrics, name)
			}
		}
	}
	if s.Dump != "" {
		if info, err := os.Stat(s.Dump); err != nil || !info.IsDir() {
			bad("GPUFLIGHT_DEEP_DUMP", s.Dump, "a folder that exists")
			s.Dump = ""
		}
	}
	return s, errors.Join(errs...)
}
