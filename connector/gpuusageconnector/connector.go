// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/collector/storageclient"
)

// usageConnector takes traces and exports metrics at intervals. Parsing runs in the callers'
// goroutines side by side; the state has one lock.
type usageConnector struct {
	cfg  *Config
	set  connector.Settings
	next consumer.Metrics
	keys *resourceKeys

	// Tests have their own.
	now   func() time.Time
	ticks func(time.Duration) (c <-chan time.Time, stop func())

	parsers sync.Pool
	tel     *telemetry

	mu    sync.Mutex // guards what follows
	read  time.Time  // when clock was called last
	state *state
	log   *recordLog // nil without storage

	cancel   context.CancelFunc
	done     chan struct{}
	stopOnce sync.Once
}

func newConnector(cfg *Config, set connector.Settings, next consumer.Metrics) *usageConnector {
	c := &usageConnector{
		cfg: cfg, set: set, next: next, keys: newResourceKeys(cfg), state: newState(cfg),
		now: time.Now,
		ticks: func(d time.Duration) (<-chan time.Time, func()) {
			t := time.NewTicker(d)
			return t.C, t.Stop
		},
	}
	c.parsers.New = func() any { return newParser(c.keys) }
	return c
}

// Capabilities says that traces are only read.
func (c *usageConnector) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: false}
}

// Start loads the state and begins to export.
func (c *usageConnector) Start(ctx context.Context, host component.Host) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Shutdown(ctx))
		}
	}()
	if c.tel, err = newTelemetry(c.set); err != nil {
		return err
	}
	client, err := storageclient.Open(ctx, c.cfg.Storage, host, component.KindConnector, c.set.ID)
	if err != nil {
		return err
	}
	if client != nil {
		c.log = newRecordLog(client)
		if err := c.restore(ctx); err != nil {
			return err
		}
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel, c.done = cancel, make(chan struct{})
	ticks, stop := c.ticks(c.cfg.MetricsFlushInterval)
	go func() {
		defer close(c.done)
		defer stop()
		for {
			select {
			case <-run.Done():
				return
			case <-ticks:
				c.flush(run, false)
			}
		}
	}()
	return nil
}

// restore loads what an earlier run has stored. A state that cannot be used is given up.
func (c *usageConnector) restore(ctx context.Context) error {
	st, err := c.log.load(ctx, c.cfg)
	switch {
	case err == nil:
		if st != nil {
			st.stats = stats{} // counted by the run that took them
			c.state = st
		}
	case errors.Is(err, errSettings):
		c.set.Logger.Warn("the stored usage state is of other settings: all series begin anew", zap.Error(err))
		c.tel.StateReset(ctx)
	case errors.Is(err, errDamaged):
		c.set.Logger.Error("the stored usage state cannot be used: all series begin anew", zap.Error(err))
		c.tel.StateReset(ctx)
	default:
		return fmt.Errorf("usage state: %w", err)
	}
	if err == nil && st != nil {
		return nil
	}
	c.log.begin(uint64(c.now().UnixNano()))
	c.storageError(ctx, c.log.write(ctx, c.log.snapshot(c.state)))
	return nil
}

// clock returns the time in Unix nanoseconds. It never goes back: while the wall clock is behind the state's
// newest time, because it was set back, the time continues by the monotonic clock. The caller holds mu.
func (c *usageConnector) clock() int64 {
	now := c.now()
	if c.read.IsZero() {
		c.read = now
	}
	elapsed := max(now.Sub(c.read), 0)
	c.read = now
	return max(now.UnixNano(), c.state.now+int64(elapsed))
}

// ConsumeTraces counts all spans of GPU work.
func (c *usageConnector) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	p := c.parsers.Get().(*parser)
	defer func() {
		// Release the memory of an unusually large batch.
		if !p.large() {
			p.reset()
			c.parsers.Put(p)
		}
	}()
	p.parse(td)
	c.tel.Rejected(ctx, &p.rejected)
	b := &p.b
	if len(b.spans) == 0 && len(b.parents) == 0 {
		return nil
	}
	if c.log != nil {
		p.record = appendBatchRecord(p.record[:0], b)
	}

	c.mu.Lock()
	b.arrived = c.clock()
	var err error
	if c.log != nil {
		err = c.log.append(ctx, p.record, b.arrived)
	}
	c.state.apply(b)
	counted := c.state.stats
	c.state.stats = stats{}
	c.mu.Unlock()

	c.storageError(ctx, err)
	c.tel.Counted(ctx, &counted)
	return nil
}

// flush exports all series. With all set, everything that waits is settled first.
func (c *usageConnector) flush(ctx context.Context, all bool) {
	c.mu.Lock()
	now := c.clock()
	var err error
	if c.log != nil {
		err = c.log.append(ctx, appendFlushRecord(nil, all), now)
	}
	c.state.flush(now, all)
	md := c.state.emit()
	c.state.nextInterval()
	counted := c.state.stats
	c.state.stats = stats{}
	levels := c.state.levels()
	var snap *snapshot
	if c.log != nil && c.log.due() {
		snap = c.log.snapshot(c.state)
	}
	c.mu.Unlock()

	c.storageError(ctx, err)
	c.tel.Counted(ctx, &counted)
	c.tel.Levels(ctx, levels)
	if md.DataPointCount() > 0 {
		if err := c.next.ConsumeMetrics(ctx, md); err != nil {
			// Nothing is lost: the values are cumulative and the next export has them.
			c.set.Logger.Warn("usage metrics were refused", zap.Error(err))
			c.tel.FlushError(ctx)
		}
	}
	if snap != nil {
		c.storageError(ctx, c.save(ctx, snap))
	}
}

// save writes a snapshot. Records are appended meanwhile.
func (c *usageConnector) save(ctx context.Context, snap *snapshot) error {
	err := c.log.put(ctx, snap)
	c.mu.Lock()
	c.log.written(snap, err)
	c.mu.Unlock()
	return err
}

// storageError counts an error of the storage, and logs one a minute: telemetry goes on without it.
func (c *usageConnector) storageError(ctx context.Context, err error) {
	if err == nil {
		return
	}
	c.tel.StorageError(ctx)
	if c.tel.mayLog(c.now()) {
		c.set.Logger.Error("usage state could not be stored; a restart would lose what came since the last snapshot", zap.Error(err))
	}
}

// shutdownGrace limits the last export, if the context sets no earlier deadline. The Collector's context
// sets none, and an exporter waits forever for an unreachable backend. The values are cumulative, and
// with a storage the next process exports them.
const shutdownGrace = 5 * time.Second

// Shutdown exports for the last time. Without a storage, what waits is settled, for nobody will.
func (c *usageConnector) Shutdown(ctx context.Context) (err error) {
	c.stopOnce.Do(func() {
		if c.cancel != nil {
			c.cancel()
			<-c.done
			last, cancel := context.WithTimeout(ctx, shutdownGrace)
			c.flush(last, c.log == nil)
			cancel()
		}
		if c.log != nil {
			if c.cancel != nil {
				c.mu.Lock()
				snap := c.log.snapshot(c.state)
				c.mu.Unlock()
				c.storageError(ctx, c.save(ctx, snap))
			}
			err = c.log.close(ctx)
		}
		if c.tel != nil {
			c.tel.Shutdown()
		}
	})
	return err
}
