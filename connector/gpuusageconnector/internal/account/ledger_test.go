// SPDX-License-Identifier: Apache-2.0

package account

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// books writes down what a ledger books. payments are those of works, each its own payer.
type books struct {
	pay, late map[uint32]int64
	request   map[uint32][16]byte
	idle      int64
	gaps      []gap
	calls     []string // all of it in order, if it is not nil
}

type gap struct {
	stream, process uint32
	after           Cause
	start, end      int64
}

func newBooks() *books {
	return &books{pay: map[uint32]int64{}, late: map[uint32]int64{}, request: map[uint32][16]byte{}}
}

func (b *books) note(format string, args ...any) {
	if b.calls != nil {
		b.calls = append(b.calls, fmt.Sprintf(format, args...))
	}
}

func (b *books) Pay(payer uint32, request [16]byte, ns int64) {
	if ns <= 0 {
		panic("a payment of nothing")
	}
	b.pay[payer] += ns
	b.request[payer] = request
	b.note("pay %d %x %d", payer, request, ns)
}

func (b *books) Idle(ns int64) {
	if ns <= 0 {
		panic("idle for nothing")
	}
	b.idle += ns
	b.note("idle %d", ns)
}

func (b *books) Gap(stream, process uint32, after Cause, start, end int64) {
	b.gaps = append(b.gaps, gap{stream, process, after, start, end})
	b.note("gap %d %d %d %d %d", stream, process, after, start, end)
}

func (b *books) Late(payer uint32, ns int64) {
	if ns <= 0 {
		panic("late by nothing")
	}
	b.late[payer] += ns
	b.note("late %d %d", payer, ns)
}

func sum(m map[uint32]int64) int64 {
	var n int64
	for _, v := range m {
		n += v
	}
	return n
}

// requireBalance checks that what was paid and what was idle is all that was accounted.
func requireBalance(t *testing.T, l *Ledger, b *books) {
	t.Helper()
	require.Equal(t, l.Observed(), sum(b.pay)+b.idle)
}

func settle(o Options, works ...Work) (*Ledger, *books) {
	l, b := NewLedger(o), newBooks()
	for _, w := range works {
		l.Add(w)
	}
	l.Settle(0, true, b)
	return l, b
}

// wide are options under which no bound is met.
var wide = Options{
	SettleAfter: 1000, IdleGap: 1 << 50, MaxPending: 1 << 30, MaxStreams: 1 << 20, MaxIntervals: 1 << 20,
}

func kernel(payer uint32, start, end int64) Work {
	return Work{Start: start, End: end, Payer: payer, Key: uint64(payer)}
}

func dma(payer uint32, start, end int64) Work {
	w := kernel(payer, start, end)
	w.Class = Copy
	return w
}

func wait(start, end int64) Work { return Work{Start: start, End: end, Class: Wait} }

func TestLedgerSharesTheDevice(t *testing.T) {
	for _, tt := range []struct {
		name  string
		works []Work
		pay   map[uint32]int64
		idle  int64
	}{
		{"nothing", nil, map[uint32]int64{}, 0},
		{"one kernel", []Work{kernel(1, 10, 15)}, map[uint32]int64{1: 5}, 0},
		{"two kernels apart", []Work{kernel(1, 10, 15), kernel(2, 25, 28)}, map[uint32]int64{1: 5, 2: 3}, 10},
		// [0, 10) is 1's, [10, 20) is shared, [20, 30) is 2's.
		{"two kernels that overlap", []Work{kernel(1, 0, 20), kernel(2, 10, 30)}, map[uint32]int64{1: 15, 2: 15}, 0},
		// Of the 10 ns each has 3, and one of them one more.
		{"a remainder", []Work{kernel(1, 0, 10), kernel(2, 0, 10), kernel(3, 0, 10)}, map[uint32]int64{1: 4, 2: 3, 3: 3}, 0},
		// Each of [0, 5), [5, 10), [10, 15) leaves two over. The six go to five different works.
		{"remainders go round", []Work{
			kernel(1, 0, 15), kernel(2, 0, 15), kernel(3, 0, 5), kernel(4, 5, 10), kernel(5, 10, 15),
		}, map[uint32]int64{1: 4, 2: 5, 3: 2, 4: 2, 5: 2}, 0},
		{"a copy alone", []Work{dma(1, 10, 15)}, map[uint32]int64{1: 5}, 0},
		// The kernel pays for [10, 20), the copy for [5, 10) and [20, 25).
		{"a copy behind a kernel", []Work{dma(1, 5, 25), kernel(2, 10, 20)}, map[uint32]int64{1: 10, 2: 10}, 0},
		{"a copy hidden by kernels", []Work{dma(1, 12, 18), kernel(2, 10, 20)}, map[uint32]int64{2: 10}, 0},
		{"copies share", []Work{dma(1, 0, 20), dma(2, 0, 10)}, map[uint32]int64{1: 15, 2: 5}, 0},
		{"waits never pay", []Work{wait(0, 100), kernel(1, 10, 15)}, map[uint32]int64{1: 5}, 0},
		{"a kernel of no length", []Work{kernel(1, 10, 15), kernel(2, 12, 12), kernel(3, 99, 99)}, map[uint32]int64{1: 5}, 0},
		{"one key for all", []Work{
			{Start: 0, End: 7, Payer: 1}, {Start: 0, End: 7, Payer: 2}, {Start: 0, End: 7, Payer: 2},
		}, map[uint32]int64{1: 3, 2: 4}, 0},
		{"nonsense", []Work{kernel(1, -5, 5), kernel(1, 9, 8), {Start: 1, End: 2, Class: 7}, kernel(1, 0, math.MaxInt64)}, map[uint32]int64{}, 0},
		{"all of time", []Work{kernel(1, 0, math.MaxInt64-1), dma(2, 5, math.MaxInt64-1), wait(math.MaxInt64-1, math.MaxInt64-1)}, map[uint32]int64{1: math.MaxInt64 - 1}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, b := settle(wide, tt.works...)
			require.Equal(t, tt.pay, b.pay)
			require.Equal(t, tt.idle, b.idle)
			require.Empty(t, b.late)
			require.Zero(t, l.Pending())
			requireBalance(t, l, b)
		})
	}
}

