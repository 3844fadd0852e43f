// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// jumped is what time.Now returns after the wall clock was set: only the seconds of the wall clock
// differ. They are in bits 30 and above of the first word of a time.Time.
func jumped(t *testing.T, now time.Time, by time.Duration) time.Time {
	t.Helper()
	j := now
	*(*uint64)(unsafe.Pointer(&j)) += uint64(by/time.Second) << 30
	require.Zero(t, j.Sub(now), "the monotonic clock")
	require.Equal(t, now.Unix()+int64(by/time.Second), j.Unix())
	return j
}

func TestNow_ClockJump(t *testing.T) {
	now := time.Now()
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		assert.Equal(t, Now(now), Now(jumped(t, now, by)), "by %v", by)
	}
	assert.Equal(t, int64(time.Second), Now(now.Add(time.Second))-Now(now))
	assert.InDelta(t, float64(time.Now().UnixNano()), float64(Now(time.Now())), float64(time.Minute))
}

// TestDecoder_ClockJump sets the time that the decoder is given back or forward by a day while a
// kernel waits for its scope, in one decoder and over a restart. It waits for ScopeWait and no longer.
func TestDecoder_ClockJump(t *testing.T) {
	const scopeWait = 10 * time.Second
	for _, tt := range []struct {
		name    string
		by      time.Duration
		restart bool
	}{
		{"back", -24 * time.Hour, false},
		{"back over a restart", -24 * time.Hour, true},
		{"forward over a restart", 24 * time.Hour, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t, Options{ScopeWait: scopeWait})
			s.kernel(1, 1000, 100, "")
			s.step(Step{})
			waiting := func() int {
				rows, events := s.d.Waiting()
				return rows + events
			}
			require.Equal(t, 1, waiting())
			if s.now += int64(tt.by); tt.restart {
				d := NewDecoder(Options{ScopeWait: scopeWait})
				require.NoError(t, d.LoadState(s.d.AppendState(nil), s.d.AppendDictionaries(nil)))
				d.Resume(s.now)
				s.d = d
			}
			s.step(Step{AtEnd: atEnd})
			assert.Equal(t, 1, waiting(), "it was released at once")
			s.now += int64(scopeWait)
			s.step(Step{AtEnd: atEnd})
			assert.Zero(t, waiting())
		})
	}
}

// TestDecoder_StateOfTheFuture repeats steps from a state whose times are a day ahead.
func TestDecoder_StateOfTheFuture(t *testing.T) {
	s := newScript(t, Options{ScopeWait: 10 * time.Second})
	s.kernel(1, 1000, 100, "")
	s.step(Step{})
	d := NewDecoder(Options{ScopeWait: 10 * time.Second})
	require.NoError(t, d.LoadState(s.d.AppendState(nil), s.d.AppendDictionaries(nil)))
	s.d = d
	s.now -= int64(24 * time.Hour)
	s.step(Step{AtEnd: atEnd})
	s.now += int64(10 * time.Second)
	s.step(Step{AtEnd: atEnd})
	rows, events := d.Waiting()
	assert.Zero(t, rows+events)
}
