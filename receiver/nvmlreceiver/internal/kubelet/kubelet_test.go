// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest/kubelettest"
)

// rig is a client that runs against a fake kubelet, which is not started.
type rig struct {
	*Client
	t       *testing.T
	kubelet *kubelettest.Kubelet
	socket  string
	printed *observer.ObservedLogs
}

func newRig(t *testing.T, change func(*Client)) *rig {
	t.Helper()
	root := t.TempDir()
	core, printed := observer.New(zapcore.InfoLevel)
	g := &rig{t: t, socket: filepath.Join(root, DefaultSocket), printed: printed, Client: New("", root, zap.New(core))}
	g.kubelet = kubelettest.New(g.socket)
	g.intervals = intervals{timeout: time.Minute, keep: time.Minute}
	if change != nil {
		change(g.Client)
	}
	leaks := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		g.kubelet.Stop()
		goleak.VerifyNone(t, leaks)
	})
	go func() {
		defer close(done)
		g.Run(ctx, 5*time.Millisecond)
	}()
	return g
}

func (g *rig) warnings() []observer.LoggedEntry {
	return g.printed.FilterLevelExact(zapcore.WarnLevel).All()
}

func (g *rig) eventually(what string, done func() bool) {
	g.t.Helper()
	require.Eventually(g.t, done, time.Minute, 5*time.Millisecond, what)
}

func TestClient_NoKubelet(t *testing.T) {
	g := newRig(t, nil)
	<-g.First()
	time.Sleep(50 * time.Millisecond) // for more tries
	_, known := g.Find("GPU-0")
	assert.False(t, known)
	assert.Zero(t, g.printed.Len(), "a machine outside Kubernetes has nothing to report")
}

func TestClient_RequiredSocket(t *testing.T) {
	g := newRig(t, func(c *Client) { *c = *New(filepath.Join(t.TempDir(), "none.sock"), "/", c.log) })
	g.eventually("the warning", func() bool { return len(g.warnings()) > 0 })
	time.Sleep(50 * time.Millisecond)
	require.Len(t, g.warnings(), 1)
	assert.Contains(t, g.warnings()[0].ContextMap()["error"], "no such file")
}

func TestClient_NoSocket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	g := newRig(t, func(c *Client) { *c = *New(file, "/", c.log) })
	g.eventually("the warning", func() bool { return len(g.warnings()) > 0 })
	assert.Contains(t, g.warnings()[0].ContextMap()["error"], "is no socket")
}

func TestClient_Restart(t *testing.T) {
	g := newRig(t, nil)
	<-g.First()
	g.kubelet.Set([]string{"GPU-0", "GPU-1"}, kubelettest.Pod("training", "job-1", "worker", "GPU-0"))
	require.NoError(t, g.kubelet.Start(), "later than the client")
	g.eventually("the pod", func() bool { _, known := g.Find("GPU-0"); return known })
	h, _ := g.Find("GPU-0")
	assert.Equal(t, Holder{Pods: 1, Namespace: "training", Pod: "job-1", Container: "worker"}, h)
	h, known := g.Find("GPU-1")
	assert.True(t, known)
	assert.Equal(t, Holder{}, h, "idle")
	_, known = g.Find("GPU-2")
	assert.False(t, known)

	g.kubelet.Stop()
	g.eventually("the warning", func() bool { return len(g.warnings()) > 0 })
	time.Sleep(50 * time.Millisecond)
	assert.Len(t, g.warnings(), 1, "not one for each query")
	h, _ = g.Find("GPU-0")
	assert.Equal(t, "job-1", h.Pod, "the last answer holds during a restart")

	g.kubelet.Set([]string{"GPU-0", "GPU-1"}, kubelettest.Pod("training", "job-2", "worker", "GPU-0"))
	require.NoError(t, g.kubelet.Start())
	g.eventually("the new pod", func() bool { h, _ := g.Find("GPU-0"); return h.Pod == "job-2" })
	assert.Len(t, g.warnings(), 1)
}

