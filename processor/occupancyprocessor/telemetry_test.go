// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// point is a counter's value for one set of attributes, written as "k=v,k=v".
type point struct {
	labels string
	value  int64
}

func points(t testing.TB, m metricdata.Metrics) []point {
	t.Helper()
	sum, ok := m.Data.(metricdata.Sum[int64])
	require.True(t, ok, m.Name)
	var out []point
	for _, p := range sum.DataPoints {
		var labels []string
		for _, kv := range p.Attributes.ToSlice() { // in the order of their keys
			labels = append(labels, string(kv.Key)+"="+kv.Value.AsString())
		}
		out = append(out, point{strings.Join(labels, ","), p.Value})
	}
	return out
}
