// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// The types of this file are schemas of openapi.yaml.

var operationNames = [...]string{
	store.OpKernel: semconv.CUDAOperationKernel, store.OpCopy: semconv.CUDAOperationMemcpy, store.OpSet: semconv.CUDAOperationMemset,
	store.OpSync: semconv.CUDAOperationSynchronize, store.OpGraph: semconv.CUDAOperationGraph, store.OpAlloc: semconv.CUDAOperationMalloc,
	store.OpFree: semconv.CUDAOperationFree,
}

// operationName returns cuda.operation, "unknown" for a number that a newer release has stored.
func operationName(op store.Operation) string {
	if op == 0 || int(op) >= len(operationNames) {
		return "unknown"
	}
	return operationNames[op]
}

type sessionAnswer struct {
	ID          string           `json:"id"`
	Service     string           `json:"service,omitempty"`
	Host        string           `json:"host,omitempty"`
	Run         string           `json:"run,omitempty"`
	Rank        string           `json:"rank,omitempty"`
	RankSize    string           `json:"rank_size,omitempty"`
	PID         *int64           `json:"pid,omitempty"`
	Start       string           `json:"start"`
	DurationNs  int64            `json:"duration_ns"`
	Counts      map[string]int64 `json:"counts"`
	Operations  map[string]int64 `json:"operations"`
	KernelNs    int64            `json:"kernel_ns"`
	Bytes       int64            `json:"bytes,omitempty"`
	Live        bool             `json:"live"`
	Ended       bool             `json:"ended"`
	Sealed      bool             `json:"sealed"`
	Pinned      bool             `json:"pinned"`
	RowsDropped bool             `json:"rows_dropped"`
}

func (s *server) session(i *store.SessionInfo) sessionAnswer {
	a := sessionAnswer{
		ID: i.ID, Service: i.Service, Host: i.Host, Run: i.Run, Rank: i.Rank, RankSize: i.RankSize, PID: optional(i.PID),
		Start: strconv.FormatInt(i.FirstNs, 10), DurationNs: i.LastNs - i.FirstNs, Counts: i.Counts, Operations: map[string]int64{},
		KernelNs: i.KernelNs, Bytes: i.Bytes, Live: s.live(i), Ended: i.Ended, Sealed: i.Sealed, Pinned: i.Pinned, RowsDropped: i.RowsDropped,
	}
	for op, n := range i.Operations {
		a.Operations[operationName(op)] += n
	}
	return a
}

type laneAnswer struct {
	ID          uint32 `json:"id"`
	Device      string `json:"device,omitempty"`
	DeviceIndex *int64 `json:"device_index,omitempty"`
	Context     *int64 `json:"context,omitempty"`
	Stream      *int64 `json:"stream,omitempty"`
	Class       string `json:"class"`
	Count       int64  `json:"count"`
	BusyNs      int64  `json:"busy_ns"`
	First       int64  `json:"first"`
	Last        int64  `json:"last"`
}

var classes = [...]string{store.LaneCompute: "compute", store.LaneCopy: "copy", store.LaneHost: "host"}

func (r *request) lane(l *store.LaneInfo) *laneAnswer {
	return &laneAnswer{l.ID, l.Device, optional(l.DeviceIndex), optional(l.Context), optional(l.Stream), nameOf(classes[:], uint8(l.Class)),
		l.Count, l.BusyNs, l.FirstNs - r.base, l.LastNs - r.base}
}

type shapeName struct {
	ID        uint32 `json:"id"`
	Operation string `json:"operation"`
	Name      string `json:"name"`
}

type shapeAnswer struct {
	shapeName
	FullName       string     `json:"full_name,omitempty"`
	Symbol         string     `json:"symbol,omitempty"`
	Grid           []int64    `json:"grid,omitempty"`
	Block          []int64    `json:"block,omitempty"`
	Cluster        []int64    `json:"cluster,omitempty"`
	Registers      *int64     `json:"registers,omitempty"`
	SharedStatic   *int64     `json:"shared_static,omitempty"`
	SharedDynamic  *int64     `json:"shared_dynamic,omitempty"`
	SharedExecuted *int64     `json:"shared_executed,omitempty"`
	LocalMemory    *int64     `json:"local_memory,omitempty"`
	Attributes     attributes `json:"attributes"`
}

func shape(id uint32, s *store.Shape) *shapeAnswer {
	return &shapeAnswer{
		shapeName: shapeName{id, operationName(s.Operation), s.Name}, FullName: s.FullName, Symbol: s.Symbol, Grid: s.Grid,
		Block: s.Block, Cluster: s.Cluster, Registers: optional(s.Registers), SharedStatic: optional(s.SharedStatic),
		SharedDynamic: optional(s.SharedDynamic), SharedExecuted: optional(s.SharedExecuted), LocalMemory: optional(s.LocalMemory),
		Attributes: attributes(s.Attrs),
	}
}

type operationAnswer struct {
	Span        string   `json:"span"`
	Start       int64    `json:"start"`
	DurationNs  int64    `json:"duration_ns"`
	Lane        uint32   `json:"lane"`
	Shape       uint32   `json:"shape"`
	Operation   string   `json:"operation"`
	Name        string   `json:"name"`
	LaunchStart *int64   `json:"launch_start,omitempty"`
	LaunchEnd   *int64   `json:"launch_end,omitempty"`
	QueueNs     *int64   `json:"queue_ns,omitempty"`
	Correlation *int64   `json:"correlation,omitempty"`
	Bytes       *int64   `json:"bytes,omitempty"`
	Address     string   `json:"address,omitempty"`
	Estimated   bool     `json:"estimated,omitempty"`
	Trace       string   `json:"trace,omitempty"`
	Parent      string   `json:"parent,omitempty"`
	Scope       string   `json:"scope,omitempty"`
	ScopePath   []string `json:"scope_path,omitempty"`
	Inferred    bool     `json:"inferred,omitempty"`
}