func TestClient_StaleAnswer(t *testing.T) {
	g := newRig(t, func(c *Client) { c.intervals.keep = 100 * time.Millisecond })
	g.kubelet.Set(nil, kubelettest.Pod("a", "b", "c", "GPU-0"))
	require.NoError(t, g.kubelet.Start())
	g.eventually("the pod", func() bool { _, known := g.Find("GPU-0"); return known })
	g.kubelet.Stop()
	g.eventually("the answer expires", func() bool { _, known := g.Find("GPU-0"); return !known })
}

func TestClient_SlowKubelet(t *testing.T) {
	g := newRig(t, func(c *Client) { c.intervals.timeout = 20 * time.Millisecond })
	g.kubelet.Block()
	require.NoError(t, g.kubelet.Start())
	g.eventually("several queries", func() bool { return g.kubelet.Queries() > 5 })
	before := runtime.NumGoroutine()
	g.eventually("more queries", func() bool { return g.kubelet.Queries() > 20 })
	assert.Less(t, runtime.NumGoroutine(), before+10)
	assert.Len(t, g.warnings(), 1)
}

// TestClient_Garbage connects to a process that is no kubelet.
func TestClient_Garbage(t *testing.T) {
	for name, text := range map[string][]byte{
		"text":           []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"random":         bytes.Repeat([]byte{0xff, 0x00, 0x13}, 1<<16),
		"endless header": append([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00\xff\xff\xff\x01\x04\x00\x00\x00\x01"), bytes.Repeat([]byte("a"), 1<<20)...),
		"silence":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, func(c *Client) { c.intervals.timeout = 200 * time.Millisecond })
			require.NoError(t, os.MkdirAll(filepath.Dir(g.socket), 0o700))
			l, err := net.Listen("unix", g.socket)
			require.NoError(t, err)
			served := make(chan struct{})
			go func() {
				defer close(served)
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Write(text)
					_ = conn.Close()
				}
			}()
			g.eventually("the warning", func() bool { return len(g.warnings()) > 0 })
			time.Sleep(50 * time.Millisecond)
			require.Len(t, g.warnings(), 1)
			assert.LessOrEqual(t, len(g.warnings()[0].ContextMap()["error"].(string)), maxProblem+len("…"))
			require.NoError(t, l.Close())
			<-served
		})
	}
}

