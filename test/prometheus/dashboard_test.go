// SPDX-License-Identifier: Apache-2.0

//go:build linux

package prometheus_test

import (
	"encoding/json"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// dashboard is the tested part of Grafana's JSON.
type dashboard struct {
	UID           string  `json:"uid"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID         int          `json:"id"`
	Type       string       `json:"type"`
	Title      string       `json:"title"`
	Datasource *datasource  `json:"datasource"`
	Targets    []target     `json:"targets"`
	Panels     []panel      `json:"panels"`
	GridPos    gridPosition `json:"gridPos"`
}

type gridPosition struct{ X, Y, W, H int }

type target struct {
	Datasource *datasource `json:"datasource"`
	Expr       string      `json:"expr"`
	RefID      string      `json:"refId"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type variable struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	AllValue string `json:"allValue"`
	// Query is a text, or an object with one.
	Query any `json:"query"`
}

// boards have their variables, besides the data source.
var boards = map[string][]string{
	"fleet.json": {"host"}, "node.json": {"host", "device"}, "gpu.json": {"host", "device"},
	"process.json": {"host", "process"}, "usage.json": {"host", "price"}, "gpuflight.json": {"service", "device"},
}

// grafana is the path of a file of examples/grafana.
func grafana(t *testing.T, name string) string {
	return filepath.Join(process.Root(t), "examples", "grafana", name)
}

func readDashboard(t *testing.T, name string) dashboard {
	t.Helper()
	text, err := os.ReadFile(grafana(t, name))
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// queries returns the panels with queries.
func (d dashboard) queries() (out []panel) {
	for _, p := range d.Panels {
		if p.Type != "row" {
			out = append(out, p)
		}
		out = append(out, dashboard{Panels: p.Panels}.queries()...)
	}
	return out
}

// substitute replaces the variables of an expression as Grafana does, for a range of five minutes.
// Values are those of the variables; the others stand for all. The test fails if a variable remains.
func substitute(t *testing.T, d dashboard, expr string, values map[string]string) string {
	t.Helper()
	// The data of a test are younger than a minute, so subqueries have steps of a second.
	expr = strings.NewReplacer("$__rate_interval", "1m", "$__range:1m]) / 60", "5m:1s]) / 3600", "$__range:1m", "5m:1s", "$__range", "5m").Replace(expr)
	for _, v := range d.Templating.List {
		value, ok := values[v.Name]
		if !ok {
			value = v.AllValue
			if v.Type == "textbox" {
				value, _ = v.Query.(string)
			}
		}
		expr = strings.ReplaceAll(expr, "$"+v.Name, value)
	}
	require.NotContains(t, expr, "$")
	return expr
}

func TestDashboard_WellFormed(t *testing.T) {
	paths, err := filepath.Glob(grafana(t, "*.json"))
	require.NoError(t, err)
	require.Len(t, paths, len(boards))
	uids := map[string]bool{}
	for _, path := range paths {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			d := readDashboard(t, name)
			assert.False(t, uids[d.UID] || d.UID == "", "uid %q", d.UID)
			uids[d.UID] = true
			checkWellFormed(t, d, boards[name])
		})
	}
}

func checkWellFormed(t *testing.T, d dashboard, variables []string) {
	t.Helper()
	assert.GreaterOrEqual(t, d.SchemaVersion, 39, "Grafana 10")
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
	}
	assert.Equal(t, append([]string{"datasource"}, variables...), names)

	ids := map[int]bool{}
	var taken [][24]bool
	for _, p := range d.Panels {
		assert.False(t, ids[p.ID], "id %d of %q is used twice", p.ID, p.Title)
		ids[p.ID] = true
		assert.NotEmpty(t, p.Title)
		g := p.GridPos
		require.True(t, g.W > 0 && g.H > 0 && g.X >= 0 && g.X+g.W <= 24, "%q at %+v", p.Title, g)
		for y := g.Y; y < g.Y+g.H; y++ {
			for len(taken) <= y {
				taken = append(taken, [24]bool{})
			}
			for x := g.X; x < g.X+g.W; x++ {
				require.False(t, taken[y][x], "%q lies over another panel", p.Title)
				taken[y][x] = true
			}
		}
	}
	source := datasource{Type: "prometheus", UID: "${datasource}"}
	for _, p := range d.queries() {
		assert.Equal(t, &source, p.Datasource, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		refs := map[string]bool{}
		for _, q := range p.Targets {
			assert.Nil(t, q.Datasource, "%s: that of the panel", p.Title)
			assert.False(t, refs[q.RefID], "%s: %s is used twice", p.Title, q.RefID)
			refs[q.RefID] = true
			substitute(t, d, q.Expr, nil)
			checkLabels(t, q.Expr)
		}
	}
}

