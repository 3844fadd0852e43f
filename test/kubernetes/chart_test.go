// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	chartvalues "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpuflight/gpuflight/internal/apikey"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

const (
	chartDir  = "../../charts/gpuflight"
	release   = "gpuflight"
	namespace = "gpus"
)

// decode reads a stream of YAML objects. Unknown fields, repeated fields and unknown kinds are errors.
func decode(t *testing.T, text string) (objects []runtime.Object) {
	t.Helper()
	known := runtime.NewScheme()
	require.NoError(t, scheme.AddToScheme(known))
	require.NoError(t, monitoring.AddToScheme(known))
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	for r := yamlstream.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		require.NoError(t, err)
		if len(bytes.TrimSpace(regexp.MustCompile(`(?m)^#.*$`).ReplaceAll(document, nil))) == 0 {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		require.NoError(t, err, "%s", document)
		objects = append(objects, object)
	}
}

// render renders the chart with values as `helm template` does.
func render(t *testing.T, values map[string]any) ([]runtime.Object, error) {
	t.Helper()
	chart, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	options := common.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true, Revision: 1}
	all, err := chartvalues.ToRenderValues(chart, values, options, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			objects = append(objects, decode(t, text)...)
		}
	}
	return objects, nil
}

// load renders the chart with one of its files of values.
func load(t *testing.T, name string) []runtime.Object {
	t.Helper()
	values, err := common.ReadValuesFile(filepath.Join(chartDir, "ci", name+"-values.yaml"))
	require.NoError(t, err)
	objects, err := render(t, values)
	require.NoError(t, err)
	return objects
}

// get returns the object of a type with a name, or nil.
func get[T runtime.Object](objects []runtime.Object, name string) (found T) {
	for _, o := range objects {
		if object, ok := o.(T); ok && any(o).(interface{ GetName() string }).GetName() == name {
			return object
		}
	}
	return found
}

// names returns kinds and names of objects.
func names(objects []runtime.Object) (all []string) {
	for _, o := range objects {
		all = append(all, o.GetObjectKind().GroupVersionKind().Kind+"/"+any(o).(interface{ GetName() string }).GetName())
	}
	return all
}

var agentObjects = []string{"DaemonSet/gpuflight-agent", "ConfigMap/gpuflight-agent", "ServiceAccount/gpuflight-agent"}

var gatewayObjects = []string{
	"StatefulSet/gpuflight-gateway", "ConfigMap/gpuflight-gateway", "Service/gpuflight-gateway", "ServiceAccount/gpuflight-gateway",
}

// wanted lists the objects of each file of values.
var wanted = map[string][]string{
	"default": slices.Concat(agentObjects, gatewayObjects, []string{
		"Secret/gpuflight-keys", "PriorityClass/gpus-gpuflight-agent", "Service/gpuflight-agent",
		"NetworkPolicy/gpuflight-agent", "NetworkPolicy/gpuflight-gateway",
	}),
	"ebpf": slices.Concat(agentObjects, gatewayObjects, []string{
		"Secret/gpuflight-keys", "PriorityClass/gpus-gpuflight-agent", "Service/gpuflight-agent",
		"NetworkPolicy/gpuflight-agent", "NetworkPolicy/gpuflight-gateway",
		"PodMonitor/gpuflight-agent", "PodMonitor/gpuflight-gateway", "PrometheusRule/gpuflight",
		"ClusterRole/gpus-gpuflight-gateway", "ClusterRoleBinding/gpus-gpuflight-gateway",
	}),
	"restricted": slices.Concat(agentObjects, []string{"NetworkPolicy/gpuflight-agent"}),
	"clickhouse": slices.Concat(agentObjects, gatewayObjects, []string{
		"PriorityClass/gpus-gpuflight-agent", "Service/gpuflight-agent", "NetworkPolicy/gpuflight-agent", "NetworkPolicy/gpuflight-gateway",
	}),
	"mixed": slices.Concat(agentObjects, gatewayObjects, []string{
		"Secret/gpuflight-keys", "PriorityClass/gpus-gpuflight-agent", "Service/gpuflight-agent",
		"PodMonitor/gpuflight-agent", "PodMonitor/gpuflight-gateway",
	}),
}

