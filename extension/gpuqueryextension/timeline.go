// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

type binColumns struct {
	Lane     []uint32 `json:"lane"`
	Index    []uint32 `json:"index"`
	Count    []uint32 `json:"count"`
	BusyNs   []int64  `json:"busy_ns"`
	TopNs    []int64  `json:"top_ns"`
	TopShape []uint32 `json:"top_shape"`
	TopStart []int64  `json:"top_start"`
}

type sliceColumns struct {
	Lane        []uint32 `json:"lane"`
	Row         []uint32 `json:"row"`
	Shape       []uint32 `json:"shape"`
	Start       []int64  `json:"start"`
	DurationNs  []int64  `json:"duration_ns"`
	QueueNs     []*int64 `json:"queue_ns"`
	LaunchStart []*int64 `json:"launch_start"`
	Span        []string `json:"span"`
	Estimated   []flag   `json:"estimated"`
	ids         []store.SpanID
}

// flag is 0 or 1. A list of uint8 would become base64.
type flag uint16

type timelineAnswer struct {
	Base    string        `json:"base"`
	From    int64         `json:"from"`
	WidthNs int64         `json:"width_ns"`
	Bins    *binColumns   `json:"bins,omitempty"`
	Slices  *sliceColumns `json:"slices,omitempty"`
	Shapes  []shapeName   `json:"shapes"`
	Columns []column      `json:"columns,omitempty"`
}