func TestLedgerHandsTheRequestBack(t *testing.T) {
	w := kernel(1, 0, 5)
	w.Request[3] = 9
	_, b := settle(wide, w)
	require.Equal(t, map[uint32][16]byte{1: {3: 9}}, b.request)
}

func TestLedgerWaitsUntilWorkIsRipe(t *testing.T) {
	l, b := NewLedger(wide), newBooks()
	add := func(w Work, arrived int64) {
		w.Arrived = arrived
		l.Add(w)
	}
	add(kernel(1, 0, 100), 5000)
	l.Settle(5999, false, b)
	require.Equal(t, 1, l.Pending())
	add(kernel(2, 40, 140), 5999) // in time
	l.Settle(6000, false, b)
	// The first is ripe, but only up to where the second starts is everything known.
	require.Equal(t, map[uint32]int64{1: 40}, b.pay)
	require.Equal(t, 2, l.Pending())
	add(kernel(3, 50, 90), 6500)
	l.Settle(6999, false, b)
	// The second is ripe by now, the third begins at 50.
	require.Equal(t, map[uint32]int64{1: 45, 2: 5}, b.pay)
	l.Settle(7500, false, b)
	// [40, 50) of 1 and 2, [50, 90) of all three, [90, 100) of 1 and 2, [100, 140) of 2. The 40 ns of
	// three leave one over.
	require.Equal(t, int64(140), sum(b.pay))
	require.InDelta(t, 40+5+13.3+5, b.pay[1], 1)
	require.InDelta(t, 5+13.3+5+40, b.pay[2], 1)
	require.InDelta(t, 13.3, b.pay[3], 1)
	require.Empty(t, b.late)
	require.Zero(t, l.Pending())
	requireBalance(t, l, b)
}

func TestLedgerStretches(t *testing.T) {
	o := wide
	o.IdleGap = 100
	l, b := NewLedger(o), newBooks()
	// Each step is a session that is read by itself; all sums are since the beginning.
	step := func(name string, w Work, pay, late, idle int64, intervals int) {
		t.Helper()
		l.Add(w)
		l.Settle(0, true, b)
		require.Equal(t, []int64{pay, late, idle}, []int64{b.pay[w.Payer], b.late[w.Payer], b.idle}, name)
		require.Equal(t, intervals, l.intervals.Len(), name)
		requireBalance(t, l, b)
	}
	step("today", kernel(1, 10_000, 10_010), 10, 0, 0, 1)
	step("the day before", kernel(2, 5_000, 5_010), 10, 0, 0, 2)
	step("soon after that", kernel(3, 5_060, 5_070), 10, 0, 50, 2)
	step("in its silence: somebody was idle there", kernel(4, 5_020, 5_040), 0, 20, 50, 2)
	step("before the first", kernel(5, 4_890, 4_900), 10, 0, 150, 2)
	step("over its end", kernel(6, 5_065, 5_075), 5, 5, 150, 2)
	step("101 after it", kernel(7, 5_176, 5_180), 4, 0, 150, 3)
	step("between, within 100 of both", kernel(8, 5_125, 5_126), 1, 0, 150+50+50, 2)
	step("over everything", kernel(9, 0, 20_000), 20_000-(5_180-4_890)-10, 300, 250, 1)
	require.Equal(t, int64(20_000), l.Observed())
}

