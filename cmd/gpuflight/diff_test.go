// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/analysis/compare"
)

func TestDiff_Files(t *testing.T) {
	const dir = "../../test/gpu/causes/recordings/"
	fast, slow := dir+"item.otlp.jsonl.gz", dir+"data_loader.otlp.jsonl.gz"
	if _, err := os.Stat(fast); err != nil {
		t.Skip("no recording: ", err)
	}
	const rank = "../../test/gpu/ranks/recordings/"
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"slower":            {[]string{fast, slow, "--fail-over", "5%"}, 1, "B is slower: a step takes 6.55 ms instead of 2.54 ms"},
		"within the limit":  {[]string{fast, slow, "--fail-over", "200%"}, 0, "Nothing is slower by more than 200 %."},
		"a share":           {[]string{fast, slow, "--fail-over=0.5"}, 1, "Slower by more than 50 %:"},
		"without a limit":   {[]string{fast, slow}, 0, "B is slower"},
		"faster":            {[]string{slow, fast, "--fail-over", "5%"}, 0, "B is faster"},
		"the same":          {[]string{fast, fast, "--fail-over", "0%"}, 0, "No significant difference"},
		"many long steps":   {[]string{rank + "gloo-host-1.otlp.jsonl.gz", rank + "gloo-kernels-1.otlp.jsonl.gz", "--fail-over", "5%"}, 1, "The mean is slower because some repetitions take much longer than the median."},
		"examples of a run": {[]string{"../../examples/recordings/vectoradd.otlp.jsonl.gz", fast}, 0, "No steps were found in A"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := runLine(t, append([]string{"diff"}, c.args...)...)
			assert.Equal(t, c.code, code, errs)
			assert.Contains(t, out, c.want)
			assert.Empty(t, errs)
		})
	}
	code, out, _ := runLine(t, "diff", "--json", "--fail-over", "5%", fast, slow)
	assert.Equal(t, 1, code)
	var got struct {
		Verdict     string
		SessionA    string `json:"session_a"`
		Step        struct{ Duration struct{ Relative float64 } }
		Regressions []struct{ Kind, Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	assert.Equal(t, "slower", got.Verdict)
	assert.Equal(t, fast, got.SessionA)
	assert.InDelta(t, 1.58, got.Step.Duration.Relative, 0.01)
	assert.Equal(t, "step", got.Regressions[0].Kind)
}

func TestDiff_Errors(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.otlp.jsonl")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"one":              {[]string{"a"}, "give two recordings or two sessions"},
		"three":            {[]string{"a", "b", "c"}, "give two recordings or two sessions"},
		"a limit":          {[]string{"--fail-over", "x", "a", "b"}, `--fail-over "x": write for example 5%`},
		"a negative limit": {[]string{"--fail-over=-5%", "a", "b"}, "write for example 5%"},
		"an address":       {[]string{"--url", "x", "a", "b"}, `--url "x"`},
		"an absent file":   {[]string{"./a.otlp.jsonl", "./b.otlp.jsonl"}, "./a.otlp.jsonl: no such file or directory"},
		"without kernels":  {[]string{empty, empty}, "it contains no kernels"},
		"mixed":            {[]string{empty, "main"}, "send the recording to the Collector, or export the session"},
		"no Collector":     {[]string{"--url", "http://127.0.0.1:1", "a", "b"}, "no Collector answers at http://127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errs := runLine(t, append([]string{"diff"}, c.args...)...)
			assert.Equal(t, 2, code)
			assert.Contains(t, errs, c.want)
		})
	}
	code, out, _ := runLine(t, "diff", "--help")
	assert.Zero(t, code)
	assert.Contains(t, out, "--fail-over 5%")
}

func TestDiff_Sessions(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/baselines", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"baselines":[{"name":"main","session":"1111"},{"name":"v1.2","session":"2222"}]}`)
	})
	mux.HandleFunc("GET /api/v1/sessions", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"sessions":[{"id":"3333-4444","start":"0"}]}`)
	})
	asked := ""
	mux.HandleFunc("GET /api/v1/compare", func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.RawQuery
		step := &compare.Change{Name: "step", Status: compare.Slower, Duration: &compare.Test{A: 100, B: 110, Relative: 0.1, Significant: true}}
		_ = json.NewEncoder(w).Encode(&compare.Answer{
			SessionA: "2222", SessionB: "3333-4444",
			Comparison: &compare.Comparison{Verdict: compare.Slower, Text: "B is slower.", Step: step},
		})
	})
	var puts []string
	mux.HandleFunc("/api/v1/baselines/{name}", func(w http.ResponseWriter, r *http.Request) {
		puts = append(puts, r.Method+" "+r.PathValue("name")+" "+r.URL.RawQuery)
		w.WriteHeader(http.StatusNoContent)
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	code, out, errs := runLine(t, "diff", "--url", s.URL, "--fail-over", "5%", "v1.2", "3333")
	assert.Equal(t, 1, code, errs)
	assert.Equal(t, "a=2222&b=3333-4444", asked)
	assert.Contains(t, out, "B is slower.\n")
	assert.Contains(t, out, "A  v1.2: 0 steps")
	assert.Contains(t, out, "+10.0 %  step")
	code, out, errs = runLine(t, "diff", "--url", s.URL, "--json", "v1.2", "3333")
	assert.Zero(t, code, errs)
	var answer compare.Answer
	require.NoError(t, json.Unmarshal([]byte(out), &answer))
	assert.Equal(t, []string{"2222", "3333-4444"}, []string{answer.SessionA, answer.SessionB})
	code, _, errs = runLine(t, "diff", "--url", s.URL, "main", "none")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, `"none" is no file and no baseline: no session has an id that begins with "none"`)

	code, out, _ = runLine(t, "sessions", "--url", s.URL, "baselines")
	assert.Zero(t, code)
	assert.Equal(t, "NAME  SESSION\nmain  1111\nv1.2  2222\n", out)
	code, out, errs = runLine(t, "sessions", "--url", s.URL, "baseline", "my main", "3333")
	assert.Zero(t, code, errs)
	assert.Equal(t, "my main is now 3333-4444\n", out)
	code, _, _ = runLine(t, "sessions", "--url", s.URL, "delete-baseline", "main")
	assert.Zero(t, code)
	assert.Equal(t, []string{"PUT my main session=3333-4444", "DELETE main "}, puts)
}
