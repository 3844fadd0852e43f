// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package peers

import (
	"debug/elf"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// launches are the functions to attach to. A library may lack some of them.
var launches = []string{
	"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz",
	"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz",
}

// EventBytes is the size of an event of a [Ring]: the time, the process and thread, and the first
// six arguments. Other tools send more.
const EventBytes = 64

// Counting counts launches in an array with one element for each processor. Its methods are safe
// for concurrent use. Close must be called once.
type Counting struct {
	calls *ebpf.Map
	hook  hook
}

// AttachCounting attaches the counting program to the library at this path, for all processes.
func AttachCounting(library string) (*Counting, error) {
	calls, err := counter("calls")
	if err != nil {
		return nil, err
	}
	c := &Counting{calls: calls}
	if c.hook, err = attach(library, "count", increment(calls)); err != nil {
		return nil, errors.Join(err, calls.Close())
	}
	return c, nil
}

// Calls returns the number of launches since the program was attached.
func (c *Counting) Calls() (uint64, error) { return sum(c.calls) }

// Close detaches.
func (c *Counting) Close() error { return errors.Join(c.hook.close(), c.calls.Close()) }

// Ring sends an event of each launch through a ring buffer and reads the events. Its methods are
// safe for concurrent use. Close must be called once.
type Ring struct {
	ring, lost *ebpf.Map
	hook       hook
	reader     *ringbuf.Reader
	received   atomic.Uint64
	stop       chan struct{}
	done       sync.WaitGroup
}

// readInterval is the time between two reads if the kernel does not wake the reader.
const readInterval = 10 * time.Millisecond

// AttachRing attaches the event program to the library at this path, for all processes. bytes is
// the size of the buffer, a power of two of at least one page. With wake, the kernel wakes an idle
// reader for each event, which is the default of ring buffers. Without it, the reader polls every
// 10 ms.
func AttachRing(library string, bytes uint32, wake bool) (*Ring, error) {
	r := &Ring{stop: make(chan struct{})}
	var err error
	if r.ring, err = ebpf.NewMap(&ebpf.MapSpec{Name: "events", Type: ebpf.RingBuf, MaxEntries: bytes}); err != nil {
		return nil, fmt.Errorf("create the ring: %w", err)
	}
	if r.lost, err = counter("lost"); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.reader, err = ringbuf.NewReader(r.ring); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.hook, err = attach(library, "send", event(r.ring, r.lost, wake)); err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.done.Go(r.read)
	if !wake {
		r.done.Go(r.flush)
	}
	return r, nil
}

func (r *Ring) read() {
	var record ringbuf.Record
	for {
		err := r.reader.ReadInto(&record)
		if errors.Is(err, ringbuf.ErrFlushed) {
			continue
		}
		if err != nil {
			return // closed
		}
		r.received.Add(1)
	}
}

// flush makes the reader poll the ring until it is closed.
func (r *Ring) flush() {
	t := time.NewTicker(readInterval)
	defer t.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-t.C:
			_ = r.reader.Flush() // fails only after the reader is closed
		}
	}
}

// Received returns the number of events that were read.
func (r *Ring) Received() uint64 { return r.received.Load() }

// Lost returns the number of launches that were dropped because the buffer was full.
func (r *Ring) Lost() (uint64, error) { return sum(r.lost) }

// Close detaches the program. Events that were not read are dropped.
func (r *Ring) Close() error {
	close(r.stop)
	err := errors.Join(r.hook.close(), r.reader.Close())
	r.done.Wait()
	r.reader = nil
	return errors.Join(err, r.close())
}

func (r *Ring) close() error {
	var errs []error
	if r.reader != nil {
		errs = append(errs, r.reader.Close())
	}
	for _, m := range []*ebpf.Map{r.ring, r.lost} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// counter creates a map with one number for each processor.
func counter(name string) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("create a counter: %w", err)
	}
	return m, nil
}