func TestLedgerForgetsTheOldestStretches(t *testing.T) {
	o := wide
	o.IdleGap, o.MaxIntervals = 10, 3
	l, b := NewLedger(o), newBooks()
	for i := range int64(10) {
		l.Add(kernel(uint32(i), 1000*i, 1000*i+5))
		l.Settle(0, true, b)
	}
	require.Equal(t, 3, l.intervals.Len())
	require.Equal(t, int64(50), l.Observed())
	// All before 6005, the end of the last that was forgotten, counts as accounted.
	l.Add(kernel(20, 6000, 6015))
	l.Settle(0, true, b)
	require.Equal(t, int64(10), b.pay[20])
	require.Equal(t, int64(5), b.late[20])
	requireBalance(t, l, b)
}

func TestLedgerOfALiveDeviceGoesOn(t *testing.T) {
	o := wide
	o.SettleAfter, o.IdleGap, o.LiveWithin = 100, 1000, 50
	start := func(lag int64) (*Ledger, *books) {
		l, b := NewLedger(o), newBooks()
		w := kernel(1, 5000, 5100)
		w.Arrived = 5100 + lag
		l.Add(w)
		return l, b
	}

	l, b := start(50)
	l.Settle(5249, false, b)
	require.Zero(t, l.Observed()) // not ripe
	l.Settle(5250, false, b)
	require.Equal(t, int64(150), l.Observed()) // to 100 ago
	l.Settle(5240, false, b)                   // the clock was set back
	require.Equal(t, int64(150), l.Observed())
	l.Settle(5300, false, b)
	require.Equal(t, int64(200), l.Observed())
	require.Equal(t, int64(100), b.idle)

	// A kernel that began in booked time and ended 20 ns ago pays for what is left of it.
	w := kernel(2, 5150, 5380)
	w.Arrived = 5400
	l.Add(w)
	l.Settle(5450, false, b)
	require.Equal(t, int64(200), l.Observed()) // no further than where it starts
	l.Settle(5500, false, b)
	require.Equal(t, int64(180), b.pay[2])
	require.Equal(t, int64(50), b.late[2])
	require.Equal(t, int64(100+20), b.idle)
	l.Settle(99_999, false, b)
	require.Equal(t, int64(5380+1000-5000), l.Observed()) // no work arrived for IdleGap
	requireBalance(t, l, b)

	l, b = start(51)
	l.Settle(99_999, false, b)
	require.Equal(t, int64(100), l.Observed()) // read from a log
	requireBalance(t, l, b)
}

func TestLedgerSettlesTheFirstToEndWhenFull(t *testing.T) {
	o := wide
	o.MaxPending = 100
	for name, work := range map[string]func(i int64) (start, end int64){
		"in order":              func(i int64) (int64, int64) { return 10 * i, 10*i + 12 },
		"from the last":         func(i int64) (int64, int64) { return 1_000_000 - 10*i, 1_000_012 - 10*i },
		"all start at once":     func(i int64) (int64, int64) { return 5, 1000 + i },
		"all at once":           func(int64) (int64, int64) { return 5, 1000 },
		"all at once, no time":  func(int64) (int64, int64) { return 5, 5 },
		"one that came last is": func(i int64) (int64, int64) { return 10 * (i % 101), 10*(i%101) + 12 },
	} {
		t.Run(name, func(t *testing.T) {
			l, b := NewLedger(o), newBooks()
			var last int64
			var all []interval
			for i := range int64(2000) {
				w := kernel(uint32(i), 0, 0)
				w.Start, w.End = work(i)
				w.Arrived = i
				all = append(all, interval{w.Start, w.End})
				l.Add(w)
				if l.Full() {
					l.Settle(i, false, b)
					require.LessOrEqual(t, l.Pending(), 75)
					require.Greater(t, l.Forced(), last)
					last = l.Forced()
				}
			}
			l.Settle(0, true, b)
			requireBalance(t, l, b)
			joined := merge(all, o.IdleGap)
			require.Equal(t, measure(joined), l.Observed())
			if name == "in order" {
				require.Empty(t, b.late)
			}
		})
	}
}

