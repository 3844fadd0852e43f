// SPDX-License-Identifier: Apache-2.0

package apikey

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkCheck measures what a key costs each request: a look at the file and a hash.
func BenchmarkCheck(b *testing.B) {
	path := filepath.Join(b.TempDir(), "keys.json")
	text := add(b, path, "n", time.Time{}, Read)
	keys, err := Open(path, time.Now, func([]string, []string, error) {})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := keys.Check(text, Read); err != nil {
			b.Fatal(err)
		}
	}
}
