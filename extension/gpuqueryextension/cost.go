// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

type costGroup struct {
	Name string `json:"name"`
	// DeviceSeconds is the increase of gpu.cuda.time, Costs that of gpu.cuda.cost by currency.
	DeviceSeconds float64            `json:"device_seconds"`
	Costs         map[string]float64 `json:"costs"`
}

// costSeries is a series that a group is made of, and its part of the sum.
type costSeries struct {
	Metric     string     `json:"metric"`
	Attributes attributes `json:"attributes"`
	Resource   attributes `json:"resource"`
	Increase   float64    `json:"increase"`
}

// maxCostSeries is the number of series that a request sums. Each takes a query.
const maxCostSeries = 1000

// cost sums the metrics of the connector gpu_usage, which belong to no session.
func (s *server) cost(ctx context.Context, r *request) (any, error) {
	by := r.choice("by", "service", "namespace", "host", "device", "scope", "request")
	service, host := r.text("service", 1000), r.text("host", 1000)
	_, one := r.values["of"]
	of := r.text("of", 10_000)
	from, to := r.absoluteInterval()
	if err := r.check(); err != nil {
		return nil, err
	}
	groups := map[string]*costGroup{}
	parts := []costSeries{}
	truncated := false
	for _, metric := range []string{semconv.MetricGPUCUDATime, semconv.MetricGPUCUDACost} {
		series, err := s.store.Series(ctx, store.SeriesQuery{Project: r.project, Metric: metric, From: from, To: to, Limit: maxCostSeries + 1})
		if err != nil {
			return nil, err
		}
		truncated = truncated || len(series) > maxCostSeries
		for i := range series[:min(len(series), maxCostSeries)] {
			x := &series[i]
			resource := x.OriginRef.Resource
			if service != "" && stringOf(resource, semconv.ServiceName) != service || host != "" && stringOf(resource, semconv.HostName) != host {
				continue
			}
			name := [...]string{
				stringOf(resource, semconv.ServiceName), stringOf(resource, semconv.ServiceNamespace), stringOf(resource, semconv.HostName),
				stringOf(x.Attrs, semconv.HWID),
				stringOf(x.Attrs, semconv.CUDAScopeName), stringOf(x.Attrs, semconv.CUDARequestOperation),
			}[by]
			if one && name != of {
				continue
			}
			points, err := s.store.Points(ctx, store.PointQuery{Project: r.project, Series: x.Key, From: from, To: to, Points: 20_000})
			if err != nil {
				return nil, err
			}
			g := groups[name]
			if g == nil {
				g = &costGroup{name, 0, map[string]float64{}}
				groups[name] = g
			}
			sum := increase(points, from, x.Temporality == deltaTemporality)
			if one {
				parts = append(parts, costSeries{metric, attributes(x.Attrs), attributes(resource), sum})
			}
			if metric == semconv.MetricGPUCUDATime {
				g.DeviceSeconds += sum
			} else {
				g.Costs[stringOf(x.Attrs, semconv.CUDACostCurrency)] += sum
			}
		}
	}
	total := func(g *costGroup) (n float64) {
		for _, c := range g.Costs {
			n += c
		}
		return n
	}
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *costGroup) int {
		return cmp.Or(cmp.Compare(total(b), total(a)), cmp.Compare(b.DeviceSeconds, a.DeviceSeconds), cmp.Compare(a.Name, b.Name))
	})
	answer := map[string]any{"groups": all(sorted), "truncated": truncated}
	if one {
		answer["series"] = parts
	}
	return answer, nil
}

const deltaTemporality = 1

// increase returns by how much a counter grew. A counter that starts again has another start time or a
// smaller value. What it had at its first point counts if it started in the interval.
func increase(points []store.PointRow, from int64, delta bool) (sum float64) {
	var last float64
	var start int64
	for i := range points {
		p := &points[i]
		v := p.Double
		if !p.HasDouble {
			v = float64(p.Int.V)
		}
		switch {
		case delta:
			sum += v
		case i == 0 && p.StartNs < from:
		case i == 0 || p.StartNs != start || v < last:
			sum += v
		default:
			sum += v - last
		}
		last, start = v, p.StartNs
	}
	return sum
}
