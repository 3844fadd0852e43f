// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRejects_LineWithoutType has each form of a line that no record type can be read from. Each is counted.
func TestRejects_LineWithoutType(t *testing.T) {
	dir := t.TempDir()
	text := line(1) + "\n" + `{"a":1}` + "\n" + "no JSON\n" + `{"type":5}` + "\n" + line(2) + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.device.log"), []byte(text), 0o600))
	s := newSink()
	r := start(t, s, nil, func(c *Config) { c.Include = []string{dir} })
	eventually(t, "both kernels", func() bool { return s.count("kernel") == 2 })
	eventually(t, "the counts", func() bool { return r.sum("otelcol_receiver_gpuflog_rejects", "malformed") == 3 })
	r.stop()
}
