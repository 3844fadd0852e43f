// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
)

// events listens to XID errors of all devices of a session.
type events struct {
	// waiting is held while somebody waits.
	waiting sync.Mutex
	mu      sync.Mutex
	set     nvml.EventSet
	handles map[nvml.Device]gpu.Identity
}

// listen registers the devices that are not registered yet.
func (e *events) listen(l *library, handles map[nvml.Device]gpu.Identity) {
	if !l.have[callEventCreate] || !l.have[callEventRegister] || !l.have[callEventWait] || !l.have[callEventFree] {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set == nil {
		set, ret := l.nvml.EventSetCreate()
		if ret != nvml.SUCCESS {
			return
		}
		e.set, e.handles = set, map[nvml.Device]gpu.Identity{}
	}
	for h, id := range handles {
		if _, known := e.handles[h]; known {
			continue
		}
		if l.have[callEventTypes] {
			if types, ret := h.GetSupportedEventTypes(); ret != nvml.SUCCESS || types&nvml.EventTypeXidCriticalError == 0 {
				continue
			}
		}
		if h.RegisterEvents(nvml.EventTypeXidCriticalError, e.set) == nvml.SUCCESS {
			e.handles[h] = id
		}
	}
}

func (e *events) close(l *library) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set != nil {
		_ = l.nvml.EventSetFree(e.set) // nothing is left to do with a set that cannot be freed
		e.set, e.handles = nil, nil
	}
}

// Events waits for XID errors. Those that wait already are all returned at once, up to a bound.
func (l *library) Events(timeout time.Duration) ([]gpu.XID, bool, error) {
	l.events.waiting.Lock()
	defer l.events.waiting.Unlock()
	l.events.mu.Lock()
	set, n := l.events.set, len(l.events.handles)
	l.events.mu.Unlock()
	if set == nil || n == 0 {
		return nil, false, nil
	}
	var out []gpu.XID
	for len(out) < maxEvents {
		data, ret := set.Wait(uint32(timeout.Milliseconds()))
		timeout = 0
		switch {
		case ret == nvml.ERROR_TIMEOUT:
			return out, true, nil
		case ret != nvml.SUCCESS:
			return out, true, fmt.Errorf("waiting for XID errors: %s", code(ret))
		case data.EventType&nvml.EventTypeXidCriticalError == 0:
			continue
		}
		id, ok := l.device(data.Device)
		if ok {
			instance := -1
			if valid(data.GpuInstanceId) {
				instance = int(data.GpuInstanceId)
			}
			out = append(out, gpu.XID{Device: id, Instance: instance, Code: data.EventData, Time: l.options.Now()})
		}
	}
	return out, true, nil
}

// device names the device of an event. XID 79 says that a device has fallen off the bus, after which
// it cannot be asked for its name: so it is looked up.
func (l *library) device(h nvml.Device) (gpu.Identity, bool) {
	l.events.mu.Lock()
	id, ok := l.events.handles[h]
	l.events.mu.Unlock()
	if ok || h == nil {
		return id, ok
	}
	id, err := l.identify(h, -1)
	return id, err == nil
}
