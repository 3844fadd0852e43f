// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// minMissing is the share of missing work from which idle time has no cause. If missing operations last as
// long as the others, less can turn at most 5 % of the active time from idle to busy. Findings below minGain,
// which is the same, are not reported either.
const minMissing = 0.05

const (
	// maxCaptures bounds the capture logs of a session. A recorder writes one.
	maxCaptures = 100
	// maxLossSeries bounds the series of a metric that are read of a session without a capture log.
	maxLossSeries = 100
)

// Missing says which work of a session has no span.
type Missing struct {
	// Share is the share of the work, from 0.05 to 1.
	Share float64 `json:"share"`
	// Text says why, in one sentence.
	Text string `json:"text"`
}

// MissingWork returns what is missing of a session, nil if that is less than 5 % or unknown. It returns errors of
// the source.
func MissingWork(ctx context.Context, src Source) (*Missing, error) {
	s, ok := src.(lossSource)
	if !ok {
		return nil, nil
	}
	first, last, err := src.Extent(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.losses(ctx)
	if err != nil {
		return nil, err
	}
	share := l.share(last - first)
	if share < minMissing {
		return nil, nil
	}
	return &Missing{share, l.text(share)}, nil
}

// lossSource is a [Source] that knows what was not recorded.
type lossSource interface {
	losses(ctx context.Context) (losses, error)
}

// losses is what a recorder says of work without spans. The zero value is no loss.
type losses struct {
	spans, withoutSpan int64 // operations of devices with and without a span
	records, lost      int64 // records of all kinds that were read, and dropped or rejected
	sliced             bool  // an overhead budget
	recorded           float64
	pausedNs           int64
}

// add adds a cuda.capture log.
func (l *losses) add(a store.Attrs) {
	number := func(key string) int64 { return max(0, attr(a, key).Int) }
	l.spans += number(semconv.CUDACaptureSpansEmitted)
	l.withoutSpan += number(semconv.CUDACaptureSpansLeftOut) + number(semconv.CUDACaptureSpansUnsampled)
	l.records += number(semconv.CUDACaptureRecordsCollected)
	l.lost += number(semconv.CUDACaptureRecordsDropped) + number(semconv.CUDACaptureRecordsRejected)
	if v := attr(a, semconv.CUDACaptureRecordedRatio); v.Kind == store.KindDouble {
		l.slice(v.Double)
	}
	l.pausedNs = max(l.pausedNs, int64(attr(a, semconv.CUDACapturePausedTime).Double*1e9))
}

func (l *losses) slice(ratio float64) {
	if ratio = min(max(ratio, 0), 1); !l.sliced || ratio < l.recorded {
		l.sliced, l.recorded = true, ratio
	}
}

// share returns the share of the work of a session that has no span.
func (l *losses) share(sessionNs int64) float64 {
	kept := 1.0
	if l.sliced {
		kept = l.recorded
	}
	without := func(part, of int64) {
		if of > 0 {
			kept *= 1 - float64(min(part, of))/float64(of)
		}
	}
	without(l.withoutSpan, l.spans+l.withoutSpan)
	without(l.lost, l.records+l.lost)
	without(l.pausedNs, sessionNs)
	return 1 - kept
}

func (l *losses) text(share float64) string {
	var parts []string
	if l.sliced {
		parts = append(parts, fmt.Sprintf("an overhead budget left %.3g %% of the time recorded", 100*l.recorded))
	}
	if l.withoutSpan > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d operations have no span", l.withoutSpan, l.spans+l.withoutSpan))
	}
	if l.lost > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d records were lost", l.lost, l.records+l.lost))
	}
	if l.pausedNs > 0 {
		parts = append(parts, "deep windows paused the recording for "+Duration(l.pausedNs))
	}
	return fmt.Sprintf("About %.3g %% of the work is missing: %s.", 100*share, strings.Join(parts, ", "))
}

// addMissing makes all idle time unknown, and replaces the findings, if too much of the session is missing.
func (r *Result) addMissing(ctx context.Context, src Source) (err error) {
	if r.Missing, err = MissingWork(ctx, src); r.Missing == nil {
		return err
	}
	unknown := func(list ...*Parts) {
		for _, p := range list {
			p.Idle = CauseSums{Unknown: p.IdleNs}
		}
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		unknown(&d.Parts, &d.Active)
		d.Bound, d.HostScopes, d.HostLines, d.SyncCalls = BoundUnknown, []NameSum{}, []NameSum{}, []NameSum{}
		for j := range d.Gaps {
			d.Gaps[j].missing()
		}
	}
	x := &r.Steps
	unknown(&x.P50.Parts, &x.P95.Parts, &x.Max.Parts)
	step := func(s *Step) {
		unknown(&s.Parts)
		s.Bound, s.GraphNs = BoundUnknown, 0
	}
	for i := range x.Longest {
		step(&x.Longest[i])
	}
	if x.Typical != nil {
		step(x.Typical)
	}
	x.Outliers, x.OutlierCount = nil, 0
	r.Findings = []Finding{}
	if len(r.Devices) > 0 {
		text := r.Missing.Text + " A device can have worked in its idle time, so no cause, limit or slow step is named. " +
			"Record a shorter time with all spans to find causes."
		r.Findings = append(r.Findings, Finding{Kind: "missing_work", Text: text, Formula: "0", Evidence: []Ref{}})
	}
	return nil
}

// missing makes the cause of a gap unknown.
func (g *Gap) missing() {
	g.Cause, g.PartNs, g.Idle = Unknown, g.EndNs-g.StartNs, CauseSums{Unknown: g.EndNs - g.StartNs}
	g.Call, g.Scope = "", ""
}

// losses reads the capture log of the session, which ends it. Until then the recorder's metrics have less.
func (s *reader) losses(ctx context.Context) (l losses, err error) {
	logs, err := s.r.Logs(ctx, store.LogQuery{Project: s.project, Session: s.session, Event: semconv.EventCUDACapture, Limit: maxCaptures})
	for i := range logs {
		l.add(logs[i].Attrs)
	}
	if err != nil || len(logs) > 0 {
		return l, err
	}
	info, err := s.r.Session(ctx, s.project, s.session)
	if err != nil {
		return l, err
	}
	l.spans = info.Counts["ops"]
	if err = s.latest(ctx, semconv.MetricGpuflightSpansLeftOut, func(p *store.PointRow) { l.withoutSpan += max(0, p.Int.V) }); err != nil {
		return l, err
	}
	return l, s.latest(ctx, semconv.MetricGpuflightRecordedTime, func(p *store.PointRow) {
		if ns := p.TimeNs - p.StartNs; ns > 0 {
			l.slice(p.Double * 1e9 / float64(ns))
		}
	})
}

// latest calls visit with the last point of each series of a metric.
func (s *reader) latest(ctx context.Context, metric string, visit func(*store.PointRow)) error {
	series, err := s.r.Series(ctx, store.SeriesQuery{Project: s.project, Session: s.session, Metric: metric, Limit: maxLossSeries})
	if err != nil {
		return err
	}
	for i := range series {
		x := &series[i]
		points, err := s.r.Points(ctx, store.PointQuery{Project: s.project, Session: s.session, Series: x.Key, From: x.LastNs, To: x.LastNs + 1})
		if err != nil {
			return err
		}
		if n := len(points); n > 0 {
			visit(&points[n-1])
		}
	}
	return nil
}

// losses implements lossSource.
func (c *Collection) losses(context.Context) (losses, error) { return c.missing, nil }
