// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/xid"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	// maxWaiting bounds the queue of XID errors. A damaged GPU reports a few per second at most.
	maxWaiting = 256
	// maxCodes bounds the separate error codes per device. About 170 exist.
	maxCodes = 256
	// otherXID counts all codes above maxCodes.
	otherXID = "xid_other"
)

// xids counts XID errors and queues them for sending.
type xids struct {
	queue chan gpu.XID
	began time.Time

	mu sync.Mutex
	by map[string]map[string]int64
}

func newXIDs() xids {
	return xids{queue: make(chan gpu.XID, maxWaiting), began: time.Now(), by: map[string]map[string]int64{}}
}

// count counts an error.
func (x *xids) count(e gpu.XID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.by[e.Device.ID]
	if m == nil {
		m = map[string]int64{}
		x.by[e.Device.ID] = m
	}
	name := "xid_" + strconv.FormatUint(e.Code, 10)
	if _, known := m[name]; !known && len(m) >= maxCodes {
		name = otherXID
	}
	m[name]++
}

// counts returns the counts of a device by error.type.
func (x *xids) counts(id string) map[string]int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.by[id])
}

// listen receives XID errors from the driver until the context ends.
func (r *nvmlReceiver) listen(ctx context.Context) {
	complained := false
	for ctx.Err() == nil {
		events, supported, err := r.driver.Events(r.intervals.event)
		for _, e := range events {
			r.xids.count(e)
			select {
			case r.xids.queue <- e:
			default:
				r.telemetry.ReceiverNvmlXidDropped.Add(ctx, 1)
			}
		}
		switch {
		case err != nil:
			if !complained {
				r.set.Logger.Warn("NVML: XID errors are unavailable and retried", zap.Error(err))
			}
			complained = true
			sleep(ctx, r.intervals.first)
		case !supported:
			// No device reports XID errors now; one may be added.
			sleep(ctx, r.intervals.rescan)
		default:
			complained = false
		}
	}
}

// sendXIDs sends XID errors to the next component, so that a slow one does not delay the driver's
// events.
func (r *nvmlReceiver) sendXIDs(ctx context.Context) {
	for {
		select {
		case e := <-r.xids.queue:
			r.sendXID(ctx, e)
		case <-ctx.Done():
			for {
				select {
				case e := <-r.xids.queue:
					r.sendXID(context.WithoutCancel(ctx), e)
				default:
					return
				}
			}
		}
	}
}

func (r *nvmlReceiver) sendXID(ctx context.Context, e gpu.XID) {
	if r.logs == nil {
		return // counted; no pipeline of logs
	}
	if err := r.logs.ConsumeLogs(ctx, r.xidLog(e)); err != nil {
		r.telemetry.ReceiverNvmlXidDropped.Add(ctx, 1)
		r.set.Logger.Warn("an XID record was not delivered", zap.String("device", e.Device.ID), zap.Uint64("code", e.Code), zap.Error(err))
	}
}

// xidLog creates the log record of an error.
func (r *nvmlReceiver) xidLog(e gpu.XID) plog.Logs {
	logs := plog.NewLogs()
	rl := logs.ResourceLogs().AppendEmpty()
	rl.SetSchemaUrl(semconv.SchemaURL)
	id := r.part(&e)
	holder, _ := r.pods.Find(append([]string{id.ID}, id.Aliases...)...)
	r.identify(rl.Resource().Attributes(), &id, &holder)
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(semconv.ScopeName)
	rec := sl.LogRecords().AppendEmpty()
	ts := pcommon.NewTimestampFromTime(e.Time)
	rec.SetTimestamp(ts)
	rec.SetObservedTimestamp(ts)
	rec.SetEventName(semconv.EventGPUXID)
	rec.SetSeverityNumber(plog.SeverityNumberError)
	rec.SetSeverityText(plog.SeverityNumberError.String())
	text := fmt.Sprintf("XID %d on %s", e.Code, e.Device.ID)
	if m, ok := xid.Meaning(e.Code); ok {
		text = fmt.Sprintf("XID %d: %s", e.Code, m)
	}
	rec.Body().SetStr(text)
	a := rec.Attributes()
	a.EnsureCapacity(6)
	a.PutStr(semconv.LogRecordUID, gpuevent.KeyOf(e.Device.ID).UID(uint64(ts), e.Code).String())
	a.PutStr(semconv.HWID, e.Device.ID)
	if e.Device.Name != "" {
		a.PutStr(semconv.HWName, e.Device.Name)
	}
	a.PutStr(semconv.HWVendor, vendor)
	a.PutStr(semconv.HWType, semconv.HWTypeGPU)
	a.PutInt(semconv.GPUXIDCode, int64(min(e.Code, 1<<63-1)))
	return logs
}

// part returns the MIG device that caused an error, or the GPU if the driver names none. Their pods
// differ.
func (r *nvmlReceiver) part(e *gpu.XID) gpu.Identity {
	if e.Instance >= 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, t := range r.devices {
			if t.id.Parent == e.Device.ID && t.id.Instance == e.Instance && !t.missing {
				return t.id
			}
		}
	}
	return e.Device
}
