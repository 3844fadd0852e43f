// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
		{"kernel.rate over 500ms <= 60/min for 1.5m", with(rate, func(r *Rule) {
			r.Op, r.Value, r.Over, r.For = LessEqual, 1, 500*time.Millisecond, 90*time.Second
		})},
		{"kernel.rate <= 0/h", with(rate, func(r *Rule) { r.Op, r.Value = LessEqual, 0 })},
		{"kernel.p50 > 250us", Rule{Source: Kernel, Name: "*", Quantile: 0.5, Op: Greater, Value: 250e-6, Over: 10 * time.Second}},
		{"kernel(gemm*).p95 >= 2ms", Rule{Source: Kernel, Name: "gemm*", Quantile: 0.95, Op: GreaterEqual, Value: 2e-3, Over: 10 * time.Second}},
		{"kernel(void f<int>(int*, (anonymous)::g)).rate > 5/s", Rule{Source: Kernel, Name: "void f<int>(int*, (anonymous)::g)", Op: Greater, Value: 5, Over: time.Second}},
		{`scope( "epoch :) 1" ).rate > 2x baseline`, Rule{Source: Scope, Name: "epoch :) 1", Op: Greater, Value: 2, Baseline: true, Over: time.Second}},
		{"scope(train_step).p95 > 1.5x baseline", Rule{Source: Scope, Name: "train_step", Quantile: 0.95, Op: Greater, Value: 1.5, Baseline: true, Over: 10 * time.Second}},
		{"scope(train_step).p99 > 150% baseline for 0s", Rule{Source: Scope, Name: "train_step", Quantile: 0.99, Op: Greater, Value: 1.5, Baseline: true, Over: 10 * time.Second}},
		{"scope(a).p5 < 3µs", Rule{Source: Scope, Name: "a", Quantile: 0.05, Op: Less, Value: 3e-6, Over: 10 * time.Second}},
		{"scope(a).p5 < 3ns", Rule{Source: Scope, Name: "a", Quantile: 0.05, Op: Less, Value: 3e-9, Over: 10 * time.Second}},
		{"busy.ratio < 0.5 for 5s", Rule{Source: BusyRatio, Op: Less, Value: 0.5, Over: time.Second, For: 5 * time.Second}},
		{"busy.ratio over 1m < 50%", Rule{Source: BusyRatio, Op: Less, Value: 0.5, Over: time.Minute}},
		{"busy.ratio < 50% baseline", Rule{Source: BusyRatio, Op: Less, Value: 0.5, Baseline: true, Over: time.Second}},
		{"busy.ratio >= 1", Rule{Source: BusyRatio, Op: GreaterEqual, Value: 1, Over: time.Second}},
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

