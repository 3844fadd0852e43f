// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// TestRun_HostLines checks that idle time by host code names the line that samples found.
func TestRun_HostLines(t *testing.T) {
	const load = "recv (/usr/lib/python3.12/multiprocessing/connection.py:250)\n" +
		"_get (/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py:1285)\n" +
		"load (/home/me/train.py:42)\n<module> (/home/me/train.py:90)"
	p := newProgram()
	p.launch("first", 10*µs)
	for range 10 {
		p.host += 20 * ms
		row := p.work(store.OpKernel, "step", ms)
		row.StackText = "forward (/home/me/net.py:7)"
		row.Attrs = store.Attrs{{Key: semconv.CUDALaunchDelayStacktrace, Value: store.Value{Kind: store.KindString, Str: load}}}
	}
	p.host += 5 * ms
	p.launch("last", 10*µs)
	r, err := Run(t.Context(), FromReader(p.reader(), "", ""), Options{})
	require.NoError(t, err)
	d := &r.Devices[0]
	require.Len(t, d.HostLines, 1)
	assert.Equal(t, "load (/home/me/train.py:42)", d.HostLines[0].Name)
	assert.EqualValues(t, 10, d.HostLines[0].Count)
	assert.InDelta(t, 191*time.Millisecond, d.HostLines[0].Ns, float64(2*time.Millisecond))
	assert.Equal(t, load, d.Gaps[0].DelayStack)
	assert.Equal(t, "forward (/home/me/net.py:7)", d.Gaps[0].Stack)
	require.NotEmpty(t, r.Findings)
	assert.Equal(t, "host", r.Findings[0].Kind)
	assert.Contains(t, r.Findings[0].Text, "ms of it in load (/home/me/train.py:42)).")
}

func TestProgramFrame(t *testing.T) {
	for stack, want := range map[string]string{
		"f (a.py:1)": "f (a.py:1)",
		"_find (<frozen importlib._bootstrap>:1)\nf (a.py:1)":                    "f (a.py:1)",
		"g (/usr/lib/python3/dist-packages/x.py:1)\nh (/x/lib/python3.9/y.py:2)": "g (/usr/lib/python3/dist-packages/x.py:1)",
	} {
		assert.Equal(t, want, programFrame(stack))
	}
}
