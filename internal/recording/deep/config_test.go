// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func fromEnv(t *testing.T, settings string) (Config, error) {
	t.Helper()
	env := map[string]string{}
	for s := range strings.SplitSeq(settings, "|") {
		name, value, _ := strings.Cut(s, "=")
		env["GPUFLIGHT_DEEP"+name] = value
	}
	return ConfigFromEnv(func(name string) string { return env[name] })
}

func TestPlanned(t *testing.T) {
	for env, want := range map[string]bool{"=1": false, "=1|_SIGNAL=USR1": false, "_AFTER=1s": true, "_EVERY=5m": true, "_WHEN=kernel.rate < 1/s": true} {
		c, err := fromEnv(t, env)
		if err != nil || c.Planned() != want {
			t.Errorf("%s: planned %t, want %t (%v)", env, c.Planned(), want, err)
		}
	}
}

func TestConfigFromEnv(t *testing.T) {
	for _, tc := range []struct {
		env                  string
		enabled              bool
		blackout, coolDown   time.Duration
		perHour              int
		share                float64
		after, every, length time.Duration
		engine               Engine
		rules, most          int
		problem              string
	}{
		{env: "=", blackout: 2 * time.Second, coolDown: 10 * time.Second, perHour: 60, share: 0.05},
		{env: "=1", enabled: true, blackout: 2 * time.Second, coolDown: 10 * time.Second, perHour: 60, share: 0.05},
		{env: "=no|_AFTER=1s", blackout: time.Second, coolDown: 10 * time.Second, perHour: 60, share: 0.05, after: time.Second},
		{env: "_AFTER=1s|_FOR=5s|_ENGINE=both|_MAX=3", enabled: true, blackout: time.Second, coolDown: 10 * time.Second, perHour: 60, share: 0.05, after: time.Second, length: 5 * time.Second, engine: Both, most: 3},
		{env: "_EVERY=5m", enabled: true, blackout: 2 * time.Second, coolDown: 10 * time.Second, perHour: 73, share: 0.05 + 2*13*2./3600, every: 5 * time.Minute, after: 5 * time.Minute},
		{env: "_EVERY=6s|_FOR=2s", enabled: true, blackout: 2 * time.Second, coolDown: 2 * time.Second, perHour: 661, share: 0.05 + 2*601*2./3600, every: 6 * time.Second, after: 6 * time.Second},
		{env: "_EVERY=5m|_PER_HOUR=13|_SHARE=1%|_COOLDOWN=4m|_BLACKOUT=0", enabled: true, blackout: -1, coolDown: 4 * time.Minute, perHour: 13, share: 0.01, every: 5 * time.Minute, after: 5 * time.Minute},
		{env: "_WHEN=kernel.rate < 100/s for 2s; scope(a?b).p95 > 1.5x baseline;|_SIGNAL=sigusr2", enabled: true, blackout: 2 * time.Second, coolDown: 10 * time.Second, perHour: 60, share: 0.05, rules: 2},

		{env: "=1|_MAX=0", enabled: true, blackout: 2 * time.Second, coolDown: 10 * time.Second, perHour: 60, share: 0.05},
		{env: "=perhaps", problem: `GPUFLIGHT_DEEP is "perhaps"; it must be true or false`},
		{env: "_AFTER=soon", problem: "GPUFLIGHT_DEEP_AFTER is \"soon\"; it must be a duration"},
		{env: "_FOR=2m", problem: "a deep window of 2m0s; it must be 10ms to 1m0s long"},
		{env: "_ENGINE=nsight", problem: `GPUFLIGHT_DEEP_ENGINE: "nsight" is no engine; there are pc, sass and both`},
		{env: "_MAX=-1", problem: `GPUFLIGHT_DEEP_MAX is "-1"; it must be a whole number of 0 to 2147483647`},
		{env: "_SHARE=0", problem: `GPUFLIGHT_DEEP_SHARE is "0"; it must be a share above 0`},
		{env: "_SHARE=NaN", problem: `GPUFLIGHT_DEEP_SHARE is "NaN"; it must be a share above 0`},
		{env: "_PER_HOUR=20000", problem: `GPUFLIGHT_DEEP_PER_HOUR is "20000"; it must be a whole number of 1 to 10000`},
		{env: "_SIGNAL=HUP", problem: `GPUFLIGHT_DEEP_SIGNAL is "HUP"; it must be USR1 or USR2`},
		{env: "_WHEN=kernel.rate < 100", problem: `GPUFLIGHT_DEEP_WHEN: rule "kernel.rate < 100": a rate counts per second`},
		{env: "_WHEN=" + strings.Repeat("kernel.rate < 1/s;", 17), problem: "there are 17 rules; 16 are the most"},
		{env: "_EVERY=2s", problem: "deep windows of 2s every 2s leave nothing between"},
		{env: "_EVERY=11s|_COOLDOWN=10s", problem: "leave less than the cool-down of 10s between"},
		{env: "_EVERY=5m|_PER_HOUR=12", problem: "makes 13 an hour, above the maximum of 12"},
		{env: "_EVERY=1m|_SHARE=1%", problem: "take 3.39% of the time, above the share of 1%"},
		{env: "_SHARE=0.0001", problem: "one deep window of 2s is more than 0.01% of an hour"},
		{env: "_AFTER=5s|_BLACKOUT=10s", problem: "the first deep window is due after 5s, in the blackout of 10s"},
	} {
		t.Run(tc.env, func(t *testing.T) {
			c, err := fromEnv(t, tc.env)
			if tc.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tc.problem) {
					t.Errorf("error %v, want %s", err, tc.problem)
				}
				if strings.Count(err.Error(), "\n") > 0 {
					t.Errorf("more than a sentence: %v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			c, err = c.complete() // what is left after a problem is good
			if err != nil {
				t.Fatal(err)
			}
			if tc.problem != "" {
				return
			}
			if tc.length == 0 {
				tc.length = DefaultFor
			}
			if tc.engine == "" {
				tc.engine = PC
			}
			if c.Enabled != tc.enabled || c.Blackout != tc.blackout || c.CoolDown != tc.coolDown || c.PerHour != tc.perHour || abs(c.Share-tc.share) > 1e-9 ||
				c.After != tc.after || c.Every != tc.every || c.For != tc.length || c.Engine != tc.engine || len(c.When) != tc.rules || c.Max != tc.most {
				t.Errorf("%+v", c)
			}
		})
	}
}

func abs(v float64) float64 { return max(v, -v) }

// TestDocsNameEachStatus checks that the documentation explains each status.
func TestDocsNameEachStatus(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "deep-profiling.md"))
	if err != nil {
		t.Fatal(err)
	}
	for s, sentence := range sentences {
		if !strings.Contains(string(text), "`"+string(s)+"`") {
			t.Errorf("docs/deep-profiling.md does not say what %s is", s)
		}
		if strings.HasSuffix(sentence, ".") || strings.Contains(sentence, "\n") {
			t.Errorf("%s: %q", s, sentence)
		}
	}
}

func TestWhatEnginesTake(t *testing.T) {
	for e, want := range map[Engine]string{PC: "samples", SASS: "counters", Both: "samples and counters"} {
		if e.Takes() != want {
			t.Errorf("%s takes %s", e, e.Takes())
		}
	}
}

// TestSettingsAreRead sets every variable to an invalid value. The error must name each variable.
func TestSettingsAreRead(t *testing.T) {
	_, err := ConfigFromEnv(func(string) string { return "\x01" })
	if err == nil {
		t.Fatal("no error")
	}
	for _, s := range new(Config).Table() {
		if !strings.Contains(err.Error(), s.Variable+" ") && !strings.Contains(err.Error(), s.Variable+":") {
			t.Errorf("%s is not read", s.Variable)
		}
		if want := "GPUFLIGHT_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_")); s.Flag != "" && s.Variable != want {
			t.Errorf("the flag %s sets %s, not %s", s.Flag, s.Variable, want)
		}
	}
}
