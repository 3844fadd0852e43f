// SPDX-License-Identifier: Apache-2.0

// Package kubernetes_test checks the manifests of this folder without a cluster.
package kubernetes_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
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

func TestConfiguration_CopyOfAgent(t *testing.T) {
	here, err := os.ReadFile("agent.yaml")
	require.NoError(t, err)
	there, err := os.ReadFile(filepath.Join("..", "..", "config", "agent.yaml"))
	require.NoError(t, err)
	assert.Equal(t, string(there), string(here), "copy config/agent.yaml here")
}

type kustomization struct {
	Namespace          string
	Resources          []string
	ConfigMapGenerator []struct {
		Name  string
		Files []string
	} `yaml:"configMapGenerator"`
	Images []struct {
		Name, Digest string
		NewTag       string `yaml:"newTag"`
	}
}

func TestKustomization_NamesAllFiles(t *testing.T) {
	var k kustomization
	read(t, "kustomization.yaml", &k)
	require.Len(t, k.ConfigMapGenerator, 1)
	named := append([]string{"kustomization.yaml"}, k.Resources...)
	named = append(named, k.ConfigMapGenerator[0].Files...)
	files, err := filepath.Glob("*.yaml")
	require.NoError(t, err)
	assert.ElementsMatch(t, files, named)
}

func TestKustomization_ImageByDigest(t *testing.T) {
	var k kustomization
	var d daemonSet
	read(t, "kustomization.yaml", &k)
	read(t, "daemonset.yaml", &d)
	require.Len(t, k.Images, 1)
	assert.Equal(t, d.container(t).Image, k.Images[0].Name)
	assert.Regexp(t, `^sha256:[0-9a-f]{64}$`, k.Images[0].Digest)
	assert.Empty(t, k.Images[0].NewTag)
}

// container has the keys of a container that the tests check.
type container struct {
	Image string
	Args  []string
	Env   []struct{ Name, Value string }
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
		HostPort      int `yaml:"hostPort"`
	}
	Resources       struct{ Requests, Limits map[string]string }
	SecurityContext struct {
		Privileged               bool
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop, Add []string }
		SeccompProfile           struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

// daemonSet has the keys that the tests check.
type daemonSet struct {
	Kind string
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
				HostPID                      bool  `yaml:"hostPID"`
				HostIPC                      bool  `yaml:"hostIPC"`
				HostNetwork                  bool  `yaml:"hostNetwork"`
				InitContainers               []any `yaml:"initContainers"`
				Containers                   []container
				Volumes                      []struct {
					Name      string
					ConfigMap struct{ Name string } `yaml:"configMap"`
					Secret    *struct {
						SecretName  string `yaml:"secretName"`
						DefaultMode int    `yaml:"defaultMode"`
						Optional    bool
					}
				}
			}
		}
	}
}

func (d *daemonSet) container(t *testing.T) container {
	t.Helper()
	require.Len(t, d.Spec.Template.Spec.Containers, 1)
	return d.Spec.Template.Spec.Containers[0]
}

func TestDaemonSet_LeastPrivilege(t *testing.T) {
	var d daemonSet
	read(t, "daemonset.yaml", &d)
	assert.Equal(t, "DaemonSet", d.Kind)
	assert.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels)
	pod := d.Spec.Template.Spec
	assert.True(t, pod.HostPID)
	assert.False(t, pod.HostIPC)
	assert.False(t, pod.HostNetwork)
	require.NotNil(t, pod.AutomountServiceAccountToken, "the default mounts the token of the API server")
	assert.False(t, *pod.AutomountServiceAccountToken)
	assert.Empty(t, pod.InitContainers)
	c := d.container(t)
	assert.False(t, c.SecurityContext.Privileged)
	require.NotNil(t, c.SecurityContext.AllowPrivilegeEscalation, "the default is true")
	assert.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	assert.True(t, c.SecurityContext.ReadOnlyRootFilesystem)
	assert.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)
	assert.Equal(t, []string{"BPF", "PERFMON", "SYS_PTRACE"}, c.SecurityContext.Capabilities.Add)
	assert.Equal(t, "RuntimeDefault", c.SecurityContext.SeccompProfile.Type)
	for _, resource := range []string{"cpu", "memory"} {
		assert.NotEmpty(t, c.Resources.Limits[resource], "no limit on %s", resource)
	}

	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.Name] = m.MountPath
		assert.Equal(t, m.Name != "state", m.ReadOnly, "volume %s", m.Name)
	}
	require.Len(t, pod.Volumes, len(mounted))
	for _, v := range pod.Volumes {
		assert.Contains(t, mounted, v.Name)
	}
	assert.Equal(t, []string{
		"--config", mounted["config"] + "/agent.yaml", "--config", mounted["config"] + "/otlp.yaml",
	}, c.Args)
}

