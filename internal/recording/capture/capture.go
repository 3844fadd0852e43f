// SPDX-License-Identifier: Apache-2.0

// Package capture is one recording of the process it runs in: a CUPTI collector, the recorder that
// turns its records into telemetry, the client that sends it, and, where settings allow deep windows, what
// opens and runs these, started and stopped in the right order. The SDK and the injection library are two
// fronts of it. It may know all of them and nothing of who asked for the recording.
package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// Options say what to record and where to send it.
type Options struct {
	Settings recorder.Settings
	Sending  otlp.Settings
	// Language is the program's ("go"), "" if not known.
	Language string
	// Deep says which deep windows there may be, if Deep.Enabled, and Window how they are run. Place is
	// where the socket is that they can be asked for by.
	Deep   deep.Config
	Window engine.Settings
	Place  control.Place
	// Logger defaults to one that drops everything.
	Logger *slog.Logger
}

// Capture is a recording. Its methods may be called by any goroutine.
type Capture struct {
	config    recorder.Config
	timeout   time.Duration
	summaries string
	// sendingLimit bounds what Stop takes to send, besides timeout; 0: it does not.
	sendingLimit time.Duration
	logger       *slog.Logger
	status       cupti.Status
	collector    *cupti.Collector   // nil where nothing can be recorded
	recorder     *recorder.Recorder // nil likewise
	client       *otlp.Client
	// What follows is nil where there are no deep windows, the server also where no socket could be made.
	windows *deep.Controller
	engines *engine.Engines
	control *control.Server
	// refusing tells those who ask for windows why there are none; nil where something is recorded.
	refusing *deep.Controller

	once    sync.Once
	summary recorder.Summary
	err     error
}

// Start begins to record. That nothing can be recorded here is no error: Status says why, and the
// recording consists of a session and a log that say so. Errors are about settings. The program
// must not have one running already.
func Start(o Options) (*Capture, error) {
	c := &Capture{timeout: o.Settings.ShutdownTimeout, summaries: o.Settings.SummaryDir, logger: o.Logger}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	if c.timeout <= 0 {
		c.timeout = recorder.DefaultShutdownTimeout
	}
	c.config = o.Settings.Config()
	c.config.Start = time.Now()
	c.config.Logger = c.logger
	recorder.DetectProcess(&c.config, o.Language)
	if c.config.InstanceID == "" {
		c.config.InstanceID = recorder.NewInstanceID()
	}
	if o.Settings.Disabled || (o.Sending.File == "" && o.Sending.Off()) {
		c.status = cupti.Status{Reason: cupti.ReasonDisabled, Detail: "recording is switched off by GPUFLIGHT_DISABLED, OTEL_SDK_DISABLED or OTEL_…_EXPORTER"}
		return c, nil
	}
	if err := o.Settings.CheckWindows(o.Deep.Enabled); err != nil {
		return nil, err
	}
	var err error
	if c.client, err = otlp.New(o.Sending, c.logger); err != nil {
		return nil, err
	}
	if err := c.open(&o); err != nil {
		c.abandon()
		return nil, err
	}
	return c, nil
}

// open starts collector and recorder, and the controller of deep windows. Its error is one of settings.
func (c *Capture) open(o *Options) error {
	settings := o.Settings.Collector()
	settings.Deep = o.Deep.Enabled
	collector, err := cupti.Open(settings)
	if err != nil {
		return c.unavailable(err, o)
	}
	var taker deferredSink
	if o.Deep.Enabled {
		if o.Sending.Sends(otlp.Profiles) {
			o.Window.Profiles, c.config.Profiles = true, c.client
		}
		if o.Window.LeaseDir, err = o.Place.Folder(); err != nil {
			c.logger.Warn("gpuflight: processes cannot see whether another one samples a GPU", "error", err)
		}
		c.engines = engine.New(o.Window, engine.FromCollector(collector), &taker, c.logger)
		o.Deep.Opened, o.Deep.Closed, o.Deep.Logger = c.engines.Opened, c.engines.Closed, c.logger
		if c.windows, err = deep.New(o.Deep, c.engines); err != nil {
			_ = collector.Close() // it has not begun
			return err
		}
		c.config.Rules = c.windows
	}
	r, err := recorder.New(c.config, recorder.FromCollector(collector), c.client)
	if err != nil {
		_ = collector.Close() // it has not begun
		return err
	}
	taker.Recorder = r
	if err := collector.Start(); err != nil {
		_ = collector.Close() // what Start said is what matters
		return c.unavailable(err, o)
	}
	r.Start()
	c.collector, c.recorder = collector, r
	if c.windows != nil {
		c.engines.Start()
		c.windows.Start()
		p := control.Process{Service: r.Service(), Command: shortened(strings.Join(c.config.Command, " "))}
		if c.control, err = control.Listen(o.Place, p, c.windows, c.logger); err != nil {
			c.logger.Warn("gpuflight: nobody can ask for deep windows from outside", "error", err)
		}
	}
	return nil
}

