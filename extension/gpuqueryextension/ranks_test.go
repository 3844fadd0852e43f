// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/testing/trainsim"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestRanks(t *testing.T) {
	sim := trainsim.Training{Run: "run 1", Start: 1_700_000_000_000_000_000, Ranks: 3, Steps: 24, Slow: 2, DelayNs: 5_000_000, OffsetNs: 70_000_000}
	m := storetest.NewMemory()
	var d rows.Decoder
	for _, td := range sim.Traces() {
		_, err := m.Write(context.Background(), d.Traces("", td))
		require.NoError(t, err)
	}
	s := newServer(m, options{loopback: true, version: "test", logger: zap.NewNop()})
	got := get[ranks.Result](t, s, "/api/v1/ranks?run=run+1&limit=7")
	require.Len(t, got.Ranks, 3)
	assert.Equal(t, 24, got.Total)
	assert.Len(t, got.Collectives, 7)
	require.Len(t, got.Findings, 1)
	assert.Equal(t, 2, got.Ranks[got.Findings[0].Rank].Rank)
	assert.InEpsilon(t, 8*5_000_000, got.Ranks[2].LateNs, 0.03)
	assert.InDelta(t, 140_000_000, got.Ranks[2].Offset.Ns, 20_000)
	assert.Equal(t, "host", got.Ranks[2].Cause.Kind)
	assert.Empty(t, got.Problems)
	// Each span exists where the answer says.
	for _, p := range got.Collectives[0].Parts {
		text, err := p.Span.MarshalText()
		require.NoError(t, err)
		span := get[struct {
			Operation struct{ Start int64 }
		}](t, s, "/api/v1/sessions/"+sim.Session(p.Rank)+"/spans/"+string(text))
		assert.Equal(t, p.Start, span.Operation.Start)
	}

	// An earlier run had the same id.
	earlier := sim
	earlier.Start, earlier.Slow = sim.Start-3_600_000_000_000, 0
	for r, td := range earlier.Traces() {
		td.ResourceSpans().At(0).Resource().Attributes().PutStr(semconv.ServiceInstanceID, fmt.Sprint("earlier-", r))
		_, err := m.Write(context.Background(), d.Traces("", td))
		require.NoError(t, err)
	}
	again := get[ranks.Result](t, s, "/api/v1/ranks?run=run+1&limit=7")
	assert.Equal(t, []string{"Older sessions of the same run are left out."}, again.Problems)
	again.Problems = got.Problems
	assert.Equal(t, got, again)

	pair := get[ranks.Result](t, s, "/api/v1/ranks?sessions="+sim.Session(0)+","+sim.Session(2))
	assert.Len(t, pair.Ranks, 2)
	assert.Len(t, pair.Problems, 1, "one rank of three is missing")

	for target, code := range map[string]int{
		"": http.StatusBadRequest, "?run=none": http.StatusNotFound, "?sessions=none": http.StatusNotFound, "?run=run+1&limit=0": http.StatusBadRequest,
		"?run=run+1&x=1": http.StatusBadRequest,
	} {
		assert.Equal(t, code, call(s, http.MethodGet, "/api/v1/ranks"+target).Code, target)
	}
	for range maxAnalyses {
		s.analysing <- struct{}{}
	}
	assert.Equal(t, http.StatusTooManyRequests, call(s, http.MethodGet, "/api/v1/ranks?run=run+1").Code)
}
