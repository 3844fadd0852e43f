// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/semconv"
)

// detachable is a source whose program launches 45,000 kernels/s, in the time of the test's bubble.
type detachable struct {
	*source
	mu       sync.Mutex
	last     time.Time
	detached bool
	stopped  bool
	recorded time.Duration
	records  float64
	// detachErrors and attachErrors are returned in turn. The last one is returned forever if
	// forever is set.
	detachErrors, attachErrors []error
	forever                    bool
	detaches, attaches         []time.Time
	panics                     bool
}

func newDetachable() *detachable {
	return &detachable{source: &source{devices: oneDevice}, last: time.Now()}
}

// advance launches the kernels of the time since the last call. The caller holds the lock.
func (d *detachable) advance() {
	dt := time.Since(d.last)
	d.last = d.last.Add(dt)
	if !d.detached {
		d.recorded += dt
		d.records += 45_000 * dt.Seconds()
	}
}

func (d *detachable) next(errs *[]error) error {
	if len(*errs) == 0 {
		return nil
	}
	err := (*errs)[0]
	if len(*errs) > 1 || !d.forever {
		*errs = (*errs)[1:]
	}
	return err
}

// Take waits without polling.
func (d *detachable) Take(wait time.Duration) (Records, error) {
	if b, err := d.source.Take(0); b != nil || err != nil {
		return b, err
	}
	time.Sleep(wait)
	return nil, nil
}

func (d *detachable) Detach(time.Duration) (time.Duration, error) {
	const held = 12 * time.Millisecond
	time.Sleep(held)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.advance()
	d.detaches = append(d.detaches, time.Now())
	if d.panics {
		panic("detach")
	}
	if d.stopped {
		return 0, cupti.ErrNotRunning
	}
	if err := d.next(&d.detachErrors); err != nil {
		return held, err
	}
	d.detached = true
	return held, nil
}

func (d *detachable) Attach() error {
	time.Sleep(12 * time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.advance()
	d.attaches = append(d.attaches, time.Now())
	if d.stopped {
		return cupti.ErrNotRunning
	}
	if err := d.next(&d.attachErrors); err != nil {
		return err
	}
	d.detached = false
	return nil
}

func (d *detachable) Stats() cupti.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.advance()
	return cupti.Stats{Records: uint64(d.records)}
}

// record runs a recorder on d for some time, with a budget of 2 %.
func record(t *testing.T, d *detachable, length time.Duration) (Summary, *sink, string) {
	t.Helper()
	var log bytes.Buffer
	out := &sink{}
	r, err := New(Config{
		InstanceID: testInstance, ServiceName: "app", FlushInterval: 200 * time.Millisecond, OverheadBudget: 0.02,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, d, out)
	require.NoError(t, err)
	r.Start()
	time.Sleep(length)
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.end()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	begin := time.Now()
	s := r.Stop(ctx)
	assert.Less(t, time.Since(begin), 2*time.Second, "Stop waited for a pause")
	require.Empty(t, s.Failure)
	require.NotNil(t, s.Overhead)
	return s, out, log.String()
}

func TestOverhead_Slices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDetachable()
		s, out, log := record(t, d, 5*time.Minute)
		o := s.Overhead
		assert.True(t, o.Met, "%+v", o)
		assert.InDelta(t, 0.02, o.Budget, 1e-12)
		assert.InDelta(t, 0.018, o.Ratio, 0.002)
		assert.InDelta(t, d.recorded.Seconds(), o.RecordedSeconds, 2)
		assert.InDelta(t, 0.07, o.RecordedRatio, 0.03)
		assert.Equal(t, int(o.Slices), len(d.attaches)+1)
		assert.Greater(t, o.Slices, uint64(30))
		assert.Zero(t, o.Failures)
		assert.Empty(t, o.Failure)
		assert.NotContains(t, log, "level=WARN")

		assert.InDelta(t, 0.02, out.points(semconv.MetricGpuflightOverheadBudget)[""], 1e-9)
		assert.InDelta(t, o.Ratio, out.points(semconv.MetricGpuflightOverheadRatio)[""], 1e-9)
		assert.InDelta(t, o.RecordedSeconds, out.points(semconv.MetricGpuflightRecordedTime)[""], 1e-9)
		assert.Contains(t, s.sentence(), "recorded in ")
		assert.NotContains(t, s.sentence(), "budget was exceeded")
	})
}

