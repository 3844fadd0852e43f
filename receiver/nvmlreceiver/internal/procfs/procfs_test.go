// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var id = strings.Repeat("0123456789abcdef", 4)

func TestParseCgroup(t *testing.T) {
	const uid = "01234567-89ab-cdef-0123-456789abcdef"
	escaped := strings.ReplaceAll(uid, "-", "_")
	for name, c := range map[string]struct{ text, container, pod string }{
		"no container":              {"0::/user.slice/user-1000.slice/session-2.scope\n", "", ""},
		"Docker, version 1":         {"12:memory:/docker/" + id + "\n11:cpu,cpuacct:/docker/" + id + "\n", id, ""},
		"Docker, version 2":         {"0::/system.slice/docker-" + id + ".scope\n", id, ""},
		"Podman":                    {"0::/machine.slice/libpod-" + id + ".scope/container\n", id, ""},
		"containerd in Kubernetes":  {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + escaped + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"containerd without slices": {"0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", id, uid},
		"guaranteed":                {"0::/kubepods.slice/kubepods-pod" + escaped + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"CRI-O, static pod":         {"0::/kubepods.slice/kubepods-pod" + id[:32] + ".slice/crio-" + id + ".scope\n", id, id[:32]},
		"containerd with colons":    {"0::/system.slice:cri-containerd:" + id + "\n", id, ""},
		"a container in another":    {"0::/docker/" + strings.Repeat("f", 64) + "/docker/" + id + "\n", id, ""},
		"not hexadecimal":           {"0::/docker/" + strings.Repeat("g", 64) + "\n", "", ""},
		"a pod that is none":        {"0::/podman/podcast\n", "", ""},
		"no lines":                  {"", "", ""},
	} {
		container, pod := ParseCgroup(c.text)
		assert.Equal(t, c.container, container, name)
		assert.Equal(t, c.pod, pod, name)
	}
}

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, "proc", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

func TestAProcessIsRememberedUntilItsIDIsAnothers(t *testing.T) {
	root := t.TempDir()
	const stat = ") S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 "
	write(t, root, map[string]string{
		"stat":   "cpu 1 2\nbtime 1700000000\n",
		"7/stat": "7 (a) (b)" + stat + "100 1", "7/cgroup": "0::/docker/" + id + "\n", "7/status": "NSpid:\t7\t3\t1\n",
		"8/stat": "8 (c" + stat + "5", "9/stat": "garbage",
	})
	r := New(root)
	assert.Equal(t, time.Unix(1700000000, 0), r.BootTime())
	want := Info{PID: 7, VPID: 1, Name: "a) (b)", ContainerID: id}
	assert.Equal(t, want, r.Process(7))
	require.NoError(t, os.Remove(filepath.Join(root, "proc/7/cgroup")))
	assert.Equal(t, want, r.Process(7), "remembered")
	write(t, root, map[string]string{"7/stat": "7 (other" + stat + "200 1"})
	assert.Equal(t, Info{PID: 7, VPID: 1, Name: "other"}, r.Process(7), "another process")
	assert.Equal(t, Info{PID: 8, Name: "c"}, r.Process(8))
	assert.Equal(t, Info{PID: 9}, r.Process(9))
	assert.Equal(t, Info{PID: 10}, r.Process(10))
	assert.True(t, New(t.TempDir()).BootTime().IsZero())
}

func TestTheCacheIsBounded(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"1/stat": "1 (a) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 1 1"})
	r := New(root)
	for i := range maxCache {
		r.cache[-i] = entry{}
	}
	r.Process(1)
	assert.Len(t, r.cache, 1)
}

func FuzzParse(f *testing.F) {
	f.Add("0::/kubepods/pod01234567-89ab-cdef-0123-456789abcdef/"+id+"\n", "1 (a) S 1")
	f.Fuzz(func(t *testing.T, cgroup, stat string) {
		container, pod := ParseCgroup(cgroup)
		if container != "" && (len(container) != 64 || !strings.Contains(cgroup, container)) {
			t.Errorf("container %q", container)
		}
		if pod != "" && len(pod) != 36 && len(pod) != 32 {
			t.Errorf("pod %q", pod)
		}
		if name, start, ok := parseStat([]byte(stat)); !ok && (name != "" || start != "") {
			t.Errorf("name %q, start %q of a line that is none", name, start)
		}
		if parseNSpid([]byte(stat)) < 0 {
			t.Error("a negative id")
		}
	})
}