// each runs a test with each file of values.
func each(t *testing.T, test func(t *testing.T, name string, objects []runtime.Object)) {
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*-values.yaml"))
	require.NoError(t, err)
	require.Len(t, files, len(wanted))
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), "-values.yaml")
		t.Run(name, func(t *testing.T) { test(t, name, load(t, name)) })
	}
}

func TestChart_Objects(t *testing.T) {
	each(t, func(t *testing.T, name string, objects []runtime.Object) {
		assert.ElementsMatch(t, wanted[name], names(objects))
	})
}

func TestChart_Lint(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*-values.yaml"))
	require.NoError(t, err)
	for _, file := range files {
		values, err := common.ReadValuesFile(file)
		require.NoError(t, err)
		for _, m := range lint.RunAll(chartDir, values, namespace).Messages {
			assert.Less(t, m.Severity, support.WarningSev, "%s: %s", filepath.Base(file), m)
		}
	}
}

// TestChart_Package checks that a package has the configurations and rules of the repository, which are
// links in the chart's folder.
func TestChart_Package(t *testing.T) {
	chart, err := loader.LoadDir(chartDir)
	require.NoError(t, err)
	path, err := chartutil.Save(chart, t.TempDir())
	require.NoError(t, err)
	packaged, err := loader.LoadFile(path)
	require.NoError(t, err)
	got := map[string]string{}
	for _, f := range packaged.Files {
		got[f.Name] = string(f.Data)
	}
	for name, source := range map[string]string{
		"files/agent.yaml": "config/agent.yaml", "files/agent-prometheus.yaml": "config/agent-prometheus.yaml",
		"files/gateway.yaml": "config/gateway.yaml", "files/rules.yml": "examples/grafana/rules.yml",
	} {
		want, err := os.ReadFile(filepath.Join("..", "..", source))
		require.NoError(t, err)
		assert.Equal(t, string(want), got[name], name)
	}
	_, ok := got["ci/default-values.yaml"]
	assert.False(t, ok)
}

func TestChart_Errors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values map[string]any
		want   string
	}{
		{"no backend", map[string]any{"gateway": map[string]any{"enabled": false}}, "agent.endpoint is empty and gateway.enabled is false"},
		{"two writers of DuckDB", map[string]any{"gateway": map[string]any{"replicas": 2}}, "DuckDB has one writer"},
		{"no ClickHouse", map[string]any{"gateway": map[string]any{"store": "clickhouse"}}, "gateway.clickhouse.endpoint is empty"},
		{"rules without metrics", map[string]any{"prometheusRule": map[string]any{"enabled": true}}, "prometheusRule.enabled needs podMonitor.enabled"},
		{"unknown value", map[string]any{"agent": map[string]any{"ebpf": true}}, "additional properties 'ebpf' not allowed"},
		{"unknown store", map[string]any{"gateway": map[string]any{"store": "sqlite"}}, "value must be one of 'duckdb', 'clickhouse'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := render(t, tt.values)
			assert.ErrorContains(t, err, tt.want)
		})
	}
}

// pods returns the pods of the agents and of the gateways, if there are any.
func pods(objects []runtime.Object) map[string]*core.PodTemplateSpec {
	all := map[string]*core.PodTemplateSpec{"agent": &get[*apps.DaemonSet](objects, "gpuflight-agent").Spec.Template}
	if s := get[*apps.StatefulSet](objects, "gpuflight-gateway"); s != nil {
		all["gateway"] = &s.Spec.Template
	}
	return all
}