func TestHolders(t *testing.T) {
	other := func(resource string, ids ...string) *podresources.ContainerResources {
		return &podresources.ContainerResources{Name: "c", Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}}
	}
	long := strings.Repeat("x", maxName+1)
	for name, c := range map[string]struct {
		pods        []*podresources.PodResources
		allocatable []string
		want        map[string]Holder
	}{
		"nothing": {want: map[string]Holder{}},
		"one container": {
			pods: []*podresources.PodResources{kubelettest.Pod("n", "p", "c", "GPU-0")},
			want: map[string]Holder{"GPU-0": {1, "n", "p", "c"}},
		},
		"slice of a GPU": {
			pods:        []*podresources.PodResources{kubelettest.Pod("n", "p", "c", "MIG-0"), kubelettest.Pod("n", "q", "d", "MIG-1")},
			allocatable: []string{"MIG-0", "MIG-1", "MIG-2"},
			want:        map[string]Holder{"MIG-0": {1, "n", "p", "c"}, "MIG-1": {1, "n", "q", "d"}, "MIG-2": {}},
		},
		"time slicing: pods share a GPU": {
			pods:        []*podresources.PodResources{kubelettest.Pod("n", "p", "c", "GPU-0::0"), kubelettest.Pod("n", "q", "c", "GPU-0::3")},
			allocatable: []string{"GPU-0::0", "GPU-0::1", "GPU-1::0"},
			want:        map[string]Holder{"GPU-0": {Pods: 2}, "GPU-1": {}},
		},
		"time slicing: one pod": {
			pods: []*podresources.PodResources{kubelettest.Pod("n", "p", "c", "GPU-0::1")},
			want: map[string]Holder{"GPU-0": {1, "n", "p", "c"}},
		},
		"containers of one pod share": {
			pods: []*podresources.PodResources{kubelettest.Pod("n", "p", "c", "GPU-0::1", "d", "GPU-0::0", "d", "GPU-1")},
			want: map[string]Holder{"GPU-0": {1, "n", "p", ""}, "GPU-1": {1, "n", "p", "d"}},
		},
		"same name in two namespaces": {
			pods: []*podresources.PodResources{kubelettest.Pod("n", "p", "c", "GPU-0::1"), kubelettest.Pod("m", "p", "c", "GPU-0::2")},
			want: map[string]Holder{"GPU-0": {Pods: 2}},
		},
		"Google's plugin": {
			pods: []*podresources.PodResources{kubelettest.Pod("n", "p", "c", "nvidia0/vgpu1"), kubelettest.Pod("n", "q", "c", "nvidia1/gi3")},
			want: map[string]Holder{"nvidia0": {1, "n", "p", "c"}, "nvidia1/gi3": {1, "n", "q", "c"}},
		},
		"other vendors": {
			pods: []*podresources.PodResources{{Namespace: "n", Name: "p", Containers: []*podresources.ContainerResources{
				other("amd.com/gpu", "0"), other("example.com/renamed", "GPU-0"), other("rdma/hca", "mlx5_0"), nil,
			}}, nil},
			want: map[string]Holder{"GPU-0": {1, "n", "p", "c"}},
		},
		"invalid names": {
			pods: []*podresources.PodResources{kubelettest.Pod("", "p", "c", "GPU-0"), kubelettest.Pod("n", long, "c", "GPU-1"), kubelettest.Pod("n", "p", long, "GPU-2", "c", "")},
			want: map[string]Holder{"GPU-0": {Pods: 1}, "GPU-1": {Pods: 1}, "GPU-2": {1, "n", "p", ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := holders(&podresources.ListPodResourcesResponse{PodResources: c.pods}, &podresources.AllocatableResourcesResponse{
				Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: c.allocatable}},
			})
			assert.Equal(t, c.want, got)
		})
	}
	assert.Empty(t, holders(nil, nil), "a kubelet without GetAllocatableResources")
}

func TestHolders_Bounds(t *testing.T) {
	var ids []string
	for i := range 3 * maxDevices {
		ids = append(ids, "GPU-"+strconv.Itoa(i))
	}
	devices := []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: ids}}
	pods := []*podresources.PodResources{{Namespace: "n", Name: "p", Containers: []*podresources.ContainerResources{{Name: "c", Devices: devices}}}}
	assert.Len(t, holders(&podresources.ListPodResourcesResponse{PodResources: pods}, nil), maxDevices)
	assert.Len(t, holders(nil, &podresources.AllocatableResourcesResponse{Devices: devices}), maxDevices)
}

func TestProblem(t *testing.T) {
	assert.Equal(t, "short", problem(errors.New("short")))
	assert.Len(t, problem(errors.New(strings.Repeat("ä", maxProblem))), maxProblem+len("…"))
}

// FuzzHolders decodes what a kubelet sends. An answer names only valid pods, and one pod at most for
// a device.
func FuzzHolders(f *testing.F) {
	for _, pods := range [][]*podresources.PodResources{
		{kubelettest.Pod("n", "p", "c", "GPU-0::1"), kubelettest.Pod("m", "p", "c", "GPU-0::2", "d", "MIG-1")},
		{{}, {Containers: []*podresources.ContainerResources{{}}}},
	} {
		text, err := proto.Marshal(&podresources.ListPodResourcesResponse{PodResources: pods})
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var list podresources.ListPodResourcesResponse
		if proto.Unmarshal(text, &list) != nil {
			return
		}
		for id, h := range holders(&list, nil) {
			require.NotEmpty(t, id)
			require.LessOrEqual(t, len(id), maxID)
			require.Positive(t, h.Pods)
			require.Equal(t, h.Pod == "", h.Namespace == "")
			if h.Pods > 1 {
				require.Equal(t, Holder{Pods: h.Pods}, h)
			}
		}
	})
}
