// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testsink/process"
)

func TestStopSendsSIGTERMFirst(t *testing.T) {
	p := process.Start(t, "/bin/sh", "-c", `trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done`)
	p.WaitOutput("up", 10*time.Second)
	assert.True(t, p.Running())
	p.Stop(10 * time.Second)
	assert.False(t, p.Running())
	assert.Equal(t, "up\ntold\n", p.Output())
}

func TestKillEndsWhatDoesNotListen(t *testing.T) {
	p := process.Start(t, "/bin/sh", "-c", `trap '' TERM; echo up; while :; do sleep 0.01; done`)
	p.WaitOutput("up", 10*time.Second)
	p.Kill()
	assert.False(t, p.Running())
}

func TestOutputKeepsTheEnd(t *testing.T) {
	p := process.Start(t, "/bin/sh", "-c", `i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exec sleep 60`)
	p.WaitOutput("line 19999\n", 30*time.Second)
	out := p.Output()
	assert.LessOrEqual(t, len(out), 32<<10)
	assert.True(t, strings.HasPrefix(out, "line "), "cut at a line's end")
	assert.True(t, strings.HasSuffix(out, "line 19999\n"))
	p.Kill()
}

func TestFindTakesTheEnvironmentFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "collector")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("GPUFLIGHT_COLLECTOR", path)
	assert.Equal(t, path, process.Collector.Find(t))
}

func TestMissingSkipsOnlyWhereNothingIsRequired(t *testing.T) {
	t.Setenv("GPUFLIGHT_REQUIRE", "")
	t.Setenv("GPUFLIGHT_COLLECTOR", filepath.Join(t.TempDir(), "none"))
	skipped := false
	t.Run("binary that is not there", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		process.Collector.Find(t)
	})
	assert.True(t, skipped)
}
