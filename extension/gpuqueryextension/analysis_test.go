// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

type partsBody struct {
	Wall    int64            `json:"wall_ns"`
	Compute int64            `json:"compute_ns"`
	Comm    int64            `json:"communication_ns"`
	Copy    int64            `json:"copy_ns"`
	Idle    int64            `json:"idle_ns"`
	Causes  map[string]int64 `json:"idle_by_cause_ns"`
}

type analysisBody struct {
	Base       string
	From, To   int64
	Complete   bool
	Operations int64
	Devices    []struct {
		Whole, Active partsBody
		Kernels       int64
		KernelNs      int64 `json:"kernel_ns"`
		Gaps          []struct {
			Start      int64
			DurationNs int64 `json:"duration_ns"`
			After      *analysis.AnswerRef
		}
	}
	Steps struct {
		Rule, Name string
		Count      int64
		P50        partsBody
		Outliers   []struct {
			Number int64
			Part   string
			Wall   int64 `json:"wall_ns"`
		}
	}
	Findings []struct{ Kind string }
}

func TestAnalysis_Recording(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	a := get[analysisBody](t, s, p+"/analysis")
	require.Len(t, a.Devices, 1)
	d := &a.Devices[0]
	assert.True(t, a.Complete)
	assert.Equal(t, int64(4859+529+265), a.Operations)
	assert.Equal(t, int64(4859), d.Kernels)
	n, ns := sum(t, s, p+"/operations?operation=kernel")
	assert.Equal(t, []int64{n, ns}, []int64{d.Kernels, d.KernelNs})
	for _, x := range []partsBody{d.Whole, d.Active} {
		idle := int64(0)
		for _, v := range x.Causes {
			idle += v
		}
		assert.Equal(t, x.Idle, idle)
		assert.Equal(t, x.Wall, x.Compute+x.Comm+x.Copy+x.Idle)
	}
	assert.Equal(t, a.To-a.From, d.Whole.Wall)
	assert.Equal(t, "scopes", a.Steps.Rule)
	assert.Equal(t, "step", a.Steps.Name)
	assert.Equal(t, int64(15), a.Steps.Count)
	require.NotEmpty(t, a.Steps.Outliers)
	assert.Equal(t, int64(1), a.Steps.Outliers[0].Number, "the first step loads libraries")

	// The operation after a gap is the one that the API returns, and nothing runs during the gap.
	require.NotEmpty(t, d.Gaps)
	g := d.Gaps[0]
	require.NotNil(t, g.After)
	assert.Equal(t, g.Start+g.DurationNs, g.After.Start)
	n, _ = sum(t, s, fmt.Sprintf("%s/operations?overlapping=true&from=%d&to=%d", p, g.Start, g.After.Start))
	assert.Zero(t, n)
	assert.Equal(t, http.StatusOK, call(s, http.MethodGet, p+"/spans/"+g.After.Span).Code)

	// An interval has the parts of the timeline inside it.
	part := get[analysisBody](t, s, fmt.Sprintf("%s/analysis?from=%d&to=%d", p, g.Start, g.After.Start))
	assert.Equal(t, part.To-part.From, g.DurationNs)
	assert.Empty(t, part.Devices)
}

// The gaps of a cause sum to the idle time with this cause, and those without a cause to all idle time.
func TestAnalysis_Gaps(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	d := get[analysis.Answer](t, s, p+"/analysis").Devices[0]
	gaps := func(query string) analysis.AnswerGaps {
		return get[analysis.AnswerGaps](t, s, fmt.Sprintf("%s/analysis/gaps?device=%s%s", p, d.ID, query))
	}
	all := gaps("&limit=10000")
	assert.Equal(t, []int64{d.Start, d.Start + d.Active.WallNs}, []int64{all.From, all.To})
	assert.Equal(t, []int64{int64(len(all.Gaps)), d.Active.IdleNs}, []int64{all.Count, all.SumNs})
	require.True(t, all.Complete)
	causes := 0
	for _, c := range analysis.Causes() {
		x, ns := gaps("&limit=10000&cause="+c.String()), int64(0)
		for i := range x.Gaps {
			g := &x.Gaps[i]
			require.Positive(t, g.Idle[c])
			require.True(t, i == 0 || g.Idle[c] <= x.Gaps[i-1].Idle[c])
			require.Equal(t, g.DurationNs, g.Idle.Sum())
			require.Equal(t, g.Start+g.DurationNs, g.After.Start)
			ns += g.Idle[c]
		}
		assert.Equal(t, []int64{d.Active.Idle[c], d.Active.Idle[c]}, []int64{x.SumNs, ns}, c.String())
		if ns > 0 {
			causes++
			assert.Equal(t, x.Gaps[:1], gaps("&limit=1&cause="+c.String()).Gaps, c.String())
		}
	}
	assert.Equal(t, 2, causes, "launch and unknown, because the recording has no calls of the host")
	assert.Empty(t, get[analysis.AnswerGaps](t, s, p+"/analysis/gaps?device=other").Gaps)
	for _, query := range []string{"cause=gone", "cause=", "limit=0", "from=5&to=4"} {
		assert.Equal(t, http.StatusBadRequest, call(s, http.MethodGet, p+"/analysis/gaps?"+query).Code, query)
	}
}

