// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// documented returns the SQL queries of the documentation by the comment before each.
func documented(t *testing.T) map[string]string {
	t.Helper()
	root := process.Root(t)
	pages := []string{filepath.Join(root, "README.md"), filepath.Join(root, "examples", "compose", "README.md")}
	more, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	out := map[string]string{}
	block := regexp.MustCompile("(?s)```sql\n(.*?)```")
	for _, page := range append(pages, more...) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			for statement := range strings.SplitSeq(m[1], ";") {
				statement = strings.TrimSpace(statement)
				if statement == "" {
					continue
				}
				comment, sql, ok := strings.Cut(statement, "\n")
				question, is := strings.CutPrefix(comment, "-- ")
				require.True(t, ok && is, "%s: SQL that begins with no comment:\n%s", filepath.Base(page), statement)
				require.NotContains(t, out, question)
				out[question] = sql
			}
		}
	}
	return out
}

// TestDocumentedQueries runs the queries of the documentation on two sessions, each sent twice, and
// compares the answers with values computed from the sent data.
func TestDocumentedQueries(t *testing.T) {
	sent := generate(t, 7, 1500).and(generate(t, 8, 1000))
	spans := sent.spans()
	statistic := kernels(spans)

	// The session with the most launches, its kernel with the most launches, and the trace of one
	// of them.
	var busiest statistics
	for _, s := range statistic {
		if s.Launches > busiest.Launches || s.Launches == busiest.Launches && s.key() < busiest.key() {
			busiest = s
		}
	}
	session, kernel, trace := busiest.Session, busiest.Kernel, ""
	for _, sp := range spans {
		if sp.ResourceAttributes[semconv.ServiceInstanceID] == session && sp.SpanAttributes[semconv.CUDAKernelName] == kernel {
			trace = max(trace, sp.TraceID)
		}
	}

	d := start(t, "")
	d.keep()
	address := process.FreePort(t)
	p := d.collect(nil, overOTLP(address))
	require.NoError(t, sent.send(t.Context(), address))
	require.NoError(t, sent.send(t.Context(), address))
	p.Stop(30 * time.Second)

	queries := documented(t)
	checks := map[string]func(sql string){
		"Which kernels of a session take the most time?": func(sql string) {
			var want []statistics
			for _, s := range statistic {
				if s.Session == session {
					want = append(want, s)
				}
			}
			slices.SortFunc(want, func(a, b statistics) int { return cmp.Compare(b.Seconds, a.Seconds) })
			require.Greater(t, len(want), 10)
			got := ask[statistics](d, sql, session, kernel, trace)
			require.Len(t, got, 10)
			for i, g := range got {
				w := want[i]
				assert.Equal(t, []any{w.Scope, w.Kernel, w.Launches}, []any{g.Scope, g.Kernel, g.Launches})
				near(t, w.Seconds, g.Seconds)
				near(t, w.P99, g.P99)
				assert.Equal(t, w.MeanOccupancy == nil, g.MeanOccupancy == nil)
			}
		},
		"How long does a kernel take, session by session?": func(sql string) {
			type row struct {
				Session  string
				Launches int
				Mean     float64
			}
			sums := map[string]row{}
			for _, s := range statistic {
				if s.Kernel == kernel {
					r := sums[s.Session]
					sums[s.Session] = row{s.Session, r.Launches + s.Launches, r.Mean + s.Seconds}
				}
			}
			require.Len(t, sums, 2)
			got := ask[row](d, sql, session, kernel, trace)
			require.Len(t, got, len(sums))
			for _, g := range got {
				assert.Equal(t, sums[g.Session].Launches, g.Launches)
				near(t, sums[g.Session].Mean/float64(g.Launches), g.Mean)
			}
			assert.LessOrEqual(t, got[0].Mean, got[1].Mean)
		},
		"How much did a session copy, in which direction, at which rate?": func(sql string) {
			type row struct {
				Kind        string
				Copies      int
				Bytes       uint64
				GBPerSecond float64
			}
			sums := map[string]row{}
			for _, sp := range spans {
				if sp.ResourceAttributes[semconv.ServiceInstanceID] != session || sp.SpanAttributes[semconv.CUDAOperation] != semconv.CUDAOperationMemcpy {
					continue
				}
				kind := sp.SpanAttributes[semconv.CUDAMemcpyKind]
				size, err := strconv.ParseUint(sp.SpanAttributes[semconv.CUDAMemcpySize], 10, 64)
				require.NoError(t, err)
				r := sums[kind]
				sums[kind] = row{kind, r.Copies + 1, r.Bytes + size, r.GBPerSecond + float64(sp.Duration)}
			}
			require.NotEmpty(t, sums)
			got := ask[row](d, sql, session, kernel, trace)
			require.Len(t, got, len(sums))
			for _, g := range got {
				w := sums[g.Kind]
				assert.Equal(t, []any{w.Copies, w.Bytes}, []any{g.Copies, g.Bytes}, g.Kind)
				near(t, float64(w.Bytes)/w.GBPerSecond, g.GBPerSecond, g.Kind)
			}
			assert.True(t, slices.IsSortedFunc(got, func(a, b row) int { return cmp.Compare(b.Bytes, a.Bytes) }))
		},
		"What happened in a trace?": func(sql string) {
			type row struct {
				Timestamp, SpanName string
				Microseconds        float64
			}
			var of []span
			for _, sp := range spans {
				if sp.TraceID == trace {
					of = append(of, sp)
				}
			}
			slices.SortFunc(of, func(a, b span) int {
				return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.SpanID, b.SpanID))
			})
			require.Greater(t, len(of), 1)
			got := ask[row](d, sql, session, kernel, trace)
			require.Len(t, got, len(of))
			for i, g := range got {
				assert.Equal(t, of[i].SpanName, g.SpanName)
				near(t, float64(of[i].Duration)/1e3, g.Microseconds)
				at, err := time.Parse("2006-01-02 15:04:05.999999999", g.Timestamp)
				require.NoError(t, err)
				assert.Equal(t, of[i].Start, at.UnixNano())
			}
		},
	}
	for question, sql := range queries {
		if assert.Contains(t, checks, question, "a query that nothing checks") {
			checks[question](sql)
		}
	}
	assert.Len(t, queries, len(checks), "a check of a query that is gone")
}

// ask runs a query of the documentation.
func ask[T any](d *database, sql, session, kernel, trace string) []T {
	d.t.Helper()
	out, err := d.front.Engine.Run(d.t.Context(), front.Statement{
		// Timestamps in UTC, independent of the machine.
		SQL: sql, Format: "JSONEachRow", Settings: map[string]string{"session_timezone": "UTC"},
		Parameters: map[string]string{"session": session, "kernel": kernel, "trace": trace},
	}, nil)
	require.NoError(d.t, err, sql)
	return decode[T](d.t, out)
}