func TestLedgerGaps(t *testing.T) {
	o := wide
	o.GapThreshold = 10
	on := func(stream, process uint32, w Work) Work {
		w.Stream, w.Process = stream, process
		return w
	}
	first, second := on(1, 1, kernel(1, 0, 100)), on(1, 1, kernel(2, 200, 210))
	for _, tt := range []struct {
		name  string
		works []Work
		want  []gap
	}{
		{"nothing between", nil, []gap{{1, 1, AfterHost, 100, 200}}},
		{"a copy", []Work{on(1, 1, dma(3, 50, 150))}, []gap{{1, 1, AfterCopy, 100, 200}}},
		{"a copy that ends with the first", []Work{on(1, 1, dma(3, 50, 100))}, []gap{{1, 1, AfterHost, 100, 200}}},
		{"a copy that ends with the gap", []Work{on(1, 1, dma(3, 50, 200))}, []gap{{1, 1, AfterCopy, 100, 200}}},
		{"a copy of no length at its end", []Work{on(1, 1, dma(3, 200, 200))}, []gap{{1, 1, AfterCopy, 100, 200}}},
		{"a copy that ends later", []Work{on(1, 1, dma(3, 50, 201))}, []gap{{1, 1, AfterHost, 100, 200}}},
		{"a copy of another stream", []Work{on(2, 1, dma(3, 50, 150))}, []gap{{1, 1, AfterHost, 100, 200}}},
		{"a wait", []Work{on(9, 1, wait(0, 150))}, []gap{{1, 1, AfterSync, 100, 200}}},
		{"a wait that ends with the first", []Work{on(9, 1, wait(0, 100))}, []gap{{1, 1, AfterSync, 100, 200}}},
		{"a wait that ends with the gap", []Work{on(9, 1, wait(0, 200))}, []gap{{1, 1, AfterSync, 100, 200}}},
		{"a wait that ended before", []Work{on(9, 1, wait(0, 99))}, []gap{{1, 1, AfterHost, 100, 200}}},
		{"a wait of another process", []Work{on(1, 2, wait(0, 150))}, []gap{{1, 1, AfterHost, 100, 200}}},
		{"a copy, then a wait", []Work{on(1, 1, dma(3, 50, 150)), on(1, 1, wait(0, 151))}, []gap{{1, 1, AfterSync, 100, 200}}},
		{"a wait, then a copy", []Work{on(1, 1, dma(3, 50, 152)), on(1, 1, wait(0, 151))}, []gap{{1, 1, AfterCopy, 100, 200}}},
		{"both at once", []Work{on(1, 1, dma(3, 50, 150)), on(1, 1, wait(0, 150))}, []gap{{1, 1, AfterSync, 100, 200}}},
		{"a kernel of another stream", []Work{on(2, 1, kernel(3, 100, 200))}, []gap{{1, 1, AfterHost, 100, 200}}},
		{"a kernel that fills it", []Work{on(1, 1, kernel(3, 20, 190))}, nil}, // 10 is not longer than 10
		{"a kernel nearly so", []Work{on(1, 1, kernel(3, 20, 189))}, []gap{{1, 1, AfterHost, 189, 200}}},
		{"a kernel of no length", []Work{on(1, 1, kernel(3, 150, 150))}, []gap{{1, 1, AfterHost, 100, 150}, {1, 1, AfterHost, 150, 200}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, b := settle(o, append(tt.works, second, first)...)
			require.Equal(t, tt.want, b.gaps)
		})
	}
}

func TestLedgerExplainsNoGapByWhatEndedAfterIt(t *testing.T) {
	l, b := NewLedger(wide), newBooks()
	// The last two are told when the copy and the wait that ended long after them are known.
	for _, w := range []Work{kernel(1, 0, 100), wait(0, 5000), dma(2, 4000, 5001), kernel(3, 200, 300), kernel(4, 400, 500)} {
		l.Add(w)
		l.Settle(0, true, b)
	}
	require.Equal(t, []gap{{0, 0, AfterHost, 100, 200}, {0, 0, AfterHost, 300, 400}}, b.gaps)
}

func TestLedgerOfLateKernelsTellsNoGapTwice(t *testing.T) {
	o := wide
	o.IdleGap, o.MaxStreams = 100, 2
	l, b := NewLedger(o), newBooks()
	for _, w := range []Work{
		kernel(1, 1000, 1100), kernel(2, 2000, 2100), // a gap
		kernel(3, 1300, 1400), // in it
		kernel(4, 10, 20),     // long before
		kernel(5, 2050, 2300), // over the end
		kernel(6, 2500, 2600), // a gap
	} {
		l.Add(w)
		l.Settle(0, true, b)
	}
	require.Equal(t, []gap{{0, 0, AfterHost, 1100, 2000}, {0, 0, AfterHost, 2300, 2500}}, b.gaps)

	// Two more streams, and the first is forgotten: its next kernel is its first.
	for stream := range uint32(3) {
		w := kernel(9, 3000, 3010)
		w.Stream = stream + 1
		l.Add(w)
		l.Settle(0, true, b)
	}
	require.Len(t, l.streams.slots, 2)
	l.Add(kernel(10, 4000, 4001))
	l.Settle(0, true, b)
	require.Len(t, b.gaps, 2)
}

// cell is divisible by all numbers up to 16: times that are multiples of it are shared by up to as
// many works without a remainder.
const cell = 720720

// plainLedger is a ledger that looks at each cell of time by itself.
type plainLedger struct {
	o         Options
	pending   []Work
	accounted []bool
	newestEnd int64
	lag       int64
	b         *books
}