func TestParseErrorsSayWhereAndWhatToDo(t *testing.T) {
	for _, tc := range []struct {
		text     string
		position int
		problem  string
	}{
		{"", 1, `the rule is empty; write one such as "kernel.rate < 100/s for 2s"`},
		{strings.Repeat("x", MaxText+1), 1, "the rule has 4097 bytes; 4096 are the most"},
		{"kernel(\xff).rate < 1/s", 1, "the rule is not UTF-8; write it in UTF-8"},
		{"gpu.rate < 1/s", 1, `"gpu.rate < 1/s" is no figure; there are kernel.rate, kernel(NAME).p95, scope(NAME).rate, scope(NAME).p95 and busy.ratio`},
		{"kernel < 1/s", 7, "a figure has a dot and a statistic after its source; write kernel.rate, scope(NAME).p95 or busy.ratio"},
		{"kernel.mean < 1ms", 8, `"mean" is no statistic; there are rate and p1 to p99, such as p50 and p95`},
		{"kernel.p100 < 1ms", 8, `"p100" is no statistic; there are rate and p1 to p99, such as p50 and p95`},
		{"kernel.p05 < 1ms", 8, `"p05" is no statistic; there are rate and p1 to p99, such as p50 and p95`},
		{"kernel.p < 1ms", 8, `"p" is no statistic; there are rate and p1 to p99, such as p50 and p95`},
		{"kernel(a.rate < 1/s", 7, `the bracket is not closed; put ) after the name, or quote a name with brackets that do not pair up`},
		{"kernel().rate < 1/s", 8, "the name is empty; write one, or * for all"},
		{`scope("").rate < 1/s`, 8, "the name is empty; write one, or * for all"},
		{`scope("a.rate < 1/s`, 7, "the quote is not closed; put another after the name"},
		{`scope("a".rate < 1/s`, 10, "the bracket is not closed; put ) after the quoted name"},
		{"scope.p95 > 1s", 6, "scope needs a name; write scope(train_step).p95"},
		{"busy.rate < 1/s", 6, `busy has no "rate"; write busy.ratio`},
		{"kernel.rate == 1/s", 13, `"== 1/s" is no comparison; there are <, <=, > and >=`},
		{"kernel.rate", 12, `"" is no comparison; there are <, <=, > and >=`},
		{"scope(größe).p95 > viel", 20, `"viel" is not a value; write a number with its unit, such as 100/s, 2ms or 0.5`},
		{"kernel.rate < -1/s", 15, `"-1/s" is not a value; write a number with its unit, such as 100/s, 2ms or 0.5`},
		{"kernel.rate < 1..2/s", 15, `"1..2/s" is not a value; write a number with its unit, such as 100/s, 2ms or 0.5`},
		{"kernel.rate < 1e3/s", 15, "a rate counts per time; give it a unit such as 100/s, or write 0.5x baseline"},
		{"kernel.rate < 100", 15, "a rate counts per time; give it a unit such as 100/s, or write 0.5x baseline"},
		{"kernel.rate < 100ms", 15, "a rate counts per time; give it a unit such as 100/s, or write 0.5x baseline"},
		{"kernel.p95 > 2", 14, "a quantile is a time; give it a unit such as 2ms, or write 1.5x baseline"},
		{"kernel.p95 > 2/s", 14, "a quantile is a time; give it a unit such as 2ms, or write 1.5x baseline"},
		{"busy.ratio < 1ms", 14, "busy.ratio is a share; write 0.5 or 50%"},
		{"busy.ratio < 50", 14, "busy.ratio is between 0 and 1; write 0.5 or 50%"},
		{"busy.ratio > 1", 12, "busy.ratio is between 0 and 1; write < 1 or >= 1"},
		{"busy.ratio <= 100%", 12, "busy.ratio is between 0 and 1; write < 1 or >= 1"},
		{"kernel.rate < 0/s", 13, "no figure is below 0; write <= 0 or > 0, or another value"},
		{"kernel.p50 >= 0s", 12, "no figure is below 0; write <= 0 or > 0, or another value"},
		{"kernel.p50 > 2x", 16, "x goes with baseline; write 2x baseline"},
		{"kernel.p50 > 2x bass", 16, "x goes with baseline; write 2x baseline"},
		{"kernel.p50 > 0x baseline", 14, "0x baseline is nothing; write a number above 0, such as 0.5x baseline"},
		{"kernel.p50 > 0.9x baseline", 14, "the figure is at its baseline most of the time; above it, write more than 1x, such as > 1.5x baseline"},
		{"kernel.rate < 1x baseline", 15, "the figure is at its baseline most of the time; below it, write less than 1x, such as < 0.5x baseline"},
		{"kernel.rate over 10ms < 1/s", 18, "the duration must be between 100ms and 10m0s"},
		{"kernel.rate over < 1/s", 18, `"< 1/s" is not a duration; write a number with its unit, such as 100/s, 2ms or 0.5`},
		{"kernel.rate < 1/s for", 22, `"" is not a duration; write a number with its unit, such as 100/s, 2ms or 0.5`},
		{"kernel.rate < 1/s for 2", 23, "a duration needs a unit; write one such as 500ms, 2s or 1m"},
		{"kernel.rate < 1/s for 2d", 23, "a duration needs a unit; write one such as 500ms, 2s or 1m"},
		{"kernel.rate < 1/s for 2h", 23, "the duration must be between 0s and 1h0m0s"},
		{"kernel.rate < 1/s forever", 19, `"forever" is not expected here; after the value only "for" and a duration may follow, such as "for 2s"`},
		{"kernel.rate < 1/s for 2s, busy.ratio < 1", 25, `", busy.ratio < 1" is not expected here; after the value only "for" and a duration may follow, such as "for 2s"`},
	} {
		_, err := Parse(tc.text)
		var e *ParseError
		if !errors.As(err, &e) {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		if e.Position != tc.position || e.Problem != tc.problem {
			t.Errorf("%q: position %d, %s\nwant position %d, %s", tc.text, e.Position, e.Problem, tc.position, tc.problem)
		}
		if len(e.Error()) > 600 {
			t.Errorf("the error has %d bytes", len(e.Error()))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"kernel.rate < 100/s for 2s", "scope(train_step).p95 > 1.5x baseline", `kernel("a)").p50 over 1m >= 3µs`, "busy.ratio < 50%", "scope((", "kernel.rate < 1x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		alloctest.Limit{PerByte: 1 << 7, Constant: 1 << 14}.Check(t, len(text), func() { _, _ = Parse(text) })
		r, err := Parse(text)
		var e *ParseError
		if err != nil {
			if !errors.As(err, &e) || e.Position < 1 || e.Position > utf8.RuneCountInString(text)+1 || e.Problem == "" {
				t.Fatalf("error %v at %d", err, e.Position)
			}
			return
		}
		if r.Over < MinOver || r.Over > MaxOver || r.For < 0 || r.For > MaxFor || !(r.Value >= 0) || r.Op == "" || (r.Name == "") != (r.Source == BusyRatio) {
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
			figures.Busy().Add(0, 0, 1)
			now = now.Add(time.Second)
			figures.Tick(now, false, func(*Firing) bool { return true })
		}
		figures.States()
	})
}
