// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Writer writes one session, step by step. It is not safe for concurrent use. It keeps the first
// write error, and every later call returns it.
type Writer struct {
	cfg   Config
	files *files
	enc   encoder
	sum   Summary

	id      string
	pid     int
	start   int64
	rng     *rand.Rand
	machine *machine

	// host is the host's clock. busy is the time until which each stream has work. Both are Unix
	// ns.
	host int64
	busy map[int64]int64
	corr uint32

	scopes     []*scope
	instance   int64
	lastScope  string
	paths      []string
	pathIndex  map[string]int
	kernels    map[string]int
	stacks     []string
	params     []allocation
	nextMetric int64
	step       int
	epoch      int
	// site counts the launches since the start of the step. It distinguishes call sites.
	site int
	// launched counts launched kernels; full is set when a limit is reached.
	launched int64
	full     bool
	closed   bool

	// Totals by index of catalogue and paths; Summary adds the names.
	kernelTotals []KernelTotal
	pathTotals   []int64

	// ctx limits the waiting of the call in progress; nil means not to wait.
	ctx       context.Context
	wallStart time.Time
	lastFlush time.Time
	err       error
}

// encoder converts the session's events into records of one layout.
type encoder interface {
	header()
	kernel(k *launch)
	copy(t *transfer)
	set(t *transfer)
	sync(s *wait)
	memory(m *allocation, free bool, at int64, corr uint32)
	scope(s *scope, begin bool, at int64)
	samples(at int64)
	metrics(at int64)
	// tick writes the records that are due at the host's time; flush writes all buffered rows.
	tick()
	flush()
	footer()
}

type scope struct {
	name         string
	path         int
	depth        int
	instance     int64
	start        int64
	repeat, warm int64
}

type launch struct {
	kernel, path, stack, depth    int
	corr                          uint32
	stream, grid                  int64
	start, end, apiStart, apiExit int64
}

type transfer struct {
	path, stack, depth            int
	corr                          uint32
	stream, bytes, kind           int64
	start, end, apiStart, apiExit int64
}

type wait struct {
	start, nanos int64
	stream       int64
	corr         uint32
}

type allocation struct {
	address uint64
	bytes   int64
}

const (
	mainStream = 7
	copyStream = 14
	ncclStream = 20
	// metricInterval is the recorder's sampling period, ns.
	metricInterval = 100e6
	// idleHop is the step in ns by which the clock of an idle host advances. It limits the delay of
	// periodic work.
	idleHop = 50e6
	// fixedStart is the default start time: 2026-08-07 plus up to one day, by seed.
	fixedStart = 1786060800_000000000
	// weightBytes is the size of one layer's parameters.
	weightBytes = 14 << 20
)

// Copy kinds by their numbers in the batch format, and their names in A2.
const (
	copyHtoD = 1
	copyDtoH = 2
	copyDtoD = 8
)

// NewWriter creates the session's files and writes its first records. It writes only the first
// session of cfg; cfg.Sessions and cfg.Crash apply to [Run].
func NewWriter(cfg Config) (*Writer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return newWriter(cfg, 0)
}

// newWriter starts the n-th session of cfg, which must include the defaults.
func newWriter(cfg Config, n int) (*Writer, error) {
	w := &Writer{
		cfg: cfg, sum: newSummary(cfg),
		rng:  rand.New(rand.NewPCG(cfg.Seed, uint64(n))),
		busy: map[int64]int64{}, kernels: map[string]int{}, pathIndex: map[string]int{},
		kernelTotals: make([]KernelTotal, len(catalogue)),
	}
	for i, k := range catalogue {
		w.kernels[k.short] = i
	}
	w.path("") // outside all scopes
	w.id = uuid(w.rng)
	w.pid = 1000 + w.rng.IntN(30000)
	w.wallStart = time.Now()
	w.lastFlush = w.wallStart
	w.start = cfg.Start.UnixNano()
	if cfg.Start.IsZero() {
		w.start = fixedStart + int64(cfg.Seed%86400)*1e9 + int64(n)*3600e9
		if cfg.Live {
			w.start = w.wallStart.UnixNano()
		}
	}
	w.host = w.start
	w.machine = newMachine(w.rng, cfg.Devices)
	w.stacks = makeStacks(w.rng, cfg)

	// File ids and piece lengths have their own random sequence, so that rotation does not change
	// the lines.
	side := rand.New(rand.NewPCG(cfg.Seed, 1<<32+uint64(n)))
	names := []string{"device", "scope", "system"}
	if cfg.Layout == C3 {
		names = append(names, "sass")
	}
	var err error
	w.files, err = openFiles(cfg, w.id, names, side, w.start, func() int64 { return w.host })
	if err != nil {
		return nil, err
	}
	if cfg.Layout == A2 {
		w.enc = newA2Encoder(w)
	} else {
		w.enc = newC3Encoder(w)
	}
	w.sum.Sessions = []Session{{ID: w.id, PID: w.pid, StartUnixNano: w.start}}
	w.enc.header()
	w.idle(45e6)
	w.nextMetric = w.host
	w.prepare()
	return w, w.err
}