func (p *plainLedger) settle(now int64, all bool) {
	ripe, cut := now-p.o.SettleAfter, int64(math.MaxInt64)
	for _, w := range p.pending {
		start := w.Start
		if w.Class == Wait {
			start = w.End
		}
		if !all && w.Arrived > ripe {
			cut = min(cut, start)
		}
	}
	var paid []int
	for c := range p.accounted {
		at := int64(c) * cell
		if at >= cut {
			break
		}
		var running [3][]Work
		for _, w := range p.pending {
			if w.Start <= at && at < w.End {
				running[w.Class] = append(running[w.Class], w)
			}
		}
		payers := running[Kernel]
		if len(payers) == 0 {
			payers = running[Copy]
		}
		if p.accounted[c] {
			for _, w := range append(running[Kernel], running[Copy]...) {
				p.b.late[w.Payer] += cell
			}
			continue
		}
		for _, w := range payers {
			p.b.pay[w.Payer] += cell / int64(len(payers))
		}
		if len(payers) > 0 {
			paid = append(paid, c)
		}
	}
	for _, c := range paid {
		p.accounted[c] = true
	}
	var left []Work
	for _, w := range p.pending {
		if w.Class == Wait || w.Start >= cut || w.Start == w.End {
			if w.End >= cut {
				left = append(left, w)
			}
			continue
		}
		end, lag := min(w.End, cut), w.Arrived-w.End
		if end > p.newestEnd || end == p.newestEnd && lag < p.lag {
			p.newestEnd, p.lag = end, lag
		}
		if w.End > cut {
			w.Start = cut
			left = append(left, w)
		}
	}
	p.pending = left

	last := -1
	for c, accounted := range p.accounted {
		if !accounted {
			continue
		}
		if last >= 0 && int64(c-last-1)*cell <= p.o.IdleGap {
			for i := last + 1; i < c; i++ {
				p.accounted[i] = true
				p.b.idle += cell
			}
		}
		last = c
	}
	if last >= 0 && p.newestEnd >= 0 && p.lag <= p.o.LiveWithin {
		until := min(cut, ripe, p.newestEnd+p.o.IdleGap)
		for c := last + 1; int64(c+1)*cell <= until; c++ {
			p.accounted[c] = true
			p.b.idle += cell
		}
	}
}

func TestLedgerAgreesWithPlainLedger(t *testing.T) {
	const cells = 400
	lateSeen, idleSeen, liveSeen := 0, 0, 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(4, seed))
		o := Options{
			SettleAfter: r.Int64N(30) * cell, IdleGap: r.Int64N(40) * cell, LiveWithin: r.Int64N(20) * cell,
			MaxPending: 1 << 20, MaxStreams: 5, MaxIntervals: 1 << 20,
		}
		l, b := NewLedger(o), newBooks()
		p := &plainLedger{o: o, accounted: make([]bool, 2*cells), newestEnd: -1, b: newBooks()}
		crowd := make([]int, 2*cells)
		payer := uint32(0)
		for now := int64(0); now < cells; now += 1 + r.Int64N(20) {
			for range r.IntN(12) {
				payer++
				end := max(0, now-r.Int64N(10))
				if r.IntN(10) == 0 {
					end = r.Int64N(now + 1) // long ago
				}
				start := max(0, end-r.Int64N(12))
				w := Work{
					Start: start * cell, End: end * cell, Key: r.Uint64N(4), Payer: payer, Stream: r.Uint32N(7),
					Process: r.Uint32N(3), Class: Class(r.IntN(3)), Arrived: now * cell,
				}
				full := slices.ContainsFunc(crowd[start:end], func(n int) bool { return n == 16 })
				if full {
					continue
				}
				for c := start; c < end; c++ {
					crowd[c]++
				}
				l.Add(w)
				p.pending = append(p.pending, w)
			}
			r.Shuffle(len(p.pending), func(i, j int) { p.pending[i], p.pending[j] = p.pending[j], p.pending[i] })
			all := r.IntN(50) == 0
			l.Settle(now*cell, all, b)
			p.settle(now*cell, all)
			if r.IntN(5) == 0 {
				again := NewLedger(o)
				rest, err := again.LoadState(append(l.AppendState(nil), 1, 2))
				require.NoError(t, err)
				require.Equal(t, []byte{1, 2}, rest)
				require.Equal(t, l.Pending(), again.Pending())
				l = again
			}
			require.Equal(t, p.b.pay, b.pay, "seed %d, now %d", seed, now)
			require.Equal(t, p.b.late, b.late, "seed %d, now %d", seed, now)
			require.Equal(t, p.b.idle, b.idle, "seed %d, now %d", seed, now)
			require.Equal(t, len(p.pending), l.Pending(), "seed %d, now %d", seed, now)
			requireBalance(t, l, b)
		}
		lateSeen += len(b.late)
		if b.idle > 0 {
			idleSeen++
		}
		if p.lag <= o.LiveWithin {
			liveSeen++
		}
	}
	// The comparison means something only if the cases occur.
	require.Greater(t, lateSeen, 1000)
	require.Greater(t, idleSeen, 100)
	require.Greater(t, liveSeen, 100)
	require.Less(t, liveSeen, 390)
}

