// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"errors"
	"iter"
	"math"
)

// Traced is what the records of some launches add up to.
type Traced struct {
	Launches uint64
	Seconds  float64
}

// Stratum is what was seen in one stratum, by kernel.
type Stratum[K comparable] struct {
	// Seconds is how long it lasted, and Unseen for how much of that nothing was seen, whatever was asked for: where
	// CUPTI was left. TraceShare and CountShare are those of its steps.
	Seconds, Unseen float64
	// Speed is how much faster launches are taken to come where nothing is seen than where they are counted: 0 is 1.
	Speed                  float64
	TraceShare, CountShare float64
	// Counting is for how many seconds launches were counted, where that was measured and CountShare is below 1; else 0. It is
	// what switching makes of CountShare's part, and not taken for more than twice that or less than half.
	Counting float64
	// Counted has the launches that were counted, traced ones included; Traced what the records say.
	Counted map[K]uint64
	Traced  map[K]Traced
}

// EstimatorConfig has an [Estimator]'s settings. The zero value works.
type EstimatorConfig struct {
	// Confidence is the chance that a bound holds: 0.95.
	Confidence float64
	// MaxRate is how many launches of one kernel a second the program can make at most; 0 takes twice the
	// greatest rate of that kernel in any slice.
	MaxRate float64
	// MaxKernels bounds how many are told apart: 8192.
	MaxKernels int
}

// Estimate is what is known of one kernel, or of all.
type Estimate struct {
	// Launches is exact where LaunchesBound is 0; else the truth is within LaunchesBound of it, with the
	// confidence that was asked for.
	Launches, LaunchesBound float64
	// Seconds is the time of all launches on the device, SecondsBound likewise. It is +Inf where too little
	// was traced to say anything.
	Seconds, SecondsBound float64
}

// Estimator adds up strata. It belongs to one goroutine.
//
// # Launches
//
// In a stratum of which the share p was counted, each moment had the same chance p to be counted, so the
// expectation of y = x/p, where x launches were counted, is the stratum's number of launches. Where it is known for how long
// launches were counted, that part of the stratum's length is p: then y is a ratio, with the same expectation if that does not depend on
// how many there were. The choices in different strata are independent. y lies between 0 and M, what the greatest rate of launches
// makes of the stratum's length. For independent variables in [0, M], identically distributed or not, the
// empirical Bernstein inequality of Maurer and Pontil ("Empirical Bernstein Bounds and Sample Variance
// Penalization", COLT 2009, theorem 11) bounds the sum of n of them with the sample variance V: with
// a chance of at least 1 − δ the sum of the expectations exceeds that of the values by no more than
//
//	sqrt(2 n V ln(2/δ)) + 7 n M ln(2/δ) / (3 (n − 1))
//
// and by symmetry falls below it by no more. It is used with half of δ for either side. Where there are few strata its second term
// alone is more than what Hoeffding's inequality says ("Probability Inequalities for Sums of Bounded Random Variables", JASA 58,
// 1963, theorem 2), with M of each stratum's own length:
//
//	sqrt(ΣM² ln(1/δ) / 2)
//
// and the bound is that instead. Which of them is taken does not depend on what was counted but for M. Neither needs any
// assumption about when the program launches what, but that the rate of a kernel has a limit: one that was
// never seen at half its fastest may break it. Counting itself slows a program down, so that more is launched where nobody
// counts: y has what Speed says of that, and all of that is added to the bound. What was launched while CUPTI was left is taken to be
// as much as in the rest of the stratum, and what its greatest rate would make of that time is added to the bound. Shares and lengths may
// depend on what earlier strata showed, as the controller's do; each is fixed before the choice is made.
//
// # Times
//
// The time of all launches is R times their number, where R is the time of the traced ones by their
// number, both weighted with 1/p: a ratio estimator (Cochran, "Sampling Techniques", chapter 6). Its error
// is to first order the sum of e = (d − R n)/p over the strata, divided by the weighted number; that sum
// is bounded as above, with M twice the greatest e that was seen. So this bound is one for programs of
// which the slices have seen the longest times: no sample can tell of what never happens in it.
type Estimator[K comparable] struct {
	cfg     EstimatorConfig
	kernels map[K]*kernel
	// other is what found no room.
	other  kernel
	all    kernel
	sparse float64 // strata of which not all was counted
	sliced float64 // strata of which not all was traced
	length float64 // of the longest sparse stratum
	square float64 // of the lengths of the sparse ones, added up
	unseen float64 // seconds
}

