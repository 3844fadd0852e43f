// SPDX-License-Identifier: Apache-2.0

// Package systemd_test checks the unit of this folder without installing it.
package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const unit = "otelcol-gpuflight.service"

// settings are the unit's by section and key.
func settings(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(unit)
	require.NoError(t, err)
	out, section := map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		require.True(t, ok, line)
		require.NotContains(t, out, section+"."+key)
		out[section+"."+key] = value
	}
	return out
}

func TestTheUnitHasTheLeastThatItNeeds(t *testing.T) {
	s := settings(t)
	const capabilities = "CAP_BPF CAP_PERFMON CAP_SYS_PTRACE"
	assert.Equal(t, capabilities, s["Service.AmbientCapabilities"])
	assert.Equal(t, capabilities, s["Service.CapabilityBoundingSet"])
	assert.Equal(t, "yes", s["Service.NoNewPrivileges"])
	assert.Equal(t, "yes", s["Service.DynamicUser"])
	assert.Equal(t, "strict", s["Service.ProtectSystem"])
	assert.Equal(t, "multi-user.target", s["Install.WantedBy"])
	for _, key := range []string{"PrivateDevices", "ProtectProc", "PrivateUsers", "ProcSubset"} {
		assert.NotContains(t, s, "Service."+key, "it would hide GPUs or processes")
	}
}

func TestTheStateIsWhereTheAgentKeepsIt(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "agent.yaml"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "${env:GPUFLIGHT_STATE:-/var/lib/"+settings(t)["Service.StateDirectory"]+"}")
}

func TestSystemdTakesTheUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze here")
	}
	// systemd wants the program to be there; the unit's own is not installed where tests run.
	text, err := os.ReadFile(unit)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), unit)
	changed := strings.Replace(string(text), "ExecStart=otelcol-gpuflight", "ExecStart="+exe, 1)
	require.NotEqual(t, string(text), changed)
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), unit+":", "warnings of unknown or wrong settings name the unit")
}