// session returns random works of a few streams, each arriving soon after its end.
func session(r *rand.Rand, n int, reach, long, delay, unit int64) []Work {
	works := make([]Work, n)
	for i := range works {
		start := r.Int64N(reach)
		w := Work{
			Start: start * unit, End: (start + r.Int64N(long)) * unit, Key: r.Uint64N(uint64(n)), Payer: uint32(i),
			Class: Class(r.IntN(3)), Stream: r.Uint32N(4),
		}
		w.Process = w.Stream / 2
		w.Request[0] = byte(r.IntN(3))
		w.Arrived = w.End + (1+r.Int64N(delay))*unit
		works[i] = w
	}
	slices.SortFunc(works, func(a, b Work) int { return int(a.Arrived - b.Arrived) })
	return works
}

// gapsOf finds the gaps of streams among all works at once.
func gapsOf(works []Work, threshold int64) []gap {
	var gaps []gap
	for _, w := range works {
		if w.Class != Kernel {
			continue
		}
		from := int64(-1)
		for _, v := range works {
			if v.Class == Kernel && v.Stream == w.Stream && compare(&v, &w) < 0 {
				from = max(from, v.End)
			}
		}
		if from < 0 || w.Start-from <= threshold {
			continue
		}
		g := gap{w.Stream, w.Process, AfterHost, from, w.Start}
		ended := int64(-1)
		for _, v := range works {
			switch {
			case v.Class == Copy && v.Stream == w.Stream && v.End > from && v.End <= w.Start && v.End > ended:
				g.after, ended = AfterCopy, v.End
			case v.Class == Wait && v.Process == w.Process && v.End >= from && v.End <= w.Start && v.End >= ended:
				g.after, ended = AfterSync, v.End
			}
		}
		gaps = append(gaps, g)
	}
	return gaps
}

func TestLedgerOfWorksInTimeIsThatOfAllAtOnce(t *testing.T) {
	causes := map[Cause]int{}
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(5, seed))
		const long, delay = 20, 30
		works := session(r, 150, 500, long, delay, cell)
		o := Options{
			SettleAfter: (long + delay) * cell, IdleGap: r.Int64N(30) * cell, GapThreshold: r.Int64N(4) * cell,
			MaxPending: 1 << 20, MaxStreams: 10, MaxIntervals: 1 << 20,
		}
		// As in gapsOf: a kernel that starts together with another of its stream ends no gap, if
		// neither is empty. If a wait and a copy end together, the gap follows the wait.
		slices.SortStableFunc(works, func(a, b Work) int { return int(b.Class) - int(a.Class) })
		want := gapsOf(works, o.GapThreshold)
		slices.SortFunc(works, func(a, b Work) int { return int(a.Arrived - b.Arrived) })
		_, once := settle(o, works...)

		l, b := NewLedger(o), newBooks()
		for _, w := range works {
			l.Add(w)
			if r.IntN(10) == 0 {
				l.Settle(w.Arrived, false, b)
			}
			if r.IntN(30) == 0 {
				again := NewLedger(o)
				_, err := again.LoadState(l.AppendState(nil))
				require.NoError(t, err)
				l = again
			}
		}
		require.NotEmpty(t, b.pay)
		l.Settle(0, true, b)
		require.Empty(t, b.late)
		require.Equal(t, once.idle, b.idle)
		require.Equal(t, once.request, b.request)
		require.ElementsMatch(t, want, b.gaps)
		require.ElementsMatch(t, want, once.gaps)
		require.Equal(t, sum(once.pay), sum(b.pay))
		requireBalance(t, l, b)
		// Among at most 16 there are no remainders, and so the payments are the same too.
		if !crowded(works) {
			require.Equal(t, once.pay, b.pay)
		}
		for _, g := range want {
			causes[g.after]++
		}
	}
	for _, c := range []Cause{AfterHost, AfterSync, AfterCopy} {
		require.Greater(t, causes[c], 100, "cause %d", c)
	}
}

func crowded(works []Work) bool {
	for _, w := range works {
		n := 0
		for _, v := range works {
			if v.Class != Wait && v.Start <= w.Start && w.Start < v.End {
				n++
			}
		}
		if n > 16 {
			return true
		}
	}
	return false
}

