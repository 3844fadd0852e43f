// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package peers

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// allowed skips the test if an attachment failed because eBPF is unavailable.
func allowed(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("needs eBPF: ", err)
	}
	require.NoError(t, err)
}

func calling(t *testing.T) (*stubcuda.Libraries, *stubcuda.Program) {
	t.Helper()
	l := stubcuda.Build(t)
	p := l.Start(t)
	p.Must("open %s", l.Library)
	p.Must("threads 4")
	return l, p
}

func launch(p *stubcuda.Program) (calls uint64) {
	p.Must("launch 10000 1 8 256")
	p.Must("launchex 5000 1 8 256")
	p.Must("copy cuMemcpyHtoDAsync_v2 100 4096")
	return 60_000
}

func TestCounting_Launches(t *testing.T) {
	l, p := calling(t)
	c, err := AttachCounting(l.Library)
	allowed(t, err)
	want := launch(p)
	got, err := c.Calls()
	require.NoError(t, err)
	assert.Equal(t, want, got)
	require.NoError(t, c.Close())
	launch(p)
}

func TestRing_EventPerLaunch(t *testing.T) {
	for _, wake := range []bool{true, false} {
		l, p := calling(t)
		r, err := AttachRing(l.Library, 8<<20, wake)
		allowed(t, err)
		want := launch(p)
		assert.Eventually(t, func() bool { return r.Received() == want }, time.Minute, 10*time.Millisecond, wake)
		lost, err := r.Lost()
		require.NoError(t, err)
		assert.Zero(t, lost)
		require.NoError(t, r.Close())
	}
}

func TestRing_BufferFull(t *testing.T) {
	l, p := calling(t)
	r, err := AttachRing(l.Library, uint32(os.Getpagesize()), false)
	allowed(t, err)
	want := launch(p)
	lost, err := r.Lost()
	require.NoError(t, err)
	assert.Positive(t, lost)
	assert.Eventually(t, func() bool { return r.Received()+lost == want }, time.Minute, 10*time.Millisecond)
	require.NoError(t, r.Close())
}

func TestAttach_InvalidLibrary(t *testing.T) {
	_, err := AttachCounting("/proc/self/exe")
	require.Error(t, err)
	_, err = AttachRing("/nonexistent", 4096, true)
	require.Error(t, err)
}