// A program with few launches is recorded all the time.
func TestOverhead_NoNeedToDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDetachable()
		d.detached = true // makes no records; the limiter does not know it
		s, _, _ := record(t, d, time.Minute)
		assert.Empty(t, d.detaches)
		assert.InDelta(t, 1, s.Overhead.RecordedRatio, 0.01)
		assert.Equal(t, uint64(1), s.Overhead.Slices)
		assert.True(t, s.Overhead.Met)
	})
}

func TestOverhead_CannotDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDetachable()
		d.detachErrors, d.forever = []error{cupti.ErrNotDetached}, true
		s, _, log := record(t, d, 5*time.Minute)
		o := s.Overhead
		assert.Len(t, d.detaches, 1, "detach was retried")
		assert.InDelta(t, 1, o.RecordedRatio, 0.01)
		assert.False(t, o.Met)
		assert.InDelta(t, 45_000*3e-6, o.Ratio, 0.01)
		assert.Equal(t, "CUPTI cannot be detached, so everything is recorded", o.Failure)
		assert.Contains(t, s.sentence(), ": the budget was exceeded; CUPTI cannot be detached, so everything is recorded")
		assert.Contains(t, log, `level=WARN msg="the overhead budget is exceeded: CUPTI cannot be detached, so everything is recorded"`)
	})
}

func TestOverhead_WorkInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDetachable()
		d.detachErrors = []error{cupti.ErrInFlight, cupti.ErrInFlight, cupti.ErrInFlight}
		s, _, log := record(t, d, 5*time.Minute)
		require.Greater(t, len(d.detaches), 5)
		for i, least := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			assert.GreaterOrEqual(t, d.detaches[i+1].Sub(d.detaches[i]), least)
		}
		assert.Equal(t, uint64(3), s.Overhead.Failures)
		assert.Empty(t, s.Overhead.Failure)
		assert.True(t, s.Overhead.Met, "%+v", s.Overhead)
		assert.NotContains(t, log, "level=WARN")
	})
}

func TestOverhead_CannotAttach(t *testing.T) {
	refused := errors.New("another profiler holds CUPTI")
	for _, test := range []struct {
		name    string
		forever bool
		failure string
	}{
		{"some times", false, ""},
		{"forever", true, "CUPTI cannot be attached: another profiler holds CUPTI"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDetachable()
				d.attachErrors, d.forever = []error{refused, refused, refused}, test.forever
				s, _, log := record(t, d, 10*time.Minute)
				o := s.Overhead
				assert.Equal(t, test.failure, o.Failure)
				assert.Equal(t, 1, bytes.Count([]byte(log), []byte(`level=WARN msg="nothing is recorded: CUPTI cannot be attached again"`)))
				assert.True(t, o.Met)
				if test.forever {
					assert.Less(t, o.RecordedRatio, 0.05)
					assert.InDelta(t, 14, len(d.attaches), 3) // 1, 2, 4, … 32 s, then each minute
					assert.Contains(t, s.sentence(), test.failure)
				} else {
					assert.Equal(t, uint64(3), o.Failures)
					assert.Greater(t, o.Slices, uint64(30))
				}
			})
		})
	}
}

func TestOverhead_StopInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDetachable()
		s, _, _ := record(t, d, 3*time.Second) // the first slice ends soon, and the pause is longer
		assert.Len(t, d.detaches, 1)
		assert.Empty(t, d.attaches)
		assert.InDelta(t, 0.3, s.Overhead.RecordedSeconds, 0.1)
		assert.InDelta(t, s.Overhead.RecordedSeconds/3.2, s.Overhead.RecordedRatio, 0.01)
	})
}

// The recorder survives a panic of its limiter and then records everything.
func TestOverhead_Panic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDetachable()
		d.panics = true
		s, _, log := record(t, d, 10*time.Second)
		assert.Contains(t, s.Overhead.Failure, "internal error: detach")
		assert.Contains(t, log, "level=ERROR")
		assert.Len(t, d.attaches, 1)
		assert.False(t, d.detached)
	})
}

func TestOverhead_SourceCannotDetach(t *testing.T) {
	_, err := New(Config{InstanceID: testInstance, OverheadBudget: 0.02}, &source{}, &sink{})
	assert.EqualError(t, err, "recorder: overhead budget: the source cannot be detached")
}
