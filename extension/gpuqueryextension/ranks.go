// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

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
	if ids == nil {
		var err error
		sessions, err = s.store.Sessions(ctx, store.SessionQuery{Project: r.project, Run: run, Limit: ranks.MaxRanks + 1})
		if err != nil {
			return nil, err
		}
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
		in := ranks.Input{
			Session: x.ID, Service: x.Service, Host: x.Host, Run: x.Run, Rank: rankNumber(x.Rank), Size: rankNumber(x.RankSize),
			Source: analysis.FromReader(s.store, r.project, x.ID),
		}
		for _, a := range x.Resource {
			if a.Key == semconv.HostID && a.Value.Kind == store.KindString {
				in.HostID = a.Value.Str
			}
		}
		inputs = append(inputs, in)
	}
	end, err := s.beginAnalysis()
	if err != nil {
		return nil, err
	}
	defer end()
	return ranks.Run(ctx, inputs, o)
}

// rankNumber reads a rank or a number of ranks, -1 if it is unknown.
func rankNumber(text string) int {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return -1
	}
	return int(n)
}
