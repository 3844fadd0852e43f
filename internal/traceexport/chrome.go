// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// gpuPID is the process of the first device. Linux has no process ids above 2^22.
const gpuPID = 10_000_000

// chrome writes the JSON object format of Chrome's trace viewer.
type chrome struct {
	*source
	w      *bufio.Writer
	tracks *allocator
	gpuOf  map[int]*gpu // of the tracks of devices
	line   []byte
	buffer []arg // of the operation in progress
	first  bool
	flow   int64
	err    error
}

// Chrome writes a session as JSON for Chrome's trace viewer, Perfetto and tools for PyTorch's traces.
// Times are microseconds from the start of the session, with three decimals; baseTimeNanoseconds is
// its start. Each device is a process and each stream a thread. The categories and arguments of
// operations are those of PyTorch's profiler.
func Chrome(ctx context.Context, r store.Reader, q Query, w io.Writer) error {
	s, err := open(ctx, r, q)
	if err != nil {
		return err
	}
	c := &chrome{source: s, w: bufio.NewWriterSize(w, 64<<10), gpuOf: map[int]*gpu{}, first: true}
	c.tracks = newAllocator(c.describe)
	c.header()
	err = s.ops(func(o *store.OpRow) error {
		c.op(o)
		return c.err
	})
	if err == nil {
		err = s.spans(func(x *store.SpanRow) error {
			t, group := c.tracks.span(x)
			c.slice(t, group, x.StartNs, end(x.StartNs, x.EndNs), x.Name, spanCategory(x), appendSpan(nil, x))
			return c.err
		})
	}
	for _, event := range instantEvents {
		if err == nil {
			err = s.logs(event, func(l *store.LogRow) error {
				t, name := instantOf(c.tracks, l)
				c.instant(t, l.TimeNs, name, event, appendAttrs(nil, l.Attrs))
				return c.err
			})
		}
	}
	if err == nil {
		err = c.counters()
	}
	if err == nil {
		c.raw("\n]}\n")
	}
	return cmp.Or(err, c.err, c.w.Flush())
}

// spanCategory returns the category that PyTorch's profiler has for ranges of the program.
func spanCategory(x *store.SpanRow) string {
	if x.Operation == semconv.CUDAOperationScope {
		return "user_annotation"
	}
	return cmp.Or(x.Operation, "request")
}

var opCategories = map[store.Operation]string{
	store.OpKernel: "kernel", store.OpCopy: "gpu_memcpy", store.OpSet: "gpu_memset", store.OpGraph: "gpu_graph",
	store.OpSync: "cuda_sync", store.OpAlloc: "gpu_malloc", store.OpFree: "gpu_free",
}

func (c *chrome) raw(s string) {
	if c.err == nil {
		_, c.err = c.w.WriteString(s)
	}
}

func (c *chrome) header() {
	pid := c.pid()
	c.raw(fmt.Sprintf(`{"schemaVersion":1,"displayTimeUnit":"ns","baseTimeNanoseconds":%d,"session":%s,"deviceProperties":[`, c.base, quote(c.info.ID)))
	for i, g := range c.gpus {
		if i > 0 {
			c.raw(",")
		}
		c.raw(fmt.Sprintf(`{"id":%d,"name":%s,"uuid":%s}`, g.id, quote(g.name), quote(g.device)))
	}
	c.raw(`],"traceEvents":[`)
	c.metadata("process_name", pid, 0, "name", quote(cmp.Or(c.info.Service, "unnamed")))
	c.metadata("process_labels", pid, 0, "labels", quote("CPU"))
	c.metadata("process_sort_index", pid, 0, "sort_index", "0")
	for i, g := range c.gpus {
		c.metadata("process_name", gpuPID+int64(g.id), 0, "name", quote(g.name))
		c.metadata("process_labels", gpuPID+int64(g.id), 0, "labels", quote("GPU "+strconv.Itoa(g.id)))
		c.metadata("process_sort_index", gpuPID+int64(g.id), 0, "sort_index", strconv.Itoa(i+1))
	}
}

// quote returns a JSON string.
func quote(s string) string { return string(appendQuoted(nil, s)) }

