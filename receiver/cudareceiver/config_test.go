// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/identity"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
)

func TestTheDefaultsAreValid(t *testing.T) {
	c := config()
	require.NoError(t, c.Validate())
	assert.Equal(t, 10*time.Second, c.CollectionInterval)
	assert.Equal(t, 200, c.TopKernels)
	assert.Zero(t, c.LaunchSampling)
	assert.True(t, c.NCCL)
	assert.Equal(t, probe.SourceAuto, c.Source)
	assert.Equal(t, 30*time.Second, c.RescanInterval)
}

func TestAWholeConfiguration(t *testing.T) {
	c := config()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{
		"collection_interval": "5s", "top_kernels": 10, "strip_templates": true, "launch_sampling": 100, "nccl": false, "source": "runtime",
		"include":         map[string]any{"pids": []any{1}, "cgroups": []any{"/kubepods.slice"}, "executables": []any{"python*"}},
		"exclude":         map[string]any{"executables": []any{"dcgm*"}},
		"rescan_interval": "1m", "max_processes": 8, "root_path": "/hostfs", "host_name": "n",
	}).Unmarshal(c))
	require.NoError(t, c.Validate())
	want := config()
	want.CollectionInterval = 5 * time.Second
	want.TopKernels, want.StripTemplates, want.LaunchSampling = 10, true, 100
	want.NCCL, want.Source = false, probe.SourceRuntime
	want.Include = ProcessesConfig{PIDs: []int32{1}, Cgroups: []string{"/kubepods.slice"}, Executables: []string{"python*"}}
	want.Exclude = ProcessesConfig{Executables: []string{"dcgm*"}}
	want.RescanInterval, want.MaxProcesses, want.RootPath, want.HostName = time.Minute, 8, "/hostfs", "n"
	assert.Equal(t, want, c)
}

func TestConfig_InvalidSettings(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"top_kernels is -1: set 0 to have no kernel names, or a number above":                                         func(c *Config) { c.TopKernels = -1 },
		"launch_sampling is -2: set 0 to measure no launches, or N for one of N":                                      func(c *Config) { c.LaunchSampling = -2 },
		`source is "cudart": set auto, driver or runtime`:                                                             func(c *Config) { c.Source = "cudart" },
		"rescan_interval is 1ms: set 1s or more":                                                                      func(c *Config) { c.RescanInterval = time.Millisecond },
		"max_processes is 0: it must be positive":                                                                     func(c *Config) { c.MaxProcesses = 0 },
		`root_path is "x": it must be absolute, for example /hostfs`:                                                  func(c *Config) { c.RootPath = "x" },
		"include.pids has 0: process ids must be positive":                                                            func(c *Config) { c.Include.PIDs = []int32{0} },
		`exclude.cgroups has "a": give a glob on a path, such as "/kubepods.slice" or "/system.slice/docker-*.scope"`: func(c *Config) { c.Exclude.Cgroups = []string{"a"} },
		`include.executables has "[": give a glob on a name without folders, such as "python*"`:                       func(c *Config) { c.Include.Executables = []string{"["} },
		`include.executables has "/bin/x": give a glob on a name without folders, such as "python*"`:                  func(c *Config) { c.Include.Executables = []string{"/bin/x"} },
	} {
		c := config()
		change(c)
		assert.EqualError(t, c.Validate(), want)
	}
}

func TestSelection(t *testing.T) {
	python := &identity.Process{PID: 7, Executable: "python3", Cgroup: "/kubepods.slice/pod1.slice/cri-1.scope"}
	unknown := &identity.Process{PID: 8}
	for name, c := range map[string]struct {
		include, exclude ProcessesConfig
		python, unknown  bool
	}{
		"all":                        {ProcessesConfig{}, ProcessesConfig{}, true, true},
		"by process id":              {ProcessesConfig{PIDs: []int32{8}}, ProcessesConfig{}, false, true},
		"by executable":              {ProcessesConfig{Executables: []string{"python?"}}, ProcessesConfig{}, true, false},
		"by any of the lists":        {ProcessesConfig{PIDs: []int32{8}, Executables: []string{"python?"}}, ProcessesConfig{}, true, true},
		"by a group above":           {ProcessesConfig{Cgroups: []string{"/kubepods*"}}, ProcessesConfig{}, true, false},
		"by its own group":           {ProcessesConfig{Cgroups: []string{"/*/pod1.slice/cri-*"}}, ProcessesConfig{}, true, false},
		"by a group that is another": {ProcessesConfig{Cgroups: []string{"/system.slice"}}, ProcessesConfig{}, false, false},
		"all but one":                {ProcessesConfig{}, ProcessesConfig{PIDs: []int32{7}}, false, true},
		"excluded counts more":       {ProcessesConfig{PIDs: []int32{7}}, ProcessesConfig{Executables: []string{"py*"}}, false, false},
	} {
		cfg := config()
		cfg.Include, cfg.Exclude = c.include, c.exclude
		require.NoError(t, cfg.Validate(), name)
		assert.Equal(t, c.python, cfg.selects(python), name)
		assert.Equal(t, c.unknown, cfg.selects(unknown), name)
	}
}
