// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/collector/storageclient"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/fileset"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// gpuflogReceiver is the one instance for the pipelines of one configuration.
type gpuflogReceiver struct {
	cfg *Config
	set receiver.Settings
	out outputs

	// stop ends the reading. cancel also ends deliveries in progress.
	stop     chan struct{}
	stopOnce sync.Once
	grace    time.Duration    // shutdownGrace but in tests
	now      func() time.Time // time.Now but in tests
	cancel   context.CancelFunc
	done     chan struct{}
	reader   *reader
	store    storage.Client
	http     *httpServer
	tel      *metadata.TelemetryBuilder
}

func newReceiver(cfg *Config, set receiver.Settings) (*gpuflogReceiver, error) {
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{
		ReceiverID: set.ID, Transport: "file", LongLivedCtx: true, ReceiverCreateSettings: set,
	})
	if err != nil {
		return nil, err
	}
	return &gpuflogReceiver{cfg: cfg, set: set, out: outputs{obs: obs}, stop: make(chan struct{}), grace: shutdownGrace, now: time.Now}, nil
}

// chunkBytes is the amount that is read, decoded and sent at a time. It makes the costs of a
// delivery and a checkpoint negligible, and keeps batches small.
const chunkBytes = 1 << 20

// Start opens the checkpoints and starts to read.
func (r *gpuflogReceiver) Start(ctx context.Context, host component.Host) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Shutdown(ctx))
		}
	}()
	if r.tel, err = metadata.NewTelemetryBuilder(r.set.TelemetrySettings); err != nil {
		return err
	}
	client, err := storageclient.Open(ctx, r.cfg.Storage, host, component.KindReceiver, r.set.ID)
	if err != nil {
		return err
	}
	r.store = storageclient.Checked(client)
	r.out.logger, r.out.tel = r.set.Logger, r.tel
	if len(r.cfg.Include) > 0 {
		if err := r.startFiles(ctx); err != nil {
			return err
		}
	}
	if r.cfg.Protocols.HTTP.HasValue() {
		return r.startHTTP(ctx, host)
	}
	return nil
}

// startFiles starts to follow the files.
func (r *gpuflogReceiver) startFiles(ctx context.Context) error {
	chunk := chunkBytes
	if r.cfg.Raw {
		chunk = rawChunkBytes
	}
	files, err := fileset.New(fileset.Config{
		Include: r.cfg.Include, Exclude: r.cfg.Exclude,
		MaxLineBytes: int(r.cfg.MaxLineBytes), ChunkBytes: chunk, Logger: r.set.Logger,
	})
	if err != nil {
		return err
	}
	if r.store == nil {
		r.set.Logger.Info("no storage is set: a restart reads all files again (spans keep their ids)")
	}
	// The context of Start may end when Start returns.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	r.reader = newReader(r.cfg, r.set.Logger, files, &r.out, r.tel, newCheckpoints(r.store))
	r.reader.now = r.now
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		if r.cfg.Raw {
			(&rawReader{reader: r.reader}).run(run, r.stop)
			return
		}
		r.reader.run(run, r.stop)
	}()
	return nil
}

// startHTTP starts the HTTP server.
func (r *gpuflogReceiver) startHTTP(ctx context.Context, host component.Host) (err error) {
	out := r.out
	if out.obs, err = receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{
		ReceiverID: r.set.ID, Transport: "http", ReceiverCreateSettings: r.set,
	}); err != nil {
		return err
	}
	if r.store == nil {
		r.set.Logger.Info("no storage is set: waiting lines and open scopes are lost if this process is killed")
	}
	r.http, err = startHTTP(ctx, host, r.set.TelemetrySettings, r.cfg, &out, newIntakeStore(r.store), r.now)
	return err
}

// shutdownGrace bounds a delivery in progress at a shutdown if the context has no earlier deadline.
// The Collector's has none, and an exporter may wait forever for an unavailable backend. Nothing is
// lost: the files are the queue, and HTTP clients send again.
const shutdownGrace = 5 * time.Second

// Shutdown stops reading and saves the checkpoints. A delivery in progress may end within the
// context's deadline and shutdownGrace. Data that was not accepted by then is read again at the
// next start.
func (r *gpuflogReceiver) Shutdown(ctx context.Context) (err error) {
	r.stopOnce.Do(func() { close(r.stop) })
	patient, cancel := context.WithTimeout(ctx, r.grace)
	defer cancel()
	if r.http != nil {
		err = r.http.shutdown(patient)
		r.http = nil
	}
	if r.done != nil {
		select {
		case <-r.done:
		case <-patient.Done():
			r.set.Logger.Warn("shutdown interrupts a delivery; its data is read again at the next start", zap.Error(patient.Err()))
			r.cancel()
			<-r.done
		}
		r.cancel()
		r.done = nil
	}
	if r.reader != nil {
		err = errors.Join(err, r.reader.files.Close())
		r.reader = nil
	}
	if r.store != nil {
		err = errors.Join(err, r.store.Close(ctx))
		r.store = nil
	}
	if r.tel != nil {
		r.tel.Shutdown()
	}
	return err
}
