// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/metadata"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

// source observes the driver. Start is called once. Close is called even if Start was not, or
// failed. In between, collections and traces use the source concurrently.
type source interface {
	// Start attaches. Its error is one sentence with the next step.
	Start(ctx context.Context) error
	Snapshot() (*probe.Snapshot, error)
	// Launches has fewer fields, and keeps ended processes for the next Snapshot.
	Launches() (map[probe.ProcessID]uint64, error)
	Trace(o probe.TraceOptions) (tracing, error)
	Close() error
}

// intervals are the delays between retries. Tests use shorter ones.
type intervals struct {
	// first is the delay after a first failure. It doubles up to longest.
	first, longest time.Duration
}

var defaultIntervals = intervals{first: time.Second, longest: time.Minute}

// maxFailures is the number of consecutive failed snapshots after which the source is reopened.
// Reopening restarts all sums, so it is not the first reaction.
const maxFailures = 3

// cudaReceiver observes the processes of one configuration.
type cudaReceiver struct {
	cfg       *Config
	set       receiver.Settings
	open      func(*Config, *zap.Logger) source
	intervals intervals
	telemetry *metadata.TelemetryBuilder

	host   component.Host
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// again requests a new source.
	again chan struct{}

	// tracer is nil without a pipeline of traces.
	tracer *tracer

	// mu is held while collections use the source.
	mu sync.Mutex
	// source is nil while none is attached.
	source    source
	processes *processes
	// lost has the losses of the source at the last snapshot.
	lost     probe.Losses
	warned   map[uint32]bool
	failures int
}

func newReceiver(cfg *Config, set receiver.Settings) (*cudaReceiver, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &cudaReceiver{
		cfg: cfg, set: set, open: openProbe, intervals: defaultIntervals, telemetry: telemetry, again: make(chan struct{}, 1),
	}, nil
}

// Start starts to attach. It returns no error on a machine where that is impossible.
func (r *cudaReceiver) Start(ctx context.Context, host component.Host) error {
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.host = host
	if r.tracer != nil {
		r.tracer.start()
	}
	r.wg.Go(func() { r.watch(ctx) })
	return nil
}

// Shutdown detaches. It may be called before Start, and twice. Attaching takes the kernel a moment
// and cannot be cancelled. If ctx ends first, the probe is closed after it has attached.
func (r *cudaReceiver) Shutdown(ctx context.Context) error {
	if r.cancel == nil {
		r.telemetry.Shutdown()
		return nil
	}
	if r.tracer != nil {
		r.tracer.stop()
	}
	r.cancel()
	done := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(done)
	}()
	defer r.telemetry.Shutdown()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the CUDA driver is still being attached to: %w", ctx.Err())
	}
}

// watch keeps a source attached until the receiver is shut down.
func (r *cudaReceiver) watch(ctx context.Context) {
	wait := r.intervals.first
	problem := ""
	for {
		began := time.Now()
		s := r.open(r.cfg, r.set.Logger)
		err := s.Start(ctx)
		if ctx.Err() != nil {
			r.close(s)
			return
		}
		// Log one warning per problem, regardless of its duration.
		switch {
		case err == nil:
			r.set.Logger.Info("observing the CUDA driver")
			componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
			problem = ""
			r.session(ctx, s, began)
		case err.Error() != problem:
			problem = err.Error()
			r.set.Logger.Warn("CUDA calls are not observed; trying again", zap.Error(err))
			componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
		}
		r.close(s)
		if time.Since(began) > 2*r.intervals.longest {
			wait = r.intervals.first
		}
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, r.intervals.longest)
	}
}

// session passes the source to the scrapes and the tracer until it fails.
func (r *cudaReceiver) session(ctx context.Context, s source, began time.Time) {
	select {
	case <-r.again: // was meant for the previous source
	default:
	}
	if r.tracer != nil {
		r.tracer.ignoreSignal("nothing was observed when it came")
	}
	r.mu.Lock()
	r.source, r.processes, r.lost, r.failures = s, newProcesses(r.cfg, began), probe.Losses{}, 0
	r.warned = map[uint32]bool{}
	r.mu.Unlock()
	traced, stop := context.WithCancel(ctx)
	defer stop()
	var tracer sync.WaitGroup
	if r.tracer != nil {
		tracer.Go(func() { r.tracer.run(traced, s) })
	}
	select {
	case <-ctx.Done():
	case <-r.again:
	}
	stop()
	tracer.Wait()
	r.mu.Lock()
	r.source, r.processes = nil, nil
	r.mu.Unlock()
}

func (r *cudaReceiver) close(s source) {
	if err := s.Close(); err != nil {
		r.set.Logger.Warn("detaching from the CUDA driver", zap.Error(err))
	}
}

