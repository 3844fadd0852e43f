// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nvml_test

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest/kubelettest"
	"github.com/gpuflight/gpuflight/semconv"
)

// node is a machine with three GPUs: GPU 1 is divided into two slices.
func node() map[string]string {
	values := map[string]string{
		"count": "3", "driver": nvmltest.Driver,
		"1.mig": "1", "1.mig0.uuid": "MIG-a", "1.mig0.gi": "3", "1.mig0.memory": "10:0:5", "1.mig1.uuid": "MIG-b", "1.mig1.gi": "4", "1.mig1.memory": "10:0:5",
	}
	for i := range 3 {
		maps.Copy(values, nvmltest.H200(i))
	}
	values["1.mig"] = "1"
	return values
}

// last returns the resource and the value of the newest point of a metric and device.
func (g *rig) last(metric, device string) (map[string]any, any) {
	var resource map[string]any
	var value any
	newest := uint64(0)
	for _, p := range g.store.Points() {
		if p.Metric == metric && p.Attrs[semconv.HWID] == device && p.TimeNs > newest {
			newest, resource, value = p.TimeNs, p.Resource, p.Value
		}
	}
	return resource, value
}

// identified asserts that each point and log names its machine and driver, and each device of a
// board its number.
func (g *rig) identified() {
	g.t.Helper()
	check := func(what string, resource map[string]any) {
		if resource[semconv.HostName] != "node-1" || resource[semconv.HostID] != "0123" ||
			resource[semconv.HWDriverVersion] != nvmltest.Driver || resource[semconv.HWSerialNumber] == nil {
			assert.Fail(g.t, "incomplete resource", "%s: %v", what, resource)
		}
	}
	points, logs := g.store.Points(), g.store.LogRecords()
	require.NotEmpty(g.t, points)
	require.NotEmpty(g.t, logs)
	for _, p := range points {
		check(p.Metric, p.Resource)
	}
	for _, l := range logs {
		check(l.Body, l.Resource)
	}
}

func TestNVML_Pods(t *testing.T) {
	root := hostRoot(t)
	kubelet := kubelettest.New(filepath.Join(root, "var/lib/kubelet/pod-resources/kubelet.sock"))
	t.Cleanup(kubelet.Stop)
	allocatable := []string{nvmltest.UUID(0), "MIG-a", "MIG-b", nvmltest.UUID(2) + "::0", nvmltest.UUID(2) + "::1"}
	set := func(pods ...*podresources.PodResources) { kubelet.Set(allocatable, pods...) }
	set(
		kubelettest.Pod("research", "train-0", "worker", nvmltest.UUID(0)),
		kubelettest.Pod("serving", "llm-7", "server", "MIG-b"),
		kubelettest.Pod("dev", "a", "notebook", nvmltest.UUID(2)+"::0"), kubelettest.Pod("dev", "b", "notebook", nvmltest.UUID(2)+"::1"))
	require.NoError(t, kubelet.Start())
	g := start(t, library(t), node())
	owner := func(device string) string {
		resource, pods := g.last(semconv.MetricHWGPUPodCount, device)
		if resource == nil {
			return "unknown"
		}
		var names []string
		for _, key := range []string{semconv.K8sNamespaceName, semconv.K8sPodName, semconv.K8sContainerName} {
			if v, ok := resource[key]; ok {
				names = append(names, v.(string))
			}
		}
		switch pods {
		case int64(0):
			names = append(names, "idle")
		case int64(2):
			names = append(names, "shared")
		}
		return strings.Join(names, "/")
	}
	process.Eventually(t, time.Minute, "all devices", func() bool { return owner(nvmltest.UUID(2)) != "unknown" })
	assert.Equal(t, "research/train-0/worker", owner(nvmltest.UUID(0)))
	assert.Equal(t, "unknown", owner(nvmltest.UUID(1)), "only its slices are given to pods")
	assert.Equal(t, "idle", owner("MIG-a"))
	assert.Equal(t, "serving/llm-7/server", owner("MIG-b"))
	assert.Equal(t, "shared", owner(nvmltest.UUID(2)))
	energy, _ := g.last(semconv.MetricHWEnergy, nvmltest.UUID(0))
	assert.Equal(t, map[string]any{
		semconv.HostName: "node-1", semconv.HostID: "0123", semconv.HWDriverVersion: nvmltest.Driver, semconv.HWSerialNumber: nvmltest.Serial(0),
		semconv.K8sNamespaceName: "research", semconv.K8sPodName: "train-0", semconv.K8sContainerName: "worker",
	}, energy)

	// XID errors name the pod too, that of the slice where the driver names one.
	require.NoError(t, g.control.Set(map[string]string{"xid.0": "0:79", "xid.1": "1:13:4"}))
	process.Eventually(t, time.Minute, "the logs", func() bool { return len(g.store.LogRecords()) == 2 })
	var pods []any
	for _, l := range g.store.LogRecords() {
		pods = append(pods, l.Resource[semconv.K8sPodName])
	}
	assert.ElementsMatch(t, []any{"train-0", "llm-7"}, pods)

	// During a restart of the kubelet the last answer holds, then the new one.
	kubelet.Stop()
	g.process.WaitOutput("the kubelet does not say which pods", time.Minute)
	assert.Equal(t, "research/train-0/worker", owner(nvmltest.UUID(0)))
	set(kubelettest.Pod("research", "train-1", "worker", nvmltest.UUID(0)))
	require.NoError(t, kubelet.Start())
	process.Eventually(t, time.Minute, "the new pods", func() bool {
		return owner(nvmltest.UUID(0)) == "research/train-1/worker" && owner("MIG-b") == "idle" && owner(nvmltest.UUID(2)) == "idle"
	})
	text := g.scrape() // with the same as labels
	assert.Equal(t, "1", value(text, "hw_gpu_pod_count", `hw_id="`+nvmltest.UUID(0)+`"`, `k8s_pod_name="train-1"`, `host_name="node-1"`))
	assert.Equal(t, "0", value(text, "hw_gpu_pod_count", `hw_id="MIG-a"`))
	g.identified()
	g.process.Stop(20 * time.Second)
	assert.Equal(t, 1, strings.Count(g.process.Output(), "the kubelet does not say which pods"))
}

func TestNVML_NoKubelet(t *testing.T) {
	hostRoot(t)
	g := start(t, library(t), node())
	require.NoError(t, g.control.Set(map[string]string{"xid.0": "0:79"}))
	process.Eventually(t, time.Minute, "points and a log", func() bool {
		resource, _ := g.last(semconv.MetricHWEnergy, nvmltest.UUID(2))
		return resource != nil && len(g.store.LogRecords()) == 1
	})
	for _, p := range g.store.Points() {
		for key := range p.Resource {
			assert.False(t, strings.HasPrefix(key, "k8s."), key)
		}
		assert.NotEqual(t, semconv.MetricHWGPUPodCount, p.Metric)
	}
	g.identified()
	g.process.Stop(20 * time.Second)
	assert.NotContains(t, g.process.Output(), "kubelet")
}

// hostRoot makes the file system of a host, which the configuration then uses.
func hostRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{"etc/hostname": "node-1\n", "etc/machine-id": "0123\n"} {
		write(t, filepath.Join(root, name), text)
	}
	t.Setenv("GPUFLIGHT_ROOT", root)
	return root
}