func (r *request) operation(o *store.OpRow) *operationAnswer {
	a := &operationAnswer{
		Span: spanText(o.Op.Span), Start: o.StartNs - r.base, DurationNs: max(o.EndNs-o.StartNs, 0), Lane: o.Lane, Shape: o.Shape,
		Operation: operationName(o.ShapeRef.Operation), Name: o.ShapeRef.Name, LaunchStart: r.offset(o.LaunchStartNs),
		LaunchEnd: r.offset(o.LaunchEndNs), QueueNs: optional(o.QueueNs), Correlation: optional(o.Correlation), Bytes: optional(o.Bytes),
		Estimated: o.Estimated, Trace: traceText(o.PlaceRef.Trace), Parent: parentText(o.PlaceRef.Parent), Scope: o.PlaceRef.ScopeName,
		Inferred: o.PlaceRef.Inferred,
	}
	if o.Address.OK {
		a.Address = fmt.Sprintf("%#x", uint64(o.Address.V))
	}
	if o.PlaceRef.ScopePath != "" {
		a.ScopePath = strings.Split(o.PlaceRef.ScopePath, "|")
	}
	return a
}

type spanAnswer struct {
	Span            string     `json:"span"`
	Parent          string     `json:"parent,omitempty"`
	Trace           string     `json:"trace,omitempty"`
	Start           int64      `json:"start"`
	DurationNs      int64      `json:"duration_ns"`
	Name            string     `json:"name"`
	Kind            string     `json:"kind"`
	Status          string     `json:"status"`
	StatusMessage   string     `json:"status_message,omitempty"`
	Operation       string     `json:"operation,omitempty"`
	Source          string     `json:"source,omitempty"`
	Thread          string     `json:"thread,omitempty"`
	Path            uint32     `json:"path"`
	Instrumentation string     `json:"instrumentation,omitempty"`
	Attributes      attributes `json:"attributes"`
}

var (
	spanKinds    = [...]string{"unspecified", "internal", "server", "client", "producer", "consumer"}
	spanStatuses = [...]string{"unset", "ok", "error"}
)

// nameOf returns the name with an index, or the first one.
func nameOf(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return names[0]
}

func (r *request) span(p *store.SpanRow) *spanAnswer {
	a := &spanAnswer{
		Span: spanText(p.Span.Span), Parent: parentText(p.Parent), Trace: traceText(p.Trace), Start: p.StartNs - r.base,
		DurationNs: max(p.EndNs-p.StartNs, 0), Name: p.Name, Kind: nameOf(spanKinds[:], p.Kind), Status: nameOf(spanStatuses[:], p.Status),
		StatusMessage: p.StatusMessage, Operation: p.Operation, Source: stringOf(p.Attrs, semconv.CUDAScopeSource), Path: p.Path,
		Instrumentation: p.OriginRef.ScopeName, Attributes: attributes(p.Attrs),
	}
	// thread.id and thread.name are OpenTelemetry's names.
	if id, ok := p.Attrs.Get("thread.id"); ok && id.Kind == store.KindInt {
		a.Thread = strconv.FormatInt(id.Int, 10)
	}
	if name := stringOf(p.Attrs, "thread.name"); name != "" {
		a.Thread = strings.TrimSpace(a.Thread + " " + name)
	}
	return a
}

func stringOf(a store.Attrs, key string) string {
	v, _ := a.Get(key)
	if v.Kind != store.KindString {
		return ""
	}
	return v.Str
}

func optional(v store.Int) *int64 {
	if !v.OK {
		return nil
	}
	return &v.V
}

func (r *request) offset(v store.Int) *int64 {
	if !v.OK {
		return nil
	}
	n := v.V - r.base
	return &n
}

func spanText(id store.SpanID) string { return fmt.Sprintf("%016x", uint64(id)) }

func parentText(id store.SpanID) string {
	if id == 0 {
		return ""
	}
	return spanText(id)
}

func traceText(id store.TraceID) string {
	if id == (store.TraceID{}) {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// attributes is an object in JSON.
type attributes store.Attrs

func (a attributes) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(a))
	for i := range a {
		m[strings.ToValidUTF8(a[i].Key, "\uFFFD")] = plain(&a[i].Value)
	}
	return json.Marshal(m)
}

// plain returns a value for JSON.
func plain(v *store.Value) any {
	switch v.Kind {
	case store.KindString:
		if !utf8.ValidString(v.Str) {
			return strings.ToValidUTF8(v.Str, "\uFFFD")
		}
		return v.Str
	case store.KindBool:
		return v.Int != 0
	case store.KindInt:
		if v.Int > 1<<53 || v.Int < -1<<53 {
			return strconv.FormatInt(v.Int, 10)
		}
		return v.Int
	case store.KindDouble:
		return finite(v.Double)
	case store.KindBytes:
		return base64.StdEncoding.EncodeToString([]byte(v.Str))
	case store.KindSlice:
		list := make([]any, len(v.Slice))
		for i := range v.Slice {
			list[i] = plain(&v.Slice[i])
		}
		return list
	case store.KindMap:
		return attributes(v.Map)
	}
	return nil
}

func finite(f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return f
}

// all returns a list that is not null in JSON.
func all[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
