// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"errors"
	"slices"
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

	"github.com/gpuflight/gpuflight/internal/hostinfo"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/device"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/kubelet"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/metadata"
)

// intervals are the intervals of periodic work. Tests use shorter ones.
type intervals struct {
	// first is the delay after a first failure. It doubles up to longest.
	first, longest time.Duration
	// rescan is the interval between two queries for devices.
	rescan time.Duration
	// shutdown bounds the wait for an unresponsive driver.
	shutdown time.Duration
	// event bounds one wait for XID errors, and therefore the delay before the driver can be
	// closed.
	event time.Duration
}

var defaultIntervals = intervals{first: time.Second, longest: time.Minute, rescan: time.Minute, shutdown: 3 * time.Second, event: 500 * time.Millisecond}

// The outcomes of a device in a scrape.
const (
	stateOK   = "ok"
	stateLost = "lost"
	stateHung = "hung"
)

// nvmlReceiver reads the devices of one configuration.
type nvmlReceiver struct {
	cfg       *Config
	set       receiver.Settings
	driver    gpu.Driver
	intervals intervals
	telemetry *metadata.TelemetryBuilder
	builder   *metadata.MetricsBuilder
	logs      consumer.Logs
	machine   hostinfo.Host

	host   component.Host
	cancel context.CancelFunc
	// ended is closed by Shutdown.
	ended chan struct{}
	wg    sync.WaitGroup
	// listed is closed after the first query for devices.
	listed chan struct{}
	// again requests a query for devices before it is due.
	again chan struct{}
	// turn is held during a scrape, and while the driver is reopened. At that time devices cannot
	// be read, and working ones would be reported as failed.
	turn chan struct{}
	xids xids
	// pods knows which pods have which device.
	pods *kubelet.Client

	mu      sync.Mutex
	devices map[string]*tracked
	// closed means that no more workers may start.
	closed bool
}

// tracked is a device that the driver has listed at some time.
type tracked struct {
	*worker
	id gpu.Identity
	// missing means that the driver no longer lists it.
	missing bool
	// state is its outcome in the last scrape, or "" before the first.
	state string
}

func newReceiver(cfg *Config, set receiver.Settings) (*nvmlReceiver, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &nvmlReceiver{
		cfg: cfg, set: set, driver: device.Open(cfg.options()), intervals: defaultIntervals, telemetry: telemetry,
		builder: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		ended:   make(chan struct{}), listed: make(chan struct{}), again: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		xids: newXIDs(), pods: kubelet.New(cfg.KubeletSocket, cfg.RootPath, set.Logger), devices: map[string]*tracked{}, machine: hostinfo.Read(cfg.RootPath, cfg.HostName),
	}, nil
}

// Start starts the query for devices. A machine without devices is valid: they may appear later.
func (r *nvmlReceiver) Start(ctx context.Context, host component.Host) error {
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.host = host
	r.wg.Go(func() { r.watch(ctx) })
	r.wg.Go(func() { r.sendXIDs(ctx) })
	r.wg.Go(func() { r.pods.Run(ctx, min(max(r.cfg.CollectionInterval, time.Second), longestPods)) })
	return nil
}

// Shutdown stops reading. It waits a limited time for an unresponsive driver: a call cannot be
// ended, nor its goroutine.
func (r *nvmlReceiver) Shutdown(ctx context.Context) error {
	defer r.telemetry.Shutdown()
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	close(r.ended)
	limit, stop := context.WithTimeout(ctx, r.intervals.shutdown)
	defer stop()
	done := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(done)
	}()
	r.mu.Lock()
	r.closed = true
	devices := make([]*tracked, 0, len(r.devices))
	for _, t := range r.devices {
		devices = append(devices, t)
	}
	r.mu.Unlock()
	idle := true
	for _, t := range devices {
		idle = t.end(limit.Done()) && idle
	}
	select {
	case <-done:
	case <-limit.Done():
		idle = false
	}
	if !idle {
		r.set.Logger.Warn("a call of the NVIDIA driver is unresponsive and was abandoned")
		return nil
	}
	if err := r.driver.Close(); err != nil {
		r.set.Logger.Warn("NVML was not closed", zap.Error(err))
	}
	return nil
}

