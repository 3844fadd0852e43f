// SPDX-License-Identifier: Apache-2.0

package hostinfo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
)

func TestRead(t *testing.T) {
	own, err := os.Hostname()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		files map[string]string
		name  string
		want  Host
	}{
		"nothing is known":    {want: Host{Name: own}},
		"of the host":         {files: map[string]string{"etc/hostname": "node-1\n", "etc/machine-id": "00ff\n"}, want: Host{Name: "node-1", ID: "00ff"}},
		"configured":          {files: map[string]string{"etc/hostname": "node-1\n"}, name: "node-2", want: Host{Name: "node-2"}},
		"machine id of D-Bus": {files: map[string]string{"var/lib/dbus/machine-id": "01\n", "etc/machine-id": "\n"}, want: Host{Name: own, ID: "01"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				path = filepath.Join(root, path)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			assert.Equal(t, c.want, Read(root, c.name))
		})
	}
	assert.Equal(t, own, Read("/", "").Name)
}

func TestDriverVersion(t *testing.T) {
	root := t.TempDir()
	assert.Empty(t, DriverVersion(root))
	path := filepath.Join(root, "sys/module/nvidia/version")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte("580.159.04\n"), 0o600))
	assert.Equal(t, "580.159.04", DriverVersion(root))
}

func TestHost_Put(t *testing.T) {
	m := pcommon.NewMap()
	Host{}.Put(m)
	assert.Empty(t, m.AsRaw())
	Host{Name: "n", ID: "1"}.Put(m)
	assert.Equal(t, map[string]any{"host.name": "n", "host.id": "1"}, m.AsRaw())
}
