// SPDX-License-Identifier: Apache-2.0

package export_test

import (
	"context"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/store/storetest"
	"github.com/gpuflight/gpuflight/internal/traceexport"
)

// heap counts bytes and keeps the largest heap after a collection, read each 16 MiB.
type heap struct{ bytes, next, peak int64 }

func (h *heap) Write(b []byte) (int, error) {
	if h.bytes += int64(len(b)); h.bytes >= h.next {
		h.next = h.bytes + 16<<20
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		h.peak = max(h.peak, int64(m.HeapAlloc))
	}
	return len(b), nil
}

// TestExport_Memory exports two sessions of which one has ten times the kernels. The heap must not
// grow with them.
func TestExport_Memory(t *testing.T) {
	if os.Getenv("GPUFLIGHT_SOAK") != "1" {
		t.Skip("a minute or more: set GPUFLIGHT_SOAK=1")
	}
	ctx := context.Background()
	var peaks [2][2]int64
	for i, kernels := range []int64{200_000, 2_000_000} {
		s, err := duckstore.Open(ctx, duckstore.Config{Directory: t.TempDir()})
		require.NoError(t, err)
		g := storetest.NewTraining(0)
		for n := int64(0); n < kernels; {
			r, err := s.Write(ctx, []*store.Batch{g.Rows(50_000)})
			require.NoError(t, err)
			n += r.Written + r.Deferred
		}
		list, err := s.Sessions(ctx, store.SessionQuery{})
		require.NoError(t, err)
		q := traceexport.Query{Session: list[0].ID}
		for f, export := range []func(context.Context, store.Reader, traceexport.Query, io.Writer) error{traceexport.Perfetto, traceexport.Chrome} {
			var h heap
			began := time.Now()
			require.NoError(t, export(ctx, s, q, &h))
			t.Logf("format %d, %d kernels: %v, %d MB, heap %d MB", f, list[0].Operations[store.OpKernel], time.Since(began), h.bytes>>20, h.peak>>20)
			peaks[i][f] = h.peak
		}
		require.NoError(t, s.Close(ctx))
	}
	for f := range peaks[0] {
		assert.Less(t, peaks[1][f], peaks[0][f]+64<<20)
	}
}
