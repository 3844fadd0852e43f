// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"net/http"
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
	found, err := analysis.Run(ctx, analysis.FromReader(s.store, r.project, r.session), o)
	if err != nil {
		return nil, err
	}
	return analysis.NewAnswer(found, r.base), nil
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
