// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

func TestParse(t *testing.T) {
	rate := Rule{Source: Kernel, Name: "*", Op: Less, Value: 100, Over: time.Second}
	for _, tc := range []struct {
		text string
		want Rule
	}{
		{"kernel.rate < 100/s", rate},
		{" kernel.rate<100/s ", rate},
		{"kernel.rate < 100/s for 2s", with(rate, func(r *Rule) { r.For = 2 * time.Second })},
		{"kernel.rate over 500ms <= 1/s for 1.5m", with(rate, func(r *Rule) {
			r.Op, r.Value, r.Over, r.For = LessEqual, 1, 500*time.Millisecond, 90*time.Second
		})},
		{"kernel.rate <= 0/s", with(rate, func(r *Rule) { r.Op, r.Value = LessEqual, 0 })},
		{"kernel.p50 > 250us", Rule{Source: Kernel, Name: "*", Quantile: 0.5, Op: Greater, Value: 250e-6, Over: 10 * time.Second}},
		{"kernel(gemm*).p95 >= 2ms", Rule{Source: Kernel, Name: "gemm*", Quantile: 0.95, Op: GreaterEqual, Value: 2e-3, Over: 10 * time.Second}},
		{"kernel(void f<int>(int*, (anonymous)::g)).rate > 5/s", Rule{Source: Kernel, Name: "void f<int>(int*, (anonymous)::g)", Op: Greater, Value: 5, Over: time.Second}},
		{`scope( epoch :) 1 ).rate > 2x baseline`, Rule{Source: Scope, Name: "epoch :) 1", Op: Greater, Value: 2, Baseline: true, Over: time.Second}},
		{"scope(train_step).p95 > 1.5x baseline", Rule{Source: Scope, Name: "train_step", Quantile: 0.95, Op: Greater, Value: 1.5, Baseline: true, Over: 10 * time.Second}},
		{"scope(train_step).p99 > 1.5x baseline for 0s", Rule{Source: Scope, Name: "train_step", Quantile: 0.99, Op: Greater, Value: 1.5, Baseline: true, Over: 10 * time.Second}},
		{"scope(a).p5 < 3µs", Rule{Source: Scope, Name: "a", Quantile: 0.05, Op: Less, Value: 3e-6, Over: 10 * time.Second}},
		{"scope(a).p5 < 3ns", Rule{Source: Scope, Name: "a", Quantile: 0.05, Op: Less, Value: 3e-9, Over: 10 * time.Second}},
	} {
		tc.want.Text = strings.TrimSpace(tc.text)
		got, err := Parse(tc.text)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", tc.text, diff)
		}
	}
}

func with(r Rule, change func(*Rule)) Rule {
	change(&r)
	return r
}

func TestParse_Errors(t *testing.T) {
	const (
		form     = "not in the form of kernel.rate < 100/s for 2s, kernel(NAME).p50 > 2ms or scope(NAME).p95 > 1.5x baseline"
		rate     = "a rate counts per second: write a unit such as 100/s, or 0.5x baseline"
		quantile = "a quantile is a time: write a unit such as 2ms, or 1.5x baseline"
		usual    = "a figure is usually at its baseline: write less than 1x after <, or more than 1x after >"
		zero     = "no figure is below 0: write <= 0 or > 0, or another value"
	)
	for _, tc := range []struct{ text, problem string }{
		{"", form},
		{"kernel(\xff).rate < 1/s", form},
		{"gpu.rate < 1/s", form},
		{"busy.ratio < 50%", form},
		{"kernel < 1/s", form},
		{"kernel.mean < 1ms", form},
		{"kernel.p100 < 1ms", form},
		{"kernel.p05 < 1ms", form},
		{"kernel(a.rate < 1/s", form},
		{"kernel().rate < 1/s", form},
		{"kernel.rate == 1/s", form},
		{"kernel.rate", form},
		{"kernel.rate over < 1/s", form},
		{"kernel.rate < 1/s for", form},
		{"kernel.rate < 1/s forever", form},
		{"kernel.rate < 1/s for 2s, kernel.rate < 1", form},
		{"scope.p95 > 1s", "no name: write one in brackets, or * for all"},
		{"scope( ).p95 > 1s", "no name: write one in brackets, or * for all"},
		{"kernel.rate < 100", rate},
		{"kernel.rate < 100ms", rate},
		{"kernel.rate < 1..2/s", rate},
		{"kernel.rate < -1/s", "the value is below 0 or too large"},
		{"kernel.rate < inf/s", "the value is below 0 or too large"},
		{"kernel.rate < nan/s", "the value is below 0 or too large"},
		{"kernel.p95 > 2", quantile},
		{"kernel.p95 > 2/s", quantile},
		{"kernel.rate < 0/s", zero},
		{"kernel.p50 >= 0s", zero},
		{"kernel.p50 > 2 baseline", "a baseline has a factor: write such as 1.5x baseline"},
		{"kernel.p50 > 2x", quantile},
		{"kernel.p50 > 0x baseline", usual},
		{"kernel.p50 > 0.9x baseline", usual},
		{"kernel.rate < 1x baseline", usual},
		{"kernel.rate over 10ms < 1/s", `duration "10ms": it must be 100ms to 10m0s, such as 2s`},
		{"kernel.rate < 1/s for 2", `duration "2": it must be 0s to 1h0m0s, such as 2s`},
		{"kernel.rate < 1/s for 2h", `duration "2h": it must be 0s to 1h0m0s, such as 2s`},
	} {
		if _, err := Parse(tc.text); err == nil || !strings.HasSuffix(err.Error(), ": "+tc.problem) {
			t.Errorf("%q: %v, want %s", tc.text, err, tc.problem)
		}
	}
	if _, err := Parse(strings.Repeat("x", MaxText+1)); err == nil || err.Error() != "a rule has 4097 bytes: the maximum is 4096" {
		t.Errorf("long text: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"kernel.rate < 100/s for 2s", "scope(train_step).p95 > 1.5x baseline", `kernel(a)).p50 over 1m >= 3µs`, "scope((", "kernel.rate < 1x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		alloctest.Limit{PerByte: 1 << 7, Constant: 1 << 14}.Check(t, len(text), func() { _, _ = Parse(text) })
		r, err := Parse(text)
		if err != nil {
			return
		}
		if r.Over < MinOver || r.Over > MaxOver || r.For < 0 || r.For > MaxFor || !(r.Value >= 0) || r.Op == "" || r.Name == "" {
			t.Fatalf("%q is %+v", text, r)
		}
		again, err := Parse(r.Text)
		if err != nil || again != r {
			t.Fatalf("%q is %+v, then %+v, %v", text, r, again, err)
		}
		// A rule that was parsed can be used.
		figures, err := New([]Rule{r})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1, 0)
		for range 20 {
			figures.Kernel("gemm", "void gemm(int)").Observe(1000)
			figures.Scope("train_step").Observe(1000)
			now = now.Add(time.Second)
			figures.Tick(now, false, func(*Firing) bool { return true })
		}
		figures.States()
	})
}