// The operations of a scope sum to its time, also the part of it that is listed with all others.
func TestAnalysis_Operations(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id + "/analysis"
	scopes := get[analysis.AnswerScopes](t, s, p+"/scopes")
	require.NotEmpty(t, scopes.Scopes)
	for i := range scopes.Scopes {
		want := &scopes.Scopes[i]
		query := url.Values{"device": {scopes.Device}, "limit": {"10000"}, "scope": {"\n" + strings.Join(want.Path, "\n")}}
		x := get[analysis.AnswerOwned](t, s, p+"/operations?"+query.Encode())
		assert.Equal(t, want.Parts, x.Parts, want.Path)
		assert.Equal(t, []int64{scopes.From, scopes.To, want.Launches, want.Late}, []int64{x.From, x.To, x.Launches, x.Late}, want.Path)
		ns := int64(0)
		for j := range x.Operations {
			ns += x.Operations[j].WallNs
		}
		assert.Equal(t, []int64{want.WallNs, x.Count}, []int64{ns, int64(len(x.Operations))}, want.Path)
		query.Set("limit", "1")
		few := get[analysis.AnswerOwned](t, s, p+"/operations?"+query.Encode())
		assert.Equal(t, x.Operations[:1], few.Operations, want.Path)
		assert.Equal(t, x.Parts, few.Parts, want.Path)
	}
	for _, query := range []string{"scope=step", "finding=host", "finding=fusion&scope=%0Astep", "scope=%0A&limit=0", "scope=%0A&from=5&to=4"} {
		assert.Equal(t, http.StatusBadRequest, call(s, http.MethodGet, p+"/operations?"+query).Code, query)
	}
}

func TestAnalysis_Steps(t *testing.T) {
	s, id := generated(t)
	list := func(query string) []analysis.AnswerStep {
		return get[analysis.Answer](t, s, "/api/v1/sessions/"+id+"/analysis"+query).Steps.Longest
	}
	assert.Len(t, list(""), 15)
	assert.Equal(t, list("")[:4], list("?steps=4"))
}

func TestAnalysis_Limits(t *testing.T) {
	s, id := generated(t)
	target := "/api/v1/sessions/" + id + "/analysis"
	for range maxAnalyses {
		s.analysing <- struct{}{}
	}
	w := call(s, http.MethodGet, target)
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	<-s.analysing
	w = call(s, http.MethodGet, target)
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, http.StatusNotModified, call(s, http.MethodGet, target, "If-None-Match", w.Header().Get("ETag")).Code)
	assert.Equal(t, http.StatusNotFound, call(s, http.MethodGet, "/api/v1/sessions/none/analysis").Code)
	assert.Equal(t, http.StatusBadRequest, call(s, http.MethodGet, target+"?limit=1").Code)
}

// The times of the scopes sum to the active interval of the device.
func TestAnalysis_Scopes(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	d := get[analysis.Answer](t, s, p+"/analysis").Devices[0]
	a := get[analysis.AnswerScopes](t, s, p+"/analysis/scopes")
	assert.True(t, a.Complete)
	assert.Equal(t, d.ID, a.Device)
	assert.Equal(t, []int64{d.Start, d.Start + d.Active.WallNs}, []int64{a.From, a.To})
	var names []string
	var wall, self, kernels int64
	for i := range a.Scopes {
		x := &a.Scopes[i]
		names = append(names, fmt.Sprint(x.Path))
		self += x.SelfNs
		if len(x.Path) < 2 {
			wall += x.WallNs
			kernels += x.Operations
		}
	}
	assert.Equal(t, []string{"[step]", "[step forward]", "[step backward]", "[step optimizer]"}, names[:4])
	assert.Equal(t, []int64{d.Active.WallNs, d.Active.WallNs}, []int64{wall, self})
	n, _ := sum(t, s, fmt.Sprintf("%s/operations?from=%d&to=%d", p, a.From, a.To))
	assert.Equal(t, n, kernels)

	half := (a.From + a.To) / 2
	part := get[analysis.AnswerScopes](t, s, fmt.Sprintf("%s/analysis/scopes?from=%d&to=%d", p, half, a.To))
	assert.GreaterOrEqual(t, part.From, half)
	assert.Less(t, part.Scopes[0].WallNs, a.Scopes[0].WallNs)
	assert.Equal(t, http.StatusBadRequest, call(s, http.MethodGet, p+"/analysis/scopes?from=5&to=4").Code)
}