// kernel has one kernel's sums.
type kernel struct {
	exact uint64  // launches in strata that were counted whole
	gap   float64 // those that were not seen, as far as that can be told
	y, yy float64 // weighted launches of the others, and their squares
	more  float64 // as many of them are there for Speed
	rate  float64 // the greatest seen

	wholeN, wholeD float64 // strata that were traced whole
	n, d           float64 // the others, weighted
	nn, nd, dd     float64
	residual       float64 // the greatest
}

// NewEstimator checks the configuration.
func NewEstimator[K comparable](cfg EstimatorConfig) (*Estimator[K], error) {
	if cfg.Confidence == 0 {
		cfg.Confidence = 0.95
	}
	if cfg.MaxKernels == 0 {
		cfg.MaxKernels = 8192
	}
	switch {
	case !(cfg.Confidence > 0 && cfg.Confidence < 1):
		return nil, errors.New("budget: the confidence must be between 0 and 1")
	case !(cfg.MaxRate >= 0) || math.IsInf(cfg.MaxRate, 0) || cfg.MaxKernels < 0:
		return nil, errors.New("budget: the greatest rate of launches and the number of kernels must not be below 0")
	}
	return &Estimator[K]{cfg: cfg, kernels: map[K]*kernel{}}, nil
}

// Add takes a stratum. One whose shares or length make no sense is not taken.
func (e *Estimator[K]) Add(s *Stratum[K]) error {
	if !share(s.TraceShare) || !share(s.CountShare) || !(s.Seconds > 0) || math.IsInf(s.Seconds, 0) || !(s.Unseen >= 0) ||
		s.Speed != 0 && !(s.Speed >= 1 && s.Speed <= 10) || !(s.Counting >= 0) {
		return errors.New("budget: a stratum with a share or length that makes no sense")
	}
	var counted uint64
	for _, n := range s.Counted {
		counted += n
	}
	var traced Traced
	for _, t := range s.Traced {
		traced.Launches += t.Launches
		traced.Seconds += t.Seconds
	}
	if s.CountShare < 1 {
		e.sparse++
		e.length = max(e.length, s.Seconds)
		e.square += s.Seconds * s.Seconds
	}
	if s.TraceShare < 1 {
		e.sliced++
	}
	unseen := min(s.Unseen, s.Seconds)
	e.unseen += unseen
	speed := max(1, s.Speed)
	p := s.CountShare
	if p < 1 && s.Counting > 0 && s.Seconds > unseen {
		// It stays below 1, where a count is exact.
		p = min(max(s.Counting/(s.Seconds-unseen), p/2), 2*p, 1-1e-9)
	}
	e.all.count(counted, p, s.Seconds, unseen, speed)
	e.all.trace(traced, s.TraceShare)
	var other uint64
	var otherTraced Traced
	for k, n := range s.Counted {
		if at := e.kernel(k); at != nil {
			at.count(n, p, s.Seconds, unseen, speed)
		} else {
			other += n
		}
	}
	for k, t := range s.Traced {
		if at := e.kernel(k); at != nil {
			at.trace(t, s.TraceShare)
		} else {
			otherTraced.Launches += t.Launches
			otherTraced.Seconds += t.Seconds
		}
	}
	e.other.count(other, p, s.Seconds, unseen, speed)
	e.other.trace(otherTraced, s.TraceShare)
	return nil
}

func share(p float64) bool { return p > 0 && p <= 1 }

// kernel returns nil if there is no room.
func (e *Estimator[K]) kernel(k K) *kernel {
	at := e.kernels[k]
	if at == nil && len(e.kernels) < e.cfg.MaxKernels {
		at = &kernel{}
		e.kernels[k] = at
	}
	return at
}

