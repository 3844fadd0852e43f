// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/semconv"
)

type functionAnswer struct {
	Kernel   string `json:"kernel"`
	Function string `json:"function"`
	File     string `json:"file"`
	Rows     int64  `json:"rows"`
	sampleSums
}

func (s *server) functions(ctx context.Context, r *request) (any, error) {
	q := store.SampleQuery{Project: r.project, Session: r.session, Limit: maxSamples}
	q.From, q.To = r.interval()
	path := r.optionalID("path")
	q.ByPath = path != nil
	if err := r.check(); err != nil {
		return nil, err
	}
	inside, err := s.pathFilter(ctx, r, path)
	if err != nil {
		return nil, err
	}
	found, err := s.store.Samples(ctx, q)
	if err != nil {
		return nil, err
	}
	type key struct{ kernel, function, file string }
	byKey := map[key]*functionAnswer{}
	list := []*functionAnswer{}
	for i := range found {
		x := &found[i]
		if inside != nil && !inside(x.Path) {
			continue
		}
		k := key{x.Kernel, x.Function, x.File}
		f := byKey[k]
		if f == nil {
			f = &functionAnswer{x.Kernel, x.Function, x.File, 0, sampleSums{0, map[string]uint64{}, map[string]uint64{}}}
			byKey[k] = f
			list = append(list, f)
		}
		f.Rows += x.Rows
		f.add(x.Kind, x.What, x.Value)
	}
	slices.SortStableFunc(list, func(a, b *functionAnswer) int {
		return cmp.Or(cmp.Compare(b.Samples, a.Samples), cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.Function, b.Function), cmp.Compare(a.File, b.File))
	})
	return map[string]any{"base": r.baseText(), "functions": list, "truncated": len(found) == maxSamples}, nil
}

type sampleAnswer struct {
	Kind     string `json:"kind"`
	Kernel   string `json:"kernel"`
	Function string `json:"function"`
	File     string `json:"file"`
	Line     *int64 `json:"line,omitempty"`
	PC       *int64 `json:"pc,omitempty"`
	What     string `json:"what"`
	Rows     int64  `json:"rows"`
	Value    uint64 `json:"value"`
}

