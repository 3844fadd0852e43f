// SPDX-License-Identifier: Apache-2.0

// Package kubernetes_test checks the manifests of this folder without a cluster.
package kubernetes_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, into), name)
}

func TestTheConfigurationIsTheAgents(t *testing.T) {
	here, err := os.ReadFile("agent.yaml")
	require.NoError(t, err)
	there, err := os.ReadFile(filepath.Join("..", "..", "config", "agent.yaml"))
	require.NoError(t, err)
	assert.Equal(t, string(there), string(here), "copy config/agent.yaml here")
}

func TestTheKustomizationNamesAllFiles(t *testing.T) {
	var k struct {
		Resources          []string
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		} `yaml:"configMapGenerator"`
	}
	read(t, "kustomization.yaml", &k)
	require.Len(t, k.ConfigMapGenerator, 1)
	named := append([]string{"kustomization.yaml"}, k.Resources...)
	named = append(named, k.ConfigMapGenerator[0].Files...)
	files, err := filepath.Glob("*.yaml")
	require.NoError(t, err)
	assert.ElementsMatch(t, files, named)
}

// daemonSet has what the tests look at.
type daemonSet struct {
	Kind string
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				HostPID    bool `yaml:"hostPID"`
				Containers []struct {
					Args            []string
					Env             []struct{ Name, Value string }
					SecurityContext struct {
						Privileged               bool
						AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
						ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
						Capabilities             struct{ Drop, Add []string }
					} `yaml:"securityContext"`
					VolumeMounts []struct {
						Name      string
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
				Volumes []struct {
					Name      string
					ConfigMap struct{ Name string } `yaml:"configMap"`
				}
			}
		}
	}
}

func TestTheDaemonSetHasTheLeastThatItNeeds(t *testing.T) {
	var d daemonSet
	read(t, "daemonset.yaml", &d)
	assert.Equal(t, "DaemonSet", d.Kind)
	assert.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels)
	pod := d.Spec.Template.Spec
	assert.True(t, pod.HostPID)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	assert.False(t, c.SecurityContext.Privileged)
	assert.False(t, c.SecurityContext.AllowPrivilegeEscalation)
	assert.True(t, c.SecurityContext.ReadOnlyRootFilesystem)
	assert.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)
	assert.Equal(t, []string{"BPF", "PERFMON", "SYS_PTRACE"}, c.SecurityContext.Capabilities.Add)

	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.Name] = m.MountPath
	}
	require.Len(t, pod.Volumes, len(mounted))
	for _, v := range pod.Volumes {
		assert.Contains(t, mounted, v.Name)
	}
	assert.Equal(t, []string{"--config", mounted["config"] + "/agent.yaml"}, c.Args)
}

// TestTheDaemonSetSetsOnlyWhatTheConfigurationReads: a variable with a typing error would be ignored.
func TestTheDaemonSetSetsOnlyWhatTheConfigurationReads(t *testing.T) {
	var d daemonSet
	read(t, "daemonset.yaml", &d)
	text, err := os.ReadFile("agent.yaml")
	require.NoError(t, err)
	defaults := map[string]string{}
	for _, m := range regexp.MustCompile(`\$\{env:(\w+):-([^}]*)\}`).FindAllStringSubmatch(string(text), -1) {
		defaults[m[1]] = m[2]
	}
	set := 0
	for _, e := range d.Spec.Template.Spec.Containers[0].Env {
		if strings.HasPrefix(e.Name, "GPUFLIGHT_") {
			assert.Contains(t, defaults, e.Name)
			set++
		}
	}
	assert.Equal(t, 6, set)
	for _, m := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
		switch m.Name {
		case "state":
			assert.Equal(t, defaults["GPUFLIGHT_STATE"], m.MountPath)
		case "logs":
			assert.Equal(t, defaults["GPUFLIGHT_LOGS"], m.MountPath)
		}
	}
}

func TestTheNamespaceIsTheOneOfTheKustomization(t *testing.T) {
	var namespace struct {
		Kind     string
		Metadata struct{ Name string }
	}
	var k struct{ Namespace string }
	read(t, "namespace.yaml", &namespace)
	read(t, "kustomization.yaml", &k)
	assert.Equal(t, "Namespace", namespace.Kind)
	assert.Equal(t, namespace.Metadata.Name, k.Namespace)
}