// TestOTLP_NoHostPort checks that no port of the node leads to the agent, and that the Service keeps
// traffic on the node.
func TestOTLP_NoHostPort(t *testing.T) {
	var d daemonSet
	read(t, "daemonset.yaml", &d)
	ports := map[string]int{}
	for _, p := range d.container(t).Ports {
		assert.Zero(t, p.HostPort, "host port of %s", p.Name)
		ports[p.Name] = p.ContainerPort
	}
	assert.Equal(t, map[string]int{"otlp-grpc": 4317, "otlp-http": 4318, "health": 13133, "metrics": 8888}, ports)

	var service struct {
		Kind string
		Spec struct {
			Type                  string
			Selector              map[string]string
			InternalTrafficPolicy string   `yaml:"internalTrafficPolicy"`
			ExternalIPs           []string `yaml:"externalIPs"`
			Ports                 []struct {
				Name       string
				TargetPort string `yaml:"targetPort"`
				Port       int
				NodePort   int `yaml:"nodePort"`
			}
		}
	}
	read(t, "service.yaml", &service)
	assert.Equal(t, "Service", service.Kind)
	assert.Contains(t, []string{"", "ClusterIP"}, service.Spec.Type)
	assert.Equal(t, "Local", service.Spec.InternalTrafficPolicy)
	assert.Empty(t, service.Spec.ExternalIPs)
	assert.Equal(t, d.Spec.Template.Metadata.Labels, service.Spec.Selector)
	require.Len(t, service.Spec.Ports, 2)
	for _, p := range service.Spec.Ports {
		assert.Contains(t, []string{"otlp-grpc", "otlp-http"}, p.Name)
		assert.Equal(t, p.Name, p.TargetPort)
		assert.Equal(t, ports[p.Name], p.Port)
		assert.Zero(t, p.NodePort)
	}
}