// checkLabels checks each label of an expression: it is one of the registry, or Prometheus' own.
func checkLabels(t *testing.T, expr string) {
	t.Helper()
	known := map[string]bool{"le": true, "state": true} // state is of the store's own metrics
	for _, a := range semconv.Attributes {
		known[strings.ReplaceAll(a.Name, ".", "_")] = true
	}
	for _, m := range regexp.MustCompile(`(?:by|on|group_left|without|ignoring) \(([^)]*)\)|([a-z_0-9]+)(?:=~|!~|!=|=)"`).FindAllStringSubmatch(expr, -1) {
		for name := range strings.FieldsFuncSeq(m[1]+","+m[2], func(r rune) bool { return r == ',' || r == ' ' }) {
			assert.True(t, known[name], "label %s in %s", name, expr)
		}
	}
}

// checkDashboard runs all queries of a dashboard. Each must have a result, except those in without.
// For a value of a variable that no series has, none may have one, apart from zeros.
func checkDashboard(t *testing.T, s *server, name string, without map[string]string) {
	t.Helper()
	d := readDashboard(t, name)
	nobody := map[string]string{}
	for _, v := range boards[name] {
		if v != "price" {
			nobody[v] = "nobody"
		}
	}
	asked := 0
	for _, p := range d.queries() {
		for _, q := range p.Targets {
			asked++
			expr := substitute(t, d, q.Expr, nil)
			got := s.query(expr) // fails for an invalid query
			if reason, ok := without[p.Title+"/"+q.RefID]; ok {
				assert.Empty(t, got, "%s, %s: %s, so why is there an answer?", p.Title, q.RefID, reason)
				continue
			}
			if assert.NotEmpty(t, got, "%s, %s: %s", p.Title, q.RefID, expr) {
				// A quantile of a series that did not grow in the range is not a number, and
				// Grafana draws nothing.
				numbers := 0
				for _, series := range got {
					if !math.IsNaN(series.value) {
						numbers++
						assert.GreaterOrEqual(t, series.value, 0.0, "%s, %s: %v", p.Title, q.RefID, series.labels)
					}
				}
				assert.Positive(t, numbers, "%s, %s: nothing but NaN", p.Title, q.RefID)
			}
			for _, series := range s.query(substitute(t, d, q.Expr, nobody)) {
				assert.Zero(t, series.value, "%s, %s: of a host or device that does not exist", p.Title, q.RefID)
			}
		}
	}
	assert.GreaterOrEqual(t, asked, 15)

	labelValues := regexp.MustCompile(`^label_values\((\w+)(\{.*\})?, (\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		query, ok := v.Query.(map[string]any)
		require.True(t, ok, "variable %s", v.Name)
		text, _ := query["query"].(string)
		m := labelValues.FindStringSubmatch(text)
		require.NotNil(t, m, "variable %s: %q", v.Name, text)
		var values []string
		s.get("/api/v1/label/"+m[3]+"/values", url.Values{"match[]": {substitute(t, d, m[1]+m[2], nil)}}, &values)
		assert.NotEmpty(t, values, "variable %s", v.Name)
	}
}

// checkDocumentation runs the queries of docs/prometheus.md. Queries on native histograms and the
// alert have no result here but must be valid.
func checkDocumentation(t *testing.T, s *server) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(process.Root(t), "docs", "prometheus.md"))
	require.NoError(t, err)
	answered, asked := 0, 0
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		// A query begins with a letter at the start of a line. Indented lines continue it.
		starts := regexp.MustCompile(`(?m)^[a-z]`).FindAllStringIndex(block[1], -1)
		for i, at := range starts {
			end := len(block[1])
			if i+1 < len(starts) {
				end = starts[i+1][0]
			}
			asked++
			if len(s.query(block[1][at[0]:end])) > 0 { // fails for an invalid query
				answered++
			}
		}
	}
	assert.Equal(t, 11, asked)
	assert.Equal(t, asked-3, answered)
}