// Session returns the session's id.
func (w *Writer) Session() string { return w.id }

// Now returns the session's clock.
func (w *Writer) Now() time.Time { return time.Unix(0, w.host) }

// prepare allocates parameters and copies them to the device before training, outside all scopes.
func (w *Writer) prepare() {
	address := uint64(139637976727552)
	for range w.cfg.Layers {
		a := allocation{address: address, bytes: weightBytes}
		address += 2 * weightBytes
		w.think(3e5)
		w.corr += 3
		w.enc.memory(&a, false, w.host, w.corr)
		w.params = append(w.params, a)
		w.machine.usedMiB += weightBytes >> 20
		w.transfer(copyHtoD, mainStream, weightBytes)
		w.wait(mainStream)
	}
}

// Step writes one training step, and the start or end of the epoch if it is due. It returns false
// when the configured amount is written. With Live it waits for each record's time. When ctx ends,
// it writes the rest of the step without delay and returns ctx's error.
func (w *Writer) Step(ctx context.Context) (more bool, err error) {
	if w.err != nil || w.done() {
		return false, w.err
	}
	w.ctx = ctx
	defer func() { w.ctx = nil }()

	if w.step == 0 {
		w.begin("epoch", int64(w.cfg.StepsPerEpoch), 0)
	}
	began := w.host
	w.begin("train_step", 0, 0)
	w.begin("load_batch", 0, 0)
	w.think(2e5)
	const batchBytes = 16 * 1024 * 8
	w.transfer(copyHtoD, copyStream, batchBytes)
	w.transfer(copyHtoD, copyStream, batchBytes)
	w.wait(copyStream)
	w.end()

	w.begin("forward", 0, 0)
	w.forward()
	w.end()

	w.begin("backward", 0, 0)
	w.launches(headGradOps)
	for range w.cfg.Layers {
		w.launches(backwardOps)
		w.launch("nccl_allreduce", ncclStream)
	}
	w.launches(embedGrad)
	w.end()

	// The optimizer requires all gradients.
	w.busy[mainStream] = max(w.busy[mainStream], w.busy[ncclStream])
	w.begin("optimizer", 0, 0)
	w.set(mainStream, 4)
	w.launches(optimizeOps)
	w.transfer(copyDtoD, mainStream, 4)
	w.end()

	w.transfer(copyDtoH, mainStream, 4)
	w.wait(mainStream)
	if w.cfg.Samples > 0 && !w.full {
		w.enc.samples(w.host)
	}
	w.end()

	if w.step++; w.step >= w.cfg.StepsPerEpoch {
		w.begin("validate", 0, 0)
		w.forward()
		w.launches(validateOps)
		w.transfer(copyDtoH, mainStream, 4096)
		w.wait(mainStream)
		w.end()
		w.end()
		w.step = 0
		w.epoch++
	}
	if rest := int64(w.cfg.StepInterval) - (w.host - began); rest > 0 {
		w.idle(rest)
	} else {
		w.idle(0)
	}
	w.bounds()
	return !w.done(), errors.Join(w.err, ctx.Err())
}

// done reports whether the configured amount is written.
func (w *Writer) done() bool {
	return w.closed || w.full || !w.cfg.bounded() && w.epoch >= w.cfg.Epochs
}

// bounds sets full when lines or bytes reach their limit.
func (w *Writer) bounds() {
	if w.cfg.Lines > 0 && w.sum.Lines >= w.cfg.Lines || w.cfg.Bytes > 0 && w.sum.Bytes >= w.cfg.Bytes {
		w.full = true
	}
}

func (w *Writer) forward() {
	w.site = 0
	w.launches(embedOps)
	for range w.cfg.Layers {
		w.launches(forwardOps)
	}
	w.launches(headOps)
}

