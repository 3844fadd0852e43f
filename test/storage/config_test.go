// SPDX-License-Identifier: Apache-2.0

//go:build linux

package storage_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// only returns settings that restrict each pipeline of a configuration to the given receivers and
// the connectors that it reads from. A pipeline without any of them gets the first receiver.
func only(config []byte, receivers []string) map[string]any {
	var parsed struct {
		Connectors map[string]any `yaml:"connectors"`
		Service    struct {
			Pipelines map[string]struct {
				Receivers []string `yaml:"receivers"`
			} `yaml:"pipelines"`
		} `yaml:"service"`
	}
	if err := yaml.Unmarshal(config, &parsed); err != nil {
		panic(err)
	}
	pipelines := map[string]any{}
	for name, p := range parsed.Service.Pipelines {
		keep := slices.DeleteFunc(p.Receivers, func(r string) bool {
			_, connector := parsed.Connectors[r]
			return !connector && !slices.Contains(receivers, r)
		})
		if len(keep) == 0 {
			keep = receivers[:1]
		}
		pipelines[name] = map[string]any{"receivers": keep}
	}
	overlay := map[string]any{"service": map[string]any{"pipelines": pipelines}}
	if slices.Contains(receivers, "otlp") {
		overlay["receivers"] = map[string]any{"otlp": map[string]any{"protocols": map[string]any{
			"grpc": map[string]any{"endpoint": "${env:GPUFLIGHT_LISTEN}"},
		}}}
	}
	return overlay
}

// TestShippedConfigs_FSync finds each configuration with a storage, so that the tests of this
// package cover all of them. None may disable the default that the documentation promises.
func TestShippedConfigs_FSync(t *testing.T) {
	found := 0
	for _, pattern := range []string{"config/*.yaml", "examples/*/*.yaml"} {
		paths, err := filepath.Glob(filepath.Join(process.Root(t), pattern))
		require.NoError(t, err)
		for _, path := range paths {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			text := string(b)
			if !strings.Contains(text, "file_storage:") && !strings.Contains(text, "file_storage/") {
				continue
			}
			assert.NotContains(t, text, "fsync: false", path)
			if strings.HasPrefix(pattern, "config") {
				found++
				assert.Contains(t, shipped, filepath.Base(path))
			}
		}
	}
	assert.Len(t, shipped, found)
}