func (s *server) samples(ctx context.Context, r *request) (any, error) {
	q := store.SampleQuery{Project: r.project, Session: r.session, Function: r.text("function", 10_000)}
	q.From, q.To = r.interval()
	if _, ok := r.values["kind"]; ok {
		q.Kind = [...]store.SampleKind{store.SampleStall, store.SampleSASS}[r.choice("kind", "stall", "sass")]
	} else {
		r.raw("kind")
	}
	for _, by := range r.list("by", 2) {
		switch by {
		case "line":
			q.ByLine = true
		case "pc":
			q.ByPC = true
		default:
			r.fail("by", "must be a list of line and pc")
		}
	}
	kernel, byKernel := r.text("kernel", 10_000), len(r.values["kernel"]) > 0
	path := r.optionalID("path")
	q.ByPath = path != nil
	limit := int(r.integer("limit", 10_000, 1, 99_999))
	q.Limit = limit + 1
	if byKernel || q.ByPath {
		q.Limit = maxSamples
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	inside, err := s.pathFilter(ctx, r, path)
	if err != nil {
		return nil, err
	}
	found, err := s.store.Samples(ctx, q)
	if err != nil {
		return nil, err
	}
	truncated := len(found) == q.Limit
	list := []sampleAnswer{}
	for i := range found {
		x := &found[i]
		if byKernel && x.Kernel != kernel || inside != nil && !inside(x.Path) {
			continue
		}
		if len(list) == limit {
			truncated = true
			break
		}
		kind := "stall"
		if x.Kind == store.SampleSASS {
			kind = "sass"
		}
		list = append(list, sampleAnswer{kind, x.Kernel, x.Function, x.File, optional(x.Line), optional(x.PC), x.What, x.Rows, x.Value})
	}
	return map[string]any{"base": r.baseText(), "samples": list, "truncated": truncated}, nil
}

// system is how the data without a session is read for one.
type system struct {
	host    string
	pid     store.Int
	devices map[string]bool
}

func (s *server) system(ctx context.Context, r *request) (*system, error) {
	lanes, err := s.store.Lanes(ctx, r.project, r.session)
	if err != nil {
		return nil, err
	}
	devices := map[string]bool{}
	for i := range lanes {
		if lanes[i].Device != "" {
			devices[lanes[i].Device] = true
		}
	}
	return &system{r.info.Host, r.info.PID, devices}, nil
}

func (y *system) has(resource, attrs store.Attrs) bool {
	host := stringOf(resource, semconv.HostName)
	if y.host != "" && host != "" && host != y.host {
		return false
	}
	// Of the processes that eBPF programs observed, only the session's own is of interest.
	if stringOf(resource, semconv.TelemetrySDKName) == semconv.EBPFObserver {
		pid, ok := resource.Get(semconv.ProcessPID)
		return ok && y.pid.OK && pid.Kind == store.KindInt && pid.Int == y.pid.V
	}
	device := stringOf(attrs, semconv.HWID)
	return device == "" || len(y.devices) == 0 || y.devices[device]
}

// source reads the parameter source. For system it changes the session and bounds the interval.
func (r *request) source(session *string, from, to *int64) (isSystem bool) {
	isSystem = r.choice("source", "session", "system") == 1
	if isSystem {
		*session = ""
		if *from == 0 && *to == 0 {
			*from, *to = max(r.info.FirstNs, 1), r.info.LastNs+1
		}
	}
	return isSystem
}

type logAnswer struct {
	UID          string     `json:"uid"`
	Time         int64      `json:"time"`
	Severity     uint8      `json:"severity,omitempty"`
	SeverityText string     `json:"severity_text,omitempty"`
	Event        string     `json:"event,omitempty"`
	Body         any        `json:"body"`
	Trace        string     `json:"trace,omitempty"`
	Span         string     `json:"span,omitempty"`
	Attributes   attributes `json:"attributes"`
}

func (s *server) logs(ctx context.Context, r *request) (any, error) {
	q := store.LogQuery{Project: r.project, Session: r.session, Event: r.text("event", 1000), Trace: r.traceID("trace")}
	q.From, q.To = r.interval()
	isSystem := r.source(&q.Session, &q.From, &q.To)
	limit := int(r.integer("limit", 100, 1, 9999))
	q.Limit = limit + 1
	if v, ok := r.raw("cursor"); ok {
		at, uid, _ := strings.Cut(v, ".")
		n, err := strconv.ParseInt(at, 10, 64)
		id, err2 := hex.DecodeString(uid)
		if err != nil || err2 != nil || len(id) != len(store.UID{}) {
			r.fail("cursor", "must be the next of an earlier page")
		} else {
			q.After = &store.LogCursor{TimeNs: n, UID: store.UID(id)}
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	var sys *system
	var err error
	if isSystem {
		if sys, err = s.system(ctx, r); err != nil {
			return nil, err
		}
	}
	found, err := s.store.Logs(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Base string      `json:"base"`
		Logs []logAnswer `json:"logs"`
		Next string      `json:"next,omitempty"`
	}{r.baseText(), []logAnswer{}, ""}
	if len(found) > limit {
		last := &found[limit-1]
		answer.Next = fmt.Sprintf("%d.%x", last.TimeNs, last.UID)
		found = found[:limit]
	}
	for i := range found {
		l := &found[i]
		if sys != nil && !sys.has(l.OriginRef.Resource, l.Attrs) {
			continue
		}
		answer.Logs = append(answer.Logs, logAnswer{hex.EncodeToString(l.UID[:]), l.TimeNs - r.base, l.Severity, l.SeverityText, l.Event,
			plain(&l.Body), traceText(l.Trace), parentText(l.Span), attributes(l.Attrs)})
	}
	return answer, nil
}

type textAnswer struct {
	Key          string  `json:"key"`
	Kind         string  `json:"kind"`
	Function     string  `json:"function,omitempty"`
	Kernel       string  `json:"kernel,omitempty"`
	File         string  `json:"file,omitempty"`
	Architecture string  `json:"architecture,omitempty"`
	Bytes        int64   `json:"bytes"`
	Complete     bool    `json:"complete"`
	FirstLine    *int64  `json:"first_line,omitempty"`
	Text         *string `json:"text,omitempty"`

	pieces map[int64]piece
	count  int64
}

type piece struct {
	text string
	line int64
}

const maxTexts = 10_000

// readTexts assembles listings and sources from log records, in pages. With a key, it keeps the
// pieces of this text only.
func (s *server) readTexts(ctx context.Context, r *request, key string) (list []*textAnswer, truncated bool, err error) {
	byKey := map[string]*textAnswer{}
	for _, event := range []string{semconv.EventCUDASASSListing, semconv.EventCUDASource} {
		q := store.LogQuery{Project: r.project, Session: r.session, Event: event, Limit: 200}
		for {
			found, err := s.store.Logs(ctx, q)
			if err != nil {
				return nil, false, err
			}
			for i := range found {
				t := textOf(&found[i])
				if have := byKey[t.Key]; have != nil {
					t = have
				} else if len(list) == maxTexts {
					truncated = true
					continue
				} else if key == "" || key == t.Key {
					byKey[t.Key] = t
					list = append(list, t)
				} else {
					continue
				}
				t.add(&found[i], key != "")
			}
			if len(found) < q.Limit {
				break
			}
			last := &found[len(found)-1]
			q.From, q.After = max(last.TimeNs, 0), &store.LogCursor{TimeNs: last.TimeNs, UID: last.UID}
		}
	}
	for _, t := range list {
		t.Complete = int64(len(t.pieces)) == t.count
	}
	return list, truncated, nil
}

// textOf describes the text of a record. Its key is a hash of what the pieces of a text share.
func textOf(l *store.LogRow) *textAnswer {
	t := &textAnswer{
		Kind: "source", Function: stringOf(l.Attrs, semconv.CodeFunctionName), Kernel: stringOf(l.Attrs, semconv.CUDAKernelName),
		File: stringOf(l.Attrs, semconv.CodeFilePath), Architecture: stringOf(l.Attrs, semconv.CUDAListingArchitecture),
		pieces: map[int64]piece{},
	}
	if l.Event == semconv.EventCUDASASSListing {
		t.Kind = semconv.CUDAListingKindSASS
		if stringOf(l.Attrs, semconv.CUDAListingKind) == semconv.CUDAListingKindPTX {
			t.Kind = semconv.CUDAListingKindPTX
		}
	}
	source, _ := l.Attrs.Get(semconv.CUDASourceID)
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q %q %q %q %q %d", t.Kind, t.Function, t.Kernel, t.File, t.Architecture, stringOf(l.Attrs, semconv.CUDACubinCRC), source.Int)
	t.Key = fmt.Sprintf("%016x", h.Sum64())
	return t
}

func (t *textAnswer) add(l *store.LogRow, keep bool) {
	number := func(key string, normal int64) int64 {
		if v, ok := l.Attrs.Get(key); ok && v.Kind == store.KindInt {
			return v.Int
		}
		return normal
	}
	index := number(semconv.CUDATextChunkIndex, 0)
	if _, ok := t.pieces[index]; ok || l.Body.Kind != store.KindString {
		return
	}
	t.count = max(t.count, number(semconv.CUDATextChunkCount, 1))
	t.Bytes += int64(len(l.Body.Str))
	p := piece{line: number(semconv.CUDATextChunkFirstLine, 1)}
	if keep {
		p.text = l.Body.Str
	}
	t.pieces[index] = p
}

func (s *server) texts(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	list, truncated, err := s.readTexts(ctx, r, "")
	if err != nil {
		return nil, err
	}
	return map[string]any{"texts": all(list), "truncated": truncated}, nil
}

func (s *server) text(ctx context.Context, r *request) (any, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	list, _, err := s.readTexts(ctx, r, r.PathValue("key"))
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, notFound("the session has no such text")
	}
	t := list[0]
	var indices []int64
	for i := range t.pieces {
		indices = append(indices, i)
	}
	slices.Sort(indices)
	var b strings.Builder
	for _, i := range indices {
		b.WriteString(t.pieces[i].text)
	}
	text, line := strings.ToValidUTF8(b.String(), "\uFFFD"), int64(1)
	if len(indices) > 0 {
		line = t.pieces[indices[0]].line
	}
	t.Text, t.FirstLine = &text, &line
	return t, nil
}

type seriesAnswer struct {
	Key         string     `json:"key"`
	Metric      string     `json:"metric"`
	Unit        string     `json:"unit,omitempty"`
	Description string     `json:"description,omitempty"`
	Type        string     `json:"type"`
	Temporality string     `json:"temporality,omitempty"`
	Monotonic   bool       `json:"monotonic,omitempty"`
	Attributes  attributes `json:"attributes"`
	Resource    attributes `json:"resource"`
	Count       int64      `json:"count"`
	First       int64      `json:"first"`
	Last        int64      `json:"last"`
}

var (
	seriesTypes   = [...]string{"gauge", "gauge", "sum", "histogram", "exponential_histogram", "summary"}
	temporalities = [...]string{"", "delta", "cumulative"}
)

func (s *server) series(ctx context.Context, r *request) (any, error) {
	const most = 10_000
	q := store.SeriesQuery{Project: r.project, Session: r.session, Metric: r.text("metric", 1000), Device: r.text("device", 1000)}
	q.From, q.To = r.interval()
	isSystem := r.source(&q.Session, &q.From, &q.To)
	limit := int(r.integer("limit", 1000, 1, most-1))
	q.Limit = limit + 1
	if isSystem {
		q.Limit = most
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	found, err := s.store.Series(ctx, q)
	if err != nil {
		return nil, err
	}
	truncated := len(found) == q.Limit
	if isSystem {
		sys, err := s.system(ctx, r)
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(i store.SeriesInfo) bool { return !sys.has(i.OriginRef.Resource, i.Attrs) })
	}
	list := []seriesAnswer{}
	for i := range found[:min(len(found), limit)] {
		x := &found[i]
		list = append(list, seriesAnswer{fmt.Sprintf("%016x", x.Key), x.Metric, x.Unit, x.Description, nameOf(seriesTypes[:], uint8(x.Type)),
			nameOf(temporalities[:], x.Temporality), x.Monotonic, attributes(x.Attrs), attributes(x.OriginRef.Resource), x.Count,
			x.FirstNs - r.base, x.LastNs - r.base})
	}
	return map[string]any{"base": r.baseText(), "series": list, "truncated": truncated || len(found) > limit}, nil
}

func (s *server) points(ctx context.Context, r *request) (any, error) {
	q := store.PointQuery{Project: r.project, Session: r.session, Series: r.number("key", r.PathValue("key"))}
	q.From, q.To = r.interval()
	r.source(&q.Session, &q.From, &q.To)
	q.Points = int(r.integer("points", 2000, 4, 20_000))
	if err := r.check(); err != nil {
		return nil, err
	}
	found, err := s.store.Points(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Base  string     `json:"base"`
		Time  []int64    `json:"time"`
		Value []*float64 `json:"value"`
		Count []uint64   `json:"count,omitempty"`
		Sum   []*float64 `json:"sum,omitempty"`
	}{r.baseText(), []int64{}, []*float64{}, nil, nil}
	number := func(f float64) *float64 {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil
		}
		return &f
	}
	histogram := slices.ContainsFunc(found, func(p store.PointRow) bool { return p.Data != nil })
	var kind store.SeriesType
	if histogram {
		all, err := s.store.Series(ctx, store.SeriesQuery{Project: q.Project, Session: q.Session, From: q.From, To: q.To, Limit: 10_000})
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(all, func(x store.SeriesInfo) bool { return x.Key == q.Series }); i >= 0 {
			kind = all[i].Type
		}
	}
	for i := range found {
		p := &found[i].Point
		answer.Time = append(answer.Time, p.TimeNs-r.base)
		var value *float64
		switch {
		case p.Int.OK:
			value = number(float64(p.Int.V))
		case p.HasDouble:
			value = number(p.Double)
		}
		answer.Value = append(answer.Value, value)
		if histogram {
			n, sum, hasSum := countAndSum(kind, p)
			answer.Count = append(answer.Count, n)
			var total *float64
			if hasSum {
				total = number(sum)
			}
			answer.Sum = append(answer.Sum, total)
		}
	}
	return answer, nil
}

// countAndSum returns those of a histogram or summary.
func countAndSum(kind store.SeriesType, p *store.Point) (n uint64, sum float64, ok bool) {
	m := pmetric.NewMetric()
	series := &store.Series{Type: kind}
	rows.AppendSeries(series, m)
	if p.Data == nil || rows.AppendPoint(series, p, m) != nil {
		return 0, 0, false
	}
	switch kind {
	case store.Histogram:
		d := m.Histogram().DataPoints().At(0)
		return d.Count(), d.Sum(), d.HasSum()
	case store.ExponentialHistogram:
		d := m.ExponentialHistogram().DataPoints().At(0)
		return d.Count(), d.Sum(), d.HasSum()
	case store.Summary:
		d := m.Summary().DataPoints().At(0)
		return d.Count(), d.Sum(), true
	}
	return 0, 0, false
}
