// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// scanning is a backend whose store scans rows and keeps analyses.
type scanning struct {
	*backend
	store.Scanner
}

const (
	// maxJobs bounds the jobs on metrics. The service of further ones is otherJob.
	maxJobs  = 200
	otherJob = "_other"
	// maxCounted bounds the sessions that are remembered, so that each is counted once.
	maxCounted = 1000
	// updateShare is the share of new operations of a session from which its analysis is continued.
	updateShare = 64
)

// ended is a session that gets no more data.
type ended struct {
	session
	ops int64
}

// analyse continues the analyses of sessions until ctx ends. It uses one processor.
func (b *backend) analyse(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			for s, ops := range b.active.grown(analysis.UpdateOps, updateShare) {
				b.keepParts(ctx, s, ops, false)
			}
		case s := <-b.ended:
			b.keepParts(ctx, s.session, s.ops, true)
			if ctx.Err() == nil {
				_ = b.keepWaiting(ctx, s.session, nil) // after an error, the next process analyses it again
			}
		}
	}
}

// keepParts continues the analysis of a session, and counts the time of its devices.
func (b *backend) keepParts(ctx context.Context, s session, ops int64, last bool) {
	u, err := analysis.KeepParts(ctx, b.api, s.project, s.id, last)
	b.active.analysed(s, ops) // after an error, the next try waits for more data
	switch {
	case ctx.Err() != nil, errors.Is(err, store.ErrNotFound):
		return
	case err != nil:
		b.logger.Warn("cannot analyse a session", zap.String("project", s.project), zap.String("session", s.id), zap.Error(err))
		return
	}
	info, err := b.Store.Session(ctx, s.project, s.id)
	if err != nil {
		return
	}
	of := b.jobOf(&info)
	if u.Missing || last && !b.countsFirst(s) {
		u.Devices = nil
	}
	for i := range u.Devices {
		d := &u.Devices[i]
		state := func(name string, ns int64) {
			if ns > 0 {
				b.telemetry.ExtensionGpuStorageDeviceTime.Add(ctx, float64(ns)/1e9, b.jobAttributes(of, attribute.String("state", name)))
			}
		}
		state("compute", d.ComputeNs)
		state("communication", d.CommunicationNs)
		state("copy", d.CopyNs)
		for c, ns := range d.Idle {
			state(analysis.Cause(c).String(), ns)
		}
		if d.Steps > 0 {
			b.telemetry.ExtensionGpuStorageSteps.Add(ctx, d.Steps, b.jobAttributes(of))
			b.telemetry.ExtensionGpuStorageStepTime.Add(ctx, float64(d.StepNs)/1e9, b.jobAttributes(of))
		}
	}
	if !last {
		return
	}
	if err := errors.Join(b.compareWithBaseline(ctx, &info, of), b.compareRanks(ctx, &info, of)); err != nil && ctx.Err() == nil {
		b.logger.Warn("cannot compare a session", zap.String("project", s.project), zap.String("session", s.id), zap.Error(err))
	}
}

// countsFirst says whether the last update of a session counts. In a store that keeps no parts, that of a
// session that paused and went on has the time before the pause again.
func (b *backend) countsFirst(s session) bool {
	if _, ok := b.Store.(store.Scanner); ok {
		return true
	}
	if slices.Contains(b.counted, s) {
		return false
	}
	if b.counted = append(b.counted, s); len(b.counted) > maxCounted {
		b.counted = b.counted[1:]
	}
	return true
}

// job is what metrics name of a session.
type job struct{ namespace, service string }

// jobAttributes returns the attributes of a data point.
func (b *backend) jobAttributes(of job, more ...attribute.KeyValue) metric.MeasurementOption {
	return b.attributes(append(more, attribute.String(semconv.ServiceNamespace, of.namespace), attribute.String(semconv.ServiceName, of.service))...)
}

// jobOf returns the job of a session. Its namespace is the team: service.namespace, or the namespace of the
// Kubernetes pod.
func (b *backend) jobOf(info *store.SessionInfo) job {
	of := job{service: strings.ToValidUTF8(info.Service, "\uFFFD")}
	for _, key := range []string{semconv.ServiceNamespace, semconv.K8sNamespaceName} {
		if v, ok := info.Resource.Get(key); ok && v.Kind == store.KindString && of.namespace == "" {
			of.namespace = strings.ToValidUTF8(v.Str, "\uFFFD")
		}
	}
	if _, ok := b.jobs[of]; ok {
		return of
	}
	if len(b.jobs) >= maxJobs {
		return job{service: otherJob}
	}
	b.jobs[of] = struct{}{}
	return of
}
