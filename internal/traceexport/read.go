// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Query selects what to export: operations and spans that touch the interval, log records and
// points that are in it. From 0 and To 0 mean no bound, as in [store.Reader].
type Query struct {
	Project, Session string
	From, To         int64
}

const (
	pageRows = 20_000
	logRows  = 10_000
)

// source reads a session.
type source struct {
	ctx   context.Context
	store store.Reader
	q     Query
	info  store.SessionInfo
	lanes []*lane
	gpus  []*gpu
	// base is the time that relative times count from.
	base int64
}

// lane is a lane of the session and where it is shown.
type lane struct {
	store.LaneInfo
	index int // position in source.lanes
	gpu   *gpu
	name  string // "stream 7", "stream 7 copies", "stream 7 waits"
}

// gpu is a device of the session. ID is its index, or a number that no other device has.
type gpu struct {
	id     int
	device string // hw.id
	name   string
}

// maxGPUID bounds the ids of devices, because Perfetto lists devices by id.
const maxGPUID = 1023

func open(ctx context.Context, r store.Reader, q Query) (*source, error) {
	s := &source{ctx: ctx, store: r, q: q}
	var err error
	if s.info, err = r.Session(ctx, q.Project, q.Session); err != nil {
		return nil, err
	}
	if s.info.RowsDropped {
		return nil, fmt.Errorf("session %q has sums only, because retention removed its rows: %w", q.Session, store.ErrInvalid)
	}
	s.base = s.info.FirstNs
	infos, err := r.Lanes(ctx, q.Project, q.Session)
	if err != nil {
		return nil, err
	}
	s.addGPUs(infos)
	width := 1
	for i := range infos {
		if infos[i].Stream.OK {
			width = max(width, len(strconv.FormatInt(infos[i].Stream.V, 10)))
		}
	}
	for i := range infos {
		l := &lane{LaneInfo: infos[i], index: i, name: "unknown stream"}
		if l.Stream.OK {
			// Viewers sort by name.
			l.name = fmt.Sprintf("stream %0*d", width, l.Stream.V)
		}
		switch l.Class {
		case store.LaneCopy:
			l.name += " copies"
		case store.LaneHost:
			l.name += " waits"
		case store.LaneCompute:
		}
		l.gpu = s.gpuOf(&l.Lane)
		s.lanes = append(s.lanes, l)
	}
	return s, nil
}

func (s *source) addGPUs(lanes []store.LaneInfo) {
	taken := map[int]bool{}
	add := func(l *store.Lane, id int) {
		name := text(s.info.Resource, semconv.HWName)
		if l.DeviceIndex.OK {
			name = strings.TrimSpace(fmt.Sprintf("%s #%d", name, l.DeviceIndex.V))
		}
		taken[id] = true
		s.gpus = append(s.gpus, &gpu{id: id, device: l.Device, name: cmp.Or(name, l.Device, "unknown device")})
	}
	for i := range lanes {
		l := &lanes[i].Lane
		if n := int(l.DeviceIndex.V); l.DeviceIndex.OK && l.DeviceIndex.V >= 0 && l.DeviceIndex.V <= maxGPUID && !taken[n] && s.gpuOf(l) == nil {
			add(l, n)
		}
	}
	for i := range lanes {
		if l := &lanes[i].Lane; s.gpuOf(l) == nil {
			id := 0
			for taken[id] {
				id++
			}
			add(l, id)
		}
	}
	slices.SortFunc(s.gpus, func(a, b *gpu) int { return cmp.Compare(a.id, b.id) })
}

// gpuOf returns the device of a lane, nil if it is not known yet.
func (s *source) gpuOf(l *store.Lane) *gpu {
	for _, g := range s.gpus {
		if g.device == l.Device {
			return g
		}
	}
	return nil
}

