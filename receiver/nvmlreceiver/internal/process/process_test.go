// SPDX-License-Identifier: Apache-2.0

package process

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

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, "proc", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

func TestReader_ReusedProcessID(t *testing.T) {
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

func TestReader_CacheBound(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"1/stat": "1 (a) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 1 1"})
	r := New(root)
	for i := range maxCache {
		r.cache[-i] = entry{}
	}
	r.Process(1)
	assert.Len(t, r.cache, 1)
}