func (k *kernel) count(n uint64, p, seconds, unseen, speed float64) {
	// Where hardly anything was seen, what was says little about the rest.
	if seen := seconds - unseen; seen > unseen {
		k.rate = max(k.rate, float64(n)/(p*seen))
		k.gap += float64(n) / (p * seen) * unseen
	}
	if p == 1 {
		k.exact += n
		return
	}
	more := float64(n) * (1 - p) / p * (speed - 1)
	y := float64(n)/p + more
	k.more += more
	k.y += y
	k.yy += y * y
}

func (k *kernel) trace(t Traced, p float64) {
	n, d := float64(t.Launches)/p, t.Seconds/p
	if p == 1 {
		k.wholeN += n
		k.wholeD += d
		return
	}
	k.n += n
	k.d += d
	k.nn += n * n
	k.nd += n * d
	k.dd += d * d
	if k.n > 0 {
		k.residual = max(k.residual, math.Abs(d-k.d/k.n*n))
	}
}

// Estimate returns what is known of a kernel; zero for one that was never seen or found no room.
func (e *Estimator[K]) Estimate(k K) Estimate {
	if at := e.kernels[k]; at != nil {
		return e.estimate(at)
	}
	return Estimate{}
}

// Total is what is known of all launches together, Other of those of kernels without room.
func (e *Estimator[K]) Total() Estimate { return e.estimate(&e.all) }

// Other is what is known of the launches of kernels that found no room.
func (e *Estimator[K]) Other() Estimate { return e.estimate(&e.other) }

// All returns the kernels and what is known of each, in no order.
func (e *Estimator[K]) All() iter.Seq2[K, Estimate] {
	return func(yield func(K, Estimate) bool) {
		for k, at := range e.kernels {
			if !yield(k, e.estimate(at)) {
				return
			}
		}
	}
}

func (e *Estimator[K]) estimate(k *kernel) Estimate {
	doubt := 1 - e.cfg.Confidence
	r := Estimate{Launches: float64(k.exact) + k.y + k.gap}
	launches := func(doubt float64) float64 {
		rate := e.cfg.MaxRate
		if rate == 0 {
			rate = 2 * k.rate
		}
		off := k.more
		if e.unseen > 0 {
			off += max(k.gap, rate*e.unseen-k.gap)
		}
		if e.sparse > 0 {
			off += bound(e.sparse, k.yy-k.y*k.y/e.sparse, rate*e.length, rate*rate*e.square, doubt)
		}
		return off
	}
	r.LaunchesBound = launches(doubt)
	rest := max(0, r.Launches-k.wholeN)
	switch {
	case rest == 0 && r.LaunchesBound == 0:
		r.Seconds = k.wholeD
	case k.n == 0:
		if k.wholeN > 0 {
			r.Seconds = k.wholeD / k.wholeN * r.Launches
		}
		r.SecondsBound = math.Inf(1)
	default:
		ratio := k.d / k.n
		r.Seconds = k.wholeD + ratio*rest
		squares := max(0, k.dd-2*ratio*k.nd+ratio*ratio*k.nn)
		// Half of the doubt is for the number of launches, where that is not known.
		number := launches(doubt / 2)
		if number > 0 {
			doubt /= 2
		}
		off := bernstein(e.sliced, squares, 2*k.residual, doubt) / k.n
		r.SecondsBound = off*rest + (ratio+off)*number
	}
	return r
}

// bound is bernstein's, or Hoeffding's from the squares of the lengths of the intervals that each of them lies in.
func bound(n, squares, length, lengths, doubt float64) float64 {
	hoeffding := math.Sqrt(lengths * math.Log(2/doubt) / 2)
	if n < 2 || hoeffding <= 7*n*length*math.Log(4/doubt)/(3*(n-1)) {
		return min(hoeffding, n*length)
	}
	return bernstein(n, squares, length, doubt)
}

// bernstein bounds the error of a sum of n variables, from the sum of the squares of their distances from
// their mean and the length of the interval that they lie in, on both sides, at the risk doubt.
func bernstein(n, squares, length, doubt float64) float64 {
	worst := n * length
	if n < 2 {
		return worst
	}
	l := math.Log(4 / doubt)
	variance := max(0, squares) / (n - 1)
	return min(worst, math.Sqrt(2*n*variance*l)+7*n*length*l/(3*(n-1)))
}
