// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMCP_Bounded(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	text, err := bounded(object{"n": int64(1<<62 - 1), "names": []string{long, "a<b>"}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"n": 4611686018427387903, "names": ["`+strings.Repeat("ä", mcpMaxText-1)+`…", "a<b>"]}`, string(text))
	assert.Contains(t, string(text), "a<b>")
	assert.Contains(t, string(text), "4611686018427387903")

	_, err = bounded(make([]string, mcpMaxAnswer))
	assert.ErrorContains(t, err, "use a smaller limit")
	_, err = bounded(object{"path": make([]string, mcpMaxAnswer), leftOutName: leftOut{"x": 1}})
	assert.ErrorContains(t, err, "use a smaller limit")
	_, err = bounded(object{"grid": make([]int, mcpMaxAnswer)})
	assert.ErrorContains(t, err, "use a smaller limit")
}

// TestMCP_LeftOut shortens answers whose lists are too long: first those inside others, and never those of numbers or
// of texts that only together say something.
func TestMCP_LeftOut(t *testing.T) {
	rows := func(n int, row object) (list []object) {
		for range n {
			list = append(list, row)
		}
		return list
	}
	row := object{"name": strings.Repeat("x", 200), "path": []string{"a", "b", "c"}, "grid": []int{1, 2, 3}}
	whole, err := json.Marshal(row)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		answer        object
		devices, rows int
		left          leftOut
	}{
		"nothing":      {object{"devices": rows(3, object{"rows": rows(4, row)})}, 3, 4, nil},
		"inner lists":  {object{"devices": rows(20, object{"rows": rows(40, row)}), leftOutName: leftOut{"gaps": 2, "rows": 7}}, 20, 12, leftOut{"gaps": 2, "rows": 7 + 20*28}},
		"all lists":    {object{"devices": rows(1000, object{"rows": rows(4, row)})}, 50, 1, leftOut{"rows": 3000, "devices": 950}},
		"a long outer": {object{"devices": rows(1000, object{"rows": []object{}, "name": row["name"]})}, 50, 0, leftOut{"devices": 950}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := bounded(tt.answer)
			require.NoError(t, err)
			assert.LessOrEqual(t, len(text), mcpMaxAnswer)
			var answer struct {
				Devices []struct{ Rows []json.RawMessage }
				Left    leftOut `json:"left_out"`
			}
			require.NoError(t, json.Unmarshal(text, &answer))
			assert.Equal(t, tt.left, answer.Left)
			require.Len(t, answer.Devices, tt.devices)
			for _, d := range answer.Devices {
				require.Len(t, d.Rows, tt.rows)
				for _, r := range d.Rows {
					assert.JSONEq(t, string(whole), string(r))
				}
			}
		})
	}
}

// TestMCP_LeftOutTexts shortens lists of texts only if an answer is still too large with one row of each list.
func TestMCP_LeftOutTexts(t *testing.T) {
	texts := func(n int) []string { return slices.Repeat([]string{strings.Repeat("x", 250)}, n) }
	for name, tt := range map[string]struct {
		problems, findings int
		left               leftOut
	}{
		"short texts": {100, 100, leftOut{"ranks": 199}},
		"one list":    {300, 40, leftOut{"ranks": 199, "problems": 250}},
		"all lists":   {5000, 300, leftOut{"ranks": 199, "problems": 4950, "findings": 250}},
	} {
		t.Run(name, func(t *testing.T) {
			row := object{"name": strings.Repeat("y", 300), "path": slices.Repeat([]string{"p"}, 60), "findings": texts(tt.findings)}
			text, err := bounded(object{"problems": texts(tt.problems), "ranks": slices.Repeat([]object{row}, 200)})
			require.NoError(t, err)
			assert.LessOrEqual(t, len(text), mcpMaxAnswer)
			var answer struct {
				Problems []string
				Ranks    []struct{ Path, Findings []string }
				Left     leftOut `json:"left_out"`
			}
			require.NoError(t, json.Unmarshal(text, &answer))
			assert.Equal(t, tt.left, answer.Left)
			assert.Len(t, answer.Problems, tt.problems-tt.left["problems"])
			require.Len(t, answer.Ranks, 1)
			assert.Len(t, answer.Ranks[0].Path, 60)
			assert.Len(t, answer.Ranks[0].Findings, tt.findings-tt.left["findings"])
		})
	}
}

