// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"debug/buildinfo"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestAgent_NoStore checks that the agent is the Collector without the store.
func TestAgent_NoStore(t *testing.T) {
	duckdb := func(binary string) bool {
		info, err := buildinfo.ReadFile(binary)
		require.NoError(t, err)
		for _, m := range info.Deps {
			if strings.HasPrefix(m.Path, "github.com/duckdb/") {
				return true
			}
		}
		return false
	}
	assert.True(t, duckdb(collector.Find(t)))
	assert.False(t, duckdb(process.Agent.Find(t)))
	run(t, t.TempDir(), process.Agent.Find(t), "validate", "--config", filepath.Join(process.Root(t), "config", "agent.yaml"))
}

func TestAgent_Manifest(t *testing.T) {
	_, own := readManifest(t, "builder-agent.yaml")
	_, full := readManifest(t, "builder-config.yaml")
	want := slices.DeleteFunc(full.entries(), func(e entry) bool {
		return strings.Contains(e.GoMod, "/gpustorage") || strings.Contains(e.GoMod, "/gpuquery")
	})
	assert.Equal(t, want, own.entries())
}

// TestKubernetes_Manifest checks that the image's Collector is the Collector with three more
// components. No test builds it: that takes minutes.
func TestKubernetes_Manifest(t *testing.T) {
	_, own := readManifest(t, "builder-k8s.yaml")
	_, full := readManifest(t, "builder-config.yaml")
	var more []string
	rest := slices.DeleteFunc(own.entries(), func(e entry) bool {
		path, _, _ := strings.Cut(e.GoMod, " ")
		name := path[strings.LastIndexByte(path, '/')+1:]
		if !slices.Contains([]string{"k8sattributesprocessor", "resourcedetectionprocessor", "loadbalancingexporter"}, name) {
			return false
		}
		more = append(more, name)
		return true
	})
	assert.Equal(t, full.entries(), rest)
	assert.Equal(t, full.Replaces, own.Replaces)
	assert.Len(t, more, 3)
}
