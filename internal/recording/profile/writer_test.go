// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/internal/recording/profile/profiletest"
)

func settings(limit int) profile.Settings {
	r := pcommon.NewResource()
	r.Attributes().PutStr("service.name", "trainer")
	r.Attributes().PutInt("process.pid", 12)
	return profile.Settings{
		Resource: r, SchemaURL: "https://example.com/1", ScopeName: "scope", RequestBytes: limit,
		ID: func(n uint64) (id [16]byte) { id[15], id[14] = byte(n+1), byte((n+1)>>8); return id },
	}
}

var kind = profile.Kind{
	Samples: profile.Type{Name: "samples", Unit: "count"}, Period: profile.Type{Name: "clock", Unit: "cycles"}, Every: 4096,
	Start: time.Unix(100, 5), Length: 2 * time.Second,
	Attributes: []profile.Attribute{{Key: "window", Int: 3, IsInt: true}},
}

func sample(value uint64) *profile.Sample {
	m := profile.Mapping{File: "7.cubin", ID: profile.Attribute{Key: "crc", Str: "7"}}
	return &profile.Sample{
		Stack: []profile.Location{
			{Mapping: m, Address: 0x30, Lines: []profile.Line{
				{Function: profile.Function{Name: "inlined", File: "a.cu"}, Line: 4},
				{Function: profile.Function{Name: "f<int>(\"x\")", Symbol: "_Z1f", File: "a.cu"}, Line: 9},
			}},
			{Lines: []profile.Line{{Function: profile.Function{Name: "step"}}}},
		},
		Attributes: []profile.Attribute{{Key: "reason", Str: "wait"}, {Key: "device", Int: 1, IsInt: true}},
		Link:       profile.Link{Trace: [16]byte{1}, Span: [8]byte{2}},
		Value:      value,
	}
}

func TestWriter_RoundTrip(t *testing.T) {
	w := profile.NewWriter(settings(0))
	w.Begin(profile.Kind{Samples: profile.Type{Name: "of nothing", Unit: "count"}})
	w.Begin(kind)
	w.Add(sample(700))
	second := sample(5)
	second.Attributes, second.Link = nil, profile.Link{}
	w.Add(second)
	w.Add(sample(9))
	requests := w.Take()
	require.Len(t, requests, 1)
	assert.Equal(t, 1, requests[0].Count(), "one without samples is not there")
	assert.Empty(t, w.Take())

	want := profiletest.Sample{
		Resource: map[string]any{"service.name": "trainer", "process.pid": int64(12)},
		Profile:  [16]byte{15: 1}, Of: map[string]any{"window": int64(3)},
		Type: "samples/count", Period: "clock/cycles", Every: 4096, Start: time.Unix(100, 5).UTC(), Length: 2 * time.Second,
		Stack: []string{"inlined a.cu:4", "f<int>(\"x\") a.cu:9", "step"}, Symbols: []string{"", "_Z1f", ""},
		Address: 0x30, File: "7.cubin", Mapping: map[string]any{"crc": "7"},
		Attributes: map[string]any{"reason": "wait", "device": int64(1)},
		Trace:      [16]byte{1}, Span: [8]byte{2}, Value: 700,
	}
	other := want
	other.Attributes, other.Trace, other.Span, other.Value = map[string]any{}, [16]byte{}, [8]byte{}, 5
	third := want
	third.Value = 9
	all := []profiletest.Sample{want, other, third}
	assert.Equal(t, all, profiletest.Samples(t, requests...))

	// Each table has one entry per value, after the entry that means "none".
	d := requests[0].Data().Dictionary()
	assert.Equal(t, []int{2, 4, 3, 2, 2, 4}, []int{
		d.MappingTable().Len(), d.FunctionTable().Len(), d.LocationTable().Len(), d.StackTable().Len(), d.LinkTable().Len(), d.AttributeTable().Len() - 1,
	})
	seen := map[string]bool{}
	for _, s := range d.StringTable().All() {
		assert.False(t, seen[s], s)
		seen[s] = true
	}

	// JSON runs first: it must leave the request unchanged.
	line, err := requests[0].JSON()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(line), `{"resourceProfiles"`), "readers recognise the signal by the first key")
	back, err := profile.FromJSON(line)
	require.NoError(t, err)
	assert.Equal(t, all, profiletest.Samples(t, back))
	body, err := requests[0].Proto()
	require.NoError(t, err)
	assert.Len(t, body, requests[0].Size())
	back, err = profile.FromProto(body)
	require.NoError(t, err)
	assert.Equal(t, all, profiletest.Samples(t, back))
}