// watch opens the driver, updates the list of devices, and reopens the driver when it restarts.
func (r *nvmlReceiver) watch(ctx context.Context) {
	wait := r.intervals.first
	problem := ""
	first := sync.OnceFunc(func() { close(r.listed) })
	closed := false // and turn is held
	for {
		err := r.driver.Open()
		if err == nil {
			var devices []gpu.Device
			if devices, err = r.driver.List(); err == nil {
				r.adopt(devices)
				if len(devices) == 0 {
					err = errNoDevice
				}
			}
		}
		first()
		if closed {
			<-r.turn
		}
		// Log one warning per problem, regardless of its duration.
		switch {
		case err == nil && problem != "":
			r.set.Logger.Info("NVML is available again", zap.Int("devices", r.count()))
			componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
			problem = ""
		case err != nil && err.Error() != problem:
			problem = err.Error()
			r.set.Logger.Warn("NVML has no devices and is retried", zap.Error(err))
			componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
		}
		if err == nil {
			began := time.Now()
			r.session(ctx)
			if time.Since(began) > 2*r.intervals.longest {
				wait = r.intervals.first
			}
		}
		for {
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, r.intervals.longest)
			select {
			case r.turn <- struct{}{}:
			case <-ctx.Done():
				return
			}
			// Do not close the driver during a reading.
			if err := r.driver.Close(); !errors.Is(err, gpu.ErrBusy) {
				closed = true
				break
			}
			<-r.turn
		}
	}
}

var errNoDevice = errors.New("NVML has no device that the settings select")

// session updates the list of devices and listens to XID errors until the driver must be reopened.
func (r *nvmlReceiver) session(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if r.cfg.XID.Enabled {
		wg.Go(func() { r.listen(ctx) })
	}
	ticker := time.NewTicker(r.intervals.rescan)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			// Only a new session finds a lost or reset device again. It interrupts the others,
			// so it is limited to this interval while some of them answer.
			if r.any(func(t *tracked) bool { return t.missing || t.state == stateLost }) {
				return
			}
		case <-r.again:
			if !r.any(func(t *tracked) bool { return !t.missing && t.state != stateLost }) {
				return
			}
			if !sleep(ctx, r.intervals.first) {
				return
			}
		}
		devices, err := r.driver.List()
		if err != nil {
			if ctx.Err() == nil {
				r.set.Logger.Debug("looking for devices", zap.Error(err))
			}
			return
		}
		r.adopt(devices)
	}
}

// adopt updates the list of devices.
func (r *nvmlReceiver) adopt(found []gpu.Device) {
	every := time.Duration(0)
	if s := r.cfg.Groups.Samples; s.Enabled && r.cfg.CollectionInterval > s.Interval {
		every = s.Interval
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return // shut down during the query
	}
	present := map[string]bool{}
	for _, d := range found {
		id := d.Identity()
		present[id.ID] = true
		t := r.devices[id.ID]
		if t == nil {
			t = &tracked{worker: startWorker(d, every)}
			r.devices[id.ID] = t
			r.set.Logger.Info("reading device", zap.String("device", id.ID), zap.String("name", id.Name), zap.Int("index", id.Index), zap.String("parent", id.Parent))
		}
		t.id, t.missing = id, false
	}
	for key, t := range r.devices {
		if present[key] {
			continue
		}
		if t.id.Parent != "" && present[t.id.Parent] {
			// The MIG device was removed on purpose: its GPU still exists.
			delete(r.devices, key)
			t.close()
			continue
		}
		t.missing = true
	}
}

func (r *nvmlReceiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.devices)
}

// any reports whether a condition is true for any device.
func (r *nvmlReceiver) any(holds func(*tracked) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.devices {
		if holds(t) {
			return true
		}
	}
	return false
}