// launches launches ops in turn.
func (w *Writer) launches(ops []string) {
	for _, op := range ops {
		w.launch(op, mainStream)
	}
}

// launch simulates one kernel launch: the host calls, and the kernel runs when its stream is idle.
func (w *Writer) launch(op string, stream int64) {
	if w.cfg.Kernels > 0 && w.launched >= w.cfg.Kernels {
		w.full = true
	}
	if w.full || w.err != nil {
		return
	}
	w.launched++
	w.site++
	index, ok := w.kernels[op]
	if !ok {
		w.err = fmt.Errorf("no kernel %q in the catalogue", op)
		return
	}
	spec := &catalogue[index]
	l := launch{kernel: index, stream: stream, stack: w.site % len(w.stacks)}
	l.path, l.depth = w.where()
	l.grid = spec.gridLo
	if spec.gridHi > spec.gridLo {
		// A call site always launches the same grid, as in a model with fixed shapes.
		l.grid += int64(w.site) * 2654435761 % (spec.gridHi - spec.gridLo + 1)
	}
	l.apiStart, l.apiExit, l.corr = w.call()
	l.start = w.ready(stream)
	if stream == ncclStream {
		l.start = max(l.start, w.busy[mainStream])
	}
	l.end = l.start + w.logNormal(spec.micros*1e3, spec.spread)
	w.busy[stream] = l.end
	w.enc.kernel(&l)
	w.bounds()
}

// transfer simulates one copy; kind is the number in the batch format.
func (w *Writer) transfer(kind, stream, size int64) {
	if w.full || w.err != nil {
		return
	}
	bandwidth := 48e9 // bytes/s over PCIe, with pinned memory
	if kind == copyDtoD {
		bandwidth = 2.1e12
	}
	t := w.deviceWork(stream, 900+float64(size)/bandwidth*1e9)
	t.kind, t.bytes = kind, size
	w.enc.copy(&t)
}

// set simulates one memory set.
func (w *Writer) set(stream, size int64) {
	if w.full || w.err != nil {
		return
	}
	t := w.deviceWork(stream, 1100+float64(size)/1.9e12*1e9)
	t.bytes = size
	w.enc.set(&t)
}

func (w *Writer) deviceWork(stream int64, nanos float64) (t transfer) {
	t.stream, t.stack = stream, (900+int(stream))%len(w.stacks)
	t.path, t.depth = w.where()
	t.apiStart, t.apiExit, t.corr = w.call()
	t.start = w.ready(stream)
	t.end = t.start + w.logNormal(nanos, 0.05)
	w.busy[stream] = t.end
	return t
}

// wait simulates a stream synchronization: the host waits until the stream is idle.
func (w *Writer) wait(stream int64) {
	if w.full || w.err != nil {
		return
	}
	start, exit, corr := w.call()
	end := max(exit, w.busy[stream]+int64(1500))
	w.host = end
	w.enc.sync(&wait{start: start, nanos: end - start, stream: stream, corr: corr})
	w.tick()
}

// call advances the host's clock by one API call.
func (w *Writer) call() (start, exit int64, corr uint32) {
	w.host += w.logNormal(1400, 0.4)
	start = w.host
	w.host += w.logNormal(2600, 0.3)
	w.corr += 1 + uint32(w.rng.IntN(4))
	return start, w.host, w.corr
}

// ready returns the earliest start of work that is launched now: after the launch latency and after
// the stream's earlier work.
func (w *Writer) ready(stream int64) int64 {
	return max(w.host+700+int64(w.rng.IntN(1300)), w.busy[stream]+350+int64(w.rng.IntN(500)))
}

func (w *Writer) logNormal(median, sigma float64) int64 {
	return max(1, int64(median*math.Exp(sigma*w.rng.NormFloat64())))
}

// think advances the host's clock by about the given ns of the program's own work.
func (w *Writer) think(nanos float64) {
	w.host += w.logNormal(nanos, 0.2)
	w.tick()
}

// idle advances the host's clock by exactly the given ns and does the periodic work.
func (w *Writer) idle(nanos int64) {
	for until := w.host + nanos; ; {
		w.host = min(until, w.host+idleHop)
		w.tick()
		if w.host >= until {
			return
		}
	}
}

