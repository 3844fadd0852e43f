// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/extension/encoding/gpuflogencodingextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/collector/storageclient"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// encoding is the extension: a reader for each signal.
type encoding struct {
	cfg *Config
	set extension.Settings
	tel *metadata.TelemetryBuilder

	traces, logs, metrics *reader

	mu      sync.Mutex
	storage storage.Client
	started bool
}

var (
	_ extension.Extension             = (*encoding)(nil)
	_ extensioncapabilities.Dependent = (*encoding)(nil)
	_ ptrace.Unmarshaler              = (*encoding)(nil)
	_ plog.Unmarshaler                = (*encoding)(nil)
	_ pmetric.Unmarshaler             = (*encoding)(nil)
)

func newExtension(set extension.Settings, cfg *Config) (*encoding, error) {
	tel, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &encoding{
		cfg: cfg, set: set, tel: tel,
		traces:  newReader(cfg, set.Logger, tel, "traces", gpuevent.Signals{Traces: true}),
		logs:    newReader(cfg, set.Logger, tel, "logs", gpuevent.Signals{Logs: true}),
		metrics: newReader(cfg, set.Logger, tel, "metrics", gpuevent.Signals{Metrics: true}),
	}, nil
}

// Dependencies makes the storage start before and stop after this extension.
func (e *encoding) Dependencies() []component.ID {
	if e.cfg.Storage == nil {
		return nil
	}
	return []component.ID{*e.cfg.Storage}
}

// Start takes up what was known of sessions when the extension was shut down.
func (e *encoding) Start(ctx context.Context, host component.Host) error {
	client, err := storageclient.Open(ctx, e.cfg.Storage, host, component.KindExtension, e.set.ID)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.storage, e.started = client, true
	if client == nil {
		return nil
	}
	for _, r := range e.readers() {
		if err := r.load(ctx, client); err != nil {
			return errors.Join(err, client.Close(ctx))
		}
	}
	return nil
}

// Shutdown stores what is known of sessions, or counts what waits in them as lost. No receiver is there
// any more: they are shut down before extensions.
func (e *encoding) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	if e.started {
		for _, r := range e.readers() {
			errs = append(errs, r.close(ctx, e.storage))
		}
	}
	if e.storage != nil {
		errs = append(errs, e.storage.Close(ctx))
	}
	e.started, e.storage = false, nil
	e.tel.Shutdown()
	return errors.Join(errs...)
}

func (e *encoding) readers() []*reader { return []*reader{e.traces, e.logs, e.metrics} }

// UnmarshalTraces decodes a message and returns the spans that it completes, of any session. It always
// returns a nil error and counts invalid input instead. With an error, a kafka receiver that marks
// messages after processing would stop at the message.
func (e *encoding) UnmarshalTraces(message []byte) (ptrace.Traces, error) {
	return e.traces.take(message).traces, nil
}

// UnmarshalLogs is UnmarshalTraces for log records.
func (e *encoding) UnmarshalLogs(message []byte) (plog.Logs, error) {
	return e.logs.take(message).logs, nil
}

// UnmarshalMetrics is UnmarshalTraces for metrics.
func (e *encoding) UnmarshalMetrics(message []byte) (pmetric.Metrics, error) {
	return e.metrics.take(message).metrics, nil
}
