// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"testing"
	"time"
)

// BenchmarkObserve is what a kernel costs: with no rule about it, one about rates, one about a
// quantile.
func BenchmarkObserve(b *testing.B) {
	for _, bc := range []struct{ name, rule string }{
		{"none", "scope(a).rate > 1/s"}, {"rate", "kernel.rate < 1/s"}, {"quantile", "kernel.p95 > 1s"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			r, err := Parse(bc.rule)
			if err != nil {
				b.Fatal(err)
			}
			f, err := New([]Rule{r})
			if err != nil {
				b.Fatal(err)
			}
			s := f.Kernel("gemm", "void gemm(int)")
			i := int64(0)
			for b.Loop() {
				i++
				s.Observe(1000 + i&0xffff)
			}
			if s != nil && s.into[0].slots[0].count != uint64(i) {
				b.Fatalf("%d of %d were counted", s.into[0].slots[0].count, i)
			}
		})
	}
}

// BenchmarkTick is what a tick costs with as many rules as there may be, all with a baseline.
func BenchmarkTick(b *testing.B) {
	r, err := Parse("scope(a).p95 > 100x baseline")
	if err != nil {
		b.Fatal(err)
	}
	rules := make([]Rule, MaxRules)
	for i := range rules {
		rules[i] = r
	}
	f, err := New(rules)
	if err != nil {
		b.Fatal(err)
	}
	s := f.Scope("a")
	now := time.Unix(0, 0)
	ticks := int64(0)
	for b.Loop() {
		ticks++
		s.Observe(1e6 + ticks%1000*1000)
		now = now.Add(200 * time.Millisecond)
		f.Tick(now, false, func(*Firing) bool { b.Fatal("fired"); return true })
	}
	if state := f.States()[0]; state.Value == "unknown" && ticks > 100 {
		b.Fatalf("%+v", state)
	}
}