func TestNetworkPolicy_OnlyLabelledNamespaces(t *testing.T) {
	var d daemonSet
	read(t, "daemonset.yaml", &d)
	var policy struct {
		Kind string
		Spec struct {
			PodSelector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"podSelector"`
			PolicyTypes []string `yaml:"policyTypes"`
			Ingress     []struct {
				From []struct {
					NamespaceSelector struct {
						MatchLabels map[string]string `yaml:"matchLabels"`
					} `yaml:"namespaceSelector"`
					IPBlock any `yaml:"ipBlock"`
				}
				Ports []struct{ Port string }
			}
		}
	}
	read(t, "networkpolicy.yaml", &policy)
	assert.Equal(t, "NetworkPolicy", policy.Kind)
	assert.Equal(t, d.Spec.Template.Metadata.Labels, policy.Spec.PodSelector.MatchLabels)
	assert.Equal(t, []string{"Ingress"}, policy.Spec.PolicyTypes)
	open := map[string]string{}
	for _, rule := range policy.Spec.Ingress {
		require.Len(t, rule.From, 1, "a rule without a source admits everybody")
		require.Len(t, rule.From[0].NamespaceSelector.MatchLabels, 1, "an empty selector admits every namespace")
		assert.Nil(t, rule.From[0].IPBlock)
		require.NotEmpty(t, rule.Ports, "a rule without ports opens all")
		for label := range rule.From[0].NamespaceSelector.MatchLabels {
			for _, p := range rule.Ports {
				open[p.Port] = label
			}
		}
	}
	assert.Equal(t, map[string]string{
		"otlp-grpc": "gpuflight-otlp", "otlp-http": "gpuflight-otlp", "metrics": "gpuflight-metrics",
	}, open)
}

// TestOTLP_TokenOfTheSecret checks that each protocol of OTLP asks for a token, and that the file with
// the token is the Secret's.
func TestOTLP_TokenOfTheSecret(t *testing.T) {
	type protocol struct {
		Auth struct{ Authenticator string }
	}
	var agent, overlay struct {
		Receivers struct {
			OTLP struct{ Protocols map[string]protocol }
		}
		Extensions map[string]map[string]any
		Service    struct{ Extensions []string }
	}
	read(t, "agent.yaml", &agent)
	read(t, "otlp.yaml", &overlay)
	require.Len(t, agent.Receivers.OTLP.Protocols, 2)
	for name := range agent.Receivers.OTLP.Protocols {
		assert.Equal(t, "bearertokenauth", overlay.Receivers.OTLP.Protocols[name].Auth.Authenticator, name)
	}
	assert.ElementsMatch(t, append(agent.Service.Extensions, "bearertokenauth"), overlay.Service.Extensions)

	var d daemonSet
	read(t, "daemonset.yaml", &d)
	for _, m := range d.container(t).VolumeMounts {
		if m.Name == "token" {
			assert.Equal(t, "${env:GPUFLIGHT_TOKEN_FILE:-"+m.MountPath+"/token}", overlay.Extensions["bearertokenauth"]["filename"])
		}
	}
	found := false
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.Name == "token" {
			found = true
			require.NotNil(t, v.Secret)
			assert.Equal(t, 0o400, v.Secret.DefaultMode)
			assert.False(t, v.Secret.Optional, "without a Secret the agent would start without a token")
		}
	}
	assert.True(t, found)
}

// TestDaemonSet_VariablesOfTheConfiguration finds a variable with a typing error, which would be ignored.
func TestDaemonSet_VariablesOfTheConfiguration(t *testing.T) {
	var d daemonSet
	read(t, "daemonset.yaml", &d)
	text, err := os.ReadFile("agent.yaml")
	require.NoError(t, err)
	defaults := map[string]string{}
	for _, m := range regexp.MustCompile(`\$\{env:(\w+)(?::-([^}]*))?\}`).FindAllStringSubmatch(string(text), -1) {
		defaults[m[1]] = m[2]
	}
	set := 0
	c := d.container(t)
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "GPUFLIGHT_") {
			assert.Contains(t, defaults, e.Name)
			set++
		}
	}
	assert.Equal(t, 6, set)
	for _, m := range c.VolumeMounts {
		switch m.Name {
		case "state":
			assert.Equal(t, defaults["GPUFLIGHT_STATE"], m.MountPath)
		case "logs":
			assert.Equal(t, defaults["GPUFLIGHT_LOGS"], m.MountPath)
		}
	}
}

func TestNamespace_OfTheKustomization(t *testing.T) {
	var namespace struct {
		Kind     string
		Metadata struct{ Name string }
	}
	var k kustomization
	read(t, "namespace.yaml", &namespace)
	read(t, "kustomization.yaml", &k)
	assert.Equal(t, "Namespace", namespace.Kind)
	assert.Equal(t, namespace.Metadata.Name, k.Namespace)
}

// TestKubectl_Kustomize builds the manifests as `kubectl apply -k` does.
func TestKubectl_Kustomize(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl on PATH")
	}
	out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", ".").Output()
	require.NoError(t, err)
	var kinds []string
	for d := yaml.NewDecoder(bytes.NewReader(out)); ; {
		var object struct{ Kind string }
		if err := d.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		kinds = append(kinds, object.Kind)
	}
	assert.ElementsMatch(t, []string{"Namespace", "ConfigMap", "Service", "DaemonSet", "NetworkPolicy"}, kinds)
	assert.Regexp(t, `(?m)^ +image: \S+@sha256:[0-9a-f]{64}$`, string(out))
}
