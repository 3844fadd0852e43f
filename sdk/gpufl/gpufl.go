// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/internal/recording/capture"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// instrumentationName names the SDK as the maker of scopes' spans.
const instrumentationName = "github.com/gpuflight/gpuflight/sdk/gpufl"

// ErrInitialized is returned by Init when there is a recording whose shutdown has not been called.
var ErrInitialized = errors.New("gpufl: Init was called already; call its shutdown first")

var (
	// starting is held by Init and shutdown, so that there is one recording at a time.
	starting sync.Mutex
	// current is what Scope sees; nil before Init and after shutdown.
	current atomic.Pointer[session]
	// running is current, or one whose shutdown goes on; guarded by starting.
	running *session
	// made is the last provider that Init made and set: after its shutdown it is still the global
	// one, and none that the application chose. Guarded by starting.
	made *sdktrace.TracerProvider
	// observed has the instruments of the last recording with a MeterProvider. Guarded by starting.
	observed *metricBridge
)

// session is what one Init began.
type session struct {
	tracer   trace.Tracer
	capture  *capture.Capture
	recorder *recorder.Recorder       // nil where nothing is recorded
	provider *sdktrace.TracerProvider // nil if the application has its own
	// span is the session's span; invalid if nothing is recorded and there is no TRACEPARENT.
	span trace.SpanContext
	// link is a link to span, for the roots of traces.
	link    trace.SpanStartOption
	timeout time.Duration
	logger  *slog.Logger

	stacks *stacks // of scopes; nil unless they are requested

	misplaced atomic.Uint64
	once      sync.Once
	outcome   error
}

// Init begins to record this process. It reads the environment, loads CUPTI, and returns at once:
// nothing is connected in the caller's way. An error says in one sentence which setting is wrong,
// or is ErrInitialized; nothing is recorded then. A missing GPU or CUPTI is not an error, see
// [CurrentStatus].
//
// shutdown ends the recording, sends what is left, and returns within ctx and
// GPUFLIGHT_SHUTDOWN_TIMEOUT (5s), whichever is shorter. Its error says what was not sent. It may
// be called more than once. A program that ends without it loses what was not sent yet, and nothing
// hangs. After an error shutdown does nothing; it is never nil. ctx only carries a deadline for
// Init itself: ending it later stops nothing.
func Init(ctx context.Context, opts ...Option) (shutdown func(context.Context) error, err error) {
	nothing := func(context.Context) error { return nil }
	if err := ctx.Err(); err != nil {
		return nothing, fmt.Errorf("gpufl: %w", err)
	}
	starting.Lock()
	defer starting.Unlock()
	if running != nil {
		return nothing, ErrInitialized
	}
	s, err := start(opts)
	if err != nil {
		return nothing, fmt.Errorf("gpufl: %w", err)
	}
	running = s
	current.Store(s)
	return s.shutdown, nil
}

func start(opts []Option) (*session, error) {
	var errs [4]error
	var o options
	o.settings, errs[0] = recorder.SettingsFromEnv(os.Getenv)
	sending, err := otlp.FromEnv(os.Getenv)
	errs[1] = err
	o.deep, errs[2] = deep.ConfigFromEnv(os.Getenv)
	windowSettings, err := engine.SettingsFromEnv(os.Getenv)
	errs[3] = err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if o.logger == nil {
		o.logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: o.settings.LogLevel}))
	}
	sending.Profiles = sending.Profiles || o.profiles
	identify(&o.settings)
	var goStacks *stacks
	if o.settings.Stacks {
		goStacks, o.settings.Stacks = &stacks{}, false // the recorder's are those of Python
	}
	co := capture.Options{
		Settings: o.settings, Sending: sending, Language: "go", Logger: o.logger,
		Deep: o.deep, Window: windowSettings, Place: control.PlaceFromEnv(os.Getenv),
	}
	if o.loggers != nil {
		co.Logs = newLogBridge(o.loggers).emit
	}
	observed.close()
	observed = nil
	if o.meters != nil {
		observed = newMetricBridge(o.meters, o.logger)
		co.Metrics = observed.take
	}
	c, err := capture.Start(co)
	if err != nil {
		return nil, err
	}
	s := &session{stacks: goStacks, capture: c, recorder: c.Recorder(), timeout: o.settings.ShutdownTimeout, logger: o.logger}
	s.span = spanOf(c)
	s.link = trace.WithLinks(trace.Link{SpanContext: s.span})
	provider := o.provider
	if provider == nil {
		provider = otel.GetTracerProvider()
		if isUnset(provider) && c.Client() != nil {
			s.provider = newProvider(c)
			provider = s.provider
			if o.global {
				made = s.provider
				otel.SetTracerProvider(s.provider)
			}
		}
	}
	s.tracer = provider.Tracer(instrumentationName, trace.WithInstrumentationVersion(version()))
	return s, nil
}