func TestLedgerDoesNotDependOnTheOrderOfArrival(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(6, seed))
		works := session(r, 400, 3000, 200, 1000, 1)
		var want []string
		for range 4 {
			l := NewLedger(Options{SettleAfter: 300, IdleGap: 50, GapThreshold: 3, MaxPending: 250, MaxStreams: 3, MaxIntervals: 5})
			seen := NewSeen(1000)
			b := newBooks()
			b.calls = []string{}
			for from := 0; from < len(works); from += 100 {
				part := slices.Clone(works[from : from+100])
				part = append(part, part[:50]...) // sent twice
				r.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
				for _, w := range part {
					if seen.Add(uint64(w.Payer)) {
						l.Add(w)
					}
				}
				l.Settle(works[from+99].Arrived, false, b)
			}
			l.Settle(0, true, b)
			requireBalance(t, l, b)
			if want == nil {
				want = b.calls
			}
			require.Equal(t, want, b.calls, "seed %d", seed)
		}
	}
}

// TestLedgerBalances lets everything happen at once, in nanoseconds, so with remainders.
func TestLedgerBalances(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(7, seed))
		o := Options{
			SettleAfter: r.Int64N(500), IdleGap: r.Int64N(300), LiveWithin: r.Int64N(500), GapThreshold: 1,
			MaxPending: 1 + r.IntN(300), MaxStreams: 1 + r.IntN(5), MaxIntervals: 1 + r.IntN(20),
		}
		l, b := NewLedger(o), newBooks()
		works := session(r, 600, 5000, 1+r.Int64N(400), 1+r.Int64N(400), 1)
		if seed%2 == 0 {
			r.Shuffle(len(works), func(i, j int) { works[i], works[j] = works[j], works[i] })
		}
		for _, w := range works {
			l.Add(w)
			if l.Full() || r.IntN(20) == 0 {
				l.Settle(w.Arrived, false, b)
				requireBalance(t, l, b)
				require.True(t, slices.IsSortedFunc(l.pending[l.head:], func(a, b Work) int { return compare(&a, &b) }))
			}
			if r.IntN(50) == 0 {
				again := NewLedger(o)
				_, err := again.LoadState(l.AppendState(nil))
				require.NoError(t, err)
				l = again
			}
		}
		l.Settle(0, true, b)
		requireBalance(t, l, b)
		for _, w := range works {
			if w.Class == Wait {
				require.Zero(t, b.pay[w.Payer]+b.late[w.Payer])
			}
			require.LessOrEqual(t, b.pay[w.Payer]+b.late[w.Payer], w.End-w.Start)
		}
		reached := map[uint32]int64{}
		for _, g := range b.gaps {
			require.Less(t, g.start+1, g.end)
			if o.MaxStreams >= 4 {
				require.GreaterOrEqual(t, g.start, reached[g.stream])
				reached[g.stream] = g.end
			}
		}
	}
}

func TestLedgerSharesFairlyInNanoseconds(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(8, seed))
		works := session(r, 300, 20_000, 1000+r.Int64N(5000), 1, 1)
		_, b := settle(wide, works...)
		// Coordinates at which something changes, and for each work its exact share between them.
		var at []int64
		for _, w := range works {
			at = append(at, w.Start, w.End)
		}
		slices.Sort(at)
		at = slices.Compact(at)
		fair, segments := map[uint32]float64{}, map[uint32]int{}
		for i := range at[1:] {
			var running [3][]uint32
			for _, w := range works {
				if w.Start <= at[i] && at[i] < w.End {
					running[w.Class] = append(running[w.Class], w.Payer)
				}
			}
			payers := running[Kernel]
			if len(payers) == 0 {
				payers = running[Copy]
			}
			for _, p := range payers {
				fair[p] += float64(at[i+1]-at[i]) / float64(len(payers))
				segments[p]++
			}
		}
		for p, want := range fair {
			// Less than one from each segment if one were always favoured; going round it is far less.
			require.InDelta(t, want, b.pay[p], 3+0.35*float64(segments[p]), "of %d segments", segments[p])
		}
	}
}

func TestLedgerOfThousandsAtOnce(t *testing.T) {
	// 100,000 kernels run at once, so 200,000 segments of up to as many: quadratic would be minutes.
	const n = 100_000
	l, b := NewLedger(wide), newBooks()
	for i := range int64(n) {
		l.Add(kernel(uint32(i), 3*i, 3*n+7*i+1))
	}
	from := time.Now()
	l.Settle(0, true, b)
	require.Less(t, time.Since(from), 2*time.Minute)
	require.Equal(t, int64(3*n+7*(n-1)+1), l.Observed())
	require.Zero(t, b.idle)
	requireBalance(t, l, b)
	require.Nil(t, l.sweep.kernels)

	// The room for them goes when it was not needed from one settling to the next.
	l.Settle(0, false, b)
	require.LessOrEqual(t, cap(l.pending), roomKept)
}