// appendQuoted appends a JSON string. Most names need no escapes.
func appendQuoted(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			b, _ := json.Marshal(s) // a string has no error
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

func (c *chrome) metadata(name string, pid int64, tid int, key, value string) {
	c.begin(name, "", 'M', pid, tid)
	c.line = append(c.line, `,"args":{"`+key+`":`...)
	c.line = append(c.line, value...)
	c.line = append(c.line, '}')
	c.end()
}

func (c *chrome) begin(name, category string, phase byte, pid int64, tid int) {
	c.line = c.line[:0]
	if !c.first {
		c.line = append(c.line, ',')
	}
	c.first = false
	c.line = append(c.line, "\n{\"ph\":\""...)
	c.line = append(c.line, phase)
	c.line = append(c.line, `","name":`...)
	c.line = appendQuoted(c.line, name)
	if category != "" {
		c.line = append(c.line, `,"cat":`...)
		c.line = appendQuoted(c.line, category)
	}
	c.line = append(c.line, `,"pid":`...)
	c.line = strconv.AppendInt(c.line, pid, 10)
	c.line = append(c.line, `,"tid":`...)
	c.line = strconv.AppendInt(c.line, int64(tid), 10)
}

func (c *chrome) end() {
	c.line = append(c.line, '}')
	if c.err == nil {
		_, c.err = c.w.Write(c.line)
	}
}

// time appends nanoseconds as microseconds.
func (c *chrome) time(key string, ns int64) {
	c.line = append(c.line, `,"`+key+`":`...)
	u := uint64(ns)
	if ns < 0 {
		c.line = append(c.line, '-')
		u = -u
	}
	c.line = strconv.AppendUint(c.line, u/1000, 10)
	c.line = append(c.line, '.', byte('0'+u/100%10), byte('0'+u/10%10), byte('0'+u%10))
}

func (c *chrome) args(args []arg) {
	c.line = append(c.line, `,"args":{`...)
	for i, a := range args {
		if slices.ContainsFunc(args[:i], func(x arg) bool { return x.name == a.name }) {
			continue // an object has each name once
		}
		if i > 0 {
			c.line = append(c.line, ',')
		}
		c.line = appendQuoted(c.line, a.name)
		c.line = append(c.line, ':')
		switch a.value.Kind {
		case store.KindInt:
			c.line = strconv.AppendInt(c.line, a.value.Int, 10)
		case store.KindBool:
			c.line = strconv.AppendBool(c.line, a.value.Int != 0)
		case store.KindDouble:
			c.line = append(c.line, strconv.FormatFloat(a.value.Double, 'g', -1, 64)...)
		default:
			c.line = appendQuoted(c.line, textOf(a.value))
		}
	}
	c.line = append(c.line, '}')
}

// describe names the thread of a new track.
func (c *chrome) describe(t *track) {
	pid := c.pid()
	if g := c.gpuOf[t.id]; g != nil {
		pid = gpuPID + int64(g.id)
	}
	saved := c.line
	c.line = nil
	c.metadata("thread_name", pid, t.id, "name", quote(t.name))
	c.metadata("thread_sort_index", pid, t.id, "sort_index", strconv.Itoa(t.rank*1000+t.id))
	c.line = saved
}

func (c *chrome) op(o *store.OpRow) {
	l := c.laneOf(o)
	start, end := o.StartNs, end(o.StartNs, o.EndNs)
	s := o.ShapeRef
	category := cmp.Or(opCategories[s.Operation], "other")
	args := c.buffer[:0]
	if !onHost(o) {
		args = append(args, number("device", int64(l.gpu.id)))
	}
	args = appendInt(args, "stream", l.Stream)
	args = appendInt(args, "context", l.Context)
	args = appendInt(args, "correlation", o.Correlation)
	if s.Operation == store.OpKernel {
		args = appendWord(args, "full name", s.FullName)
		args = appendInt(args, "registers per thread", s.Registers)
		args = appendInt(args, "shared memory", sum(s.SharedStatic, s.SharedDynamic))
	}
	args = appendAttrs(appendOp(args, o), s.Attrs)
	c.buffer = args
	if onHost(o) {
		c.slice(c.tracks.wait(l, start, end), l.name, start, end, s.Name, category, args)
		return
	}
	if from, to, ok := launchOf(o); ok && o.Correlation.OK {
		t := c.tracks.launch(l, from, to)
		c.slice(t, l.name+" launches", from, to, "launch "+s.Name, "cuda_runtime", []arg{number("correlation", o.Correlation.V)})
		if t != nil {
			c.flow++
			c.begin("launch", "ac2g", 's', c.pid(), t.id)
			c.time("ts", from-c.base)
			c.line = append(c.line, fmt.Sprintf(`,"id":%d`, c.flow)...)
			c.end()
			c.deviceSlice(o, l, start, end, category, args, c.flow)
			return
		}
	}
	c.deviceSlice(o, l, start, end, category, args, 0)
}

// chromeName returns the name of an operation. Tools for PyTorch's traces find copies and sets by the names
// "Memcpy …" and "Memset …", not by their categories.
func chromeName(s *store.Shape) string {
	if rest, ok := strings.CutPrefix(s.Name, "mem"); ok && (s.Operation == store.OpCopy || s.Operation == store.OpSet) {
		return "Mem" + rest
	}
	return s.Name
}

// deviceSlice writes an operation of a device, and the end of the flow from its launch.
func (c *chrome) deviceSlice(o *store.OpRow, l *lane, start, end int64, category string, args []arg, flow int64) {
	c.tracks.added = func(t *track) {
		c.gpuOf[t.id] = l.gpu
		c.describe(t)
	}
	t := c.tracks.operation(l, start, end)
	c.tracks.added = c.describe
	if t == nil {
		c.slice(nil, l.name, start, end, o.ShapeRef.Name, category, args)
		return
	}
	pid := gpuPID + int64(l.gpu.id)
	c.begin(chromeName(o.ShapeRef), category, 'X', pid, t.id)
	c.time("ts", start-c.base)
	c.time("dur", end-start)
	c.args(args)
	if s := o.ShapeRef; s.Operation == store.OpKernel {
		c.line = c.line[:len(c.line)-1] // into the arguments
		c.dimensions("grid", s.Grid)
		c.dimensions("block", s.Block)
		c.line = append(c.line, '}')
	}
	c.end()
	if flow != 0 {
		c.begin("launch", "ac2g", 'f', pid, t.id)
		c.time("ts", start-c.base)
		c.line = append(c.line, fmt.Sprintf(`,"id":%d,"bp":"e"`, flow)...)
		c.end()
	}
}

func (c *chrome) dimensions(key string, size []int64) {
	if len(size) == 0 {
		return
	}
	c.line = append(c.line, `,"`+key+`":[`...)
	for i, v := range size {
		if i > 0 {
			c.line = append(c.line, ',')
		}
		c.line = strconv.AppendInt(c.line, v, 10)
	}
	c.line = append(c.line, ']')
}

func sum(a, b store.Int) store.Int { return store.Int{V: a.V + b.V, OK: a.OK || b.OK} }

func (c *chrome) slice(t *track, group string, start, end int64, name, category string, args []arg) {
	if t == nil {
		c.instant(c.tracks.instant(group+", more than can be shown"), start, name, category, append(args, number("duration ns", end-start)))
		return
	}
	c.begin(name, category, 'X', c.pid(), t.id)
	c.time("ts", start-c.base)
	c.time("dur", end-start)
	c.args(args)
	c.end()
}

func (c *chrome) instant(t *track, at int64, name, category string, args []arg) {
	c.begin(name, category, 'i', c.pid(), t.id)
	c.time("ts", at-c.base)
	c.line = append(c.line, `,"s":"t"`...)
	c.args(args)
	c.end()
}

func (c *chrome) counters() error {
	list, err := c.series()
	if err != nil {
		return err
	}
	for i := range list {
		x := &list[i]
		err := c.points(x, func(at int64, v float64) error {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return nil // JSON has no such numbers
			}
			c.begin(x.name, "metric", 'C', c.pid(), 0)
			c.time("ts", at-c.base)
			c.args([]arg{{cmp.Or(x.Unit, "value"), store.Value{Kind: store.KindDouble, Double: v}}})
			c.end()
			return c.err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
