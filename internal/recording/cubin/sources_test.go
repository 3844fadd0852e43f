// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sources(t *testing.T, folders ...string) *Sources {
	t.Helper()
	s, err := NewSources(folders)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestSources_Lines(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "k.cu")
	write(t, path, "first\n\n  third  \r\nlast\xff without end")
	s := sources(t, dir)
	for line, want := range []string{"", "first", "", "third", "last without end", ""} {
		assert.Equal(t, want, s.Line(path, line))
	}
	assert.Empty(t, s.Line(path, -1))
	assert.Empty(t, s.Line(path, 1<<40))
	assert.Equal(t, "third", s.Line(filepath.Join(dir, "b", "..", "a", "k.cu"), 3))
	long := filepath.Join(dir, "long.cuh")
	write(t, long, strings.Repeat("x", 10_000))
	assert.Len(t, s.Line(long, 1), maxSourceLine)
	empty := filepath.Join(dir, "empty.cuh")
	write(t, empty, "")
	assert.Empty(t, s.Line(empty, 1))
}

// A path in an image is read only if it is a source file in one of the folders.
func TestSources_RejectedFiles(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret.cu")
	write(t, secret, "secret")
	write(t, filepath.Join(dir, "key.pem"), "secret")
	write(t, filepath.Join(dir, ".env"), "secret")
	write(t, filepath.Join(dir, "large.cu"), strings.Repeat("secret\n", maxSourceBytes/7+1))
	write(t, filepath.Join(dir, "good.cu"), "good")
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "link.cu")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "folder")))
	require.NoError(t, os.Symlink("good.cu", filepath.Join(dir, "inside.cu")))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "zero.cu")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder.cu"), 0o700))
	s := sources(t, dir)
	for _, path := range []string{
		secret, filepath.Join(dir, "key.pem"), filepath.Join(dir, ".env"), filepath.Join(dir, "large.cu"), filepath.Join(dir, "link.cu"),
		filepath.Join(dir, "folder", "secret.cu"), filepath.Join(dir, "zero.cu"), filepath.Join(dir, "folder.cu"), filepath.Join(dir, "none.cu"),
		dir + "/../" + filepath.Base(outside) + "/secret.cu", "good.cu", "", "/dev/zero", "/proc/self/environ", "a\x00.cu",
	} {
		assert.Empty(t, s.Line(path, 1), path)
	}
	assert.Equal(t, "good", s.Line(filepath.Join(dir, "good.cu"), 1))
	assert.Equal(t, "good", s.Line(filepath.Join(dir, "inside.cu"), 1))
	assert.Empty(t, sources(t).Line(filepath.Join(dir, "good.cu"), 1), "no folders")
}

// A pipe without a writer would block the reader forever.
func TestSources_Pipe(t *testing.T) {
	mkfifo, err := exec.LookPath("mkfifo")
	if err != nil {
		t.Skip("no mkfifo: ", err)
	}
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.cu")
	require.NoError(t, exec.CommandContext(t.Context(), mkfifo, pipe).Run())
	assert.Empty(t, sources(t, dir).Line(pipe, 1))
}

func TestSources_Bounds(t *testing.T) {
	dir := t.TempDir()
	s := sources(t, dir)
	text := strings.Repeat("line\n", maxSourceBytes/8) // with the begins of lines more than 4 MiB
	for i := range 12 {
		path := filepath.Join(dir, fmt.Sprintf("%d.cu", i))
		write(t, path, text)
		assert.Equal(t, "line", s.Line(path, 3))
		assert.LessOrEqual(t, s.bytes, maxSourcesBytes)
	}
	assert.Less(t, len(s.files), 12)
	for i := range maxSources + 100 {
		assert.Empty(t, s.Line(fmt.Sprintf("/none/%d.cu", i), 1))
	}
	assert.LessOrEqual(t, len(s.files), maxSources)
}

func TestSources_Concurrent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "k.cu")
	write(t, path, "one\ntwo\n")
	s := sources(t, dir)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				assert.Equal(t, "two", s.Line(path, 2))
			}
		})
	}
	all.Wait()
}

func TestSources_MissingFolder(t *testing.T) {
	_, err := NewSources([]string{t.TempDir(), "relative"})
	assert.ErrorContains(t, err, "not an absolute path")
	_, err = NewSources([]string{t.TempDir(), "/does/not/exist"})
	assert.ErrorIs(t, err, os.ErrNotExist)
}