type column struct {
	Table  string `json:"table"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	Offset int    `json:"offset"`
	Length int    `json:"length"`
}

func (s *server) timeline(ctx context.Context, r *request) (any, error) {
	q := store.TimelineQuery{Project: r.project, Session: r.session}
	q.From, q.To = r.interval()
	q.Bins = int(r.integer("bins", 2000, 1, 4000))
	if _, ok := r.values["lanes"]; ok {
		q.Lanes = r.ids("lanes")
	}
	most := int(r.integer("slices", 5000, 0, 20_000))
	if err := r.check(); err != nil {
		return nil, err
	}
	q.Bins = r.quickBins(q.From, q.To, q.Bins)
	t, err := s.store.Timeline(ctx, q)
	if err != nil {
		return nil, err
	}
	b := &binColumns{[]uint32{}, []uint32{}, []uint32{}, []int64{}, []int64{}, []uint32{}, []int64{}}
	used := map[uint32]bool{}
	var count int64
	for _, bin := range t.Bins {
		count += bin.Count
		b.Lane = append(b.Lane, bin.Lane)
		b.Index = append(b.Index, bin.Index)
		b.Count = append(b.Count, uint32(min(bin.Count, math.MaxUint32)))
		b.BusyNs = append(b.BusyNs, bin.BusyNs)
		b.TopNs = append(b.TopNs, bin.TopNs)
		b.TopShape = append(b.TopShape, bin.TopShape)
		start := int64(0)
		if bin.Count > 0 {
			start = bin.TopStart - r.base
			used[bin.TopShape] = true
		}
		b.TopStart = append(b.TopStart, start)
	}
	answer := &timelineAnswer{Base: r.baseText(), From: t.From - r.base, WidthNs: max(t.Width, 1), Bins: b}
	if len(t.Bins) == 0 && t.Width == 0 {
		answer.From = max(q.From, r.base) - r.base
	}
	if count <= int64(most) && most > 0 {
		page, err := s.store.Ops(ctx, store.OpQuery{Project: r.project, Session: r.session, From: q.From, To: q.To, Overlapping: true,
			Lanes: q.Lanes, Limit: most})
		if err != nil {
			return nil, err
		}
		if !page.More {
			answer.Slices = r.slices(page.Rows)
			for id := range page.Shapes {
				used[id] = true
			}
		}
	}
	if answer.Shapes, err = s.shapeNames(ctx, r, used); err != nil {
		return nil, err
	}
	if wantsBinary(r.Request) {
		return answer.encode()
	}
	return answer, nil
}

const (
	// maxBinRows is the number of rows from which bins are made at most. A store reads 2 to 5 million
	// in a second. Above it, bins are at least as wide as those of the finest level, which are sums.
	maxBinRows = 300_000
	// fewestBins is the number of bins below which an answer is of no use.
	fewestBins = 100
)

// quickBins returns a number of bins with which the answer takes less than 200 ms, if the interval
// probably has many operations and the level has enough bins.
func (r *request) quickBins(from, to int64, bins int) int {
	first, last := max(from, r.info.FirstNs), r.info.LastNs
	if to != 0 {
		last = min(to, last)
	}
	if last <= first {
		return bins
	}
	share := float64(last-first) / float64(r.info.LastNs-r.info.FirstNs)
	level := (last - first) >> store.Levels[0]
	if share*float64(r.info.Counts["ops"]) <= maxBinRows || level < fewestBins {
		return bins
	}
	return int(min(int64(bins), level))
}

func (r *request) slices(rows []store.OpRow) *sliceColumns {
	c := &sliceColumns{[]uint32{}, []uint32{}, []uint32{}, []int64{}, []int64{}, []*int64{}, []*int64{}, []string{}, []flag{}, nil}
	ends := map[uint32][]int64{} // of the rows of a lane
	for i := range rows {
		o := &rows[i]
		end := max(o.EndNs, o.StartNs)
		free := ends[o.Lane]
		row := slices.IndexFunc(free, func(e int64) bool { return e <= o.StartNs })
		if row < 0 {
			row = len(free)
			free = append(free, 0)
		}
		free[row] = end
		ends[o.Lane] = free
		c.Lane = append(c.Lane, o.Lane)
		c.Row = append(c.Row, uint32(row))
		c.Shape = append(c.Shape, o.Shape)
		c.Start = append(c.Start, o.StartNs-r.base)
		c.DurationNs = append(c.DurationNs, end-o.StartNs)
		c.QueueNs = append(c.QueueNs, optional(o.QueueNs))
		c.LaunchStart = append(c.LaunchStart, r.offset(o.LaunchStartNs))
		c.Span = append(c.Span, spanText(o.Op.Span))
		c.ids = append(c.ids, o.Op.Span)
		estimated := flag(0)
		if o.Estimated {
			estimated = 1
		}
		c.Estimated = append(c.Estimated, estimated)
	}
	return c
}

func (s *server) shapeNames(ctx context.Context, r *request, used map[uint32]bool) ([]shapeName, error) {
	names := []shapeName{}
	ids := slices.Sorted(maps.Keys(used))
	for part := range slices.Chunk(ids, 10_000) {
		found, err := s.store.Shapes(ctx, r.project, r.session, part)
		if err != nil {
			return nil, err
		}
		for _, id := range part {
			if sh := found[id]; sh != nil {
				names = append(names, shapeName{id, operationName(sh.Operation), sh.Name})
			}
		}
	}
	return names, nil
}

// encode writes the binary form: a JSON header, then columns.
func (t *timelineAnswer) encode() (any, error) {
	var columns [][]byte
	offset := 0
	add := func(table, name, kind string, length int, data []byte) {
		t.Columns = append(t.Columns, column{table, name, kind, offset, length})
		data = append(data, make([]byte, -len(data)&7)...)
		columns = append(columns, data)
		offset += len(data)
	}
	u32 := func(table, name string, v []uint32) {
		var data []byte
		for _, n := range v {
			data = binary.LittleEndian.AppendUint32(data, n)
		}
		add(table, name, "u32", len(v), data)
	}
	f64 := func(table, name string, v []int64) {
		var data []byte
		for _, n := range v {
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(float64(n)))
		}
		add(table, name, "f64", len(v), data)
	}
	unknown := func(table, name string, v []*int64) {
		var data []byte
		for _, n := range v {
			f := math.NaN()
			if n != nil {
				f = float64(*n)
			}
			data = binary.LittleEndian.AppendUint64(data, math.Float64bits(f))
		}
		add(table, name, "f64", len(v), data)
	}
	b := t.Bins
	u32("bins", "lane", b.Lane)
	u32("bins", "index", b.Index)
	u32("bins", "count", b.Count)
	f64("bins", "busy_ns", b.BusyNs)
	f64("bins", "top_ns", b.TopNs)
	u32("bins", "top_shape", b.TopShape)
	f64("bins", "top_start", b.TopStart)
	if c := t.Slices; c != nil {
		u32("slices", "lane", c.Lane)
		u32("slices", "row", c.Row)
		u32("slices", "shape", c.Shape)
		f64("slices", "start", c.Start)
		f64("slices", "duration_ns", c.DurationNs)
		unknown("slices", "queue_ns", c.QueueNs)
		unknown("slices", "launch_start", c.LaunchStart)
		var ids, flags []byte
		for i, id := range c.ids {
			ids = binary.LittleEndian.AppendUint64(ids, uint64(id))
			flags = append(flags, byte(c.Estimated[i]))
		}
		add("slices", "span", "u64", len(c.ids), ids)
		add("slices", "estimated", "u8", len(c.ids), flags)
	}
	t.Bins, t.Slices = nil, nil
	// The offsets are part of the header and count from the start of the answer. Spaces make its
	// length the same for all offsets.
	header, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	size := len(header) + 20*len(t.Columns)
	size += -(size + 4) & 7
	for i := range t.Columns {
		t.Columns[i].Offset += 4 + size
	}
	if header, err = json.Marshal(t); err != nil {
		return nil, err
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(size))
	out = append(append(out, header...), strings.Repeat(" ", size-len(header))...)
	return binaryAnswer(append(out, bytes.Join(columns, nil)...)), nil
}
