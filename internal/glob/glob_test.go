// SPDX-License-Identifier: Apache-2.0

package glob

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "abc", true}, {"*", "any/[thing]", true},
		{"a*c", "abbbc", true}, {"a*c", "abbbd", false}, {"?", "", false}, {"?", "x", true}, {"a?c", "abc", true},
		{"a?c", "ac", false}, {"*[1]*", "k[1]()", true}, {"a**b*", "acb", true}, {"a**", "a", true}, {"*ab", "aab", true},
		{"*a", "ba", true}, {"*a", "ab", false}, {"*b*b*", "abab", true}, {"*b*b*", "ab", false}, {"a*b*c", "axbyc", true},
		{"a*b*c", "axcyb", false}, {"a/*", "a/b/c", true}, {"NVIDIA H200*", "NVIDIA H200 NVL", true}, {"NVIDIA H100*", "NVIDIA H200", false},
	} {
		assert.Equal(t, c.want, Match(c.pattern, c.text), "%q on %q", c.pattern, c.text)
	}
}

// TestMatchDoesNotTryAllWays: one that did would not come back from this.
func TestMatchDoesNotTryAllWays(t *testing.T) {
	assert.False(t, Match(strings.Repeat("*a", 50)+"b", strings.Repeat("a", 10_000)))
}
