// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTrace_RecordingMode checks the final mode of a recording. A new file must also have that mode
// when it is created: inotify reports any later chmod.
func TestTrace_RecordingMode(t *testing.T) {
	for _, umask := range []int{0o022, 0} {
		for _, tc := range []struct {
			name   string
			before os.FileMode // of the file, 0 for a new one
			link   bool
		}{
			{name: "new"},
			{name: "existing 0644", before: 0o644},
			{name: "existing 0666", before: 0o666},
			{name: "link to a new file", link: true},
			{name: "link to an existing 0666", before: 0o666, link: true},
		} {
			t.Run(fmt.Sprintf("umask %03o, %s", umask, tc.name), func(t *testing.T) {
				dir := t.TempDir()
				library, file := emptyLibrary(t), filepath.Join(dir, "out.otlp.jsonl")
				if tc.before != 0 {
					require.NoError(t, os.WriteFile(file, []byte(earlierRun), 0o600))
					require.NoError(t, os.Chmod(file, tc.before))
				}
				output := file
				if tc.link {
					output = filepath.Join(t.TempDir(), "link")
					require.NoError(t, os.Symlink(file, output))
				}
				watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
				require.NoError(t, err)
				defer unix.Close(watch)
				_, err = unix.InotifyAddWatch(watch, dir, unix.IN_ATTRIB)
				require.NoError(t, err)

				defer syscall.Umask(syscall.Umask(umask))
				end, err := runTrace([]string{"--library", library, "--output", output, "--force", "--quiet", "--", "true"}, t.Output(), t.Output())
				require.NoError(t, err)
				require.Zero(t, end.code)

				info, err := os.Lstat(file)
				require.NoError(t, err)
				assert.Equal(t, os.FileMode(0o600), info.Mode(), "%v", info.Mode())
				assert.Positive(t, info.Size(), "the command's span is there")
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				assert.NotContains(t, string(text), earlierRun)
				events := make([]byte, 4096)
				_, err = unix.Read(watch, events)
				if tc.before == 0 {
					assert.ErrorIs(t, err, unix.EAGAIN, "the mode of a new file changed after it was created")
				} else {
					assert.NoError(t, err, "the mode of an existing file changes")
				}
				if tc.link {
					info, err := os.Lstat(output)
					require.NoError(t, err)
					assert.Equal(t, os.ModeSymlink, info.Mode().Type())
				}
			})
		}
	}
}

func TestFindLibrary_RecorderMissing(t *testing.T) {
	for _, there := range []string{libraryName, recorderName} {
		t.Run("only "+there, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, there), nil, 0o600))
			missing := map[string]string{libraryName: recorderName, recorderName: libraryName}[there]
			_, err := findLibrary(filepath.Join(dir, libraryName))
			assert.ErrorContains(t, err, filepath.Join(dir, missing))
			env := newEnvironment(nil)
			f := examineLibrary(&env, filepath.Join(dir, libraryName))
			assert.False(t, f.OK)
			assert.Contains(t, f.Detail, filepath.Join(dir, missing))
		})
	}
}

func TestLibraryIn_FirstCompleteFolder(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write := func(dir, name string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	_, err := libraryIn([]string{first, second})
	assert.ErrorContains(t, err, libraryName+" is not in "+first+", "+second)
	write(first, recorderName)
	_, err = libraryIn([]string{first, second})
	assert.ErrorContains(t, err, filepath.Join(first, libraryName)+" is missing")
	write(second, libraryName)
	_, err = libraryIn([]string{second, first})
	assert.ErrorContains(t, err, filepath.Join(second, recorderName)+" is missing")
	write(second, recorderName)
	path, err := libraryIn([]string{first, second})
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(second, libraryName), path)
}
