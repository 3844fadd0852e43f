// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestInclude_NothingMatches checks that a misspelled path is named once, and a path with an empty
// folder is not.
func TestInclude_NothingMatches(t *testing.T) {
	there, missing := t.TempDir(), filepath.Join(t.TempDir(), "logs", "*")
	r := start(t, newSink(), nil, func(c *Config) { c.Include = []string{there, missing} })
	const message = "no file or folder matches this entry of include; the receiver continues to search for it"
	eventually(t, "a warning", func() bool { return r.logs.FilterMessage(message).Len() > 0 })
	r.stop()
	found := r.logs.FilterMessage(message).All()
	assert.Len(t, found, 1)
	assert.Equal(t, missing, found[0].ContextMap()["include"])
}
