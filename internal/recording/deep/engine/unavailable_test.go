// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Where nothing can be recorded, each window says why, and so does a window of both engines.
func TestRefusingSaysWhy(t *testing.T) {
	engines := Unavailable(cupti.Status{Reason: cupti.ReasonOtherProfiler, Detail: "another profiler holds CUPTI"})
	c, err := deep.New(deep.Config{Blackout: -1, CoolDown: -1}, engines)
	require.NoError(t, err)
	c.Start()
	for _, engine := range []deep.Engine{deep.PC, deep.SASS, deep.Both} {
		ticket, err := c.RequestWindow(deep.Request{Engine: engine, For: deep.MinFor})
		require.NoError(t, err)
		w, err := ticket.Wait(t.Context())
		require.NoError(t, err)
		assert.Equal(t, deep.Outcome{Status: deep.StatusAnotherProfiler, Text: "another profiler holds CUPTI"}, w.Outcome)
		assert.Empty(t, w.Closed, "it never opened")
	}
	require.NoError(t, c.Stop(t.Context()))
	assert.Equal(t, uint64(3), c.Report().Attempts)
}

// While the driver makes the first context it does not answer: that is no context yet, and it is
// asked once.
func TestReadyDoesNotWaitForTheDriver(t *testing.T) {
	asked, release := 0, make(chan bool)
	src := &source{contexts: func() bool {
		asked++
		return <-release
	}}
	e := New(Settings{}, src, newSink(), nil)
	assert.False(t, e.Ready())
	assert.False(t, e.Ready())
	release <- true
	for !e.Ready() { // its answer comes in a moment
	}
	assert.Equal(t, 1, asked)
	src.contexts = func() bool { return false }
	assert.False(t, e.Ready())
	src.contexts = nil
	for !e.Ready() {
	}
}

// Where launches do not become idle, activity is turned on as soon as they do, and not beside the next
// window.
func TestActivityIsResumedWhenLaunchesRest(t *testing.T) {
	restless := &cupti.Error{Status: cupti.Status{Reason: cupti.ReasonNotQuiesced, Detail: "no rest"}}
	counted := &cupti.DeepResult{Engine: cupti.EngineSASS}
	window := func(e *Engines) {
		s, err := e.Arm(deep.SASS, 1)
		require.NoError(t, err)
		_, err = s.Disarm()
		require.NoError(t, err)
	}
	src := &source{result: counted, resumeErrs: []error{restless, restless}, resumedAt: make(chan int, 10)}
	e := New(Settings{}, src, newSink(), nil)
	window(e)
	for <-src.resumedAt < 3 {
	}
	stop(t, e)

	// Another window has begun.
	src = &source{result: counted, resumeErrs: []error{restless}}
	e = New(Settings{}, src, newSink(), nil)
	window(e)
	_, err := e.Arm(deep.SASS, 2)
	require.NoError(t, err)
	e.late.Wait()
	assert.Equal(t, 1, src.resumed)
	stop(t, e)

	// The recording ends.
	src = &source{result: counted, resumeErrs: []error{restless}}
	e = New(Settings{}, src, newSink(), nil)
	window(e)
	stop(t, e)
	assert.Equal(t, 1, src.resumed)
}

// A window without room for more figures closes, while those that it has are whole.
func TestFullWindowCloses(t *testing.T) {
	e := New(Settings{}, &source{drain: cupti.ErrFull, result: samples(0)}, newSink(), nil)
	s, err := e.Arm(deep.PC, 1)
	require.NoError(t, err)
	assert.Equal(t, deep.ErrFull, s.Drain())
}

// An engine that cannot be disarmed may still be armed, because the program stays busy or CUPTI has
// not returned. No other engine may be armed then, and its results are not used.
func TestWindowThatCannotBeClosedIsNotDisarmed(t *testing.T) {
	for engine, problem := range map[deep.Engine]cupti.Status{
		deep.SASS: {Reason: cupti.ReasonNotQuiesced, Detail: "no rest"},
		deep.PC:   {Reason: cupti.ReasonStuck, Detail: "it hangs"},
	} {
		t.Run(string(problem.Reason), func(t *testing.T) {
			r := samples(0)
			r.Problem = &problem
			src := &source{result: r}
			e := New(Settings{}, src, newSink(), nil)
			s, err := e.Arm(engine, 1)
			require.NoError(t, err)
			_, err = s.Disarm()
			var refused *deep.Error
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, deep.StatusBroken, refused.Outcome.Status)
			assert.Zero(t, src.resumed)
		})
	}
}
