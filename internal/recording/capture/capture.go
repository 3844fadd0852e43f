// SPDX-License-Identifier: Apache-2.0

// Package capture is one recording of the current process. It starts and stops, in the right order,
// the CUPTI collector, the recorder that turns records into telemetry, and the client that sends
// it. Where settings allow deep-profiling windows, it also runs their controller. The SDK and the
// injection library use it. It may depend on all of these packages, but not on its callers.
package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/deep/control"
	"github.com/gpuflight/gpuflight/internal/recording/deep/engine"
	"github.com/gpuflight/gpuflight/internal/recording/otlp"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
)

// Options select what to record and where to send it.
type Options struct {
	Settings recorder.Settings
	Sending  otlp.Settings
	// Language is the program's language ("go"), or "" if it is unknown.
	Language string
	// Deep configures the deep-profiling windows, if Deep.Enabled, and Window how they run. Place
	// is the folder of the socket that accepts requests for windows.
	Deep   deep.Config
	Window engine.Settings
	Place  control.Place
	// Logs, if it is set, receives the logs instead of the endpoint. Metrics, if it is set, receives
	// the metrics before the endpoint: it removes what it takes. One goroutine at a time calls them.
	Logs    func(plog.Logs)
	Metrics func(pmetric.Metrics)
	// Logger defaults to a logger without output.
	Logger *slog.Logger
}

// sink is the client, except for signals that go elsewhere.
type sink struct {
	*otlp.Client
	logs    func(plog.Logs)
	metrics func(pmetric.Metrics)
}

func (s *sink) Logs(ld plog.Logs) {
	if s.logs == nil {
		s.Client.Logs(ld)
		return
	}
	s.logs(ld)
}

func (s *sink) Metrics(md pmetric.Metrics) {
	if s.metrics != nil {
		s.metrics(md)
	}
	s.Client.Metrics(md) // which ignores a message without points
}

// Capture is a recording. Its methods are safe for concurrent use.
type Capture struct {
	config recorder.Config
	// timeout bounds Stop. drain, if it is longer, bounds Stop while the endpoint accepts data.
	timeout, drain time.Duration
	summaries      string
	// sendingLimit bounds the time that Stop spends on sending, in addition to timeout. 0 means no
	// limit.
	sendingLimit time.Duration
	logger       *slog.Logger
	status       cupti.Status
	collector    *cupti.Collector   // nil where nothing can be recorded
	recorder     *recorder.Recorder // nil where nothing can be recorded
	client       *otlp.Client
	sink         *sink // nil without a client
	// The following fields are nil where deep-profiling windows are off. The server is also nil if
	// its socket could not be created.
	windows *deep.Controller
	engines *engine.Engines
	control *control.Server
	// unavailableServer answers requests for windows with the reason why there are none. It is nil
	// if the process is recorded.
	unavailableServer *deep.Controller

	once    sync.Once
	summary recorder.Summary
	err     error
}

// Start starts a recording. It returns no error where nothing can be recorded: Status gives the
// reason, and the recording consists of a session and a log record with that reason. Errors concern
// settings. At most one recording may run in a process.
func Start(o Options) (*Capture, error) {
	c := &Capture{timeout: o.Settings.ShutdownTimeout, summaries: o.Settings.SummaryDir, logger: o.Logger}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	if c.timeout <= 0 {
		c.timeout = recorder.DefaultShutdownTimeout
	}
	c.drain = max(c.timeout, o.Settings.DrainTimeout)
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
	c.sink = &sink{Client: c.client, logs: o.Logs, metrics: o.Metrics}
	if err := c.open(&o); err != nil {
		c.abandon()
		return nil, err
	}
	return c, nil
}

// open starts the collector, the recorder and the controller of deep-profiling windows. Its error
// concerns settings.
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
			c.logger.Warn("gpuflight: no lock between processes that sample the same GPU", "error", err)
		}
		c.engines = engine.New(o.Window, engine.FromCollector(collector), &taker, c.logger)
		o.Deep.Opened, o.Deep.Closed, o.Deep.Logger = c.engines.Opened, c.engines.Closed, c.logger
		if c.windows, err = deep.New(o.Deep, c.engines); err != nil {
			_ = collector.Close() // nothing to stop: it has not started
			return err
		}
		c.config.Rules = c.windows
	}
	r, err := recorder.New(c.config, recorder.FromCollector(collector), c.sink)
	if err != nil {
		_ = collector.Close() // nothing to stop: it has not started
		return err
	}
	taker.Recorder = r
	if err := collector.Start(); err != nil {
		_ = collector.Close() // the error of Start matters more
		return c.unavailable(err, o)
	}
	r.Start()
	c.collector, c.recorder = collector, r
	if c.windows != nil {
		c.engines.Start()
		c.windows.Start()
		p := control.Process{Service: r.Service(), Command: shortened(strings.Join(c.config.Command, " "))}
		if c.control, err = control.Listen(o.Place, p, c.windows, c.logger); err != nil {
			c.logger.Warn("gpuflight: requests for deep-profiling windows are unavailable", "error", err)
		}
	}
	return nil
}

