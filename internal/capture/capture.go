// SPDX-License-Identifier: Apache-2.0

// Package capture is one recording of the process it runs in: a CUPTI collector, the recorder that
// turns its records into telemetry, and the client that sends it, started and stopped in the right
// order. The SDK and the injection library are two fronts of it. It may know all three and nothing
// of who asked for the recording.
package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/otlp"
	"github.com/gpuflight/gpuflight/internal/recorder"
)

// Options say what to record and where to send it.
type Options struct {
	Settings recorder.Settings
	Sending  otlp.Settings
	// Language is the program's ("go"), "" if not known.
	Language string
	// Logger defaults to one that drops everything.
	Logger *slog.Logger
}

// Capture is a recording. Its methods may be called by any goroutine.
type Capture struct {
	config    recorder.Config
	timeout   time.Duration
	summaries string
	logger    *slog.Logger
	status    cupti.Status
	collector *cupti.Collector   // nil where nothing can be recorded
	recorder  *recorder.Recorder // nil likewise
	client    *otlp.Client

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
		c.status = cupti.Status{Reason: cupti.ReasonDisabled, Detail: "recording is switched off by GPUFL_DISABLED, OTEL_SDK_DISABLED or OTEL_…_EXPORTER"}
		return c, nil
	}
	var err error
	if c.client, err = otlp.New(o.Sending, c.logger); err != nil {
		return nil, err
	}
	if err := c.open(o.Settings); err != nil {
		c.abandon()
		return nil, err
	}
	return c, nil
}

// open starts collector and recorder. Its error is one of settings.
func (c *Capture) open(s recorder.Settings) error {
	collector, err := cupti.Open(s.Collector())
	if err != nil {
		return c.unavailable(err)
	}
	r, err := recorder.New(c.config, recorder.FromCollector(collector), c.client)
	if err != nil {
		_ = collector.Close() // it has not begun
		return err
	}
	if err := collector.Start(); err != nil {
		_ = collector.Close() // what Start said is what matters
		return c.unavailable(err)
	}
	r.Start()
	c.collector, c.recorder = collector, r
	return nil
}

// unavailable keeps why nothing can be recorded.
func (c *Capture) unavailable(err error) error {
	var e *cupti.Error
	if !errors.As(err, &e) {
		e = &cupti.Error{Status: cupti.Status{Reason: cupti.ReasonFailed, Detail: err.Error()}}
	}
	c.status = e.Status
	c.logger.Info("gpufl: nothing will be recorded", "reason", string(c.status.Reason), "detail", c.status.Detail)
	return nil
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

// Client is nil where sending is switched off.
func (c *Capture) Client() *otlp.Client { return c.client }

// Config is what the recorder was given, with the process's own attributes and the session's id.
func (c *Capture) Config() recorder.Config { return c.config }

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
		var err error
		summary, err = recorder.Unavailable(c.config, c.status, c.client)
		errs = append(errs, err)
	} else {
		stopped, err := c.stopCollector(ctx, finalize)
		errs = append(errs, err)
		summary = c.recorder.Stop(ctx)
		if stopped { // else CUPTI still holds what Close would wait for
			errs = append(errs, c.collector.Close())
		}
	}
	errs = append(errs, c.client.Shutdown(ctx))
	summary.Delivery = c.delivery()
	if c.summaries != "" {
		errs = append(errs, summary.Write(c.summaries))
	}
	return summary, errors.Join(errs...)
}

// stopCollector waits for CUPTI no longer than ctx: a driver that hangs must not keep the program. It
// reports whether CUPTI has stopped.
func (c *Capture) stopCollector(ctx context.Context, finalize bool) (stopped bool, err error) {
	done := make(chan error, 1)
	go func() { done <- c.collector.Stop(finalize) }()
	select {
	case err := <-done:
		if errors.Is(err, cupti.ErrNotDetached) {
			c.logger.Warn("gpufl: CUPTI is still attached to the driver, launches may stay slower", "error", err)
			return true, nil
		}
		return true, err
	case <-ctx.Done():
		return false, fmt.Errorf("stop CUPTI: %w", ctx.Err())
	}
}

// delivery is what became of the telemetry.
func (c *Capture) delivery() []recorder.Delivery {
	stats := c.client.Stats()
	var d []recorder.Delivery
	for _, signal := range []otlp.Signal{otlp.Traces, otlp.Logs, otlp.Metrics} {
		s := stats[signal]
		d = append(d, recorder.Delivery{Signal: signal.String(), To: s.Endpoint, Sent: s.Sent, Unsent: s.Unsent, Error: s.LastError})
	}
	return d
}
