// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

var id = strings.Repeat("0123456789abcdef", 4)

const uid = "01234567-89ab-cdef-0123-456789abcdef"

func TestParseCgroup(t *testing.T) {
	escaped := strings.ReplaceAll(uid, "-", "_")
	for name, c := range map[string]struct{ text, container, pod string }{
		"no container":              {"0::/user.slice/user-1000.slice/session-2.scope\n", "", ""},
		"Docker, version 1":         {"12:memory:/docker/" + id + "\n11:cpu,cpuacct:/docker/" + id + "\n", id, ""},
		"Docker, version 2":         {"0::/system.slice/docker-" + id + ".scope\n", id, ""},
		"Podman":                    {"0::/machine.slice/libpod-" + id + ".scope/container\n", id, ""},
		"Podman's watcher":          {"0::/machine.slice/libpod-conmon-" + id + ".scope\n", "", ""},
		"containerd in Kubernetes":  {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + escaped + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"containerd without slices": {"0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", id, uid},
		"guaranteed":                {"0::/kubepods.slice/kubepods-pod" + escaped + ".slice/cri-containerd-" + id + ".scope\n", id, uid},
		"CRI-O, static pod":         {"0::/kubepods.slice/kubepods-pod" + id[:32] + ".slice/crio-" + id + ".scope\n", id, id[:32]},
		"containerd with colons":    {"0::/kubepods-burstable-pod" + escaped + ".slice:cri-containerd:" + id + "\n", id, uid},
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

const fields = ") Z 1 1 1 0 -1 4194560 12 1 1 1 4 5 1 1 20 0 3 0 100 1"

func TestParseStat(t *testing.T) {
	s, ok := ParseStat([]byte("7 (a) (b\xff" + fields))
	assert.True(t, ok)
	assert.Equal(t, Stat{Name: "a) (b\uFFFD", State: 'Z', Threads: 3, Start: 100, Faults: 12, Processor: 90 * time.Millisecond}, s)
	for _, text := range []string{"", "7 a", "7 )a(", "7 (a) S 1", strings.Replace("7 (a"+fields, "100", "x", 1), strings.Replace("7 (a"+fields, " 3 ", " x ", 1), strings.Replace("7 (a"+fields, " 5 ", " x ", 1)} {
		_, ok := ParseStat([]byte(text))
		assert.False(t, ok, text)
	}
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skip("no /proc here")
	}
	s, ok = ParseStat(text)
	require.True(t, ok)
	assert.Positive(t, s.Start)
	assert.Positive(t, s.Threads)
	assert.Positive(t, s.Faults)
}

func TestParseVPID(t *testing.T) {
	for text, want := range map[string]int32{
		"Name:\tx\nNSpid:\t7\t3\t1\n": 1, "NSpid:\t8\n": 0, "NSpid:\t8\tx\n": 0, "NSpid:\t8\t-1\n": 0, "": 0,
	} {
		assert.Equal(t, want, ParseVPID([]byte(text)), text)
	}
}

func TestFilesAreReadUpToALimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	assert.Nil(t, ReadFile(path))
	require.NoError(t, os.WriteFile(path, make([]byte, 2*maxFile), 0o600))
	assert.Len(t, ReadFile(path), maxFile)
}

func FuzzParse(f *testing.F) {
	f.Add("0::/kubepods/pod"+uid+"/"+id+"\n", "1 (a"+fields)
	f.Fuzz(func(t *testing.T, cgroup, text string) {
		alloctest.Limit{PerByte: 1 << 5, Constant: 1 << 14}.Check(t, len(cgroup)+len(text), func() {
			ParseCgroup(cgroup)
			ParseStat([]byte(text))
			ParseVPID([]byte(text))
		})
		container, pod := ParseCgroup(cgroup)
		if container != "" && (len(container) != 64 || !strings.Contains(cgroup, container)) {
			t.Errorf("container %q", container)
		}
		if pod != "" && len(pod) != 36 && len(pod) != 32 {
			t.Errorf("pod %q", pod)
		}
		if s, ok := ParseStat([]byte(text)); !ok && s != (Stat{}) || !utf8.ValidString(s.Name) {
			t.Errorf("%+v of %q", s, text)
		}
		if ParseVPID([]byte(text)) < 0 {
			t.Error("a negative id")
		}
	})
}

func TestParseUID(t *testing.T) {
	for text, want := range map[string]uint32{
		"Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n": 1000,
		"Uid:\t0\t0\t0\t0\n":  0,
		"Uid:\n":              UnknownUser,
		"Uid:\t-1\n":          UnknownUser,
		"Uid:\t99999999999\n": UnknownUser,
		"":                    UnknownUser,
	} {
		assert.Equal(t, want, ParseUID([]byte(text)), "%q", text)
	}
}
