// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/extension/gpustorageextension/internal/metadata"
	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	// regressionLimit is the relative change from which something is a regression.
	regressionLimit = 0.05
	// maxCompareTime bounds the reading of a session or run. What was read until then is compared.
	maxCompareTime = time.Minute
	// maxNames bounds the names on a log record.
	maxNames = 20
	// maxStragglers bounds the stragglers on metrics.
	maxStragglers = 1000
	// maxRuns bounds the runs that are remembered, so that each is counted once.
	maxRuns      = 1000
	warnSeverity = 13 // WARN of OpenTelemetry
)

// compareWithBaseline compares an ended session with the baseline of its service and rank, if there is one.
func (b *backend) compareWithBaseline(ctx context.Context, info *store.SessionInfo, of job) error {
	baseline, err := b.baselineOf(ctx, info)
	if err != nil || baseline.Session == "" {
		return err
	}
	var sides [2]*analysis.Profile
	for i, id := range []string{baseline.Session, info.ID} {
		o := analysis.Options{Deadline: time.Now().Add(maxCompareTime)}
		if sides[i], err = analysis.NewProfile(ctx, analysis.FromReader(b.api, info.Project, id), o); err != nil {
			return err
		}
	}
	c := compare.Sessions(sides[0], sides[1])
	slower := c.Regressions(regressionLimit)
	b.telemetry.ExtensionGpuStorageRegressions.Record(ctx, int64(len(slower)), b.jobAttributes(of))
	if c.Step != nil && c.Step.Duration != nil {
		b.telemetry.ExtensionGpuStorageStepChange.Record(ctx, c.Step.Duration.Relative, b.jobAttributes(of))
	}
	if len(slower) == 0 {
		return nil
	}
	b.logger.Warn("session is slower than its baseline", zap.String("project", info.Project), zap.String("session", info.ID),
		zap.String("baseline", baseline.Name), zap.String("result", c.Text))
	_, err = b.Write(ctx, []*store.Batch{regression(info, baseline, c, slower)})
	return err
}

// baselineOf returns the baseline with the latest session of the same service and rank, an empty one if there is
// none.
func (b *backend) baselineOf(ctx context.Context, info *store.SessionInfo) (found store.Baseline, err error) {
	list, err := b.Store.Baselines(ctx, info.Project)
	if err != nil || info.Service == "" {
		return found, err
	}
	var latest int64
	for _, x := range list {
		other, err := b.Store.Session(ctx, info.Project, x.Session)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return found, err
		}
		if err == nil && other.ID != info.ID && other.Service == info.Service && other.Rank == info.Rank && !other.RowsDropped && other.FirstNs > latest {
			found, latest = x, other.FirstNs
		}
	}
	return found, nil
}

// regression returns the log record of a slower session, at the end of the session.
func regression(info *store.SessionInfo, baseline store.Baseline, c *compare.Comparison, slower []*compare.Change) *store.Batch {
	origin := store.Origin{Resource: info.Resource, ScopeName: metadata.ScopeName}
	resource, scratch := keys.Resource(nil, info.Resource, "")
	origin.Key, _ = keys.Origin(scratch, resource, &origin)
	text := func(s string) store.Value { return store.Value{Kind: store.KindString, Str: s} }
	var names store.Value
	names.Kind = store.KindSlice
	for _, x := range slower {
		name := x.Name
		if x.Path != nil {
			name = strings.Join(x.Path, " > ")
		}
		if v := text(name); len(names.Slice) < maxNames && !slices.ContainsFunc(names.Slice, func(o store.Value) bool { return o.Str == name }) {
			names.Slice = append(names.Slice, v)
		}
	}
	id := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d", semconv.EventCUDARegression, info.ID, baseline.Session, info.LastNs))
	log := store.Log{
		UID:    store.UID(id[:16]),
		TimeNs: info.LastNs, ObservedNs: info.LastNs, Severity: warnSeverity, SeverityText: "WARN", Event: semconv.EventCUDARegression, Origin: 1,
		Body: text(fmt.Sprintf("A is the baseline %s, B is this session. %s", baseline.Name, c.Text)),
		Attrs: store.Attrs{
			{Key: semconv.CUDARegressionBaselineName, Value: text(baseline.Name)},
			{Key: semconv.CUDARegressionBaselineSessionID, Value: text(baseline.Session)},
			{Key: semconv.CUDARegressionNames, Value: names},
		},
	}
	if c.Step != nil && c.Step.Duration != nil {
		change := store.Value{Kind: store.KindDouble, Double: c.Step.Duration.Relative}
		log.Attrs = append(log.Attrs, store.Attr{Key: semconv.CUDARegressionStepChange, Value: change})
	}
	return &store.Batch{Project: info.Project, Session: info.ID, Origins: []store.Origin{{}, origin}, Logs: []store.Log{log}}
}

