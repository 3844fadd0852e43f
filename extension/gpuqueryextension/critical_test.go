// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis"
)

// checkPath checks that the parts are a partition of the path.
func checkPath(t *testing.T, p *analysis.AnswerPath) {
	t.Helper()
	at, sum := p.From, int64(0)
	for i := range p.Parts {
		require.Equal(t, at, p.Parts[i].Start)
		at += p.Parts[i].DurationNs
	}
	for _, k := range p.Kinds {
		sum += k.Ns
	}
	require.Equal(t, p.To, at)
	require.Equal(t, p.To-p.From, sum)
}

func TestCritical_Recording(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	steps := get[analysis.Answer](t, s, p+"/analysis").Steps
	require.NotNil(t, steps.Typical)

	step := steps.Typical
	path := get[analysis.AnswerPath](t, s, fmt.Sprintf("%s/analysis/critical?from=%d&to=%d&device=%s&limit=10000", p, step.Start, step.Start+step.WallNs, steps.Device))
	assert.Equal(t, step.Start, path.From)
	assert.Equal(t, step.WallNs, path.To-path.From)
	checkPath(t, &path)
	short := get[analysis.AnswerPath](t, s, fmt.Sprintf("%s/analysis/critical?from=%d&to=%d&device=%s&limit=3", p, step.Start, step.Start+step.WallNs, steps.Device))
	require.Len(t, short.Parts, 3)
	assert.Equal(t, len(path.Parts)-3, short.MoreParts)
	ns := short.MoreNs
	for i := range short.Parts {
		ns += short.Parts[i].DurationNs
	}
	assert.Equal(t, path.To-path.From, ns)

	// A scope of the recording.
	spans := get[struct {
		Spans []struct {
			Span       string
			Start      int64
			DurationNs int64 `json:"duration_ns"`
		}
	}](t, s, p+"/spans?name=forward&operation=scope&limit=3")
	require.Len(t, spans.Spans, 3)
	for _, x := range spans.Spans {
		path := get[analysis.AnswerPath](t, s, fmt.Sprintf("%s/analysis/critical?span=%s&at=%d&limit=10000", p, x.Span, x.Start))
		assert.Equal(t, x.Start, path.From)
		assert.Equal(t, x.DurationNs, path.To-path.From)
		checkPath(t, &path)
		for _, part := range path.Parts {
			assert.Equal(t, id, part.Session)
			require.NotEmpty(t, part.Spans)
		}
	}
}

func TestCritical_Errors(t *testing.T) {
	s, id := generated(t)
	p := "/api/v1/sessions/" + id
	op := get[struct{ Operations []struct{ Span string } }](t, s, p+"/operations?limit=1").Operations[0].Span
	for query, code := range map[string]int{
		"":                         http.StatusBadRequest,
		"?from=5":                  http.StatusBadRequest,
		"?from=5&to=4":             http.StatusBadRequest,
		"?span=" + op:              http.StatusBadRequest,
		"?span=00000000000000ff":   http.StatusNotFound,
		"?from=1&to=9&limit=10001": http.StatusBadRequest,
	} {
		assert.Equal(t, code, call(s, http.MethodGet, p+"/analysis/critical"+query).Code, query)
	}
}
