// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// The sizes of sessions in kernels. There are few sizes, so that tests share sessions.
const (
	some int64 = 5_000
	few  int64 = 20_000
	// most is large enough for faults in the middle of the work.
	most int64 = 60_000
)

// scratch is a folder for data that several tests share.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (status int) {
	dir, err := os.MkdirTemp("", "gpuflight-fleet-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	scratch = dir
	status = m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

// session is a generated session and the result of an undisturbed run. Tests share it and must not
// change its folder.
type session struct {
	logs string
	want *testsink.Store
}

var sessions struct {
	sync.Mutex
	byKernels map[int64]*sharedSession
}

type sharedSession struct {
	sync.Mutex
	session
}

// sessionOf returns the session of the given number of kernels and creates it at the first call.
func sessionOf(t *testing.T, kernels int64) session {
	t.Helper()
	sessions.Lock()
	if sessions.byKernels == nil {
		sessions.byKernels = map[int64]*sharedSession{}
	}
	s, ok := sessions.byKernels[kernels]
	if !ok {
		s = &sharedSession{}
		sessions.byKernels[kernels] = s
	}
	sessions.Unlock()

	s.Lock()
	defer s.Unlock()
	if s.want == nil {
		// After a failure, the next call retries in a new folder.
		dir, err := os.MkdirTemp(scratch, strconv.FormatInt(kernels, 10)+"-")
		require.NoError(t, err)
		generate(t, dir, "fleet", 8, kernels)
		s.logs, s.want = dir, undisturbed(t, kernels, dir)
	}
	return s.session
}

// generate writes a session of the given number of kernels, which app and seed make unique.
func generate(t *testing.T, dir, app string, seed uint64, kernels int64) {
	t.Helper()
	summary, err := gpuflgen.Run(t.Context(), gpuflgen.Config{
		Dir: dir, App: app, Seed: seed, Kernels: kernels, Layers: 2, StackBytes: 200, DistinctStacks: 20,
		RotateBytes: 4 << 20,
	})
	require.NoError(t, err)
	require.Equal(t, kernels, summary.Rows[gpuflgen.RowKernel])
}

// undisturbed reads logs once, directly into a backend, and returns the result. It waits for the
// given number of kernels, and then until no more data arrives and the receiver has nothing to
// retry.
func undisturbed(t *testing.T, kernels int64, logs ...string) *testsink.Store {
	t.Helper()
	store, server := process.Sink(t, keys...)
	p := process.CollectorConfig{Include: logs, Endpoint: server.Endpoint()}.Start(t)
	require.True(t, store.Settle(2*time.Second, pick(5*time.Minute, 20*time.Minute), func() bool {
		out := p.Output()
		waiting := strings.LastIndex(out, "data not accepted") > strings.LastIndex(out, "data accepted after retries")
		return !waiting && operations(store)["kernel"] >= kernels
	}), "%v of %d kernels came", operations(store), kernels)
	p.Stop(20 * time.Second)
	return store
}

// operations counts the spans of a store by operation.
func operations(store *testsink.Store) map[string]int64 {
	n := map[string]int64{}
	for _, sp := range store.Spans() {
		if operation, ok := sp.Attrs["cuda.operation"].(string); ok {
			n[operation]++
		}
	}
	return n
}

// copied returns a copy of a session's folder that the caller may change.
func (s session) copied(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "logs")
	require.NoError(t, os.CopyFS(dir, os.DirFS(s.logs)))
	return dir
}
