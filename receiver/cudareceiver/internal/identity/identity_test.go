// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

var id = strings.Repeat("0123456789abcdef", 4)

const uid = "01234567-89ab-cdef-0123-456789abcdef"

func TestCgroupPath(t *testing.T) {
	for text, want := range map[string]string{
		"0::/a/b\n":                     "/a/b",
		"2:cpu:/c:d\n1:memory:/e\n0::/": "/c:d",
		"2:cpu:/\n1:memory:/e\n":        "/e",
		"2:cpu:/c\n0::/u\n":             "/u",
		"nonsense\n":                    "",
	} {
		assert.Equal(t, want, cgroupPath(text), text)
	}
}

func TestParseEnviron(t *testing.T) {
	for name, c := range map[string]struct {
		environ, service string
		attributes       []Attribute
	}{
		"only a name":       {"PATH=/bin\x00OTEL_SERVICE_NAME=train\x00SECRET=x\x00", "train", nil},
		"a name twice":      {"OTEL_SERVICE_NAME=first\x00OTEL_SERVICE_NAME=second\x00", "first", nil},
		"a name in a list":  {"OTEL_RESOURCE_ATTRIBUTES=service.name=a%20b,team=x=y\x00", "a b", []Attribute{{"team", "x=y"}}},
		"both":              {"OTEL_RESOURCE_ATTRIBUTES= service.name = a , team = x,\x00OTEL_SERVICE_NAME=train\x00", "train", []Attribute{{"team", "x"}}},
		"a bad list":        {"OTEL_RESOURCE_ATTRIBUTES=service.name=a,team\x00", "", nil},
		"a bad escape":      {"OTEL_RESOURCE_ATTRIBUTES=team=%zz\x00", "", nil},
		"an empty value":    {"OTEL_RESOURCE_ATTRIBUTES=team=,x=1\x00", "", []Attribute{{"x", "1"}}},
		"cut off":           {"OTEL_SERVICE_NAME=trai", "", nil},
		"a name too long":   {"OTEL_SERVICE_NAME=" + strings.Repeat("n", maxValue+1) + "\x00", "", nil},
		"another with such": {"XOTEL_SERVICE_NAME=x\x00", "", nil},
	} {
		service, attributes, _ := parseEnviron(strings.NewReader(c.environ))
		assert.Equal(t, c.service, service, name)
		assert.Equal(t, c.attributes, attributes, name)
	}
}

func TestParseEnviron_AttributeLimits(t *testing.T) {
	var list strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&list, "k%d=v,", i)
	}
	out := parseAttributes(list.String())
	require.Len(t, out, maxAttributes)
	assert.Equal(t, Attribute{"k31", "v"}, out[31])
}

// write creates a fake /proc.
func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, "proc", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
}

func stat(name string, ticks int) string {
	return fmt.Sprintf("7 (%s) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 %d 1", name, ticks)
}

func TestProcess(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"7/stat": stat("a) (b", 100), "7/cgroup": "0::/kubepods/pod" + uid + "/" + id + "\n", "7/status": "Name:\tx\nNSpid:\t7\t3\t1\n",
		"7/environ": "OTEL_SERVICE_NAME=train\x00OTEL_RESOURCE_ATTRIBUTES=service.namespace=ml\x00TRACEPARENT=00-1-2-01\x00",
		"8/stat":    stat("c", 5), "8/status": "NSpid:\t8\n",
		"9/stat": "garbage",
	})
	require.NoError(t, os.Symlink("/opt/bin/python3.12 (deleted)", filepath.Join(root, "proc/7/exe")))
	r := New(root)

	p, ok := r.Process(7, 100*procfs.TickNanoseconds, Known{Executable: "sh", Cgroup: "0::/before\n"})
	assert.True(t, ok)
	assert.Equal(t, Process{
		PID: 7, VPID: 1, Executable: "python3.12", Cgroup: "/kubepods/pod" + uid + "/" + id, ContainerID: id, PodUID: uid,
		ServiceName: "train", Attributes: []Attribute{{"service.namespace", "ml"}}, TraceParent: "00-1-2-01",
	}, p)

	p, ok = r.Process(7, 101*procfs.TickNanoseconds, Known{})
	assert.False(t, ok, "the id belongs to another process")
	assert.Equal(t, Process{PID: 7}, p)

	p, ok = r.Process(8, 5*procfs.TickNanoseconds, Known{})
	assert.True(t, ok)
	assert.Equal(t, Process{PID: 8, Executable: "c"}, p, "unreadable fields are omitted")

	for _, pid := range []int32{9, 10} {
		p, ok = r.Process(pid, 0, Known{})
		assert.False(t, ok)
		assert.Equal(t, Process{PID: pid}, p)
	}
}

func TestProcess_Known(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"8/stat": stat("a-thread-named-a", 5)})
	r := New(root)
	known := Known{Executable: "a-thread-named-after-15-bytes", Cgroup: "1:v1:/kubepods/pod" + uid + "/" + id + "\n0::/system.slice\n"}
	want := Process{Executable: known.Executable, Cgroup: "/system.slice", ContainerID: id, PodUID: uid}
	for pid, running := range map[int32]bool{8: true, 9: false} { // of 8, no link and no cgroup can be read
		p, ok := r.Process(pid, 5*procfs.TickNanoseconds, known)
		assert.Equal(t, running, ok)
		want.PID = pid
		assert.Equal(t, want, p)
	}
	p, _ := r.Process(9, 0, Known{Cgroup: "0::pod" + uid + "/" + id + "\n"})
	assert.Equal(t, Process{PID: 9, Cgroup: "pod" + uid + "/" + id, ContainerID: id, PodUID: uid}, p, "the outer part is unknown")
}

func TestProcess_Self(t *testing.T) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Skip("no /proc on this system")
	}
	self, ok := procfs.ParseStat(b)
	require.True(t, ok)
	p, ok := New("/").Process(int32(os.Getpid()), self.Start*procfs.TickNanoseconds, Known{})
	assert.True(t, ok)
	exe, err := os.Executable()
	require.NoError(t, err)
	assert.Equal(t, filepath.Base(exe), p.Executable)
}

func FuzzParse(f *testing.F) {
	f.Add("0::/kubepods/pod"+uid+"/"+id+"\n", "OTEL_SERVICE_NAME=a\x00OTEL_RESOURCE_ATTRIBUTES=a=b,c=%20\x00")
	f.Fuzz(func(t *testing.T, cgroup, environ string) {
		if p := cgroupPath(cgroup); !strings.Contains(cgroup, p) {
			t.Errorf("cgroup %q", p)
		}
		alloctest.Limit{PerByte: 1 << 6, Constant: 1 << 18}.Check(t, len(cgroup)+len(environ), func() {
			cgroupPath(cgroup)
			parseEnviron(strings.NewReader(environ))
		})
		service, attributes, parent := parseEnviron(strings.NewReader(environ))
		if !utf8.ValidString(service) || len(attributes) > maxAttributes || len(parent) > 4*maxValue || !utf8.ValidString(parent) {
			t.Errorf("service %q, %d attributes, parent %q", service, len(attributes), parent)
		}
		for _, a := range attributes {
			if a.Key == "" || a.Value == "" || a.Key == "service.name" || !utf8.ValidString(a.Key) || !utf8.ValidString(a.Value) {
				t.Errorf("attribute %q=%q", a.Key, a.Value)
			}
		}
	})
}