// maxCommand bounds what others are told of the command, in bytes.
const maxCommand = 1 << 10

func shortened(s string) string {
	if len(s) > maxCommand {
		s = s[:maxCommand]
	}
	return strings.ToValidUTF8(s, "") // a character may have been cut in two
}

// deferredSink is the recorder, which is made after what hands windows to it and before any of them.
type deferredSink struct{ *recorder.Recorder }

// unavailable keeps why nothing can be recorded.
func (c *Capture) unavailable(err error, o *Options) error {
	var e *cupti.Error
	if !errors.As(err, &e) {
		e = &cupti.Error{Status: cupti.Status{Reason: cupti.ReasonFailed, Detail: err.Error()}}
	}
	c.status = e.Status
	c.logger.Info("gpuflight: nothing will be recorded", "reason", string(c.status.Reason), "detail", c.status.Detail)
	c.windows, c.engines = nil, nil
	if o.Deep.Enabled {
		c.refuse(o)
	}
	return nil
}

// refuse has those who ask for deep windows from outside told why there can be none. Else they would hear that
// windows were not asked for.
func (c *Capture) refuse(o *Options) {
	cfg := deep.Config{Engine: o.Deep.Engine, Blackout: -1, CoolDown: -1, Share: 1, Logger: c.logger}
	windows, err := deep.New(cfg, engine.Unavailable(c.status))
	if err == nil {
		p := control.Process{Service: c.config.ServiceName, Command: shortened(strings.Join(c.config.Command, " "))}
		if c.control, err = control.Listen(o.Place, p, windows, c.logger); err == nil {
			windows.Start()
			c.refusing = windows
		}
	}
	if err != nil {
		c.logger.Warn("gpuflight: nobody can ask why there are no deep windows", "error", err)
	}
}

// abandon stops a client that has nothing to send.
func (c *Capture) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.client.Shutdown(ctx)
}

// Status says what is recorded, or why nothing is.
func (c *Capture) Status() cupti.Status {
	if c.collector != nil {
		return c.collector.Status()
	}
	return c.status
}

// Recorder is nil where nothing is recorded.
func (c *Capture) Recorder() *recorder.Recorder { return c.recorder }

// Windows is nil where there are no deep windows.
func (c *Capture) Windows() *deep.Controller { return c.windows }

// Client is nil where sending is switched off.
func (c *Capture) Client() *otlp.Client { return c.client }

// Config is what the recorder was given, with the process's own attributes and the session's id.
func (c *Capture) Config() recorder.Config { return c.config }

// LimitSending has Stop send for no longer than d, where nobody is likely to answer. What the recording needs to end has its
// time all the same. It is called before Stop.
func (c *Capture) LimitSending(d time.Duration) { c.sendingLimit = d }

// Stop ends the recording, sends what there is, and returns within ctx and the settings' shutdown
// timeout, whichever is shorter. finalize detaches CUPTI from the driver: worth it only if the
// program goes on. The error says what could not be sent. A second call returns what the first did.
func (c *Capture) Stop(ctx context.Context, finalize bool) (recorder.Summary, error) {
	c.once.Do(func() { c.summary, c.err = c.stop(ctx, finalize) })
	return c.summary, c.err
}