// maxCommand bounds the length of the command that other processes see, in bytes.
const maxCommand = 1 << 10

func shortened(s string) string {
	if len(s) > maxCommand {
		s = s[:maxCommand]
	}
	return strings.ToValidUTF8(s, "") // a character may have been cut in two
}

// deferredSink forwards windows to the recorder. The recorder is created after the engine that
// sends windows and before the first window.
type deferredSink struct{ *recorder.Recorder }

// unavailable stores why nothing can be recorded.
func (c *Capture) unavailable(err error, o *Options) error {
	var e *cupti.Error
	if !errors.As(err, &e) {
		e = &cupti.Error{Status: cupti.Status{Reason: cupti.ReasonFailed, Detail: err.Error()}}
	}
	c.status = e.Status
	c.logger.Info("gpuflight: nothing is recorded", "reason", string(c.status.Reason), "detail", c.status.Detail)
	c.windows, c.engines = nil, nil
	if o.Deep.Enabled {
		c.serveUnavailable(o)
	}
	return nil
}

// serveUnavailable answers requests for deep-profiling windows with the reason why there can be
// none. Without it, the answer would be that windows are switched off.
func (c *Capture) serveUnavailable(o *Options) {
	cfg := deep.Config{Engine: o.Deep.Engine, Blackout: -1, CoolDown: -1, Share: 1, Logger: c.logger}
	windows, err := deep.New(cfg, engine.Unavailable(c.status))
	if err == nil {
		p := control.Process{Service: c.config.ServiceName, Command: shortened(strings.Join(c.config.Command, " "))}
		if c.control, err = control.Listen(o.Place, p, windows, c.logger); err == nil {
			windows.Start()
			c.unavailableServer = windows
		}
	}
	if err != nil {
		c.logger.Warn("gpuflight: requests for deep-profiling windows are unanswered", "error", err)
	}
}

// abandon stops a client that has nothing to send.
func (c *Capture) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.client.Shutdown(ctx)
}

// Status returns what is recorded, or why nothing is.
func (c *Capture) Status() cupti.Status {
	if c.collector != nil {
		return c.collector.Status()
	}
	return c.status
}

// Recorder returns nil if nothing is recorded.
func (c *Capture) Recorder() *recorder.Recorder { return c.recorder }

// Windows returns nil if deep-profiling windows are off.
func (c *Capture) Windows() *deep.Controller { return c.windows }

// Client returns nil if sending is switched off.
func (c *Capture) Client() *otlp.Client { return c.client }

// Config returns the recorder's configuration, with the process's own attributes and the session's
// id.
func (c *Capture) Config() recorder.Config { return c.config }

// LimitSending makes Stop send for at most d, for an endpoint that probably does not answer. It
// does not limit the other steps of Stop. Call it before Stop.
func (c *Capture) LimitSending(d time.Duration) { c.sendingLimit = d }

// Stop ends the recording and sends the pending data. It returns when ctx ends or the settings'
// shutdown timeout expires, whichever is earlier. With a longer drain timeout, that applies while the
// endpoint accepts data, and the shutdown timeout bounds the time in which it accepts none. finalize detaches CUPTI from the driver, which is
// useful only if the program continues. The error names the data that could not be sent. Later
// calls return the result of the first.
func (c *Capture) Stop(ctx context.Context, finalize bool) (recorder.Summary, error) {
	c.once.Do(func() { c.summary, c.err = c.stop(ctx, finalize) })
	return c.summary, c.err
}

