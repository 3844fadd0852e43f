// SPDX-License-Identifier: Apache-2.0

package deep

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep/rule"
)

// Engine is what looks inside kernels, as users type it.
type Engine string

// The engines. Both is not an engine: a window of both is halved, PC sampling first.
const (
	PC   Engine = "pc"
	SASS Engine = "sass"
	Both Engine = "both"
)

// ParseEngine reads an engine; "" is PC.
func ParseEngine(text string) (Engine, error) {
	switch e := Engine(text); e {
	case "":
		return PC, nil
	case PC, SASS, Both:
		return e, nil
	}
	return "", fmt.Errorf("%q is no engine; there are pc, sass and both", text)
}

// Takes says in a word or three what the engine takes, which is what Collected.Samples counts.
func (e Engine) Takes() string {
	switch e {
	case SASS:
		return "counters"
	case Both:
		return "samples and counters"
	}
	return "samples"
}

// parts are the engines of a window, in order.
func (e Engine) parts() []Engine {
	if e == Both {
		return []Engine{PC, SASS}
	}
	return []Engine{e}
}

// Cause is who asked for a window.
type Cause string

// The causes.
const (
	CauseCall     Cause = "call"     // the program, by the SDK
	CauseSignal   Cause = "signal"   // a signal to the process
	CauseSocket   Cause = "socket"   // gpuflight deep, by the control socket
	CauseSchedule Cause = "schedule" // --deep-after, --deep-every
	CauseRule     Cause = "rule"     // --deep-when
)

// Request asks for a window.
type Request struct {
	// Engine is PC, SASS or Both; "" is the configured one.
	Engine Engine
	// For is the window's length, half for each engine of Both; 0 is the configured one.
	For   time.Duration
	Cause Cause
	// Why is one short text for people, such as a rule and the figure that met it.
	Why string
	// Firing is the rule that was met, nil where it was none.
	Firing *rule.Firing
}

// CloseReason is why a window closed.
type CloseReason string

// The reasons. A window that never opened has none.
const (
	ClosedTime    CloseReason = "time"    // it had its time
	ClosedAsked   CloseReason = "asked"   // somebody asked for its end
	ClosedLimit   CloseReason = "limit"   // an engine has collected what it has room for
	ClosedExit    CloseReason = "exit"    // the process or the recording ends
	ClosedFailure CloseReason = "failure" // an engine failed
)

// Status is what came of a request, one word.
type Status string

// The statuses. Those up to StatusBroken come from an engine, the others from the controller.
const (
	StatusCollected       Status = "collected"
	StatusAnotherProfiler Status = "another_profiler"
	StatusNoPermission    Status = "no_permission"
	StatusUnsupported     Status = "unsupported"
	StatusNoContext       Status = "no_context"
	StatusCapturing       Status = "capture_under_way"
	StatusNotQuiesced     Status = "calls_under_way"
	StatusFailed          Status = "failed"
	StatusBroken          Status = "broken"
	StatusAtExit          Status = "at_exit"
	StatusBusy            Status = "window_open"
	StatusBlackout        Status = "blackout"
	StatusCoolDown        Status = "cool_down"
	StatusMaximum         Status = "maximum"
	StatusPerHour         Status = "maximum_per_hour"
	StatusShare           Status = "maximum_share"
	StatusSASSUsed        Status = "sass_used"
	StatusBadRequest      Status = "invalid_request"
)

// sentences say what a status means, each with what to do where something can be done.
var sentences = map[Status]string{
	StatusCollected:       "the window was opened and its data collected",
	StatusAnotherProfiler: "another profiler holds the GPU's counters; end it and ask again",
	StatusNoPermission:    "this process may not read the GPU's counters; allow it with NVreg_RestrictProfilingToAdminUsers=0 or give it CAP_SYS_ADMIN",
	StatusUnsupported:     "this GPU, driver or CUPTI does not have the engine",
	StatusNoContext:       "the process has no CUDA context yet; ask again once it uses the GPU",
	StatusCapturing:       "a CUDA graph is being captured, which an engine would spoil; ask again later",
	StatusNotQuiesced:     "the program was busy with launches until the limit; ask again",
	StatusFailed:          "the engine failed",
	StatusBroken:          "the engine failed before and is not used in this process any more",
	StatusAtExit:          "the process is at its end",
	StatusBusy:            "another window is open",
	StatusBlackout:        "windows are not yet allowed so soon after the start",
	StatusCoolDown:        "the window before ended too recently",
	StatusMaximum:         "the process has had all the windows that are allowed",
	StatusPerHour:         "the process has had all the windows of this hour",
	StatusShare:           "the window would pass the share of time that windows may have",
	StatusSASSUsed:        "the process has had its window of sass, since CUPTI cannot be configured twice; ask for pc, or restart the process",
	StatusBadRequest:      "the request makes no sense",
}