// scrape reads all devices concurrently. Devices that do not answer in the configured time are
// reported as failed.
func (r *nvmlReceiver) scrape(ctx context.Context) (pmetric.Metrics, error) {
	start := time.Now()
	// A fifth of the time is reserved for sending the data.
	ctx, cancel := context.WithTimeout(ctx, r.cfg.timeout()*4/5)
	defer cancel()
	select {
	case <-r.listed:
	case <-ctx.Done():
	case <-r.ended:
		return pmetric.NewMetrics(), nil
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done(): // opening is unresponsive
	case <-r.ended:
		return pmetric.NewMetrics(), nil
	}
	devices := r.snapshot()
	asked := make([]bool, len(devices))
	for i, t := range devices {
		asked[i] = !t.missing && t.request()
	}
	states := map[string]int64{stateOK: 0, stateLost: 0, stateHung: 0}
	for i, t := range devices {
		state, reason := stateLost, "NVML does not list it any more"
		var reading gpu.Reading
		if !t.missing {
			state, reason = stateHung, "a call of the driver has not returned"
			if asked[i] {
				var ok bool
				if reading, ok = t.await(ctx.Done(), r.ended); ok {
					state, reason = stateOK, ""
					if reading.Lost != nil {
						state, reason = stateLost, reading.Lost.Error()
					}
				}
				select {
				case <-r.ended:
					return pmetric.NewMetrics(), nil
				default:
				}
			}
		}
		states[state]++
		r.note(t, state, reason)
		r.account(t, &reading)
		if reading.Time.IsZero() {
			reading.Time = time.Now()
		}
		select {
		case <-r.pods.First():
		case <-ctx.Done(): // the kubelet is slow
		case <-r.ended:
			return pmetric.NewMetrics(), nil
		}
		r.record(t.id, state, &reading)
	}
	for state, n := range states {
		r.telemetry.ReceiverNvmlDevices.Record(ctx, n, metric.WithAttributes(attribute.String("device.state", state)))
	}
	r.telemetry.ReceiverNvmlScrapeDuration.Record(ctx, time.Since(start).Seconds(), groupScrape)
	return r.emit(), nil
}

// snapshot returns the devices in a stable order: GPUs by number, each followed by its MIG devices.
func (r *nvmlReceiver) snapshot() []tracked {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]tracked, 0, len(r.devices))
	for _, t := range r.devices {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b tracked) int {
		switch {
		case (a.id.Parent == "") != (b.id.Parent == ""):
			if a.id.Parent == "" {
				return -1
			}
			return 1
		case a.id.Index != b.id.Index:
			return a.id.Index - b.id.Index
		case a.id.ID < b.id.ID:
			return -1
		default:
			return 1
		}
	})
	return out
}

// note stores a device's state, logs a change once, and requests a query for lost devices.
func (r *nvmlReceiver) note(t tracked, state, reason string) {
	r.mu.Lock()
	if now := r.devices[t.id.ID]; now != nil {
		now.state = state
	}
	r.mu.Unlock()
	if state != t.state {
		switch {
		case state != stateOK:
			r.set.Logger.Warn("NVML: device failed", zap.String("device", t.id.ID), zap.String("name", t.id.Name), zap.String("state", state), zap.String("reason", reason))
		case t.state != "":
			r.set.Logger.Info("NVML: device answers again", zap.String("device", t.id.ID), zap.String("name", t.id.Name))
		}
	}
	if state == stateLost {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
}

// account adds the reading's own statistics to the receiver's telemetry.
func (r *nvmlReceiver) account(t tracked, reading *gpu.Reading) {
	ctx := context.Background()
	for _, g := range reading.Groups {
		r.telemetry.ReceiverNvmlScrapeDuration.Record(ctx, g.Duration.Seconds(), metric.WithAttributes(attribute.String("group", g.Group)))
	}
	for _, e := range reading.Errors {
		r.telemetry.ReceiverNvmlCallErrors.Add(ctx, 1, metric.WithAttributes(attribute.String("call", e.Call), attribute.String("code", e.Code)))
	}
	if reading.ProcessesDropped > 0 {
		r.telemetry.ReceiverNvmlProcessesDropped.Add(ctx, int64(reading.ProcessesDropped))
	}
	if len(reading.Unsupported) > 0 {
		calls := make([]string, len(reading.Unsupported))
		for i, u := range reading.Unsupported {
			calls[i] = u.Call + ": " + u.Code
			if u.Forbidden {
				r.set.Logger.Info("NVML: the collector lacks the permission for a call", zap.String("device", t.id.ID), zap.String("call", u.Call))
			}
		}
		r.set.Logger.Debug("NVML: calls that the device does not offer", zap.String("device", t.id.ID), zap.Strings("calls", calls))
	}
}

var groupScrape = metric.WithAttributes(attribute.String("group", "scrape"))

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