// tick does the periodic work that is due at the host's time.
func (w *Writer) tick() {
	for w.nextMetric != 0 && w.nextMetric <= w.host {
		w.machine.sample(w.rng, w.training())
		w.enc.metrics(w.nextMetric)
		w.nextMetric += metricInterval + int64(w.rng.IntN(200_000)) - 100_000
	}
	w.enc.tick()
	w.pace(w.host)
}

// training reports whether the device is under load.
func (w *Writer) training() bool { return len(w.scopes) > 0 }

// path returns the index of a scope path.
func (w *Writer) path(p string) int {
	if i, ok := w.pathIndex[p]; ok {
		return i
	}
	i := len(w.paths)
	w.pathIndex[p] = i
	w.paths = append(w.paths, p)
	w.pathTotals = append(w.pathTotals, 0)
	return i
}

// where returns the current scope path and depth.
func (w *Writer) where() (path, depth int) {
	if len(w.scopes) == 0 {
		return 0, 0
	}
	s := w.scopes[len(w.scopes)-1]
	return s.path, s.depth + 1
}

func (w *Writer) begin(name string, repeat, warm int64) {
	w.host += w.logNormal(900, 0.2)
	w.instance++
	s := &scope{name: name, depth: len(w.scopes), instance: w.instance, start: w.host, repeat: repeat, warm: warm}
	p := name
	if len(w.scopes) > 0 {
		p = w.paths[w.scopes[len(w.scopes)-1].path] + "|" + name
	}
	s.path = w.path(p)
	w.scopes = append(w.scopes, s)
	w.lastScope = name
	w.enc.scope(s, true, w.host)
}

// end closes the innermost scope.
func (w *Writer) end() {
	w.host += w.logNormal(700, 0.2)
	s := w.scopes[len(w.scopes)-1]
	w.scopes = w.scopes[:len(w.scopes)-1]
	w.enc.scope(s, false, w.host)
}

// emit writes one line to a channel, or with all to every channel.
func (w *Writer) emit(channel int, typ string, l line) {
	if w.err != nil {
		return
	}
	if w.err = w.files.channels[channel].append(l); w.err != nil {
		return
	}
	w.sum.Lines++
	w.sum.Bytes += int64(len(l)) + 1
	w.sum.Records[typ]++
}

func (w *Writer) all(typ string, l line) {
	for c := range w.files.channels {
		w.emit(c, typ, l)
	}
}

func (w *Writer) countKernel(l *launch) {
	w.sum.Rows[RowKernel]++
	w.sum.KernelNanos += l.end - l.start
	w.kernelTotals[l.kernel].Count++
	w.kernelTotals[l.kernel].Nanos += l.end - l.start
	w.pathTotals[l.path]++
}

func (w *Writer) countCopy(t *transfer) {
	w.sum.Rows[RowCopy]++
	w.sum.CopyBytes += t.bytes
	w.sum.CopyNanos += t.end - t.start
}

func (w *Writer) countSet(t *transfer) {
	w.sum.Rows[RowSet]++
	w.sum.SetBytes += t.bytes
}

