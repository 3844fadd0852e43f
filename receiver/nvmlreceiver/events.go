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
	// maxWaiting bounds the XID errors that wait for the next component. A GPU in trouble gives a few
	// a second at most.
	maxWaiting = 256
	// maxCodes bounds the codes that are counted by device; there are some 170.
	maxCodes = 256
	// otherXID counts the codes beyond them.
	otherXID = "xid_other"
)

// xids counts XID errors and holds those that are to be sent.
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

// counts returns a device's errors by error.type.
func (x *xids) counts(id string) map[string]int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.by[id])
}

// listen takes XID errors from the driver until the context ends.
func (r *nvmlReceiver) listen(ctx context.Context) {
	complained := false
	for ctx.Err() == nil {
		events, supported, err := r.driver.Events(r.pace.event)
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
				r.set.Logger.Warn("NVML: XID errors cannot be listened to; trying again", zap.Error(err))
			}
			complained = true
			sleep(ctx, r.pace.first)
		case !supported:
			// No device reports them now; one may be added.
			sleep(ctx, r.pace.look)
		default:
			complained = false
		}
	}
}

// sendXIDs hands XID errors to the next component, so that one that is slow does not keep the driver's
// events waiting.
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
		return // counted, and no pipeline for logs
	}
	if err := r.logs.ConsumeLogs(ctx, xidLog(e)); err != nil {
		r.telemetry.ReceiverNvmlXidDropped.Add(ctx, 1)
		r.set.Logger.Warn("an XID record was not delivered", zap.String("device", e.Device.ID), zap.Uint64("code", e.Code), zap.Error(err))
	}
}

// xidLog makes the log record of an error.
func xidLog(e gpu.XID) plog.Logs {
	logs := plog.NewLogs()
	rl := logs.ResourceLogs().AppendEmpty()
	rl.SetSchemaUrl(semconv.SchemaURL)
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
