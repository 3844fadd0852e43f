// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

// Engine is what looks inside kernels in a deep window.
type Engine string

// The engines.
const (
	// EnginePC samples program counters: where warps are, and what they wait for. Kernels run as
	// they are.
	EnginePC Engine = "pc"
	// EngineSASS has each instruction count how often it ran, with how many lanes and how much
	// memory: exact, and slower. Spans and metrics have nothing of what is launched meanwhile.
	EngineSASS Engine = "sass"
	// EngineBoth gives half of the window to each.
	EngineBoth Engine = "both"
)

// DeepOption is a setting of one deep window.
type DeepOption func(*deep.Request)

// WithEngine chooses the engine; the default is GPUFLIGHT_DEEP_ENGINE, or EnginePC.
func WithEngine(e Engine) DeepOption {
	return func(r *deep.Request) { r.Engine = deep.Engine(e) }
}

// WithReason is a short text for people, which the window's span has.
func WithReason(why string) DeepOption {
	return func(r *deep.Request) { r.Why = why }
}

// Window is what came of a deep window.
type Window struct {
	// Status is one stable word: collected, or why there is nothing: not_initialized, disabled,
	// another_profiler, no_permission, unsupported, no_context, capture_under_way, failed, broken,
	// at_exit, window_open, blackout, cool_down, maximum, maximum_per_hour, maximum_share,
	// sass_used. Where nothing is recorded it is the reason of [CurrentStatus]. It is open if the
	// window had not closed when the context ended.
	Status string `json:"status"`
	// Detail says in one sentence what came of it and, where something can be done, what.
	Detail string `json:"detail,omitempty"`
	// ID is the window's number in the process, from 1, as its span has it in cuda.deep_window.id;
	// 0 if it was refused.
	ID uint64 `json:"id,omitempty"`
	// Closed is why it closed: time, asked, limit, exit or failure.
	Closed string `json:"closed,omitempty"`
	// Start and End bound the window, with arming and disarming.
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// Rows are figures by function, instruction and stall reason or metric, before the bound on
	// what is sent. Samples were taken, or figures counted, of which Lost are in no row. Functions
	// were seen.
	Rows      uint64 `json:"rows"`
	Samples   uint64 `json:"samples"`
	Lost      uint64 `json:"lost"`
	Functions uint64 `json:"functions"`
	// Paused is how long nothing else was recorded for it.
	Paused time.Duration `json:"paused_ns"`
}

// Collected says whether the window has figures of at least one engine.
func (w Window) Collected() bool { return w.Status == string(deep.StatusCollected) }

// StatusOpen is the status of a window that had not closed when its caller's context ended.
const StatusOpen = "open"

// DeepWindow looks inside the kernels of this process for d, between 10 ms and a minute, or for the
// configured time if d is 0. It returns when the window has closed. The results are sent as logs:
// docs/deep-profiling.md says how to read them. The limits on windows apply to it. A window that
// they refuse is in Status and not an error, and nothing changes where nothing is recorded.
//
// Errors are about the request, or ctx's: the window is then asked to close and may still be at it.
// It may be called by any goroutine; who asks during the window of another caller, for the same
// engine, joins it.
func DeepWindow(ctx context.Context, d time.Duration, opts ...DeepOption) (Window, error) {
	s := current.Load()
	if s == nil || s.recorder == nil {
		status := CurrentStatus()
		return Window{Status: status.Reason, Detail: status.Detail}, ctx.Err()
	}
	controller := s.capture.Windows()
	if controller == nil {
		return Window{Status: "disabled", Detail: "deep windows are switched off: set GPUFLIGHT_DEEP=1 or use WithDeepWindows"}, ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return Window{Status: string(deep.StatusBadRequest)}, err
	}
	r := deep.Request{For: d, Cause: deep.CauseCall}
	for _, opt := range opts {
		opt(&r)
	}
	ticket, err := controller.RequestWindow(r)
	if err != nil {
		var refused *deep.Error
		if !errors.As(err, &refused) {
			return Window{Status: string(deep.StatusFailed), Detail: err.Error()}, err
		}
		w := Window{Status: string(refused.Outcome.Status), Detail: refused.Outcome.Text}
		if refused.Outcome.Status == deep.StatusBadRequest {
			return w, fmt.Errorf("gpufl: %w", err)
		}
		return w, nil
	}
	closed, err := ticket.Wait(ctx)
	if err != nil {
		ticket.Close()
		w := windowOf(&closed)
		w.Status, w.Detail = StatusOpen, "the context ended before the window did: it closes by itself"
		return w, err
	}
	return windowOf(&closed), nil
}

func windowOf(w *deep.Window) Window {
	out := Window{
		Status: string(w.Outcome.Status), Detail: w.Outcome.Text, ID: w.ID, Closed: string(w.Closed), Start: w.Start, End: w.End,
		Rows: w.Collected.Rows, Samples: w.Collected.Samples, Lost: w.Collected.Lost, Functions: w.Collected.Functions,
	}
	for i := range w.Parts {
		if p := &w.Parts[i]; p.Paused {
			out.Paused += p.End.Sub(p.Start)
		}
	}
	return out
}