// scrape returns the sums of all processes. It returns nothing while no source is attached.
func (r *cudaReceiver) scrape(ctx context.Context) (pmetric.Metrics, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.source == nil {
		r.telemetry.ReceiverCudaAvailable.Record(ctx, 0)
		return pmetric.NewMetrics(), nil
	}
	s, err := r.source.Snapshot()
	if err != nil {
		r.fail(ctx, err)
		return pmetric.NewMetrics(), nil
	}
	if r.failures > 0 {
		r.failures = 0
		r.set.Logger.Info("CUDA calls can be read again")
		componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
	}
	r.telemetry.ReceiverCudaAvailable.Record(ctx, 1)
	r.account(ctx, &s.Losses)
	r.runtimes(ctx, s.Runtimes)
	md, n := r.processes.metrics(s)
	r.telemetry.ReceiverCudaProcessesLost.Add(ctx, n.lost)
	for state, v := range map[string]int64{"reported": n.reported, "excluded": n.excluded, "dropped": n.dropped} {
		r.telemetry.ReceiverCudaProcesses.Record(ctx, v, metric.WithAttributes(attribute.String("state", state)))
	}
	return md, nil
}

// runtimes counts the libcudart libraries in each state.
func (r *cudaReceiver) runtimes(ctx context.Context, all []probe.RuntimeCheck) {
	n := map[probe.RuntimeState]int64{probe.RuntimeChecking: 0, probe.RuntimePassed: 0, probe.RuntimeBypasses: 0}
	for i := range all {
		n[all[i].State]++
	}
	for state, v := range n {
		r.telemetry.ReceiverCudaRuntimes.Record(ctx, v, metric.WithAttributes(attribute.String("check", string(state))))
	}
}

// last sends the sums since the last collection. Processes that have ended since then are in no
// later one.
func (r *cudaReceiver) last(ctx context.Context, next consumer.Metrics) {
	md, err := r.scrape(ctx)
	if err == nil && md.DataPointCount() > 0 {
		err = next.ConsumeMetrics(ctx, md)
	}
	if err != nil {
		r.set.Logger.Warn("the last values before the end are not sent", zap.Error(err))
	}
}

// fail counts a failed snapshot, logs the first of a series, and closes the source after
// maxFailures.
func (r *cudaReceiver) fail(ctx context.Context, err error) {
	r.telemetry.ReceiverCudaSnapshotFailed.Add(ctx, 1)
	r.telemetry.ReceiverCudaAvailable.Record(ctx, 0)
	r.failures++
	switch r.failures {
	case 1:
		r.set.Logger.Warn("CUDA calls cannot be read", zap.Error(err))
		componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
	case maxFailures:
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
}

// account adds the losses since the last snapshot to the receiver's telemetry.
func (r *cudaReceiver) account(ctx context.Context, l *probe.Losses) {
	for _, c := range []struct {
		counter   metric.Int64Counter
		now, last uint64
	}{
		{r.telemetry.ReceiverCudaEventsLost, l.RingFull, r.lost.RingFull},
		{r.telemetry.ReceiverCudaReturnsMissed, l.InFlight, r.lost.InFlight},
		{r.telemetry.ReceiverCudaLaunchesFolded, l.Folded, r.lost.Folded},
		{r.telemetry.ReceiverCudaNamesEvicted, l.NamesEvicted, r.lost.NamesEvicted},
		{r.telemetry.ReceiverCudaAttachFailed, l.AttachFailed, r.lost.AttachFailed},
		{r.telemetry.ReceiverCudaAttachSlow, l.Slow, r.lost.Slow},
	} {
		c.counter.Add(ctx, int64(less(c.now, c.last)))
	}
	for name, n := range l.MapFull {
		r.telemetry.ReceiverCudaCallsLost.Add(ctx, int64(less(n, r.lost.MapFull[name])), metric.WithAttributes(attribute.String("map", name)))
	}
	for user, n := range l.Users {
		if calls := less(n, r.lost.Users[user]); calls > 0 && r.mayWarn(user) {
			r.set.Logger.Warn("calls are not counted: a user has more processes than its share", zap.Uint32("user", user), zap.Uint64("calls", calls))
		}
	}
	for cause, n := range l.Skipped {
		r.telemetry.ReceiverCudaFilesSkipped.Add(ctx, int64(less(n, r.lost.Skipped[cause])), metric.WithAttributes(attribute.String("cause", cause)))
	}
	r.telemetry.ReceiverCudaDenied.Record(ctx, int64(l.Denied))
	r.lost = *l
}

// maxWarned bounds the users with a warning of their own.
const maxWarned = 64

// mayWarn reports whether no warning for the user was logged since the source was attached.
func (r *cudaReceiver) mayWarn(user uint32) bool {
	if r.warned[user] || len(r.warned) >= maxWarned {
		return false
	}
	r.warned[user] = true
	return true
}

// sleep waits and returns false if the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
