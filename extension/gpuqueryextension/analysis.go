// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

const (
	// maxAnalyses is the number of analyses in progress. Each reads all rows of its interval.
	maxAnalyses = 2
	// maxAnalysisTime leaves a part of [maxQueryTime] for the last page and the answer.
	maxAnalysisTime = 20 * time.Second
)

// analysis answers why a session was slow.
func (s *server) analysis(ctx context.Context, r *request) (any, error) {
	steps := int(r.integer("steps", 100, 1, 10_000))
	return s.analyse(r, func(src analysis.Source, o analysis.Options) (any, error) {
		o.Steps = steps
		found, err := analysis.Run(ctx, src, o)
		if err != nil {
			return nil, err
		}
		return analysis.NewAnswer(found, r.base), nil
	})
}

// analysedGaps answers with the gaps of which the idle time of a device by cause consists.
func (s *server) analysedGaps(ctx context.Context, r *request) (any, error) {
	device, limit := r.text("device", 1000), int(r.integer("limit", 100, 1, 10_000))
	var cause *analysis.Cause
	if name := r.text("cause", 100); len(r.values["cause"]) > 0 {
		cause = new(analysis.Cause)
		if cause.UnmarshalText([]byte(name)) != nil {
			r.fail("cause", "is unknown")
		}
	}
	return s.analyse(r, func(src analysis.Source, o analysis.Options) (any, error) {
		found, err := analysis.ListGaps(ctx, src, o, device, cause, limit)
		if err != nil {
			return nil, err
		}
		return analysis.NewAnswerGaps(found, r.base), nil
	})
}

// analysedScopes answers how the time of the device with the most kernel time divides among scopes, and what limits
// each.
func (s *server) analysedScopes(ctx context.Context, r *request) (any, error) {
	return s.analyse(r, func(src analysis.Source, o analysis.Options) (any, error) {
		p, err := analysis.NewTimes(ctx, src, o)
		if err != nil {
			return nil, err
		}
		return analysis.NewAnswerScopes(p, r.base), nil
	})
}

// analysedOperations answers with the operations of which the time of a scope, or the gain of a finding, consists.
func (s *server) analysedOperations(ctx context.Context, r *request) (any, error) {
	f := analysis.OwnedFilter{Device: r.text("device", 1000)}
	limit := int(r.integer("limit", 100, 1, 10_000))
	finding, scope := r.text("finding", 100), r.text("scope", 100_000)
	switch {
	case finding == "fusion" && scope == "":
		f.Fusion = true
	case finding != "":
		r.fail("finding", `must be "fusion", without a scope`)
	case scope == "\n":
		f.Outside = true
	case scope != "" && scope[0] != '\n':
		r.fail("scope", "must be names, each after a line feed")
	case scope != "":
		f.Scope = strings.Split(scope[1:], "\n")
	}
	return s.analyse(r, func(src analysis.Source, o analysis.Options) (any, error) {
		found, err := analysis.ListOwned(ctx, src, o, f, limit)
		if err != nil {
			return nil, err
		}
		return analysis.NewAnswerOwned(found, r.base), nil
	})
}

// analyse calls run for the interval of a request, if not too many analyses are in progress.
func (s *server) analyse(r *request, run func(analysis.Source, analysis.Options) (any, error)) (any, error) {
	o := analysis.Options{Deadline: time.Now().Add(maxAnalysisTime)}
	o.From, o.To = r.interval()
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.info.RowsDropped {
		return nil, &status{http.StatusBadRequest, "the session has sums only, because retention removed its rows"}
	}
	end, err := s.beginAnalysis()
	if err != nil {
		return nil, err
	}
	defer end()
	return run(analysis.FromReader(s.store, r.project, r.session), o)
}

// beginAnalysis takes the place of an analysis, and returns what frees it. It fails if all are taken.
func (s *server) beginAnalysis() (end func(), err error) {
	select {
	case s.analysing <- struct{}{}:
		return func() { <-s.analysing }, nil
	default:
		return nil, &status{http.StatusTooManyRequests, "too many analyses are in progress"}
	}
}
