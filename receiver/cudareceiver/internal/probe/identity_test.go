// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// container is the id of a container.
var container = strings.Repeat("0123456789abcdef", 4)

// version2 mounts the hierarchy of control groups of version 2 and returns its root.
func version2(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "cgroup2", 0, ""); err != nil {
		t.Skip("control groups of version 2 cannot be mounted here: ", err)
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// version1 returns the root of the hierarchy of version 1 that the probe reads.
func version1(t *testing.T) string {
	t.Helper()
	const dir = "/sys/fs/cgroup/memory"
	var of unix.Statfs_t
	if err := unix.Statfs(dir, &of); err != nil || of.Type != unix.CGROUP_SUPER_MAGIC {
		t.Skip("no control groups of version 1 here")
	}
	return dir
}

// group creates a control group and returns a function that moves a process into it.
func group(t *testing.T, root, path string) (add func(pid int)) {
	t.Helper()
	dir := filepath.Join(root, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skip("control groups cannot be made here: ", err)
	}
	t.Cleanup(func() {
		for ; dir != root; dir = filepath.Dir(dir) {
			assert.Eventually(t, func() bool { return os.Remove(dir) == nil }, waitLimit, time.Millisecond, dir)
		}
	})
	return func(pid int) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
	}
}

// TestProbe_Identity observes processes that are gone when the reader looks.
func TestProbe_Identity(t *testing.T) {
	const groups = 16 // GROUPS of bpf/identity.h
	deep := "/gpuflight-test" + strings.Repeat("/level", groups)
	long := "/gpuflight-test/" + strings.Repeat("z", 200) + "/" + strings.Repeat("x", 180) + "/kubepods-burstable-pod" + strings.Repeat("y", 170) + ".slice"
	const pod = "kubepods-besteffort-pod01234567_89ab_cdef_0123_456789abcdef.slice"
	for _, c := range []struct {
		name   string
		root   func(*testing.T) string
		cgroup string
		// want is the path as far as it is known.
		want string
	}{
		{"version 2, Docker", version2, "/gpuflight-test/docker-" + container + ".scope", "/gpuflight-test/docker-" + container + ".scope"},
		{"version 1, Docker", version1, "/gpuflight-test/docker/" + container, "/gpuflight-test/docker/" + container},
		{
			"version 2, containerd without systemd", version2, "/gpuflight-test/" + pod + ":cri-containerd:" + container,
			"/gpuflight-test/" + pod + ":cri-containerd:" + container,
		},
		{"too deep", version2, deep, strings.Repeat("level/", groups-1) + "level"},
		{"too long", version2, long + "/" + container, strings.Repeat("x", 180) + "/kubepods-burstable-pod" + strings.Repeat("y", 169) + "/" + container},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := stubcuda.Build(t)
			p := start(t, l, Options{})
			if p.offsets["groups_offset"] == 0 {
				t.Skip("the kernel has no type information")
			}
			add := group(t, c.root(t), c.cgroup)
			const name = "a-name-of-more-than-fifteen-bytes"
			program := l.StartNamed(t, name)
			add(program.PID())
			program.Must("open %s", l.Library)
			attached(t, p, l.Library)
			program.Must("launch 3 1 2 32")
			program.Must("fork launch 4 1 2 32")
			program.End()
			got := 0
			for _, one := range snapshot(t, p).Processes {
				assert.True(t, one.Ended)
				assert.Equal(t, name, one.Identity.Executable)
				assert.Contains(t, one.Identity.Cgroup, ":"+c.want+"\n")
				got += int(one.Launches[0].Calls)
			}
			assert.Equal(t, 7, got, "of the program and its child")
			empty(t, p)
		})
	}
}

// TestProbe_IdentityAfterExec: the last program names a process.
func TestProbe_IdentityAfterExec(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	holder := l.Start(t)
	holder.Must("open %s", l.Library)
	attached(t, p, l.Library)
	c := l.Start(t)
	c.Must("open %s", l.Library)
	c.Must("launch 1 1 2 32")
	assert.Equal(t, "calls", snapshot(t, p).of(c.PID()).Identity.Executable)
	c.Must("exec %s", l.Named(t, "second"))
	assert.Equal(t, "calls", snapshot(t, p).of(c.PID()).Identity.Executable, "it has called nothing as another program")
	c.Must("open %s", l.Library)
	c.Must("launch 2 1 2 32")
	c.End()
	got := snapshot(t, p).of(c.PID())
	assert.Equal(t, "second", got.Identity.Executable)
	assert.EqualValues(t, 3, got.Launches[0].Calls)
}

func TestIdentityOf(t *testing.T) {
	assert.Equal(t, Identity{}, identityOf(&cudaIdentity{}), "no type information")
	var v cudaIdentity
	for i := range v.Executable {
		v.Executable[i] = 'a'
	}
	v.Executable[0] = 0xff
	n := copy(v.Cgroup[:], "leaf\x00middle\x00")
	copy(v.Cgroup[n:], "user\x00")
	v.CgroupEnd, v.CgroupWhole = [2]uint16{uint16(n), uint16(n + 5)}, [2]uint16{1, 0}
	got := identityOf(&v)
	assert.Equal(t, "\uFFFD"+strings.Repeat("a", len(v.Executable)-1), got.Executable)
	assert.Equal(t, "1:v1:/middle/leaf\n0::user\n", got.Cgroup)
	v.CgroupEnd = [2]uint16{^uint16(0), 3}
	assert.NotPanics(t, func() { identityOf(&v) })
	assert.Equal(t, "0::/\n", identityOf(&cudaIdentity{CgroupWhole: [2]uint16{0, 1}}).Cgroup)
}