func TestChart_LeastPrivilege(t *testing.T) {
	root := map[string]bool{"default": true, "ebpf": true, "clickhouse": true, "mixed": true}
	hostPaths := map[string][]string{
		"restricted": nil,
		"":           {"/var/lib/otelcol-gpuflight", "/var/log/gpuflight", "/var/lib/kubelet/pod-resources"},
	}
	each(t, func(t *testing.T, name string, objects []runtime.Object) {
		for component, pod := range pods(objects) {
			spec := pod.Spec
			require.Len(t, spec.Containers, 1)
			assert.Empty(t, spec.InitContainers)
			c := spec.Containers[0]
			assert.False(t, spec.HostNetwork)
			assert.False(t, spec.HostIPC)
			assert.Equal(t, component == "gateway" && name == "ebpf", *spec.AutomountServiceAccountToken)
			assert.False(t, *c.SecurityContext.Privileged)
			assert.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
			assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
			assert.Equal(t, core.SeccompProfileTypeRuntimeDefault, c.SecurityContext.SeccompProfile.Type)
			assert.Equal(t, []core.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
			assert.NotEmpty(t, c.Resources.Limits.Memory())
			assert.NotEmpty(t, c.Resources.Limits.Cpu())

			agent := component == "agent"
			isRoot := agent && root[name]
			assert.Equal(t, isRoot, *spec.SecurityContext.RunAsUser == 0)
			if !isRoot {
				assert.True(t, *spec.SecurityContext.RunAsNonRoot)
				assert.Equal(t, int64(65532), *spec.SecurityContext.FSGroup)
			}
			assert.Equal(t, agent && name != "restricted", spec.HostPID)
			if agent && name == "ebpf" {
				assert.Equal(t, []core.Capability{"BPF", "PERFMON", "SYS_PTRACE"}, c.SecurityContext.Capabilities.Add)
			} else {
				assert.Empty(t, c.SecurityContext.Capabilities.Add)
			}
			var paths []string
			for _, v := range spec.Volumes {
				if v.HostPath != nil {
					paths = append(paths, v.HostPath.Path)
				}
			}
			want := hostPaths[""]
			if only, ok := hostPaths[name]; ok {
				want = only
			}
			if !agent {
				want = nil
			}
			assert.ElementsMatch(t, want, paths)
			for _, m := range c.VolumeMounts {
				assert.Equal(t, m.Name != "state" && m.Name != "tmp", m.ReadOnly, "volume %s", m.Name)
			}
		}
	})
}

// TestChart_References checks that each name that an object uses exists: volumes, ports, accounts,
// ConfigMaps, and Secrets of the chart.
func TestChart_References(t *testing.T) {
	foreign := []string{"Secret/my-keys", "Secret/gateway-tls", "Secret/clickhouse", "PriorityClass/system-node-critical"}
	each(t, func(t *testing.T, name string, objects []runtime.Object) {
		all := append(names(objects), foreign...)
		for component, pod := range pods(objects) {
			c := pod.Spec.Containers[0]
			assert.Contains(t, all, "ServiceAccount/"+pod.Spec.ServiceAccountName)
			if pod.Spec.PriorityClassName != "" {
				assert.Contains(t, all, "PriorityClass/"+pod.Spec.PriorityClassName)
			}
			volumes := map[string]bool{}
			for _, v := range pod.Spec.Volumes {
				volumes[v.Name] = true
				switch {
				case v.ConfigMap != nil:
					assert.Contains(t, all, "ConfigMap/"+v.ConfigMap.Name)
				case v.Secret != nil:
					assert.Contains(t, all, "Secret/"+v.Secret.SecretName)
					assert.Nil(t, v.Secret.Optional, "without its keys a pod must not start")
				}
			}
			mounted := map[string]bool{"state": component == "gateway"} // a claim
			for _, m := range c.VolumeMounts {
				mounted[m.Name] = true
				assert.True(t, volumes[m.Name] || m.Name == "state", "volume %s", m.Name)
			}
			for v := range volumes {
				assert.True(t, mounted[v], "volume %s", v)
			}
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					assert.Contains(t, all, "Secret/"+e.ValueFrom.SecretKeyRef.Name)
				}
			}
			ports := map[string]bool{}
			for _, p := range c.Ports {
				ports[p.Name] = true
			}
			if s := get[*core.Service](objects, "gpuflight-"+component); s != nil {
				assert.Equal(t, s.Spec.Selector, matching(s.Spec.Selector, pod.Labels))
				for _, p := range s.Spec.Ports {
					assert.True(t, ports[p.TargetPort.StrVal], "port %s", p.TargetPort.StrVal)
				}
			}
			if n := get[*networking.NetworkPolicy](objects, "gpuflight-"+component); n != nil {
				assert.Equal(t, n.Spec.PodSelector.MatchLabels, matching(n.Spec.PodSelector.MatchLabels, pod.Labels))
				for _, rule := range n.Spec.Ingress {
					require.NotEmpty(t, rule.From, "a rule without a source admits everybody")
					for _, from := range rule.From {
						assert.True(t, from.PodSelector != nil || len(from.NamespaceSelector.MatchLabels) == 1, "an empty selector admits everybody")
					}
					require.NotEmpty(t, rule.Ports, "a rule without ports opens all")
					for _, p := range rule.Ports {
						assert.True(t, ports[p.Port.StrVal], "port %s", p.Port.StrVal)
					}
				}
			}
			if m := get[*monitoring.PodMonitor](objects, "gpuflight-"+component); m != nil {
				assert.Equal(t, m.Spec.Selector.MatchLabels, matching(m.Spec.Selector.MatchLabels, pod.Labels))
				for _, e := range m.Spec.PodMetricsEndpoints {
					assert.True(t, ports[*e.Port], "port %s", *e.Port)
				}
			}
		}
	})
}

