// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/testing/tmpfs"
)

// TestStore_DiskFull fills the disk of the store. The Collector does not acknowledge what it cannot store, and says
// why. When the disk has space again, it stores the delivery that waits, and each kernel once.
func TestStore_DiskFull(t *testing.T) {
	disk := tmpfs.Mount(t, "16m")
	c := newCollector(t, t.TempDir())
	dir := filepath.Join(disk, "store")
	overlay := filepath.Join(t.TempDir(), "disk.yaml")
	require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil,
		"extensions: {gpu_storage: {backends: {default: {duckdb: {directory: %s}, retention: {min_free: 0}}}}}\n", dir), 0o600))
	c.args[len(c.args)-1] = overlay
	p := c.start()
	conn, err := grpc.NewClient(c.address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	client := ptraceotlp.NewGRPCClient(conn)
	const n = 5000
	deliver := func(i int64, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := client.Export(ctx, ptraceotlp.NewExportRequestFromTraces(kernelTraces(0, i*n, i*n+n)))
		return err
	}
	acknowledged := int64(0)
	for err == nil {
		if err = deliver(acknowledged, 10*time.Second); err == nil {
			acknowledged++
		}
		require.Less(t, acknowledged, int64(1000))
	}
	require.Positive(t, acknowledged)
	assert.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, status.Code(err), "the sender tries again")
	reason := `write session \"session-0\": temporarily unavailable: no space left on the disk of ` + dir
	p.WaitOutput(reason, time.Minute)

	// This delivery waits in the Collector until the disk has space.
	waiting := make(chan error, 1)
	go func() { waiting <- deliver(acknowledged, time.Minute) }()
	time.Sleep(2 * time.Second)
	tmpfs.Resize(t, disk, "256m")
	require.NoError(t, <-waiting)
	for i := range acknowledged + 1 {
		require.NoError(t, deliver(i, time.Minute), "again")
	}
	p.Stop(time.Minute)
	for line := range strings.Lines(p.Output()) {
		if strings.Contains(line, "space") {
			assert.Contains(t, line, reason)
		}
	}
	s, err := duckstore.Open(t.Context(), duckstore.Config{Directory: dir})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close(t.Context())) }()
	info, err := s.Session(t.Context(), "", "session-0")
	require.NoError(t, err)
	assert.Equal(t, (acknowledged+1)*n, info.Counts["ops"])
	assert.Equal(t, (acknowledged+1)*n*kernelNs, info.KernelNs)
	assert.Zero(t, s.Stats().Damaged)
}
