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
	"github.com/gpuflight/gpuflight/internal/analysis/compare"
	"github.com/gpuflight/gpuflight/internal/analysis/ranks"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

type compareBody struct {
	SessionA string `json:"session_a"`
	Verdict  string
	Text     string
	Warnings []string
	A        struct{ Steps, Kernels int64 }
	Step     *struct{ Status string }
	Kernels  []struct {
		Name, Status string
		A, B         struct{ Count, Ns int64 }
	}
	Scopes []struct{ Path []string }
}

func TestCompare_Recording(t *testing.T) {
	s, id := generated(t)
	c := get[compareBody](t, s, "/api/v1/compare?a="+id+"&b="+id)
	assert.Equal(t, id, c.SessionA)
	assert.Equal(t, "same", c.Verdict)
	assert.Contains(t, c.Text, "No significant difference: a step takes")
	assert.Equal(t, int64(15), c.A.Steps)
	require.NotNil(t, c.Step)
	kernels := int64(0)
	for _, k := range c.Kernels {
		assert.Equal(t, k.A, k.B)
		assert.Contains(t, []string{"same", "untested"}, k.Status)
		kernels += k.A.Count
	}
	assert.Equal(t, c.A.Kernels, kernels)
	all, _ := sum(t, s, "/api/v1/sessions/"+id+"/operations?operation=kernel")
	assert.Positive(t, kernels)
	assert.LessOrEqual(t, kernels, all, "those outside of steps do not count")
	paths := map[string]bool{}
	for _, x := range c.Scopes {
		paths[strings.Join(x.Path, ">")] = true
	}
	assert.True(t, paths["step>backward"], paths)

	other := get[compareBody](t, s, "/api/v1/compare?a="+id+"&b=session-00")
	assert.NotEmpty(t, other.Warnings)
	for _, k := range other.Kernels {
		if k.A.Count == 0 {
			assert.Equal(t, "new", k.Status)
		}
	}
}

func TestCompare_Limits(t *testing.T) {
	s, id := generated(t)
	target := "/api/v1/compare?a=" + id + "&b=" + id
	for range maxAnalyses {
		s.analysing <- struct{}{}
	}
	w := call(s, http.MethodGet, target)
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "1", w.Header().Get("Retry-After"))
	<-s.analysing
	assert.Equal(t, http.StatusOK, call(s, http.MethodGet, target).Code)
	for bad, want := range map[string]int{
		"?a=" + id:                                    http.StatusBadRequest,
		"?b=" + id:                                    http.StatusBadRequest,
		"?a=" + id + "&b=":                            http.StatusBadRequest,
		"?a=none&b=" + id:                             http.StatusNotFound,
		"?a=" + id + "&b=none":                        http.StatusNotFound,
		"?a=" + id + "&b=" + id + "&limit=1":          http.StatusBadRequest,
		"?a=" + id + "&a=x&b=" + id:                   http.StatusBadRequest,
		"?b=" + id + "&a=" + strings.Repeat("x", 257): http.StatusBadRequest,
	} {
		assert.Equal(t, want, call(s, http.MethodGet, "/api/v1/compare"+bad).Code, bad)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, call(s, http.MethodPost, target).Code)
}

func TestBaselines(t *testing.T) {
	s, id := generated(t)
	type body struct {
		Baselines []struct{ Name, Session string }
	}
	assert.Empty(t, get[body](t, s, "/api/v1/baselines").Baselines)
	name := url.PathEscape("release 1.2")
	assert.Equal(t, http.StatusNoContent, call(s, http.MethodPut, "/api/v1/baselines/"+name+"?session="+id).Code)
	assert.Equal(t, http.StatusNoContent, call(s, http.MethodPut, "/api/v1/baselines/main?session=session-00").Code)
	assert.Equal(t, http.StatusNoContent, call(s, http.MethodPut, "/api/v1/baselines/main?session="+id).Code)
	assert.Equal(t, []struct{ Name, Session string }{{"main", id}, {"release 1.2", id}}, get[body](t, s, "/api/v1/baselines").Baselines)
	assert.Equal(t, http.StatusNoContent, call(s, http.MethodDelete, "/api/v1/baselines/"+name).Code)
	assert.Equal(t, http.StatusNotFound, call(s, http.MethodDelete, "/api/v1/baselines/"+name).Code)
	assert.Len(t, get[body](t, s, "/api/v1/baselines").Baselines, 1)
	for target, want := range map[string]int{
		"/api/v1/baselines/main":                                           http.StatusBadRequest,
		"/api/v1/baselines/main?session=none":                              http.StatusNotFound,
		"/api/v1/baselines/a%2Fb?session=" + id:                            http.StatusBadRequest,
		"/api/v1/baselines/" + strings.Repeat("x", 101) + "?session=" + id: http.StatusBadRequest,
		"/api/v1/baselines/main?session=" + id + "&x=1":                    http.StatusBadRequest,
	} {
		assert.Equal(t, want, call(s, http.MethodPut, target).Code, target)
	}
	assert.Equal(t, http.StatusNoContent, call(s, http.MethodDelete, "/api/v1/sessions/"+id).Code)
	assert.Empty(t, get[body](t, s, "/api/v1/baselines").Baselines)
}

// TestMissingWork asks for a comparison, ranks and a path of a session that says that work is missing.
func TestMissingWork(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	steps := get[analysis.Answer](t, s, p+"/analysis").Steps
	critical := fmt.Sprintf("%s/analysis/critical?from=%d&to=%d", p, steps.Typical.Start, steps.Typical.Start+steps.Typical.WallNs)
	assert.NotContains(t, call(s, http.MethodGet, critical).Body.String(), "missing")
	info, err := s.store.Session(t.Context(), "", id)
	require.NoError(t, err)
	_, err = s.store.(store.Writer).Write(t.Context(), []*store.Batch{{Session: id, Logs: []store.Log{{
		UID: store.UID{1}, TimeNs: info.LastNs, Event: semconv.EventCUDACapture,
		Attrs: store.Attrs{{Key: semconv.CUDACaptureRecordedRatio, Value: store.Value{Kind: store.KindDouble, Double: 0.1}}},
	}}}})
	require.NoError(t, err)

	want := &analysis.Missing{Share: 0.9, Text: "About 90 % of the work is missing: an overhead budget left 10 % of the time recorded."}
	path := get[analysis.AnswerPath](t, s, critical)
	assert.Equal(t, want, path.Missing)
	checkPath(t, &path)
	for _, k := range path.Kinds {
		assert.Contains(t, []string{"compute", "communication", "copy", "unknown"}, k.Kind.String())
	}
	c := get[compare.Comparison](t, s, "/api/v1/compare?a="+id+"&b="+id)
	assert.Equal(t, want, c.A.Missing)
	assert.Equal(t, want, c.B.Missing)
	assert.Equal(t, "No kernel is slower or faster.", c.Text)
	assert.Nil(t, c.Step)
	for _, k := range c.Kernels {
		assert.Contains(t, []compare.Status{compare.Same, compare.Untested}, k.Status)
	}
	r := get[ranks.Result](t, s, "/api/v1/ranks?sessions="+id)
	assert.Equal(t, want, r.Ranks[0].Missing)
	assert.Contains(t, r.Problems, "The ranks are not compared, because collectives can be missing. Record a shorter time with all spans.")
}