// matching returns the part of labels that has the keys of a selector.
func matching(selector, labels map[string]string) map[string]string {
	out := map[string]string{}
	for k := range selector {
		out[k] = labels[k]
	}
	return out
}

// TestChart_OTLPOnlyWithKey checks that an agent listens outside its pod only if OTLP needs a key.
func TestChart_OTLPOnlyWithKey(t *testing.T) {
	each(t, func(t *testing.T, name string, objects []runtime.Object) {
		c := pods(objects)["agent"].Spec.Containers[0]
		settings := get[*core.ConfigMap](objects, "gpuflight-agent").Data["chart.yaml"]
		open := name != "restricted"
		assert.Equal(t, open, slices.ContainsFunc(c.Env, func(e core.EnvVar) bool { return e.Name == "GPUFLIGHT_LISTEN" }))
		want := 0
		if open {
			want = 2 // gRPC and HTTP
		}
		assert.Equal(t, want, strings.Count(settings, "{auth: {authenticator: api_key_auth}}"))
		service := get[*core.Service](objects, "gpuflight-agent")
		require.Equal(t, open, service != nil)
		if open {
			assert.Equal(t, core.ServiceInternalTrafficPolicyLocal, *service.Spec.InternalTrafficPolicy)
		}
		for _, p := range c.Ports {
			assert.Equal(t, name == "ebpf" && strings.HasPrefix(p.Name, "otlp"), p.HostPort != 0, p.Name)
		}
	})
}

// TestChart_Variables finds a variable with a typing error, which would be ignored.
func TestChart_Variables(t *testing.T) {
	each(t, func(t *testing.T, _ string, objects []runtime.Object) {
		for component, pod := range pods(objects) {
			known := map[string]string{}
			for _, text := range get[*core.ConfigMap](objects, "gpuflight-"+component).Data {
				for _, m := range regexp.MustCompile(`\$\{env:(\w+)(?::-([^}]*))?\}`).FindAllStringSubmatch(text, -1) {
					known[m[1]] = m[2]
				}
			}
			c := pod.Spec.Containers[0]
			for _, e := range c.Env {
				if strings.HasPrefix(e.Name, "GPUFLIGHT_") {
					assert.Contains(t, known, e.Name)
				}
			}
			for _, m := range c.VolumeMounts {
				switch m.Name {
				case "state":
					assert.Equal(t, known["GPUFLIGHT_STATE"], m.MountPath)
				case "logs":
					assert.Equal(t, known["GPUFLIGHT_LOGS"], m.MountPath)
				}
			}
		}
	})
}