// Outcome is what came of a request or of an engine's part in a window.
type Outcome struct {
	Status Status `json:"status"`
	// Text is one sentence for people, without a full stop.
	Text string `json:"text"`
}

func outcome(s Status, detail string) Outcome {
	text := sentences[s]
	if text == "" {
		text = string(s)
	}
	if detail != "" {
		text += " (" + detail + ")"
	}
	return Outcome{Status: s, Text: text}
}

// Err returns nil if something was collected, else an *Error that says the same.
func (o Outcome) Err() error {
	if o.Status == StatusCollected {
		return nil
	}
	return &Error{Outcome: o}
}

// Error is an outcome other than collected. Controller returns it, and Engines may return it from
// Arm so that the window says why it has nothing; any other error is StatusFailed.
type Error struct{ Outcome Outcome }

// NewError returns an error with the status's own sentence and, in brackets, a detail; "" adds
// nothing.
func NewError(s Status, detail string) *Error { return &Error{Outcome: outcome(s, detail)} }

func (e *Error) Error() string { return "deep window: " + e.Outcome.Text }

// outcomeOf says what an engine's error means.
func outcomeOf(err error) Outcome {
	var e *Error
	switch {
	case err == nil:
		return outcome(StatusCollected, "")
	case errors.As(err, &e):
		return e.Outcome
	}
	return outcome(StatusFailed, err.Error())
}

// ErrFull is returned by Session.Drain where the engine has no room for more: the window closes by
// limit, and what it has is kept.
var ErrFull = errors.New("the engine has collected what it has room for")

// Collected counts what an engine brought home.
type Collected struct {
	// Rows are the figures after aggregation, by function, place and reason or metric.
	Rows uint64 `json:"rows"`
	// Samples are program counters sampled, or values counted, before aggregation.
	Samples uint64 `json:"samples"`
	// Functions are the kernels seen.
	Functions uint64 `json:"functions"`
	// Lost is what the engine knows to be missing, in the units of Samples.
	Lost uint64 `json:"lost"`
}

func (c *Collected) add(o Collected) {
	c.Rows += o.Rows
	c.Samples += o.Samples
	c.Functions += o.Functions
	c.Lost += o.Lost
}

// Engines arms what looks inside kernels. The controller makes one call at a time, and none after a
// call that did not return in time, panicked or failed to disarm. The one exception is the Disarm of
// a session whose Arm or Drain returned late.
type Engines interface {
	// Ready says whether there is anything to look into yet, such as a context of the device.
	// Windows of the schedule wait for it. It returns within a moment, and is called by the
	// goroutine that runs the windows.
	Ready() bool
	// Arm starts an engine, PC or SASS, for a window. With an error nothing is armed. While SASS is
	// armed, activity records are off.
	Arm(e Engine, window uint64) (Session, error)
}

// Session is an armed engine.
type Session interface {
	// Drain moves what was collected out of the engine's buffers. It is called four times a second.
	// ErrFull ends the window, any other error as a failure.
	Drain() error
	// Disarm stops the engine, takes what is left and returns the sums. An error says that the
	// engine may still be armed; what merely could not be collected is counted as Lost.
	Disarm() (Collected, error)
}

// Part is what one engine did in a window.
type Part struct {
	Engine Engine `json:"engine"`
	// Start and End bound the time in which the engine was or may have been armed, and activity
	// paused; both are zero where it was not tried.
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// Armed says that the engine ran.
	Armed bool `json:"armed"`
	// Paused says that activity was or may have been off.
	Paused    bool      `json:"paused"`
	Outcome   Outcome   `json:"outcome"`
	Collected Collected `json:"collected"`
}

// Window is one deep window.
type Window struct {
	// ID counts from 1 in each process.
	ID     uint64 `json:"id"`
	Engine Engine `json:"engine"`
	Cause  Cause  `json:"cause"`
	Why    string `json:"why,omitempty"`
	// Firing is the rule that was met, nil where it was none. Why has it in words.
	Firing *rule.Firing `json:"-"`
	// For is the length asked for.
	For   time.Duration `json:"for_ns"`
	Start time.Time     `json:"start"`
	// End is zero while the window is open.
	End       time.Time   `json:"end"`
	Closed    CloseReason `json:"closed,omitempty"`
	Outcome   Outcome     `json:"outcome"`
	Collected Collected   `json:"collected"`
	Parts     []Part      `json:"parts"`
}