// pace waits, with Live, until the session's time t, and flushes lines that have reached
// FlushInterval.
func (w *Writer) pace(t int64) {
	if !w.cfg.Live || w.ctx == nil || w.err != nil {
		return
	}
	// Shorter waits are not worth a timer.
	const least = time.Millisecond
	due := w.wallStart.Add(time.Duration(float64(t-w.start) / w.cfg.Speed))
	for {
		now := time.Now()
		if now.Sub(w.lastFlush) >= w.cfg.FlushInterval {
			w.flushFiles()
		}
		until := min(due.Sub(now), w.cfg.FlushInterval-now.Sub(w.lastFlush))
		if due.Sub(now) < least || w.ctx.Err() != nil || w.err != nil {
			return
		}
		timer := time.NewTimer(max(until, least))
		select {
		case <-timer.C:
		case <-w.ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (w *Writer) flushFiles() {
	w.lastFlush = time.Now()
	for _, c := range w.files.channels {
		if w.err == nil {
			w.err = c.flush()
		}
	}
}

// Flush writes the buffered lines to the files. With Pieces, a random part at the end remains. Rows
// that wait for a batch are written as one first, as at the end of the recorder's flush period.
func (w *Writer) Flush() error {
	if w.closed {
		return w.err
	}
	w.enc.flush()
	w.flushFiles()
	return w.err
}

// Rotate completes every channel's file as if it had reached its limit. It does not rotate an empty
// file.
func (w *Writer) Rotate() error {
	if w.closed {
		return w.err
	}
	w.enc.flush()
	for _, c := range w.files.channels {
		if w.err == nil {
			w.err = c.rotate()
		}
	}
	return w.err
}

// Close ends the session with a clean shutdown. Scopes end, buffered rows are written, and shutdown
// is the last record. In C3 the last files are published, .tmp is removed and the lock is released.
// A second call has no effect.
func (w *Writer) Close() error {
	if w.closed {
		return w.err
	}
	for len(w.scopes) > 0 {
		w.end()
	}
	for i := range w.params {
		w.host += 20_000
		w.corr += 2
		w.enc.memory(&w.params[i], true, w.host, w.corr)
	}
	w.idle(30e6)
	w.nextMetric = 0
	w.enc.footer()
	w.closed = true
	if w.err != nil {
		return errors.Join(w.err, w.files.abandon())
	}
	w.err = w.files.finish()
	w.sum.Sessions[0].Clean = w.err == nil
	return w.err
}

// Crash ends the session as a killed process does. Every line so far is in the files, followed by
// half a line, and there is no shutdown record. In C3, .tmp remains and the lock is free. Rows that
// wait for a batch are lost and not in the summary.
func (w *Writer) Crash() error {
	if w.closed {
		return w.err
	}
	w.closed = true
	for _, c := range w.files.channels {
		if w.err == nil {
			torn := line(nil).flat("system_start").int("pid", int64(w.pid)).str("app", w.cfg.App)
			w.err = c.write(len(c.buf))
			if w.err == nil {
				c.buf = append(c.buf, torn...)
				w.err = c.write(len(c.buf))
			}
		}
	}
	w.err = errors.Join(w.err, w.files.abandon())
	return w.err
}

// Summary describes what is written so far, and after Close or Crash what is on disk. The caller
// owns the maps.
func (w *Writer) Summary() Summary {
	s := newSummary(w.cfg)
	s.add(w.sum)
	s.Sessions[0].EndUnixNano = w.host
	for _, c := range w.files.channels {
		s.Channels[c.name] = c.total
	}
	for i, t := range w.kernelTotals {
		if t.Count > 0 {
			s.Kernels[w.kernelName(i)] = t
		}
	}
	for i, n := range w.pathTotals {
		if n > 0 {
			s.KernelsByScope[scopeOrGlobal(w.paths[i])] = n
		}
	}
	return s
}

// nameBytes is the size of A2's buffers for a kernel name and for a scope path.
const nameBytes = 255

// kernelName returns a catalogue kernel's name as the log contains it.
func (w *Writer) kernelName(i int) string {
	k := &catalogue[i]
	switch {
	case w.cfg.compact():
		return k.short
	case w.cfg.Layout == C3:
		return k.name
	case k.symbol != "":
		return k.symbol
	}
	return clip(k.name, nameBytes)
}

func scopeOrGlobal(path string) string {
	if path == "" {
		return "global"
	}
	return path
}

// makeStacks returns the session's host stacks, outermost frame first.
func makeStacks(rng *rand.Rand, cfg Config) []string {
	if cfg.StackBytes < 0 {
		return []string{""}
	}
	const last = "|cudaLaunchKernel"
	stacks := make([]string, cfg.DistinctStacks)
	for i := range stacks {
		var b strings.Builder
		b.WriteString("Py_BytesMain|Py_RunMain")
		fmt.Fprintf(&b, "|minigpt::Block<%d>::call(at::Tensor const&)", i)
		for tries := 0; tries < 8; {
			f := frames[rng.IntN(len(frames))]
			if b.Len()+1+len(f)+len(last) > cfg.StackBytes {
				tries++
				continue
			}
			b.WriteString("|" + f)
		}
		b.WriteString(last)
		stacks[i] = b.String()
	}
	return stacks
}

// Run writes all sessions of cfg and returns their summary. When ctx ends, Run closes the session
// in progress and returns no error; the summary covers what is written.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Summary{}, err
	}
	sum := newSummary(cfg)
	for n := 0; n < cfg.Sessions && ctx.Err() == nil; n++ {
		w, err := newWriter(cfg, n)
		if err != nil {
			return sum, err
		}
		for more := true; more && err == nil; {
			more, err = w.Step(ctx)
		}
		if ctx.Err() != nil && w.err == nil {
			err = nil
		}
		if cfg.Crash {
			err = errors.Join(err, w.Crash())
		} else {
			err = errors.Join(err, w.Close())
		}
		sum.add(w.Summary())
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}