// countedRun is a run whose delays were counted. A later run can have the same id, but has other sessions.
type countedRun struct {
	project, run string
	sessions     []string
}

// straggler is a rank that the others of a run waited for.
type straggler struct {
	job
	host string
	rank int
}

// compareRanks counts the delays of the ranks of a run if the session was the last of it that ended.
func (b *backend) compareRanks(ctx context.Context, info *store.SessionInfo, of job) error {
	if info.Run == "" {
		return nil
	}
	sessions, err := b.Store.Sessions(ctx, store.SessionQuery{Project: info.Project, Run: info.Run, Limit: 2 * ranks.MaxRanks})
	sessions = ranks.Latest(sessions)
	if err != nil || len(sessions) < 2 || len(sessions) > ranks.MaxRanks {
		return err
	}
	run := countedRun{info.Project, info.Run, nil}
	for i := range sessions {
		run.sessions = append(run.sessions, sessions[i].ID)
	}
	if slices.ContainsFunc(b.runs, func(c countedRun) bool {
		return c.project == run.project && c.run == run.run && slices.ContainsFunc(c.sessions, func(id string) bool { return slices.Contains(run.sessions, id) })
	}) {
		return nil
	}
	var inputs []ranks.Input
	for i := range sessions {
		x := &sessions[i]
		if x.RowsDropped || x.ID != info.ID && b.active.count(session{x.Project, x.ID}) > 0 {
			return nil // not all rows are there, or its own end follows
		}
		inputs = append(inputs, ranks.FromSession(b.api, x))
	}
	if b.runs = append(b.runs, run); len(b.runs) > maxRuns {
		b.runs = b.runs[1:]
	}
	r, err := ranks.Run(ctx, inputs, ranks.Options{Limit: 1, Deadline: time.Now().Add(maxCompareTime)})
	if err != nil || r.WallNs <= 0 {
		return err
	}
	b.telemetry.ExtensionGpuStorageRunTime.Add(ctx, float64(r.WallNs)/1e9, b.jobAttributes(of))
	for _, f := range r.Findings {
		rank := &r.Ranks[f.Rank]
		b.telemetry.ExtensionGpuStorageLateTime.Add(ctx, float64(rank.LateNs)/1e9, b.jobAttributes(of, b.stragglerOf(of, rank)...))
		b.logger.Info("ranks waited for another one", zap.String("project", info.Project), zap.String("run", info.Run), zap.Int("rank", rank.Rank),
			zap.String("host", rank.Host), zap.String("result", f.Text))
	}
	return nil
}

// stragglerOf returns the attributes of a straggler.
func (b *backend) stragglerOf(of job, rank *ranks.Rank) []attribute.KeyValue {
	x := straggler{of, strings.ToValidUTF8(rank.Host, "\uFFFD"), rank.Rank}
	if _, ok := b.stragglers[x]; !ok {
		if len(b.stragglers) >= maxStragglers {
			return []attribute.KeyValue{attribute.String(semconv.HostName, otherJob)}
		}
		b.stragglers[x] = struct{}{}
	}
	return []attribute.KeyValue{attribute.String(semconv.HostName, x.host), attribute.Int(semconv.CUDARunRank, x.rank)}
}
