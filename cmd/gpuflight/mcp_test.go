// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMCP_Bounded(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	text, err := bounded(object{"n": int64(1<<62 - 1), "names": []string{long, "a<b>"}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"n": 4611686018427387903, "names": ["`+strings.Repeat("ä", mcpMaxText-1)+`…", "a<b>"]}`, string(text))
	assert.Contains(t, string(text), "a<b>")
	assert.Contains(t, string(text), "4611686018427387903")

	_, err = bounded(make([]string, mcpMaxAnswer))
	assert.ErrorContains(t, err, "use a smaller limit")
}

func TestMCP_Limits(t *testing.T) {
	for n, want := range map[int]int{-1: 10, 0: 10, 7: 7, 51: 50} {
		assert.Equal(t, want, limitOf(n))
	}
}
