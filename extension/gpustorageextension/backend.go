// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/extension/gpustorageextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/store"
)

// backend is an open store with its maintenance. It counts what components do with the store.
type backend struct {
	opened
	name      string
	limits    store.Retention
	logger    *zap.Logger
	telemetry *metadata.TelemetryBuilder
	active    *activity
	// api is the backend with what its store can do.
	api   store.Backend
	ended chan ended // to analyse; seal does not wait for space
	// These are for analyse only: the jobs and stragglers on metrics, the last runs whose ranks were compared, and
	// the last sessions that were counted.
	jobs       map[job]struct{}
	stragglers map[straggler]struct{}
	runs       []countedRun
	counted    []session
	rejected   atomic.Int64 // rows since the last warning
	above      atomic.Bool  // the last retention left more than max_size
	stop       context.CancelFunc
	done       sync.WaitGroup
}

func openBackend(ctx context.Context, name string, cfg *BackendConfig, logger *zap.Logger, telemetry *metadata.TelemetryBuilder) (*backend, error) {
	b := &backend{
		name: name, limits: cfg.Retention.limits(), logger: logger.With(zap.String("backend", name)),
		telemetry: telemetry, active: newActivity(), ended: make(chan ended, 1024), jobs: map[job]struct{}{}, stragglers: map[straggler]struct{}{},
	}
	var err error
	if b.opened, err = cfg.open(ctx, b); err != nil {
		return nil, err
	}
	b.api = b
	if s, ok := b.Store.(store.Scanner); ok {
		b.api = &scanning{b, s}
	}
	if err = b.findUnfinished(ctx); err != nil {
		return nil, errors.Join(err, b.Store.Close(ctx))
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop = stop
	b.done.Go(func() { b.maintain(running, time.NewTicker(maintenanceInterval)) })
	b.done.Go(func() { b.analyse(running, time.Tick(maintenanceInterval)) })
	return b, nil
}

func (b *backend) attributes(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, attribute.String("backend", b.name))...))
}

func (b *backend) damaged(file string, reason error) {
	b.telemetry.ExtensionGpuStorageSetAside.Add(context.Background(), 1, b.attributes())
	b.logger.Warn("damaged file set aside", zap.String("file", file), zap.Error(reason))
}

// Write implements [store.Writer].
func (b *backend) Write(ctx context.Context, batches []*store.Batch) (store.Result, error) {
	// Before the write, so that maintenance does not seal a session that is written.
	for _, x := range batches {
		b.active.touch(session{x.Project, x.Session}, len(x.Ops))
	}
	start := time.Now()
	r, err := b.Store.Write(ctx, batches)
	b.telemetry.ExtensionGpuStorageCommitDuration.Record(ctx, time.Since(start).Seconds(), b.attributes())
	b.count(r)
	if err != nil {
		b.telemetry.ExtensionGpuStorageErrors.Add(ctx, 1, b.attributes(attribute.Bool("retryable", errors.Is(err, store.ErrRetry))))
	}
	return r, err
}

// count counts what the store did with rows.
func (b *backend) count(r store.Result) {
	ctx := context.Background()
	for _, n := range []struct {
		result string
		rows   int64
	}{{"written", r.Written}, {"duplicate", r.Duplicates}, {"replaced", r.Replaced}, {"rejected", r.Rejected}} {
		if n.rows > 0 {
			b.telemetry.ExtensionGpuStorageRows.Add(ctx, n.rows, b.attributes(attribute.String("result", n.result)))
		}
	}
	b.telemetry.ExtensionGpuStorageWrittenSize.Add(ctx, r.Bytes, b.attributes())
	b.rejected.Add(r.Rejected)
}

// warnRejected logs the rows that were rejected since the last call.
func (b *backend) warnRejected() {
	if n := b.rejected.Swap(0); n > 0 {
		b.logger.Warn("rows rejected", zap.Int64("rows", n),
			zap.String("reason", "a time before 1970 or after 2116, a session id above 256 bytes, or rows of a session that has sums only"))
	}
}

// Delete implements [store.Admin].
func (b *backend) Delete(ctx context.Context, project, id string) error {
	var size int64
	if info, err := b.Store.Session(ctx, project, id); err == nil {
		size = info.Bytes
	}
	if err := b.Store.Delete(ctx, project, id); err != nil {
		return err
	}
	b.active.remove(session{project, id})
	b.deleted(ctx, store.Deleted{Project: project, Session: id, Reason: "request", Bytes: size})
	return nil
}

func (b *backend) deleted(ctx context.Context, d store.Deleted) {
	reason := attribute.String("reason", d.Reason)
	b.telemetry.ExtensionGpuStorageDeleted.Add(ctx, 1, b.attributes(reason))
	b.telemetry.ExtensionGpuStorageDeletedSize.Add(ctx, d.Bytes, b.attributes(reason))
	b.logger.Info("session deleted", zap.String("project", d.Project), zap.String("session", d.Session),
		zap.String("reason", d.Reason), zap.Int64("bytes", d.Bytes))
}

func (b *backend) close(ctx context.Context) error {
	b.stop()
	b.done.Wait()
	b.warnRejected()
	if err := b.Store.Close(ctx); err != nil {
		return fmt.Errorf("backend %s: %w", b.name, err)
	}
	return nil
}