// TestMCP_LeftOutByLimit asks for fewer rows than there are.
func TestMCP_LeftOutByLimit(t *testing.T) {
	mux := http.NewServeMux()
	answer := func(path, text string) {
		mux.HandleFunc("GET /api/v1"+path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
	}
	answer("/sessions", `{"sessions": [{"id": "11", "start": "0"}, {"id": "12", "start": "0"}, {"id": "21", "start": "0"}]}`)
	answer("/sessions/11/analysis", `{"base": "0",
		"devices": [
			{"gaps": [{"start": 1, "idle_by_cause_ns": {"host": 9}}, {"start": 2, "idle_by_cause_ns": {"sync": 5}}, {"start": 3, "idle_by_cause_ns": {"sync": 7}}, {"start": 4, "idle_by_cause_ns": {"sync": 6}}]},
			{"gaps": [{"start": 5, "idle_by_cause_ns": {"sync": 1}}, {"start": 6, "idle_by_cause_ns": {"sync": 2}}]}],
		"steps": {"count": 60, "longest": [{"start": 1}, {"start": 2}, {"start": 3}], "outliers_total": 7, "outliers": [{"start": 4}, {"start": 5}]}}`)
	answer("/sessions/11/analysis/critical", `{"base": "0", "kinds": [{"ns": 5}, {"ns": 4}], "parts": [{"start": 1}], "more_parts": 8, "more_ns": 4}`)
	answer("/sessions/11/kernels", `{"base": "0", "total": {"groups": 12, "count": 90}, "groups": [{"name": "k"}]}`)
	answer("/sessions/11/operations", `{"operations": [{"span": "y", "start": 3}]}`)
	answer("/ranks", `{"base": "0", "collectives_total": 743, "collectives": [{"name": "r", "parts": [{"rank": 0}, {"rank": 1}]}]}`)
	answer("/sessions/11/scopes", `{"nodes": [{"path": 0}, {"path": 1, "name": "a", "wall_ns": 1}, {"path": 2, "name": "b", "wall_ns": 3}, {"path": 3, "parent": 2, "name": "c", "wall_ns": 2}]}`)
	answer("/sessions/11/scopes/2/instances", `{"base": "7", "instances": [{"span": "x"}]}`)
	s := httptest.NewServer(mux)
	defer s.Close()
	m := &mcpSource{ctx: t.Context(), api: queryAPI{s.URL}}
	session := mcpSessionArg{"11"}
	for name, tt := range map[string]struct {
		call func(limit int) (any, error)
		rows string // with limit 1
		left leftOut
	}{
		"report": {
			func(n int) (any, error) { return m.report(t.Context(), &mcpInterval{mcpSessionArg: session, Limit: n}) },
			`"groups":[{"longest":{"span":"y","start":3,`, leftOut{"gaps": 3 + 1, "groups": 11, "longest": 59, "outliers": 6},
		},
		"kernels": {
			func(n int) (any, error) {
				return m.kernels(t.Context(), &mcpKernelArgs{mcpInterval: mcpInterval{mcpSessionArg: session, Limit: n}})
			},
			`"total":{"count":90}`, leftOut{"groups": 11},
		},
		"critical_path": {
			func(n int) (any, error) {
				return m.criticalPath(t.Context(), &mcpPathArgs{mcpInterval: mcpInterval{mcpSessionArg: session, Limit: n}, Span: "x"})
			},
			`"left_out":{"parts":8},"more_ns":4,"parts":[{"start":1}]}`, leftOut{"parts": 8},
		},
		"ranks": {
			func(n int) (any, error) { return m.ranks(t.Context(), &mcpRanksArgs{"r", n}) },
			`"parts":[{"rank":0}]`, leftOut{"collectives": 742, "parts": 1},
		},
		"list_sessions": {
			func(n int) (any, error) { return m.listSessions(t.Context(), &mcpListArgs{Limit: n}) },
			`"sessions":[{"duration_ns":0,"host":"","id":"11",`, leftOut{"sessions": 2},
		},
		"steps": {
			func(n int) (any, error) { return m.steps(t.Context(), &mcpInterval{mcpSessionArg: session, Limit: n}) },
			`"longest":[{"number":0,"name":"","start":1,`, leftOut{"longest": 59, "outliers": 6},
		},
		"idle_gaps": {
			func(n int) (any, error) {
				return m.idleGaps(t.Context(), &mcpGapArgs{mcpInterval: mcpInterval{mcpSessionArg: session, Limit: n}, Cause: "sync"})
			},
			`"gaps":[{"start":3,`, leftOut{"gaps": 2 + 1},
		},
		"scopes": {
			func(n int) (any, error) { return m.scopes(t.Context(), &mcpScopeArgs{session, n}) },
			`"scopes":[{"path":2,`, leftOut{"scopes": 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := tt.call(1)
			require.NoError(t, err)
			assert.Equal(t, tt.left, answer.(object)[leftOutName])
			text, err := json.Marshal(answer)
			require.NoError(t, err)
			assert.Contains(t, string(text), tt.rows)
		})
	}
}

func TestMCP_Limits(t *testing.T) {
	for n, want := range map[int]int{-1: 10, 0: 10, 7: 7, 51: 50} {
		assert.Equal(t, want, limitOf(n))
	}
}
