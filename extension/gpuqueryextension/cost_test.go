// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/semconv"
)

func TestIncrease(t *testing.T) {
	point := func(start, at int64, v float64) store.PointRow {
		return store.PointRow{Point: store.Point{StartNs: start, TimeNs: at, Double: v, HasDouble: true}}
	}
	points := []store.PointRow{point(10, 20, 2), point(10, 30, 5), point(35, 40, 1), point(35, 50, 4)}
	assert.InDelta(t, 9, increase(points, 0, false), 0)
	assert.InDelta(t, 7, increase(points, 15, false), 0, "the first point is the value before the interval")
	assert.InDelta(t, 12, increase(points, 0, true), 0)
	assert.Zero(t, increase(nil, 0, false))
}

func TestCost_ByServiceScopeAndRequest(t *testing.T) {
	md := pmetric.NewMetrics()
	add := func(service, metric, scope, request string, values ...float64) {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr(semconv.ServiceName, service)
		if service != "_idle" {
			rm.Resource().Attributes().PutStr(semconv.ServiceNamespace, "search")
		}
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName(metric)
		sum := m.SetEmptySum()
		sum.SetIsMonotonic(true)
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		for i, v := range values {
			p := sum.DataPoints().AppendEmpty()
			p.SetStartTimestamp(1_000)
			p.SetTimestamp(pcommon.Timestamp(2_000 + i))
			p.SetDoubleValue(v)
			if scope != "" {
				p.Attributes().PutStr(semconv.CUDAScopeName, scope)
				p.Attributes().PutStr(semconv.CUDARequestOperation, request)
			}
			if metric == semconv.MetricGPUCUDACost {
				p.Attributes().PutStr(semconv.CUDACostCurrency, "USD")
			}
		}
	}
	// The worked example of docs/usage.md.
	add("llm", semconv.MetricGPUCUDACost, "forward", "POST /generate", 0.001, 0.0045)
	add("llm", semconv.MetricGPUCUDATime, "forward", "POST /generate", 6)
	add("rag", semconv.MetricGPUCUDACost, "", "", 0.0065)
	add("rag", semconv.MetricGPUCUDATime, "", "", 7)
	add("_idle", semconv.MetricGPUCUDACost, "", "", 0.002)
	m := storetest.NewMemory()
	var d rows.Decoder
	_, err := m.Write(context.Background(), d.Metrics("", md))
	require.NoError(t, err)
	s := newServer(m, options{loopback: true, version: "test", logger: zap.NewNop()})
	for _, tt := range []struct {
		target string
		want   []costGroup
	}{
		{"by=service", []costGroup{
			{"rag", 7, map[string]float64{"USD": 0.0065}}, {"llm", 6, map[string]float64{"USD": 0.0045}}, {"_idle", 0, map[string]float64{"USD": 0.002}},
		}},
		{"by=namespace", []costGroup{{"search", 13, map[string]float64{"USD": 0.011}}, {"", 0, map[string]float64{"USD": 0.002}}}},
		{"by=scope", []costGroup{{"", 7, map[string]float64{"USD": 0.0085}}, {"forward", 6, map[string]float64{"USD": 0.0045}}}},
		{"by=request&service=llm", []costGroup{{"POST /generate", 6, map[string]float64{"USD": 0.0045}}}},
		{"by=host&host=x", []costGroup{}},
	} {
		t.Run(tt.target, func(t *testing.T) {
			got := get[struct{ Groups []costGroup }](t, s, "/api/v1/usage/cost?"+tt.target).Groups
			require.Len(t, got, len(tt.want))
			for i, g := range got {
				assert.Equal(t, tt.want[i].Name, g.Name)
				assert.InDelta(t, tt.want[i].DeviceSeconds, g.DeviceSeconds, 1e-12)
				assert.InDeltaMapValues(t, tt.want[i].Costs, g.Costs, 1e-12)
			}
		})
	}
	t.Run("series of a group", func(t *testing.T) {
		type answer struct {
			Groups []costGroup
			Series []struct {
				Metric   string
				Resource map[string]string
				Increase float64
			}
		}
		got := get[answer](t, s, "/api/v1/usage/cost?by=scope&of=")
		require.Len(t, got.Groups, 1)
		assert.Empty(t, got.Groups[0].Name)
		sums := map[string]float64{}
		for _, x := range got.Series {
			sums[x.Metric] += x.Increase
			assert.Contains(t, []string{"rag", "_idle"}, x.Resource[semconv.ServiceName])
		}
		assert.InDeltaMapValues(t, map[string]float64{semconv.MetricGPUCUDATime: 7, semconv.MetricGPUCUDACost: 0.0085}, sums, 1e-12)
		assert.Empty(t, get[answer](t, s, "/api/v1/usage/cost?by=service&of=none").Series)
	})
}

func TestUsage_SessionsOfGroup(t *testing.T) {
	s, id := generated(t)
	type usage struct{ Groups []usageGroup }
	kernels := map[string]int64{}
	for _, by := range []string{"service", "namespace", "host", "run"} {
		for _, g := range get[usage](t, s, "/api/v1/usage?by="+by).Groups {
			var sum usageGroup
			for _, x := range get[usage](t, s, "/api/v1/usage?by="+by+"&of="+url.QueryEscape(g.Name)).Groups {
				sum.Sessions += x.Sessions
				sum.Kernels += x.Kernels
				sum.KernelNs += x.KernelNs
				if x.Name == id {
					kernels[by] = x.Kernels
				}
			}
			assert.Equal(t, []int64{g.Sessions, g.Kernels, g.KernelNs}, []int64{sum.Sessions, sum.Kernels, sum.KernelNs}, by)
		}
		assert.Empty(t, get[usage](t, s, "/api/v1/usage?of=none&by="+by).Groups, by)
	}
	assert.Equal(t, map[string]int64{"service": 4859, "namespace": 4859, "host": 4859, "run": 4859}, kernels)
}

// TestUsage_SessionsOfScope compares the numbers of each scope with those of its sessions, and these
// with the scopes of the session.
func TestUsage_SessionsOfScope(t *testing.T) {
	s, _ := generated(t)
	type usage struct{ Groups []usageGroup }
	groups := get[usage](t, s, "/api/v1/usage?by=scope").Groups
	require.NotEmpty(t, groups)
	for _, g := range groups {
		var got usageGroup
		for _, x := range get[usage](t, s, "/api/v1/usage?by=scope&of="+url.QueryEscape(g.Name)).Groups {
			got.Sessions += x.Sessions
			got.Kernels += x.Kernels
			got.KernelNs += x.KernelNs
			require.NotNil(t, x.Path)
			for _, n := range get[struct{ Nodes []scopeNode }](t, s, "/api/v1/sessions/"+url.PathEscape(x.Name)+"/scopes").Nodes {
				if n.Path != *x.Path {
					continue
				}
				sums := n.Total
				if n.Path == 0 {
					sums = n.Self
				}
				assert.Equal(t, []int64{sums.Kernels, sums.KernelNs}, []int64{x.Kernels, x.KernelNs}, g.Name)
			}
		}
		assert.Equal(t, []int64{g.Sessions, g.Kernels, g.KernelNs}, []int64{got.Sessions, got.Kernels, got.KernelNs}, g.Name)
	}
}
