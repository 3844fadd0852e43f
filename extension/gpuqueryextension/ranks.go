// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/store"
)

// maxRunSessions is the number of sessions of a run among which the latest of each rank are found.
const maxRunSessions = 1000

// ranks answers which rank of a run the others waited for. It counts as an analysis.
func (s *server) ranks(ctx context.Context, r *request) (any, error) {
	run := r.text("run", 1000)
	ids := r.list("sessions", ranks.MaxRanks)
	o := ranks.Options{Limit: int(r.integer("limit", 1000, 1, 10_000)), Deadline: time.Now().Add(maxAnalysisTime)}
	if run == "" && len(ids) == 0 {
		r.fail("run", "is required, or sessions")
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	var sessions []store.SessionInfo
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		info, err := s.store.Session(ctx, r.project, id)
		if err != nil {
			return nil, err
		}
		if run == "" || info.Run == run {
			sessions = append(sessions, info)
		}
	}
	older := false
	if ids == nil {
		all, err := s.store.Sessions(ctx, store.SessionQuery{Project: r.project, Run: run, Limit: maxRunSessions})
		if err != nil {
			return nil, err
		}
		sessions = ranks.Latest(all)
		older = len(all) > len(sessions)
		if len(sessions) > ranks.MaxRanks {
			return nil, &status{http.StatusBadRequest, fmt.Sprintf("the run has more than %d sessions: select some with the parameter sessions", ranks.MaxRanks)}
		}
	}
	if len(sessions) == 0 {
		return nil, notFound("no session belongs to the run %q", run)
	}
	var inputs []ranks.Input
	for i := range sessions {
		x := &sessions[i]
		if x.RowsDropped {
			return nil, &status{http.StatusBadRequest, "session " + x.ID + " has sums only, because retention removed its rows"}
		}
		inputs = append(inputs, ranks.FromSession(s.store, x))
	}
	end, err := s.beginAnalysis()
	if err != nil {
		return nil, err
	}
	defer end()
	result, err := ranks.Run(ctx, inputs, o)
	if err == nil && older {
		result.Problems = append(result.Problems, "Older sessions of the same run are left out.")
	}
	return result, err
}
