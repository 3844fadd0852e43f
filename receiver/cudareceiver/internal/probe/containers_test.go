// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/stubcuda"
)

// overlayOf mounts the file system of a container: the files of an image, and a folder for changes.
func overlayOf(t *testing.T, image string) string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(path, 0o755))
		return path
	}
	merged := at("merged")
	options := "lowerdir=" + image + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Skip("overlays cannot be mounted here: ", err)
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(merged, unix.MNT_DETACH)) })
	return merged
}

// Two containers of one image see the same file as two: probes on both would count each call twice.
func TestProbe_ContainersOfOneImage(t *testing.T) {
	l := stubcuda.Build(t)
	p := New(Options{RescanInterval: time.Hour})
	started(t, l, p)
	image := filepath.Dir(l.Library)
	first, second := overlayOf(t, image), overlayOf(t, image)
	p.mu.Lock()
	p.only = nil // the mounts are in folders of their own
	p.mu.Unlock()
	for n, dir := range []string{first, second} {
		c := l.Start(t)
		c.Must("open %s", filepath.Join(dir, "libcuda.so.1"))
		require.Eventually(t, func() bool {
			for _, library := range p.Libraries() {
				if library.Inode == fileAt(t, l.Library).inode {
					return true
				}
			}
			return false
		}, waitLimit, 10*time.Millisecond)
		time.Sleep(3 * mappedInterval) // for a second attachment, which must not come
		c.Must("launch 100 1 2 32")
		got := snapshot(t, p).of(c.PID())
		require.NotNil(t, got)
		assert.EqualValues(t, 100, got.Launches[0].Calls, "container %d", n)
	}
}

// A file that a probe holds is not freed when it is deleted.
func TestProbe_ReleasesUnmappedLibraries(t *testing.T) {
	l := stubcuda.Build(t)
	p := start(t, l, Options{})
	c := l.Start(t)
	c.Must("open %s", l.Library)
	attached(t, p, l.Library)
	// On a busy machine the probe also scans by itself.
	p.looking.Lock()
	update := func(times int) {
		for range times {
			p.finder.shares = newShares(nil) // sixty looks in a row use up a share
			assert.NoError(t, p.rescan(t.Context()))
		}
	}
	update(2 * detachAfter)
	assert.Len(t, p.Libraries(), 1, "it is mapped")
	c.End()
	update(detachAfter - 1)
	assert.Len(t, p.Libraries(), 1)
	links := len(p.links)
	update(1)
	assert.Empty(t, p.Libraries())
	assert.Len(t, p.links, links, "those on processes stay")
	p.looking.Unlock()

	again := l.Start(t)
	again.Must("open %s", l.Library)
	attached(t, p, l.Library)
	again.Must("launch 10 1 2 32")
	assert.EqualValues(t, 10, snapshot(t, p).of(again.PID()).Launches[0].Calls)
}

func TestProbe_InstalledDrivers(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "proc"), 0o755))
	library := filepath.Join(root, "usr", "lib64", "libcuda.so.580.1")
	require.NoError(t, os.MkdirAll(filepath.Dir(library), 0o755))
	require.NoError(t, os.WriteFile(library, []byte("driver"), 0o600))
	require.NoError(t, os.Symlink("libcuda.so.580.1", filepath.Join(root, "usr", "lib64", "libcuda.so.1")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "usr", "lib", "libcuda.so.1"), 0o755)) // no file
	found := discovered(t, filepath.Join(root, "proc")).found
	require.Len(t, found, 1)
	assert.Equal(t, libcuda, found[0].library)
	assert.Equal(t, filepath.Join(root, "usr", "lib64", "libcuda.so.1"), found[0].path)
	assert.Equal(t, fileAt(t, library), found[0].file)
	assert.Equal(t, machine, found[0].tenant)
}