// spanOf returns the session's span. If nothing is recorded, it is the span that TRACEPARENT names.
func spanOf(c *capture.Capture) trace.SpanContext {
	cfg := c.Config()
	ref := cfg.Parent
	if r := c.Recorder(); r != nil {
		ref = r.SessionRef()
	}
	sc := trace.SpanContextConfig{TraceID: trace.TraceID(ref.Trace), SpanID: trace.SpanID(ref.Span), Remote: true}
	if !cfg.HasParent || cfg.ParentSampled {
		sc.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(sc)
}

func (s *session) shutdown(ctx context.Context) error {
	s.once.Do(func() { s.outcome = s.stop(ctx) })
	return s.outcome
}

func (s *session) stop(ctx context.Context) error {
	starting.Lock()
	defer starting.Unlock()
	current.CompareAndSwap(s, nil)
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var errs []error
	if s.provider != nil {
		// Before the client, which its spans go to.
		errs = append(errs, s.provider.Shutdown(ctx))
	}
	_, err := s.capture.Stop(ctx, true)
	running = nil
	return errors.Join(append(errs, err)...)
}

// Status says what is recorded, or why nothing is.
type Status struct {
	// Recording says whether device work is being recorded.
	Recording bool `json:"recording"`
	// Reason is a stable word for why nothing is recorded: not_initialized, no_driver, no_device,
	// no_cupti, version_mismatch, other_profiler, no_permission, disabled, unsupported_system,
	// cupti_failed, …. "" while recording.
	Reason string `json:"reason,omitempty"`
	// Detail says in one sentence what is wrong and what to do about it, or what of the things
	// asked for is not available. "" if there is nothing to say.
	Detail string `json:"detail,omitempty"`
	// Library is the path of libcupti, CUPTIVersion its own version number (such as 130001), Driver
	// the CUDA version of the driver (13000 for 13.0). "" and 0 where not known.
	Library      string `json:"library,omitempty"`
	CUPTIVersion int    `json:"cupti_version,omitempty"`
	Driver       int    `json:"driver,omitempty"`
	// Missing are the kinds of records that were asked for and are not available.
	Missing []string `json:"missing,omitempty"`
	// MisplacedScopes were ended by another goroutine than began them.
	MisplacedScopes uint64 `json:"misplaced_scopes,omitempty"`
}

// CurrentStatus says what is recorded now. It may be called by any goroutine at any time.
func CurrentStatus() Status {
	s := current.Load()
	if s == nil {
		return Status{Reason: "not_initialized", Detail: "gpufl.Init has not been called, or its shutdown has"}
	}
	status := s.capture.Status()
	return Status{
		Recording: s.recorder != nil, Reason: string(status.Reason), Detail: status.Detail,
		Library: status.Library, CUPTIVersion: status.Version, Driver: status.Driver,
		Missing: recorder.KindNames(status.Missing), MisplacedScopes: s.misplaced.Load(),
	}
}

// version is the module's, as the program was built with it.
var version = sync.OnceValue(func() string {
	const module = "github.com/gpuflight/gpuflight"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
})
