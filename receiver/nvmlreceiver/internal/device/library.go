// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package device

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/gpu"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/internal/process"
)

// Supported says whether this build can open NVML.
const Supported = true

const (
	// maxDevices bounds the devices that are kept, MIG devices and those that left included.
	maxDevices = 1024
	// maxEvents bounds the XID errors that one call of Events returns.
	maxEvents = 64
)

// Open returns the driver behind the library of the options. Nothing is loaded yet.
func Open(o Options) gpu.Driver {
	var lib nvml.Interface
	if o.LibraryPath == "" {
		lib = nvml.New()
	} else {
		lib = nvml.New(nvml.WithLibraryPath(o.LibraryPath))
	}
	return newLibrary(lib, o)
}

// library is NVML.
type library struct {
	nvml    nvml.Interface
	options Options
	have    [numCalls]bool
	open    bool
	// boot is when counters that the driver keeps began at the earliest.
	boot time.Time
	// driver is the version of the driver, or "".
	driver  string
	devices map[string]*Device

	events events
}

func newLibrary(lib nvml.Interface, o Options) *library {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Proc == nil {
		o.Proc = process.New("/")
	}
	l := &library{nvml: lib, options: o, devices: map[string]*Device{}, boot: o.Proc.BootTime()}
	if l.boot.IsZero() {
		l.boot = o.Now()
	}
	return l
}

// Open loads and initialises the library.
func (l *library) Open() error {
	if l.open {
		return nil
	}
	if ret := l.nvml.Init(); ret != nvml.SUCCESS {
		return l.initError(ret)
	}
	for _, s := range required {
		if err := l.nvml.Extensions().LookupSymbol(s); err != nil {
			_ = l.nvml.Shutdown() // the missing function is what counts
			return fmt.Errorf("NVML is too old, it has no %s", s)
		}
	}
	for c := range l.have {
		l.have[c] = false
		for _, s := range symbols[c] {
			if l.nvml.Extensions().LookupSymbol(s) == nil {
				l.have[c] = true
				break
			}
		}
	}
	l.driver = ""
	if l.have[callDriverVersion] {
		if v, ret := l.nvml.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			l.driver = v
		}
	}
	l.open = true
	return nil
}

// initError says what to do about a library that cannot be initialised.
func (l *library) initError(ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		name := l.options.LibraryPath
		if name == "" {
			name = "libnvidia-ml.so.1"
		}
		return fmt.Errorf("NVML (%s) cannot be loaded: install the NVIDIA driver, or in a container use the NVIDIA runtime, or set library_path", name)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("NVML is installed, but the NVIDIA driver is not loaded")
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("NVML and the loaded NVIDIA driver are of different versions: after an update of the driver, restart the collector")
	default:
		return fmt.Errorf("NVML cannot be initialised: %s", code(ret))
	}
}

// Close frees what belongs to the session and releases the library.
func (l *library) Close() error {
	if !l.open {
		return nil
	}
	var held []*sync.Mutex
	defer func() {
		for _, m := range held {
			m.Unlock()
		}
	}()
	hold := func(m *sync.Mutex) bool {
		if !m.TryLock() {
			return false
		}
		held = append(held, m)
		return true
	}
	for _, d := range l.devices {
		if !hold(&d.mu) {
			return gpu.ErrBusy
		}
	}
	if !hold(&l.events.waiting) {
		return gpu.ErrBusy
	}
	l.open = false
	l.events.close(l)
	for _, d := range l.devices {
		d.unbind()
	}
	if ret := l.nvml.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("NVML cannot be shut down: %s", code(ret))
	}
	return nil
}

