// SPDX-License-Identifier: Apache-2.0

package gpustorageextension

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
)

// scanning is a backend whose store scans rows and keeps analyses.
type scanning struct {
	*backend
	store.Scanner
}

const (
	// maxServices bounds the values of service.name on metrics. Further ones are otherService.
	maxServices  = 200
	otherService = "_other"
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
		}
	}
}

// keepParts continues the analysis of a session, and counts the time of its devices.
func (b *backend) keepParts(ctx context.Context, s session, ops int64, last bool) {
	u, err := analysis.KeepParts(ctx, b.api, s.project, s.id, last)
	switch {
	case ctx.Err() != nil, errors.Is(err, store.ErrNotFound):
		return
	case err != nil:
		b.logger.Warn("cannot analyse a session", zap.String("project", s.project), zap.String("session", s.id), zap.Error(err))
		return
	}
	b.active.analysed(s, ops)
	info, err := b.Store.Session(ctx, s.project, s.id)
	if err != nil {
		return
	}
	service := attribute.String("service", b.service(info.Service))
	for i := range u.Devices {
		d := &u.Devices[i]
		state := func(name string, ns int64) {
			if ns > 0 {
				b.telemetry.ExtensionGpuStorageDeviceTime.Add(ctx, float64(ns)/1e9, b.attributes(service, attribute.String("state", name)))
			}
		}
		state("compute", d.ComputeNs)
		state("communication", d.CommunicationNs)
		state("copy", d.CopyNs)
		for c, ns := range d.Idle {
			state(analysis.Cause(c).String(), ns)
		}
		if d.Steps > 0 {
			b.telemetry.ExtensionGpuStorageSteps.Add(ctx, d.Steps, b.attributes(service))
			b.telemetry.ExtensionGpuStorageStepTime.Add(ctx, float64(d.StepNs)/1e9, b.attributes(service))
		}
	}
}

// service returns the name of a service on metrics.
func (b *backend) service(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	if _, ok := b.services[name]; ok {
		return name
	}
	if len(b.services) >= maxServices {
		return otherService
	}
	b.services[name] = struct{}{}
	return name
}
