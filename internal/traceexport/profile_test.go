// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
)

func exportProfile(t *testing.T, r store.Reader, q Query) *profile.Profile {
	var out bytes.Buffer
	require.NoError(t, Profile(t.Context(), r, q, &out))
	p, err := profile.Parse(&out)
	require.NoError(t, err)
	require.NoError(t, p.CheckValid())
	return p
}

func TestProfile_EqualsStore(t *testing.T) {
	each(t, func(t *testing.T, r store.Reader, s *store.SessionInfo) {
		_, kernels := wanted(t, r, s)
		p := exportProfile(t, r, Query{Project: s.Project, Session: s.ID})
		got := sums{}
		samples := uint64(0)
		for _, x := range p.Sample {
			if samples += uint64(x.Value[2]); x.Value[0] == 0 {
				continue
			}
			name := x.Location[0].Line[0].Function.Name
			if got[name] == nil {
				got[name] = &total{}
			}
			got[name].Count += x.Value[0]
			got[name].Ns += x.Value[1]
		}
		var sum, wantSum total
		for name, k := range kernels {
			wantSum.Count += k.Count
			wantSum.Ns += k.Ns
			if name != "" { // the profile shows its full name
				assert.Equal(t, k, got[name], name)
			}
		}
		for _, k := range got {
			sum.Count += k.Count
			sum.Ns += k.Ns
		}
		assert.Equal(t, wantSum, sum)
		want := uint64(0)
		stalls, err := r.Samples(t.Context(), store.SampleQuery{Project: s.Project, Session: s.ID, Kind: store.SampleStall})
		require.NoError(t, err)
		for i := range stalls {
			want += min(stalls[i].Value, 1<<62)
		}
		assert.Equal(t, want, samples)
	})
}

func names(x *profile.Sample) (list []string) {
	for _, l := range x.Location {
		list = append(list, l.Line[0].Function.Name)
	}
	slices.Reverse(list)
	return list
}

func TestProfile_Stacks(t *testing.T) {
	m := storetest.NewMemory()
	_, err := m.Write(t.Context(), []*store.Batch{{
		Session: "a",
		Spans: []store.Span{
			{StartNs: 1, EndNs: 99, Span: 1, Name: "step", Operation: "scope"},
			{StartNs: 2, EndNs: 50, Span: 2, Parent: 1, Name: "forward", Operation: "scope"},
		},
		Shapes: []store.Shape{{}, {Key: 1, Operation: store.OpKernel, Name: "gemm", Symbol: "_Z4gemmv"}},
		Places: []store.Place{{}, {Key: 1, Parent: 2, ScopeName: "forward"}},
		Stacks: []store.Stack{{}, {Key: 1, Text: "launch\nmain"}},
		Ops: []store.Op{
			{StartNs: 10, EndNs: 15, Span: 10, Shape: 1, Place: 1, Stack: 1},
			{StartNs: 20, EndNs: 27, Span: 11, Shape: 1, Place: 1, Stack: 1},
		},
		Samples: []store.Sample{{UID: store.UID{1}, TimeNs: 12, Kind: store.SampleStall, What: "wait", Value: 3, Kernel: "gemm", Function: "inner", File: "a.cu", Line: store.Some(7)}},
	}})
	require.NoError(t, err)
	p := exportProfile(t, m, Query{Session: "a"})
	require.Len(t, p.Sample, 2)
	assert.Equal(t, []string{"main", "launch", "step", "forward", "gemm"}, names(p.Sample[0]))
	assert.Equal(t, []int64{2, 12, 0}, p.Sample[0].Value)
	assert.Equal(t, "_Z4gemmv", p.Sample[0].Location[0].Line[0].Function.SystemName)
	assert.Equal(t, []string{"gemm", "inner"}, names(p.Sample[1]))
	assert.Equal(t, []int64{0, 0, 3}, p.Sample[1].Value)
	assert.Equal(t, "a.cu", p.Sample[1].Location[0].Line[0].Function.Filename)
	assert.EqualValues(t, 7, p.Sample[1].Location[0].Line[0].Line)
}
