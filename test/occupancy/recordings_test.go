// SPDX-License-Identifier: Apache-2.0

//go:build linux

package occupancy_test

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// launch is a recorder's information about one kernel's occupancy, which it had queried from CUDA.
type launch struct {
	blocks    int64
	occupancy float64
	limiter   string
	block     string
}

// id identifies a kernel in the logs of one folder.
type id struct {
	session     string
	correlation int64
}

// TestOccupancy_RecordedKernels reads each recording through gpuflog and the processor. It compares
// every kernel with max_active_blocks in the log; all must agree. Recorders report one resource as
// the limiter. The processor reports all that tie, which must include that one.
//
// Values in golden-* are synthetic, but the occupancy of their launches is right. Two kinds of
// kernels cannot have an occupancy:
//
//   - a kernel_event whose has_details is false has 0 and "" for its dimensions and other values;
//   - golden-b-flat and golden-c3-session have two devices, and the rows of their kernels do not name
//     the device. With a setting that describes all devices, they agree too.
func TestOccupancy_RecordedKernels(t *testing.T) {
	root := process.Recordings(t)
	settings := map[string]any{"devices": []any{map[string]any{"match": "*", "compute_capability": "9.0", "sm_count": 132}}}
	for _, c := range []struct {
		folder   string
		settings map[string]any
		// kernels counts those with max_active_blocks; without counts those that cannot have an
		// occupancy.
		kernels, without int
	}{
		{"a2-h200", nil, 401, 0},
		{"c2-h200-engines", nil, 60, 0},
		{"c3-h200-minigpt", nil, 2180, 0},
		{"c3-h200-scopes", nil, 22, 0},
		{"golden-a2-flat", nil, 3, 1},
		{"golden-b-flat", nil, 2, 2},
		{"golden-b-flat", settings, 2, 0},
		{"golden-c3-session", nil, 1, 1},
		{"golden-c3-session", settings, 1, 0},
	} {
		name := c.folder
		if c.settings != nil {
			name += " with settings"
		}
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root, c.folder)
			want := recorded(t, dir)
			require.Len(t, want, c.kernels)
			store := start(t, "gpuflog", map[string]any{"include": []string{dir}, "poll_interval": "50ms"}, c.settings)
			kernels := func() map[id]testsink.Span {
				out := map[id]testsink.Span{}
				for _, span := range store.Spans() {
					n, ok := span.Attrs["cuda.correlation.id"].(int64)
					if k := (id{span.Session, n}); ok && span.Attrs["cuda.operation"] == "kernel" {
						if _, isWanted := want[k]; isWanted {
							out[k] = span
						}
					}
				}
				return out
			}
			store.Settle(time.Second, 60*time.Second, func() bool { return len(kernels()) >= len(want) })
			got := kernels()
			without := 0
			for k, w := range want {
				span, ok := got[k]
				if !assert.True(t, ok, "no span for %+v", k) {
					continue
				}
				if w.block == "" || c.kernels == c.without {
					without++
					for key := range span.Attrs {
						assert.False(t, strings.HasPrefix(key, "cuda.occupancy.") && !known[key], "%s of %+v", key, k)
					}
					continue
				}
				assert.Equal(t, w.blocks, span.Attrs["cuda.occupancy.active_blocks_per_sm"], "%+v: %+v", k, w)
				assert.InDelta(t, w.occupancy, span.Attrs["cuda.occupancy.theoretical"], 1e-6, "%+v: %+v", k, w)
				assert.InDelta(t, w.occupancy, span.Attrs["cuda.occupancy.reported"], 1e-6, "%+v: %+v", k, w)
				assert.Contains(t, span.Attrs["cuda.occupancy.limiter"], w.limiter, "%+v: %+v", k, w)
				fill, ok := span.Attrs["cuda.occupancy.grid_fill"].(float64)
				assert.True(t, ok && fill > 0 && fill <= 1, "%+v: fill %v", k, span.Attrs["cuda.occupancy.grid_fill"])
			}
			assert.Equal(t, c.without, without)
		})
	}
}

// known are attributes that a kernel without a computed occupancy may have: reported values, and
// the reason why it is missing.
var known = map[string]bool{
	"cuda.occupancy.reported": true, "cuda.occupancy.reported_limiter": true, "cuda.occupancy.unavailable": true,
}

// recorded reads the occupancy of each kernel: A2 in the kernel_event, later generations in the
// kernel_detail.
func recorded(t *testing.T, dir string) map[id]launch {
	t.Helper()
	out := map[id]launch{}
	process.Lines(t, dir, func(_ string, text []byte) {
		var line map[string]any
		if json.Unmarshal(text, &line) != nil || line["max_active_blocks"] == nil {
			return
		}
		session, _ := line["session_id"].(string)
		k := id{session, int64(number(t, line["corr_id"]))}
		limiter, _ := line["limiting_resource"].(string)
		if limiter == "shared_mem" {
			limiter = "shared_memory"
		}
		block, _ := line["block"].(string)
		require.NotContains(t, out, k, "two kernels of one correlation id")
		out[k] = launch{
			blocks: int64(number(t, line["max_active_blocks"])), occupancy: number(t, line["occupancy"]),
			limiter: limiter, block: block,
		}
	})
	return out
}

// number reads a number; some generations quote a few of theirs.
func number(t *testing.T, v any) float64 {
	t.Helper()
	switch v := v.(type) {
	case float64:
		return v
	case string:
		n, err := strconv.ParseFloat(v, 64)
		require.NoError(t, err)
		return n
	default:
		require.Fail(t, "no number", "%v", v)
		return 0
	}
}
