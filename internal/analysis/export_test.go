// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"math/rand/v2"

	"github.com/gpuflight/gpuflight/internal/store"
)

// NoisySteps returns a session of 3,000 steps whose times depend on each other, and a source of it that keeps
// parts of about 400 steps. The first of its three kernels takes a share more time.
func NoisySteps(seed uint64, slower float64) (rows, parts Source) {
	rng := rand.New(rand.NewPCG(seed, 9))
	drift := 0.0
	r := train(3000, func(p *program, _ int) {
		drift = 0.9*drift + 0.01*rng.NormFloat64()
		for i, name := range []string{"gemm", "norm", "relu"} {
			ns := 50 * float64(µs) * (1 + drift + 0.02*rng.NormFloat64())
			if i == 0 {
				ns *= 1 + slower
			}
			p.work(store.OpKernel, name, int64(ns))
		}
		p.sync()
	}).reader()
	r.spans = nil
	k := r.keeping()
	k.ops = 1600
	return k.Source, k
}