// List finds the selected devices.
func (l *library) List() ([]gpu.Device, error) {
	n, ret := l.nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML cannot count devices: %s: %w", code(ret), gpu.ErrRestart)
	}
	var found []gpu.Device
	var lost error
	answered := 0
	handles := map[nvml.Device]gpu.Identity{}
	for i := range min(n, maxDevices) {
		h, ret := l.nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			// A device that fell off the bus keeps its number, but has no handle. It is told by
			// its absence from the list.
			lost = fmt.Errorf("device %d: %s", i, code(ret))
			continue
		}
		id, err := l.identify(h, i)
		if err != nil {
			lost = err
			continue
		}
		answered++
		minor := l.describe(&id, h)
		migs := l.migDevices(h, &id, minor)
		if l.selected(id, strconv.Itoa(i)) {
			handles[h] = id
			found = l.add(found, binding{id: id, handle: h, partitioned: len(migs) > 0})
		}
		for _, m := range migs {
			// Choosing a GPU chooses its parts.
			if l.selected(id, strconv.Itoa(i)) || l.selected(m.id, "") {
				found = l.add(found, m)
			}
		}
	}
	l.events.listen(l, handles)
	if n > 0 && answered == 0 && lost != nil {
		return nil, fmt.Errorf("NVML has %d devices, but none answers: %w: %w", n, lost, gpu.ErrRestart)
	}
	return found, nil
}

// binding is where a device is found in this session.
type binding struct {
	id     gpu.Identity
	handle nvml.Device
	// parent is the GPU of a MIG device.
	parent nvml.Device
	// partitioned says that MIG devices share this one.
	partitioned bool
}

func (l *library) identify(h nvml.Device, index int) (gpu.Identity, error) {
	uuid, ret := h.GetUUID()
	if ret != nvml.SUCCESS || uuid == "" {
		return gpu.Identity{}, fmt.Errorf("device %d has no UUID: %s", index, code(ret))
	}
	name, ret := h.GetName()
	if ret != nvml.SUCCESS {
		name = ""
	}
	return gpu.Identity{ID: uuid, Name: name, Index: index, Driver: l.driver, Instance: -1}, nil
}

// describe adds what may be unknown to the identity of a GPU, and returns the number in the name of
// its device file or -1.
func (l *library) describe(id *gpu.Identity, h nvml.Device) (minor int) {
	if l.have[callSerial] {
		// Only boards for servers have a number.
		if s, ret := h.GetSerial(); ret == nvml.SUCCESS && strings.Trim(s, "0 ") != "" {
			id.Serial = s
		}
	}
	// NVIDIA's device plugin may be set to use indices, Google's uses device files.
	id.Aliases = []string{strconv.Itoa(id.Index)}
	minor = -1
	if l.have[callMinor] {
		if n, ret := h.GetMinorNumber(); ret == nvml.SUCCESS {
			minor = n
			id.Aliases = append(id.Aliases, "nvidia"+strconv.Itoa(n))
		}
	}
	return minor
}

// migDevices finds the MIG devices of a GPU, none where MIG is off.
func (l *library) migDevices(h nvml.Device, parent *gpu.Identity, minor int) []binding {
	if !l.have[callMigMode] || !l.have[callMaxMig] || !l.have[callMigHandle] {
		return nil
	}
	if mode, _, ret := h.GetMigMode(); ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	n, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var out []binding
	for i := range min(n, maxDevices) {
		m, ret := h.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a slot without a device
		}
		id, err := l.identify(m, i)
		if err != nil {
			continue
		}
		id.Parent, id.Serial = parent.ID, parent.Serial
		id.Aliases = []string{fmt.Sprintf("%d:%d", parent.Index, i)}
		if l.have[callGpuInstance] {
			if gi, ret := m.GetGpuInstanceId(); ret == nvml.SUCCESS {
				id.Instance = gi
				if minor >= 0 {
					id.Aliases = append(id.Aliases, fmt.Sprintf("nvidia%d/gi%d", minor, gi))
				}
			}
		}
		out = append(out, binding{id: id, handle: m, parent: h})
	}
	return out
}

// selected reports whether the settings ask for a device.
func (l *library) selected(id gpu.Identity, index string) bool {
	if len(l.options.Select) == 0 {
		return true
	}
	for _, s := range l.options.Select {
		if s == index && index != "" || glob.Match(s, id.ID) || glob.Match(s, id.Name) {
			return true
		}
	}
	return false
}

func (l *library) add(found []gpu.Device, b binding) []gpu.Device {
	d := l.devices[b.id.ID]
	if d == nil {
		if len(l.devices) >= maxDevices {
			return found
		}
		d = newDevice(l)
		l.devices[b.id.ID] = d
	}
	d.bind(b)
	return append(found, d)
}
