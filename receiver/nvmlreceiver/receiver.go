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

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/device"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/metadata"
)

// pace is how often the receiver looks for what has changed; tests have less patience.
type pace struct {
	// first is the wait after a first failure, doubled up to longest.
	first, longest time.Duration
	// look is the time between two looks for devices.
	look time.Duration
	// shutdown is how long to wait for a driver that hangs.
	shutdown time.Duration
	// event is how long one wait for XID errors takes, and so how long the driver can be kept open.
	event time.Duration
}

var usualPace = pace{first: time.Second, longest: time.Minute, look: time.Minute, shutdown: 3 * time.Second, event: 500 * time.Millisecond}

// What becomes of a device in a scrape.
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
	pace      pace
	telemetry *metadata.TelemetryBuilder
	builder   *metadata.MetricsBuilder
	logs      consumer.Logs

	host   component.Host
	cancel context.CancelFunc
	// ended is closed when the receiver is shut down.
	ended chan struct{}
	wg    sync.WaitGroup
	// looked is closed once the driver has been asked for devices the first time.
	looked chan struct{}
	// again asks for a look at the devices before it is due.
	again chan struct{}
	// turn is filled by a scrape, and while the driver is closed to be opened again: in that moment devices
	// that are well could not be read, and would be reported as failed.
	turn chan struct{}
	xids xids

	mu      sync.Mutex
	devices map[string]*tracked
	// closed says that no more workers may be started.
	closed bool
}

// tracked is a device that was seen at some time.
type tracked struct {
	*worker
	id gpu.Identity
	// missing says that the driver does not list it any more.
	missing bool
	// state is what became of it in the last scrape, "" before the first.
	state string
}

func newReceiver(cfg *Config, set receiver.Settings) (*nvmlReceiver, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &nvmlReceiver{
		cfg: cfg, set: set, driver: device.Open(cfg.options()), pace: usualPace, telemetry: telemetry,
		builder: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		ended:   make(chan struct{}), looked: make(chan struct{}), again: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		xids: newXIDs(), devices: map[string]*tracked{},
	}, nil
}

// Start begins to look for devices. A machine without any is no error: they may come.
func (r *nvmlReceiver) Start(ctx context.Context, host component.Host) error {
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.host = host
	r.wg.Go(func() { r.watch(ctx) })
	r.wg.Go(func() { r.sendXIDs(ctx) })
	return nil
}

// Shutdown stops reading. A call of the driver that hangs is waited for only a while: it cannot be
// ended, and its goroutine with it.
func (r *nvmlReceiver) Shutdown(ctx context.Context) error {
	defer r.telemetry.Shutdown()
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	close(r.ended)
	limit, stop := context.WithTimeout(ctx, r.pace.shutdown)
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
		r.set.Logger.Warn("a call of the NVIDIA driver does not return, it is left behind")
		return nil
	}
	if err := r.driver.Close(); err != nil {
		r.set.Logger.Warn("NVML was not closed", zap.Error(err))
	}
	return nil
}

// watch opens the driver, keeps the list of devices current, and begins anew when the driver does.
func (r *nvmlReceiver) watch(ctx context.Context) {
	wait := r.pace.first
	problem := ""
	first := sync.OnceFunc(func() { close(r.looked) })
	closed := false // and the turn is ours
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
		// One warning for a problem, however long it lasts.
		switch {
		case err == nil && problem != "":
			r.set.Logger.Info("NVML is back", zap.Int("devices", r.count()))
			componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
			problem = ""
		case err != nil && err.Error() != problem:
			problem = err.Error()
			r.set.Logger.Warn("NVML gives no devices; trying again", zap.Error(err))
			componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
		}
		if err == nil {
			began := time.Now()
			r.session(ctx)
			if time.Since(began) > 2*r.pace.longest {
				wait = r.pace.first
			}
		}
		for {
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, r.pace.longest)
			select {
			case r.turn <- struct{}{}:
			case <-ctx.Done():
				return
			}
			// Not under a reading that has not come back.
			if err := r.driver.Close(); !errors.Is(err, gpu.ErrBusy) {
				closed = true
				break
			}
			<-r.turn
		}
	}
}

var errNoDevice = errors.New("NVML is there, but has no device that the settings select")

// session looks for devices and listens to XID errors until the driver has to be opened again.
func (r *nvmlReceiver) session(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if r.cfg.XID.Enabled {
		wg.Go(func() { r.listen(ctx) })
	}
	ticker := time.NewTicker(r.pace.look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			// A device that was lost or reset is found again only by a new session. That costs the
			// others a moment, so it is tried at this pace while some of them answer.
			if r.any(func(t *tracked) bool { return t.missing || t.state == stateLost }) {
				return
			}
		case <-r.again:
			if !r.any(func(t *tracked) bool { return !t.missing && t.state != stateLost }) {
				return
			}
			if !sleep(ctx, r.pace.first) {
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

// adopt brings the list of devices up to date.
func (r *nvmlReceiver) adopt(found []gpu.Device) {
	every := time.Duration(0)
	if s := r.cfg.Groups.Samples; s.Enabled && r.cfg.CollectionInterval > s.Interval {
		every = s.Interval
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return // shut down while the driver was asked for its devices
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
			// A MIG device that was taken apart on purpose; its GPU is there.
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

// any reports whether something holds for any of the devices.
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

// scrape reads all devices beside each other, waits no longer than the settings say, and reports as
// failed those that have not answered.
func (r *nvmlReceiver) scrape(ctx context.Context) (pmetric.Metrics, error) {
	start := time.Now()
	// A fifth of the time is for handing on what was read.
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout*4/5)
	defer cancel()
	select {
	case <-r.looked:
	case <-ctx.Done():
	case <-r.ended:
		return pmetric.NewMetrics(), nil
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done(): // opening hangs
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
		r.record(t.id, state, &reading)
	}
	for state, n := range states {
		r.telemetry.ReceiverNvmlDevices.Record(ctx, n, metric.WithAttributes(attribute.String("device.state", state)))
	}
	r.telemetry.ReceiverNvmlScrapeDuration.Record(ctx, time.Since(start).Seconds(), groupScrape)
	return r.emit(), nil
}

// snapshot returns the devices in a steady order: GPUs by their numbers, MIG devices after them.
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

// note keeps a device's state, tells of a change once, and asks for a look at lost devices.
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

// account turns what a reading says of itself into telemetry of the receiver.
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
				r.set.Logger.Info("NVML: a call needs more rights than the collector has", zap.String("device", t.id.ID), zap.String("call", u.Call))
			}
		}
		r.set.Logger.Debug("NVML: calls that the device does not offer", zap.String("device", t.id.ID), zap.Strings("calls", calls))
	}
}

var groupScrape = metric.WithAttributes(attribute.String("group", "scrape"))

// sleep waits, and reports false if the context ended before.
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
