// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
)

type compareAnswer struct {
	SessionA string `json:"session_a"`
	SessionB string `json:"session_b"`
	*compare.Comparison
}

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
	var sides [2]*analysis.Profile
	var errs [2]error
	var both sync.WaitGroup
	o := analysis.Options{Deadline: time.Now().Add(maxAnalysisTime)}
	for i, id := range ids {
		both.Go(func() {
			sides[i], errs[i] = analysis.NewProfile(ctx, analysis.FromReader(s.store, r.project, id), o)
		})
	}
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return compareAnswer{ids[0], ids[1], compare.Sessions(sides[0], sides[1])}, nil
}
