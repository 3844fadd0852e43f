// SPDX-License-Identifier: Apache-2.0

package main

// #include <stdlib.h>
// void gpufl_restore_limits(void);
import "C"

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/gpuflight/gpuflight/internal/recording/capture"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// What the runtime may take of a machine that belongs to the program.
const (
	maxProcs    = 4
	memoryLimit = 512 << 20
	// gcPercent lets garbage grow to four times the live memory between two collections. Live
	// memory is a few MiB, and the spans of half a second are more. With Go's default of 100 the
	// collector runs eight times a second and gives back pages that are needed again at once.
	// docs/performance.md has the measurement; memoryLimit bounds the total.
	gcPercent = 400
)

const (
	// silentFile is left among the summaries by a process that could send nothing. Later processes
	// of the same command then wait for a shorter time for the Collector.
	silentFile = "silent"
	// lessPatience is for sending, once that is there.
	lessPatience = 500 * time.Millisecond
)

// init runs after package syscall has raised the limit of open files, and before anything that the
// program calls can have entered Go.
func init() { C.gpufl_restore_limits() }

// recording is what runs in this process, from InitializeInjection to its exit.
type recording struct {
	capture *capture.Capture
	log     *slog.Logger
	timeout time.Duration
	// summaries is the folder for them, "" without one.
	summaries string
}

// current is nil until everything runs, and again once it has been stopped.
var current atomic.Pointer[recording]

// gpuflInjectStart begins to record. It answers 1 if there is something to do at exit.
//
//export gpuflInjectStart
func gpuflInjectStart() (atExit C.int) {
	stdlog.SetOutput(io.Discard) // package net/http writes to it
	log := slog.New(slog.DiscardHandler)
	defer func() {
		if r := recover(); r != nil {
			log.Error("gpuflight: nothing is recorded", "error", r)
			atExit = 0
		}
	}()
	runtime.GOMAXPROCS(max(2, min(maxProcs, runtime.NumCPU()/4)))
	// GOGC of the environment is for the program's own runtime, if it has one.
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)

	settings, wrong := recorder.SettingsFromEnv(environment)
	log = slog.New(slog.NewTextHandler(stderr{}, &slog.HandlerOptions{Level: settings.LogLevel}))
	if settings.Disabled {
		return 0
	}
	if wrong != nil {
		log.Warn("gpuflight: defaults are used where a setting is wrong", "error", wrong)
	}
	sending, err := otlp.FromEnv(environment)
	if err != nil {
		log.Error("gpuflight: nothing is recorded, since it could not be sent", "error", err)
		return 0
	}
	windows, wrong := deep.ConfigFromEnv(environment)
	engines, wrongToo := engine.SettingsFromEnv(environment)
	if wrong := errors.Join(wrong, wrongToo); wrong != nil {
		log.Warn("gpuflight: defaults are used for deep windows where a setting is wrong", "error", wrong)
	}
	c, err := capture.Start(capture.Options{
		Settings: settings, Sending: sending, Logger: log,
		Deep: windows, Window: engines, Place: control.PlaceFromEnv(environment),
	})
	if err != nil {
		log.Error("gpuflight: nothing is recorded", "error", err)
		return 0
	}
	r := &recording{capture: c, log: log, timeout: max(settings.ShutdownTimeout, settings.DrainTimeout), summaries: settings.SummaryDir}
	r.announce()
	current.Store(r)
	return 1
}

// gpuflInjectStop ends the recording and sends what is left, within GPUFLIGHT_SHUTDOWN_TIMEOUT, or
// within GPUFLIGHT_DRAIN_TIMEOUT while the endpoint accepts data.
//
//export gpuflInjectStop
func gpuflInjectStop() {
	r := current.Swap(nil)
	if r == nil {
		return
	}
	sendTimeout := r.sendTimeout()
	done := make(chan struct{})
	// Not on this thread, which is the program's. If CUPTI never returns, the program still ends. A
	// signal that a closed connection raises goes to a thread that blocks it.
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.log.Error("gpuflight: the end of the recording failed", "error", p)
			}
		}()
		// The last fifth of the time is for what comes after sending: the summary tells what was
		// not sent.
		ctx, cancel := context.WithTimeout(context.Background(), r.timeout*4/5)
		defer cancel()
		r.capture.LimitSending(sendTimeout * 4 / 5)
		// Not detached from the driver: the process ends, so nothing will be slower after this.
		summary, err := r.capture.Stop(ctx, false)
		if err != nil {
			r.log.Info("gpuflight: the recording is not complete", "error", err)
		}
		r.tellOthers(summary.Delivery)
	}()
	late := time.NewTimer(r.timeout)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		r.log.Warn("gpuflight: the end of the recording took too long; it is not complete", "timeout", r.timeout)
	}
}

// sendTimeout is how long sending may take at the end, with what comes after it. Ending the
// recording itself has no such limit: on a busy machine the session's log would be missing.
func (r *recording) sendTimeout() time.Duration {
	if r.summaries != "" {
		if _, err := os.Stat(filepath.Join(r.summaries, silentFile)); err == nil {
			return min(r.timeout, lessPatience)
		}
	}
	return r.timeout
}

// tellOthers says so if nothing at all could be sent.
func (r *recording) tellOthers(deliveries []recorder.Delivery) {
	lost := false
	for _, d := range deliveries {
		if d.Sent > 0 {
			return
		}
		lost = lost || len(d.Unsent) > 0
	}
	if !lost || r.summaries == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(r.summaries, silentFile), nil, 0o600); err != nil {
		r.log.Warn("gpuflight: other processes cannot be told that nothing was sent", "error", err)
	}
}

// announce leaves a summary without an end, so that a process that is killed is known to have
// recorded.
func (r *recording) announce() {
	if r.summaries == "" {
		return
	}
	cfg, status := r.capture.Config(), r.capture.Status()
	s := recorder.Summary{
		PID: cfg.PID, Command: cfg.Command, Service: cfg.ServiceName, Instance: cfg.InstanceID,
		StartNs: time.Now().UnixNano(),
		Reason:  status.Reason, Detail: status.Detail, Library: status.Library, Version: status.Version,
	}
	if rec := r.capture.Recorder(); rec != nil {
		trace := rec.SessionRef().Trace
		s.Trace = hex.EncodeToString(trace[:])
	}
	if err := s.Write(r.summaries); err != nil {
		r.log.Warn("gpuflight: no summary can be written", "error", err)
	}
}

// stderr is the program's. Not os.Stderr, which ends the process where nobody reads what it writes;
// and not on the calling thread, which may be the program's and would get SIGPIPE.
type stderr struct{}

func (stderr) Write(b []byte) (n int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = syscall.Write(2, b)
	}()
	<-done
	return n, err
}

// environment is getenv of C: what the program has set until now. os.Getenv has only what it was
// started with.
func environment(name string) string {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return C.GoString(C.getenv(n)) // "" for NULL
}

// main is never called: a c-shared library must have it.
func main() {}