func sum(m *ebpf.Map) (n uint64, err error) {
	var each []uint64
	if err := m.Lookup(uint32(0), &each); err != nil {
		return 0, err
	}
	for _, v := range each {
		n += v
	}
	return n, nil
}

// increment adds one to a counter and returns. The instruction is atomic because another program
// can interrupt this one on the same processor.
func increment(m *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"),
		asm.Return(),
	}
}

// arguments returns the byte offsets of the first six arguments in struct pt_regs: rdi, rsi, rdx,
// rcx, r8 and r9, or x0 to x5.
func arguments() [6]int16 {
	if runtime.GOARCH == "arm64" {
		return [6]int16{0, 8, 16, 24, 32, 40}
	}
	return [6]int16{112, 104, 96, 88, 72, 64}
}

// event reserves space for an event, fills it and submits it, or counts it as lost if the ring is
// full.
func event(ring, lost *ebpf.Map, wake bool) asm.Instructions {
	const noWakeup = 1 // BPF_RB_NO_WAKEUP
	flags := int32(noWakeup)
	if wake {
		flags = 0
	}
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMapPtr(asm.R1, ring.FD()),
		asm.Mov.Imm(asm.R2, EventBytes),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "full"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.R7, 0, asm.R0, asm.DWord),
		asm.FnGetCurrentPidTgid.Call(),
		asm.StoreMem(asm.R7, 8, asm.R0, asm.DWord),
	}
	for i, at := range arguments() {
		ins = append(ins,
			asm.LoadMem(asm.R1, asm.R6, at, asm.DWord),
			asm.StoreMem(asm.R7, int16(16+8*i), asm.R1, asm.DWord),
		)
	}
	ins = append(ins,
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Mov.Imm(asm.R2, flags),
		asm.FnRingbufSubmit.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	)
	full := increment(lost)
	full[0] = full[0].WithSymbol("full")
	return append(ins, full...)
}

// hook is a program with its attachments.
type hook struct {
	program *ebpf.Program
	links   []link.Link
}

// attach loads a program and attaches it to the entry of each launch function of the library. Like
// the receiver's probes, it uses a single link if the kernel supports that.
func attach(library, name string, ins asm.Instructions) (hook, error) {
	functions, err := exported(library)
	if err != nil {
		return hook{}, err
	}
	spec := &ebpf.ProgramSpec{Name: name, Type: ebpf.Kprobe, Instructions: ins, License: "Dual MIT/GPL"}
	multi := features.HaveBPFLinkUprobeMulti() == nil
	if multi {
		spec.AttachType = ebpf.AttachTraceUprobeMulti
	}
	var h hook
	if h.program, err = ebpf.NewProgram(spec); err != nil {
		return hook{}, fmt.Errorf("load the program: %w", err)
	}
	executable, err := link.OpenExecutable(library)
	if err != nil {
		return hook{}, errors.Join(err, h.close())
	}
	if multi {
		l, err := executable.UprobeMulti(functions, h.program, nil)
		if err != nil {
			return hook{}, errors.Join(fmt.Errorf("attach: %w", err), h.close())
		}
		h.links = append(h.links, l)
		return h, nil
	}
	for _, f := range functions {
		l, err := executable.Uprobe(f, h.program, nil)
		if err != nil {
			return hook{}, errors.Join(fmt.Errorf("attach to %s: %w", f, err), h.close())
		}
		h.links = append(h.links, l)
	}
	return h, nil
}

func (h hook) close() error {
	var errs []error
	for _, l := range h.links {
		errs = append(errs, l.Close())
	}
	if h.program != nil {
		errs = append(errs, h.program.Close())
	}
	return errors.Join(errs...)
}

// exported returns the launch functions that a library exports. It is an error if there are none.
func exported(library string) ([]string, error) {
	f, err := elf.Open(library)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%s: read the symbols: %w", library, err)
	}
	has := map[string]bool{}
	for _, s := range symbols {
		has[s.Name] = s.Section != elf.SHN_UNDEF
	}
	var out []string
	for _, name := range launches {
		if has[name] {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s exports no launch function", library)
	}
	return out, nil
}
