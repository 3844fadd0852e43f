// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/metadata"
)

// BenchmarkRaw reads a session as raw lines.
func BenchmarkRaw(b *testing.B) {
	dir := b.TempDir()
	_, err := gpuflgen.Run(b.Context(), gpuflgen.Config{Dir: dir, App: "raw", Seed: 1, Kernels: 20_000, Layers: 4})
	require.NoError(b, err)
	var size int64
	process.Lines(b, dir, func(_ string, line []byte) { size += int64(len(line)) + 1 })
	b.SetBytes(size)
	for b.Loop() {
		var got atomic.Int64
		next, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error {
			for _, rl := range ld.ResourceLogs().All() {
				for _, record := range rl.ScopeLogs().At(0).LogRecords().All() {
					got.Add(int64(len(record.Body().Str())) + 1)
				}
			}
			return nil
		})
		require.NoError(b, err)
		f := NewFactory()
		cfg := f.CreateDefaultConfig().(*Config)
		cfg.Include, cfg.Raw, cfg.PollInterval = []string{dir}, true, time.Millisecond
		r, err := f.CreateLogs(b.Context(), receivertest.NewNopSettings(metadata.Type), cfg, next)
		require.NoError(b, err)
		require.NoError(b, r.Start(b.Context(), host{}))
		for end := time.Now().Add(time.Minute); got.Load() < size; time.Sleep(time.Millisecond) {
			require.True(b, time.Now().Before(end), "%d of %d bytes", got.Load(), size)
		}
		require.NoError(b, r.Shutdown(context.Background()))
		require.Equal(b, size, got.Load())
	}
}