func (c *Capture) stop(ctx context.Context, finalize bool) (recorder.Summary, error) {
	if c.client == nil {
		return recorder.Summary{Reason: c.status.Reason, Detail: c.status.Detail}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.drain)
	defer cancel()
	ending, endingCancel := context.WithTimeout(ctx, c.timeout)
	defer endingCancel()
	defer c.cancelStalled(ctx, cancel)()
	var summary recorder.Summary
	var errs []error
	if c.collector == nil {
		errs = append(errs, c.stopUnavailableServer(ending))
		var err error
		summary, err = recorder.Unavailable(c.config, c.status, c.sink)
		errs = append(errs, err)
	} else {
		errs = append(errs, c.stopWindows(ending))
		stopped, err := c.stopCollector(ending, finalize)
		errs = append(errs, err)
		summary = c.stopRecorder(ctx)
		if stopped { // else CUPTI still holds the buffers that Close would wait for
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

// stopRecorder gives the recorder three quarters of the remaining time. It needs them only where the
// endpoint is slower than the program was: the rest is for the queue.
func (c *Capture) stopRecorder(ctx context.Context) recorder.Summary {
	end, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(end)*3/4)
	defer cancel()
	return c.recorder.Stop(ctx)
}

// stallInterval is the interval at which cancelStalled looks at the progress.
const stallInterval = 100 * time.Millisecond

// cancelStalled calls cancel when the endpoint accepts nothing for the shutdown timeout. The caller
// calls stop at the end.
func (c *Capture) cancelStalled(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	if c.drain == c.timeout {
		return func() {} // the deadline of ctx does the same
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(stallInterval)
		defer ticker.Stop()
		last, since := c.accepted(), time.Now()
		for {
			select {
			case <-over:
				return
			case <-ctx.Done():
				return
			case now := <-ticker.C:
				if n := c.accepted(); n != last {
					last, since = n, now
				} else if now.Sub(since) > c.timeout {
					cancel()
				}
			}
		}
	})
	return func() {
		close(over)
		watching.Wait()
	}
}

// accepted counts the items that endpoints have accepted.
func (c *Capture) accepted() (n uint64) {
	for _, s := range c.client.Stats() {
		n += s.Sent
	}
	return n
}

// stopWindows closes the open window and sends the results of all windows. It uses at most half of
// the remaining time: CUPTI must stop and all data must be sent after it.
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
	disconnected := c.closeControl()
	errs = append(errs, c.engines.Stop(reading))
	select {
	case <-disconnected:
	case <-reading.Done(): // for a client that does not read its answer
	}
	return errors.Join(errs...)
}

// stopUnavailableServer is stopWindows where nothing is recorded.
func (c *Capture) stopUnavailableServer(ctx context.Context) error {
	if c.unavailableServer == nil {
		return nil
	}
	err := c.unavailableServer.Stop(ctx)
	disconnected := c.closeControl()
	select {
	case <-disconnected:
	case <-ctx.Done(): // for a client that does not read its answer
	}
	return err
}

// closeControl closes the socket. The returned channel is closed when all clients are disconnected.
func (c *Capture) closeControl() <-chan struct{} {
	disconnected := make(chan struct{})
	go func() {
		defer close(disconnected)
		if c.control != nil {
			c.control.Close()
		}
	}()
	return disconnected
}

// stopCollector waits for CUPTI until ctx ends, so that an unresponsive driver cannot block the
// program. It returns whether CUPTI has stopped.
func (c *Capture) stopCollector(ctx context.Context, finalize bool) (stopped bool, err error) {
	done := make(chan error, 1)
	go func() { done <- c.collector.Stop(finalize) }()
	select {
	case err := <-done:
		if errors.Is(err, cupti.ErrNotDetached) {
			c.logger.Warn("gpuflight: CUPTI is still attached: launches may stay slower", "error", err)
			return true, nil
		}
		return true, err
	case <-ctx.Done():
		// If Close returns later, the process can record again.
		go func() {
			if err := <-done; err != nil {
				c.logger.Warn("gpuflight: CUPTI stopped late", "error", err)
			}
			_ = c.collector.Close() // the caller has already returned
		}()
		return false, fmt.Errorf("stop CUPTI: %w", ctx.Err())
	}
}

// delivery is the outcome of sending the telemetry.
func (c *Capture) delivery() []recorder.Delivery {
	stats := c.client.Stats()
	var d []recorder.Delivery
	for _, signal := range []otlp.Signal{otlp.Traces, otlp.Logs, otlp.Metrics, otlp.Profiles} {
		s := stats[signal]
		if signal == otlp.Profiles && s.Sent+s.UnsentTotal() == 0 {
			continue // callers rarely use it
		}
		d = append(d, recorder.Delivery{Signal: signal.String(), To: s.Endpoint, Sent: s.Sent, Unsent: s.Unsent, Error: s.LastError})
	}
	return d
}