// TestChart_Rules checks that the rules are those of the repository.
func TestChart_Rules(t *testing.T) {
	rules := get[*monitoring.PrometheusRule](load(t, "ebpf"), "gpuflight")
	text, err := os.ReadFile("../../examples/grafana/rules.yml")
	require.NoError(t, err)
	alerts := 0
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				alerts++
				assert.Contains(t, string(text), "- alert: "+r.Alert+"\n")
				assert.NotEmpty(t, r.Expr.StrVal)
			}
		}
	}
	assert.Equal(t, strings.Count(string(text), "- alert: "), alerts)
	assert.Positive(t, alerts)
}

// write writes the files of a ConfigMap and of the generated keys into a folder, and returns the pod's
// arguments for a Collector outside a container.
func write(t *testing.T, objects []runtime.Object, component, dir string) (arguments []string) {
	t.Helper()
	for name, text := range get[*core.ConfigMap](objects, "gpuflight-"+component).Data {
		text = strings.ReplaceAll(text, "/run/secrets/gpuflight/keys.json", filepath.Join(dir, "keys.json"))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if s := get[*core.Secret](objects, "gpuflight-keys"); s != nil {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "keys.json"), []byte(s.StringData["keys.json"]), 0o600))
		require.NoError(t, os.Chmod(filepath.Join(dir, "keys.json"), 0o440)) // as the volume does
	}
	for _, a := range pods(objects)[component].Spec.Containers[0].Args {
		path, ok := strings.CutPrefix(a, "--config=/etc/gpuflight/")
		require.True(t, ok, a)
		arguments = append(arguments, "--config", filepath.Join(dir, path))
	}
	return arguments
}

// podEnvironment returns the variables of a pod with plain values, without references to other variables.
func podEnvironment(c core.Container) (out []string) {
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			out = append(out, e.Name+"="+strings.ReplaceAll(e.Value, "$(POD_IP)", "127.0.0.1"))
		default:
			out = append(out, e.Name+"=x")
		}
	}
	return out
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// TestChart_Validate lets the Collector read the configurations with the variables of their pods.
func TestChart_Validate(t *testing.T) {
	each(t, func(t *testing.T, _ string, objects []runtime.Object) {
		for component, pod := range pods(objects) {
			binary := process.Collector.Find(t)
			if strings.Contains(get[*core.ConfigMap](objects, "gpuflight-"+component).Data["chart.yaml"], "k8s_attributes") {
				// It takes minutes to build, so most machines do not have it.
				if binary = filepath.Join(process.Root(t), "bin", "otelcol-gpuflight-k8s"); !exists(binary) {
					t.Logf("%s is not validated: no %s: build it with make k8s", component, binary)
					continue
				}
			}
			arguments := append([]string{"validate"}, write(t, objects, component, t.TempDir())...)
			cmd := exec.CommandContext(t.Context(), binary, arguments...)
			cmd.Env = podEnvironment(pod.Spec.Containers[0])
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", component, out)
			// The configuration is really read.
			cmd = exec.CommandContext(t.Context(), binary, append(arguments, "--config", "yaml:extensions::api_key_auth::no_such_key: 1")...)
			cmd.Env = podEnvironment(pod.Spec.Containers[0])
			out, err = cmd.CombinedOutput()
			require.Error(t, err)
			assert.Contains(t, string(out), "no_such_key")
		}
	})
}

func TestChart_GeneratedKeys(t *testing.T) {
	secret := get[*core.Secret](load(t, "default"), "gpuflight-keys").StringData
	path := filepath.Join(t.TempDir(), "keys.json")
	require.NoError(t, os.WriteFile(path, []byte(secret["keys.json"]), 0o600))
	keys, err := apikey.Load(path)
	require.NoError(t, err)
	require.Len(t, keys, 3)
	for _, k := range keys {
		assert.Equal(t, k.ID, apikey.ID(secret[k.Name]), k.Name)
	}
	again := get[*core.Secret](load(t, "default"), "gpuflight-keys").StringData
	assert.NotEqual(t, secret["admin"], again["admin"], "each installation has its own keys")
}
