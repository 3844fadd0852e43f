// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

func TestStop_SIGTERMFirst(t *testing.T) {
	p := process.Start(t, "/bin/sh", "-c", `trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done`)
	p.WaitOutput("up", 10*time.Second)
	assert.True(t, p.Running())
	p.Stop(10 * time.Second)
	assert.False(t, p.Running())
	assert.Equal(t, "up\ntold\n", p.Output())
}

func TestKill_IgnoredSIGTERM(t *testing.T) {
	p := process.Start(t, "/bin/sh", "-c", `trap '' TERM; echo up; while :; do sleep 0.01; done`)
	p.WaitOutput("up", 10*time.Second)
	p.Kill()
	assert.False(t, p.Running())
}

func TestOutput_LastPart(t *testing.T) {
	p := process.Start(t, "/bin/sh", "-c", `i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exec sleep 60`)
	p.WaitOutput("line 19999\n", 30*time.Second)
	out := p.Output()
	assert.LessOrEqual(t, len(out), 32<<10)
	assert.True(t, strings.HasPrefix(out, "line "), "cut at a line's end")
	assert.True(t, strings.HasSuffix(out, "line 19999\n"))
	p.Kill()
}

func TestFind_EnvironmentFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "collector")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("GPUFLIGHT_COLLECTOR", path)
	assert.Equal(t, path, process.Collector.Find(t))
}

func TestMissing_Required(t *testing.T) {
	t.Setenv("GPUFLIGHT_REQUIRE", "")
	t.Setenv("GPUFLIGHT_COLLECTOR", filepath.Join(t.TempDir(), "none"))
	skipped := false
	t.Run("missing binary", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		process.Collector.Find(t)
	})
	assert.True(t, skipped)
}

func TestFreePort_OnceOutsideDynamicRange(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	require.NoError(t, err)
	var first, last int
	_, err = fmt.Sscan(string(text), &first, &last)
	require.NoError(t, err)
	if first < 22_000 {
		t.Skip("this kernel gives out nearly all ports: ", string(text))
	}
	seen := map[string]bool{}
	for range 200 {
		address := process.FreePort(t)
		assert.False(t, seen[address], address)
		seen[address] = true
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		assert.Less(t, n, first)
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}