func TestLedgerSortsWhatComesFromTheEnd(t *testing.T) {
	const n = 100_000
	l, b := NewLedger(wide), newBooks()
	for i := range int64(n) {
		l.Add(kernel(uint32(i), 10*(n-i), 10*(n-i)+5))
	}
	require.Equal(t, n, l.Pending())
	l.Settle(0, true, b)
	require.Equal(t, int64(10*n-5), l.Observed())
	require.Equal(t, int64(5*n), sum(b.pay))
	require.Empty(t, b.late)
}

func TestLedgerStateIsCompact(t *testing.T) {
	l := NewLedger(wide)
	r := rand.New(rand.NewPCG(9, 9))
	for i := range int64(1000) {
		l.Add(Work{Start: 1_700_000_000e9 + 10_000*i, End: 1_700_000_000e9 + 10_000*i + 5000, Key: r.Uint64(), Payer: 3, Stream: 5, Process: 1, Arrived: 1_700_000_009e9, Request: [16]byte{1}})
	}
	require.Less(t, len(l.AppendState(nil)), 20*1000)
}

func FuzzLedgerState(f *testing.F) {
	o := Options{SettleAfter: 5, IdleGap: 50, LiveWithin: 1000, GapThreshold: 3, MaxPending: 20, MaxStreams: 3, MaxIntervals: 5}
	l := NewLedger(o)
	f.Add(l.AppendState(nil))
	for i, w := range session(rand.New(rand.NewPCG(1, 1)), 60, 500, 50, 50, 1) {
		l.Add(w)
		if i%20 == 19 {
			l.Settle(w.Arrived, false, newBooks())
		}
		if i%10 == 0 {
			f.Add(l.AppendState(nil))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l := NewLedger(o)
		l.Add(kernel(1, 5, 9))
		before := l.AppendState(nil)
		alloctest.Limit{PerByte: 1 << 8, Constant: 1 << 18}.Check(t, len(b), func() { _, _ = NewLedger(o).LoadState(b) })
		rest, err := l.LoadState(b)
		if err != nil {
			require.ErrorIs(t, err, ErrState)
			require.Equal(t, before, l.AppendState(nil))
			return
		}
		require.LessOrEqual(t, len(rest), len(b))
		again := NewLedger(o)
		_, err = again.LoadState(l.AppendState(nil))
		require.NoError(t, err)
		observed, to := l.Observed(), newBooks()
		l.Add(kernel(1, 5, 9))
		l.Settle(1000, false, to)
		l.Settle(0, true, to)
		require.Zero(t, l.Pending())
		require.Equal(t, l.Observed()-observed, sum(to.pay)+to.idle)
		require.GreaterOrEqual(t, l.Observed(), observed)
	})
}

type nobody struct{ ns int64 }

func (n *nobody) Pay(_ uint32, _ [16]byte, ns int64)         { n.ns += ns }
func (n *nobody) Idle(ns int64)                              { n.ns += ns }
func (n *nobody) Gap(_, _ uint32, _ Cause, start, end int64) {}
func (n *nobody) Late(_ uint32, ns int64)                    {}

// BenchmarkLedger is per work, added and settled: a million at a time in order of their ends.
func BenchmarkLedger(b *testing.B) {
	for _, bm := range []struct {
		name    string
		streams int64
		random  bool
	}{{"one stream", 1, false}, {"eight streams at once", 8, false}, {"random order", 8, true}} {
		b.Run(bm.name, func(b *testing.B) {
			const n = 100_000
			works := make([]Work, n)
			r := rand.New(rand.NewPCG(1, 1))
			for i := range works {
				// Each stream has a kernel every 10 µs that takes 6 to 9.
				turn, stream := int64(i)/bm.streams, int64(i)%bm.streams
				start := 10_000*turn + r.Int64N(1000)
				works[i] = Work{Start: start, End: start + 6000 + r.Int64N(3000), Key: r.Uint64(), Payer: uint32(stream), Stream: uint32(stream), Request: [16]byte{byte(i)}}
			}
			slices.SortFunc(works, func(a, b Work) int { return int(a.End - b.End) })
			span := works[n-1].End + 1000
			if bm.random {
				r.Shuffle(n, func(i, j int) { works[i], works[j] = works[j], works[i] })
			}
			l := NewLedger(Options{SettleAfter: 1, IdleGap: 1 << 40, GapThreshold: 10_000, MaxPending: 1 << 20, MaxStreams: 100, MaxIntervals: 100})
			to := &nobody{}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				w := works[i]
				l.Add(w)
				if i++; i == n {
					i = 0
					l.Settle(1<<60, false, to)
					for k := range works {
						works[k].Start += span
						works[k].End += span
					}
				}
			}
			l.Settle(0, true, to)
			if to.ns != l.Observed() {
				b.Fatal("the books do not balance")
			}
		})
	}
}
