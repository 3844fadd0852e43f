// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
)

// compare answers what changed from session a to session b. It reads both at the same time, for at most
// maxAnalysisTime.
func (s *server) compare(ctx context.Context, r *request) (any, error) {
	ids := [2]string{r.text("a", 256), r.text("b", 256)}
	for i, name := range []string{"a", "b"} {
		if ids[i] == "" {
			r.fail(name, "must be the id of a session")
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	for _, id := range ids {
		info, err := s.store.Session(ctx, r.project, id)
		if err != nil {
			return nil, err
		}
		if info.RowsDropped {
			return nil, &status{http.StatusBadRequest, "session " + id + " has sums only, because retention removed its rows"}
		}
	}
	end, err := s.beginAnalysis()
	if err != nil {
		return nil, err
	}
	defer end()
	source := func(id string) analysis.Source { return analysis.FromReader(s.store, r.project, id) }
	c, err := compare.Sources(ctx, source(ids[0]), source(ids[1]), analysis.Options{Deadline: time.Now().Add(maxAnalysisTime)})
	if err != nil {
		return nil, err
	}
	return compare.Answer{SessionA: ids[0], SessionB: ids[1], Comparison: c}, nil
}