// No request exceeds its bound, no id is used twice, and no sample is missing.
func TestWriter_RequestBound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(most int) string {
		letters := []string{"a", "<", "\"", "\\", "\x01", "é", "\xff", "::"}
		var b strings.Builder
		for range r.IntN(most) {
			b.WriteString(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	for _, limit := range []int{16 << 10, 100 << 10, 0} {
		w := profile.NewWriter(settings(limit))
		want := map[string]uint64{}
		n := 0
		for k := range 3 {
			one := kind
			one.Samples.Name = fmt.Sprint("type", k)
			w.Begin(one)
			for range 1500 {
				s := sample(uint64(r.IntN(1000)))
				for range r.IntN(3) {
					s.Stack = append(s.Stack, profile.Location{Address: r.Uint64N(9), Lines: []profile.Line{
						{Function: profile.Function{Name: word(40), Symbol: word(3), File: word(20)}, Line: r.Int64N(5)},
					}})
				}
				s.Link.Span[7] = byte(r.IntN(4))
				s.Attributes[0].Str = word(3)
				w.Add(s)
				want[one.Samples.Name+"/count"] += s.Value
				n++
			}
		}
		requests := w.Take()
		got, ids := map[string]uint64{}, map[[16]byte]int{}
		all := profiletest.Samples(t, requests...)
		for _, s := range all {
			got[s.Type] += uint64(s.Value)
		}
		profiles := 0
		for i, p := range requests {
			line, err := p.JSON()
			require.NoError(t, err)
			most := limit
			if most == 0 {
				most = profile.DefaultRequestBytes
			}
			assert.LessOrEqual(t, len(line), most)
			if i < len(requests)-1 {
				assert.Greater(t, len(line), most/4, "and not far below it")
			}
			profiles += p.Count()
			for _, s := range profiletest.Samples(t, p) {
				if at, ok := ids[s.Profile]; ok {
					assert.Equal(t, i, at)
				}
				ids[s.Profile] = i
			}
		}
		assert.Equal(t, want, got)
		assert.Len(t, all, n)
		assert.Len(t, ids, profiles)
		assert.GreaterOrEqual(t, len(requests), 1)
	}
}

// A sample that alone exceeds the bound is in a request of its own.
func TestWriter_LargeSample(t *testing.T) {
	w := profile.NewWriter(settings(4 << 10))
	w.Begin(kind)
	w.Add(sample(1))
	large := sample(2)
	large.Stack[1].Lines[0].Function.Name = strings.Repeat("x", 8<<10)
	w.Add(large)
	w.Add(sample(3))
	requests := w.Take()
	require.Len(t, requests, 3)
	for i, p := range requests {
		all := profiletest.Samples(t, p)
		require.Len(t, all, 1)
		assert.Equal(t, int64(i+1), all[0].Value)
	}
}

func TestWriter_LargeValues(t *testing.T) {
	for _, value := range []uint64{0, 1, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64} {
		w := profile.NewWriter(settings(0))
		w.Begin(kind)
		w.Add(sample(value))
		sum := new(big.Int)
		for _, s := range profiletest.Samples(t, w.Take()...) {
			sum.Add(sum, big.NewInt(s.Value))
		}
		assert.Equal(t, new(big.Int).SetUint64(value).String(), sum.String())
	}
}

func TestProfiles_InvalidInput(t *testing.T) {
	_, err := profile.FromJSON([]byte(`{"resourceProfiles":[{"resource":7}]}`))
	require.Error(t, err)
	_, err = profile.FromProto([]byte{0x0a, 0x7f})
	require.Error(t, err)
	_, _, err = profile.ReadAnswer([]byte{0x0a, 0x7f})
	require.Error(t, err)
	assert.Zero(t, profile.Empty().Count())
}
