// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	otlp "github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/semconv"
)

func exportOTLP(t *testing.T, r store.Reader, q Query) (all []profiletest.Sample) {
	var out bytes.Buffer
	require.NoError(t, OTLPProfiles(t.Context(), r, q, &out))
	for line := range bytes.Lines(out.Bytes()) {
		p, err := otlp.FromJSON(line)
		require.NoError(t, err)
		d := p.Data().Dictionary()
		require.Empty(t, d.StringTable().At(0))
		require.Zero(t, d.StackTable().At(0).LocationIndices().Len())
		require.True(t, d.LinkTable().At(0).TraceID().IsEmpty())
		require.Zero(t, d.FunctionTable().At(0).NameStrindex())
		require.Zero(t, d.LocationTable().At(0).Lines().Len())
		require.Zero(t, d.MappingTable().At(0).FilenameStrindex())
		require.Zero(t, d.AttributeTable().At(0).KeyStrindex())
		all = append(all, profiletest.Samples(t, p)...)
	}
	return all
}

func TestOTLPProfiles_EqualPprof(t *testing.T) {
	each(t, func(t *testing.T, r store.Reader, s *store.SessionInfo) {
		q := Query{Project: s.Project, Session: s.ID}
		p := exportProfile(t, r, q)
		want, got := map[string]int64{}, map[string]int64{}
		for _, x := range p.Sample {
			var stack, symbols []string
			for _, l := range x.Location {
				f := l.Line[0].Function
				symbols = append(symbols, f.SystemName)
				if f.Filename != "" {
					stack = append(stack, fmt.Sprintf("%s %s:%d", f.Name, f.Filename, l.Line[0].Line))
				} else {
					stack = append(stack, f.Name)
				}
			}
			for i, v := range x.Value {
				if v != 0 {
					key := fmt.Sprintf("%s/%s %s\n%s\n%s", p.SampleType[i].Type, p.SampleType[i].Unit, strings.Join(x.Label["stall"], ""),
						strings.Join(stack, "\n"), strings.Join(symbols, "\n"))
					want[strings.ToValidUTF8(key, "\ufffd")] += v
				}
			}
		}
		for _, x := range exportOTLP(t, r, q) {
			reason, _ := x.Attributes[semconv.CUDAStallReason].(string)
			got[fmt.Sprintf("%s %s\n%s\n%s", x.Type, reason, strings.Join(x.Stack, "\n"), strings.Join(x.Symbols, "\n"))] += x.Value
			assert.Equal(t, p.TimeNanos, x.Start.UnixNano())
			assert.Equal(t, p.DurationNanos, x.Length.Nanoseconds())
		}
		assert.Equal(t, want, got)
	})
}

// A sample has a link if one span launched all its kernels.
func TestOTLPProfiles_Link(t *testing.T) {
	m := storetest.NewMemory()
	_, err := m.Write(t.Context(), []*store.Batch{{
		Session: "a",
		Origins: []store.Origin{{}, {Key: 1, Resource: store.Attrs{{Key: semconv.ServiceName, Value: store.Value{Kind: store.KindString, Str: "trainer"}}}}},
		Spans: []store.Span{
			{StartNs: 1, EndNs: 50, Span: 1, Name: "step", Operation: "scope", Origin: 1},
			{StartNs: 51, EndNs: 99, Span: 2, Name: "step", Operation: "scope", Origin: 1},
		},
		Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "gemm"}, {Key: 2, Operation: store.OpKernel, Name: "relu"}},
		Places: []store.Place{{}, {Key: 1, Trace: store.TraceID{7}, Parent: 1}, {Key: 2, Trace: store.TraceID{7}, Parent: 2}},
		Stacks: []store.Stack{{}, {Key: 1, Text: "launch\nmain"}},
		Ops: []store.Op{
			{StartNs: 10, EndNs: 15, Span: 10, Shape: 1, Place: 1, Stack: 1, Origin: 1},
			{StartNs: 60, EndNs: 67, Span: 11, Shape: 1, Place: 2, Stack: 1, Origin: 1},
			{StartNs: 68, EndNs: 69, Span: 12, Shape: 1, Place: 1, Stack: 1, Origin: 1},
			{StartNs: 70, EndNs: 73, Span: 13, Shape: 2, Place: 2, Stack: 1, Origin: 1},
		},
	}})
	require.NoError(t, err)
	type sample struct {
		kind, stack string
		value       int64
		trace       [16]byte
		span        [8]byte
	}
	var got []sample
	ids := map[[16]byte]bool{}
	for _, x := range exportOTLP(t, m, Query{Session: "a"}) {
		assert.Equal(t, map[string]any{semconv.ServiceName: "trainer"}, x.Resource)
		got = append(got, sample{x.Type, strings.Join(x.Stack, " "), x.Value, x.Trace, x.Span})
		ids[x.Profile] = true
	}
	trace, span := [16]byte{7}, [8]byte{7: 2}
	assert.Equal(t, []sample{
		{kind: "launches/count", stack: "gemm step scope:0 launch main", value: 3},
		{kind: "launches/count", stack: "relu step scope:0 launch main", value: 1, trace: trace, span: span},
		{kind: "kernel_time/nanoseconds", stack: "gemm step scope:0 launch main", value: 13},
		{kind: "kernel_time/nanoseconds", stack: "relu step scope:0 launch main", value: 3, trace: trace, span: span},
	}, got)
	assert.Len(t, ids, 2)
}
