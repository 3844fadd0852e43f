// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// mappingPages is the size of each processor's ring in pages, a power of two: about 300
	// mappings. The start of a program makes five to fifty.
	mappingPages = 16
	// Offsets of the process id and the path, from struct perf_event_header and PERF_RECORD_MMAP2
	// in perf_event_open(2).
	recordHeader   = 8
	mmap2PID       = 8
	mmap2Path      = 72
	longestMapping = mmap2Path + 4096 + 256
)

// mappings reports which processes map a file for execution. It uses kernel events, so a library is
// found when it is loaded, long before its first call. Only one goroutine may use it.
type mappings struct {
	rings []mappingRing
	buf   []byte
}

type mappingRing struct {
	fd   int
	page *unix.PerfEventMmapPage
	data []byte // the ring
	all  []byte // what is mapped: a page of its own, then data
}

// watchMappings enables the events of all processes, on each present processor. The rescan covers
// processors that are added later.
func watchMappings() (*mappings, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	processors, err := cpuList(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("/sys/devices/system/cpu/online: %w", err)
	}
	m := &mappings{buf: make([]byte, 0, longestMapping)}
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Bits: unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitWatermark,
		// The rings are read periodically, so wake-ups are disabled.
		Wakeup: ^uint32(0),
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	for _, cpu := range processors {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ENODEV) {
			continue // the processor was disabled meanwhile
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("perf_event_open: %w", err), m.close())
		}
		size := os.Getpagesize()
		all, err := unix.Mmap(fd, 0, (1+mappingPages)*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("mmap: %w", err), unix.Close(fd), m.close())
		}
		m.rings = append(m.rings, mappingRing{
			fd: fd, page: (*unix.PerfEventMmapPage)(unsafe.Pointer(&all[0])), data: all[size:], all: all,
		})
	}
	return m, nil
}

// read calls use for each process that has mapped a wanted path since the last call. It returns
// false if events were dropped, so that a full scan is needed.
func (m *mappings) read(wanted func(path []byte) bool, use func(pid uint32)) (complete bool) {
	complete = true
	for i := range m.rings {
		r := &m.rings[i]
		head, tail := atomic.LoadUint64(&r.page.Data_head), r.page.Data_tail
		for head-tail >= recordHeader {
			m.buf = r.copy(m.buf[:0], tail, recordHeader)
			size := uint64(binary.NativeEndian.Uint16(m.buf[6:]))
			if size < recordHeader || size > head-tail {
				// The ring has an unknown format: drop its content.
				complete, tail = false, head
				break
			}
			switch kind := binary.NativeEndian.Uint32(m.buf); {
			case kind == unix.PERF_RECORD_LOST:
				complete = false
			case kind == unix.PERF_RECORD_MMAP2 && size > mmap2Path:
				m.buf = r.copy(m.buf[:0], tail, size)
				path, _, _ := bytes.Cut(m.buf[mmap2Path:], []byte{0})
				// A process of another PID namespace has an id without meaning here.
				if pid := binary.NativeEndian.Uint32(m.buf[mmap2PID:]); wanted(path) && pid != 0 && pid != ^uint32(0) {
					use(pid)
				}
			}
			tail += size
		}
		atomic.StoreUint64(&r.page.Data_tail, tail)
	}
	return complete
}

// copy appends n bytes from a position in the ring, which may wrap.
func (r *mappingRing) copy(to []byte, from, n uint64) []byte {
	size := uint64(len(r.data))
	at := from % size
	first := min(n, size-at)
	to = append(to, r.data[at:at+first]...)
	return append(to, r.data[:n-first]...)
}

func (m *mappings) close() error {
	var errs []error
	for i := range m.rings {
		errs = append(errs, unix.Munmap(m.rings[i].all), unix.Close(m.rings[i].fd))
	}
	m.rings = nil
	return errors.Join(errs...)
}

// cpuList parses the kernel's lists of processors: 0-3,5.
func cpuList(text string) ([]int, error) {
	const most = 1 << 16
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is not a list of processors", text)
		}
		to := from
		if isRange {
			if to, err = strconv.ParseUint(last, 10, 16); err != nil || to < from {
				return nil, fmt.Errorf("%q is not a list of processors", text)
			}
		}
		for n := from; n <= to && len(all) < most; n++ {
			all = append(all, int(n))
		}
	}
	return all, nil
}

// attachMapped attaches to the libraries that processes have loaded since the last call. It returns
// false if some may have been missed, so that a full scan is needed.
func (p *Probe) attachMapped(ctx context.Context) (complete bool) {
	if p.mappings == nil {
		return true
	}
	seen := map[uint32]bool{}
	complete = p.mappings.read(isLibrary, func(pid uint32) { seen[pid] = true })
	if len(seen) == 0 {
		return complete
	}
	l := newLook()
	for pid := range seen {
		p.finder.process(ctx, l, strconv.FormatUint(uint64(pid), 10))
	}
	_ = p.attachNew(ctx, l.found) // what fails is counted
	return complete
}