func (c *Capture) stop(ctx context.Context, finalize bool) (recorder.Summary, error) {
	if c.client == nil {
		return recorder.Summary{Reason: c.status.Reason, Detail: c.status.Detail}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var summary recorder.Summary
	var errs []error
	if c.collector == nil {
		errs = append(errs, c.stopRefusing(ctx))
		var err error
		summary, err = recorder.Unavailable(c.config, c.status, c.client)
		errs = append(errs, err)
	} else {
		errs = append(errs, c.stopWindows(ctx))
		stopped, err := c.stopCollector(ctx, finalize)
		errs = append(errs, err)
		summary = c.recorder.Stop(ctx)
		if stopped { // else CUPTI still holds what Close would wait for
			errs = append(errs, c.collector.Close())
		}
	}
	sending, cancel := ctx, context.CancelFunc(func() {})
	if c.sendingLimit > 0 {
		sending, cancel = context.WithTimeout(ctx, c.sendingLimit)
	}
	defer cancel()
	errs = append(errs, c.client.Shutdown(sending))
	summary.Delivery = c.delivery()
	if c.summaries != "" {
		errs = append(errs, summary.Write(c.summaries))
	}
	return summary, errors.Join(errs...)
}

// stopWindows closes the window that is open and has what windows yielded handed over, in at most half of
// the time: CUPTI must be stopped and everything sent after it.
func (c *Capture) stopWindows(ctx context.Context) error {
	if c.windows == nil {
		return nil
	}
	end, _ := ctx.Deadline()
	part := func(share time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Until(end)/share)
	}
	closing, cancel := part(3)
	defer cancel()
	errs := []error{c.windows.Stop(closing)}
	reading, cancel := part(3)
	defer cancel()
	told := c.hangUp()
	errs = append(errs, c.engines.Stop(reading))
	select {
	case <-told:
	case <-reading.Done(): // a client that does not read its answer
	}
	return errors.Join(errs...)
}

// stopRefusing is stopWindows where nothing is recorded.
func (c *Capture) stopRefusing(ctx context.Context) error {
	if c.refusing == nil {
		return nil
	}
	err := c.refusing.Stop(ctx)
	told := c.hangUp()
	select {
	case <-told:
	case <-ctx.Done(): // a client that does not read its answer
	}
	return err
}

// hangUp closes the socket, and returns what is closed when all clients are gone.
func (c *Capture) hangUp() <-chan struct{} {
	told := make(chan struct{})
	go func() {
		defer close(told)
		if c.control != nil {
			c.control.Close()
		}
	}()
	return told
}

// stopCollector waits for CUPTI no longer than ctx: a driver that hangs must not keep the program. It
// reports whether CUPTI has stopped.
func (c *Capture) stopCollector(ctx context.Context, finalize bool) (stopped bool, err error) {
	done := make(chan error, 1)
	go func() { done <- c.collector.Stop(finalize) }()
	select {
	case err := <-done:
		if errors.Is(err, cupti.ErrNotDetached) {
			c.logger.Warn("gpuflight: CUPTI is still attached to the driver, launches may stay slower", "error", err)
			return true, nil
		}
		return true, err
	case <-ctx.Done():
		// Should it come back after all, the process can record anew.
		go func() {
			if err := <-done; err != nil {
				c.logger.Warn("gpuflight: CUPTI stopped late", "error", err)
			}
			_ = c.collector.Close() // nobody is there to be told
		}()
		return false, fmt.Errorf("stop CUPTI: %w", ctx.Err())
	}
}

// delivery is what became of the telemetry.
func (c *Capture) delivery() []recorder.Delivery {
	stats := c.client.Stats()
	var d []recorder.Delivery
	for _, signal := range []otlp.Signal{otlp.Traces, otlp.Logs, otlp.Metrics, otlp.Profiles} {
		s := stats[signal]
		if signal == otlp.Profiles && s.Sent+s.UnsentTotal() == 0 {
			continue // few want them
		}
		d = append(d, recorder.Delivery{Signal: signal.String(), To: s.Endpoint, Sent: s.Sent, Unsent: s.Unsent, Error: s.LastError})
	}
	return d
}