// laneOf returns the lane of an operation. A lane that appeared since open belongs to the first GPU.
func (s *source) laneOf(o *store.OpRow) *lane {
	i := slices.IndexFunc(s.lanes, func(l *lane) bool { return l.ID == o.Lane })
	if i >= 0 {
		return s.lanes[i]
	}
	l := &lane{LaneInfo: store.LaneInfo{ID: o.Lane, Lane: *o.LaneRef}, index: len(s.lanes), name: "unknown stream"}
	if l.Stream.OK {
		l.name = fmt.Sprintf("stream %d", l.Stream.V)
	}
	if l.gpu = s.gpuOf(&l.Lane); l.gpu == nil {
		l.gpu = &gpu{id: len(s.gpus), device: l.Device, name: cmp.Or(l.Device, "unknown device")}
		s.gpus = append(s.gpus, l.gpu)
	}
	s.lanes = append(s.lanes, l)
	return l
}

// ops calls f for all operations, by start.
func (s *source) ops(f func(*store.OpRow) error) error {
	q := store.OpQuery{Project: s.q.Project, Session: s.q.Session, From: s.q.From, To: s.q.To, Overlapping: true, Limit: pageRows}
	for {
		page, err := s.store.Ops(s.ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Rows {
			if err := f(&page.Rows[i]); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		last := &page.Rows[len(page.Rows)-1]
		q.After = &store.OpCursor{StartNs: last.StartNs, Span: last.Span}
	}
}

// spans calls f for all spans, by start. Of spans with equal starts, the longest is the first.
func (s *source) spans(f func(*store.SpanRow) error) error {
	q := store.SpanQuery{Project: s.q.Project, Session: s.q.Session, From: s.q.From, To: s.q.To, Overlapping: true, Limit: pageRows}
	var same []store.SpanRow // spans with the same start
	flush := func() error {
		slices.SortStableFunc(same, func(a, b store.SpanRow) int { return cmp.Compare(b.EndNs, a.EndNs) })
		for i := range same {
			if err := f(&same[i]); err != nil {
				return err
			}
		}
		same = same[:0]
		return nil
	}
	for {
		page, err := s.store.Spans(s.ctx, q)
		if err != nil {
			return err
		}
		for i := range page {
			p := &page[i]
			if s.q.From != 0 && p.StartNs < s.q.From && p.EndNs <= s.q.From {
				continue // of a page after the first, which may begin before the interval
			}
			if len(same) > 0 && same[0].StartNs != p.StartNs {
				if err := flush(); err != nil {
					return err
				}
			}
			same = append(same, *p)
		}
		if len(page) < pageRows {
			return flush()
		}
		// Spans have no cursor: the next page begins with the last start, of which all are read again.
		last := page[len(page)-1].StartNs
		if page[0].StartNs == last {
			return fmt.Errorf("more than %d spans start at the same time: %w", pageRows, store.ErrInvalid)
		}
		if len(same) > 0 && same[0].StartNs == last {
			same = same[:0]
		}
		q.From, q.Overlapping = last, false
		if last == 0 {
			return fmt.Errorf("more than %d spans start in 1970: %w", pageRows, store.ErrInvalid)
		}
	}
}

// logs calls f for all log records of an event, by time.
func (s *source) logs(event string, f func(*store.LogRow) error) error {
	q := store.LogQuery{Project: s.q.Project, Session: s.q.Session, From: s.q.From, To: s.q.To, Event: event, Limit: logRows}
	for {
		page, err := s.store.Logs(s.ctx, q)
		if err != nil {
			return err
		}
		for i := range page {
			if err := f(&page[i]); err != nil {
				return err
			}
		}
		if len(page) < logRows {
			return nil
		}
		last := &page[len(page)-1]
		q.After = &store.LogCursor{TimeNs: last.TimeNs, UID: last.UID}
	}
}

// series is one stream of numbers.
type series struct {
	store.SeriesInfo
	session string // "" for metrics of the device
	name    string // with the attributes that distinguish it
}

// series lists the gauges and sums of the session, and those of its devices during the session.
func (s *source) series() ([]series, error) {
	from, to := s.q.From, s.q.To
	var all []series
	list := func(session, device string) error {
		found, err := s.store.Series(s.ctx, store.SeriesQuery{Project: s.q.Project, Session: session, Device: device, From: from, To: bound(to), Limit: 10_000})
		for i := range found {
			x := series{SeriesInfo: found[i], session: session}
			if x.Type != store.Gauge && x.Type != store.Sum {
				continue
			}
			if session == "" && s.info.Host != "" {
				if host := text(x.OriginRef.Resource, semconv.HostName); host != "" && host != s.info.Host {
					continue
				}
			}
			x.name = s.seriesName(&x.Series)
			all = append(all, x)
		}
		return err
	}
	if err := list(s.q.Session, ""); err != nil {
		return nil, err
	}
	if from == 0 {
		from = max(s.info.FirstNs, 1)
	}
	if to == 0 {
		to = max(s.info.LastNs, from) + 1
	}
	for _, g := range s.gpus {
		if g.device == "" {
			continue
		}
		if err := list("", g.device); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// seriesName returns the metric, the device and the values of the other attributes.
func (s *source) seriesName(x *store.Series) string {
	var parts []string
	for _, a := range x.Attrs {
		switch a.Key {
		case semconv.HWID:
			if g := s.gpuOf(&store.Lane{Device: a.Value.Str}); g != nil {
				parts = append(parts, "GPU "+strconv.Itoa(g.id))
			}
		case semconv.HWName, semconv.HWVendor, semconv.HWType, semconv.HWModel, semconv.CUDADeviceIndex:
		default:
			if v := textOf(a.Value); v != "" {
				parts = append(parts, v)
			}
		}
	}
	if len(parts) == 0 {
		return x.Metric
	}
	return x.Metric + " (" + strings.Join(parts, ", ") + ")"
}

// points calls f for all points of a series, by time.
func (s *source) points(x *series, f func(at int64, v float64) error) error {
	return s.pointsOf(x, max(x.FirstNs, 0), x.LastNs+1, x.Count, f)
}

// pointsOf splits an interval until the store returns all its points.
func (s *source) pointsOf(x *series, from, to, count int64, f func(at int64, v float64) error) error {
	if count == 0 || from >= to {
		return nil
	}
	if count > pageRows && to-from > 1 {
		middle := from + (to-from)/2
		for _, part := range [][2]int64{{from, middle}, {middle, to}} {
			found, err := s.store.Series(s.ctx, store.SeriesQuery{Project: s.q.Project, Session: x.session, Metric: x.Metric, From: max(part[0], 1), To: bound(part[1]), Limit: 10_000})
			if err != nil {
				return err
			}
			for i := range found {
				if found[i].Key == x.Key {
					if err := s.pointsOf(x, part[0], part[1], found[i].Count, f); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	rows, err := s.store.Points(s.ctx, store.PointQuery{Project: s.q.Project, Session: x.session, Series: x.Key, From: from, To: bound(to), Points: pageRows})
	for i := range rows {
		p := &rows[i]
		v := p.Double
		if p.Int.OK {
			v = float64(p.Int.V)
		} else if !p.HasDouble {
			continue
		}
		if err := f(p.TimeNs, v); err != nil {
			return err
		}
	}
	return err
}

// bound returns a time as the end of an interval, where 0 means none.
func bound(to int64) int64 {
	if to > store.MaxTimeNs {
		return 0
	}
	return to
}

// end returns the end of an operation or span.
func end(start, end int64) int64 { return max(start, end) }

// launchOf returns the interval of the host call that launched an operation. A store accepts any
// numbers there.
func launchOf(o *store.OpRow) (from, to int64, ok bool) {
	from, to = o.LaunchStartNs.V, max(o.LaunchStartNs.V, o.LaunchEndNs.V)
	return from, to, o.LaunchStartNs.OK && o.LaunchEndNs.OK && from > 0 && to <= store.MaxTimeNs
}

func text(a store.Attrs, key string) string {
	v, _ := a.Get(key)
	return textOf(v)
}

// textOf returns a string, a number or a truth value as text, "" for others.
func textOf(v store.Value) string {
	switch v.Kind {
	case store.KindString:
		return strings.ToValidUTF8(v.Str, "\uFFFD")
	case store.KindInt:
		return strconv.FormatInt(v.Int, 10)
	case store.KindBool:
		return strconv.FormatBool(v.Int != 0)
	case store.KindDouble:
		return strconv.FormatFloat(v.Double, 'g', -1, 64)
	default:
		return ""
	}
}
