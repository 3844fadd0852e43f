// SPDX-License-Identifier: Apache-2.0

package glob

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "abc", true}, {"*", "any/[thing]", true},
		{"a*c", "abbbc", true}, {"a*c", "abbbd", false}, {"?", "", false}, {"?", "x", true}, {"?", "/", true}, {"a?c", "abc", true},
		{"a?c", "ac", false}, {`*\[1\]*`, "k[1]()", true}, {"k[12]", "k1", true}, {"k[12]", "k[1]", false}, {"a**b*", "acb", true},
		{"a**", "a", true}, {"*ab", "aab", true}, {"{gemm,conv}*", "conv2d", true}, {"{gemm,conv}*", "relu", false},
		{"*a", "ba", true}, {"*a", "ab", false}, {"*b*b*", "abab", true}, {"*b*b*", "ab", false}, {"a*b*c", "axbyc", true},
		{"a*b*c", "axcyb", false}, {"a/*", "a/b/c", true}, {"NVIDIA H200*", "NVIDIA H200 NVL", true}, {"NVIDIA H100*", "NVIDIA H200", false},
		{"k[1", "k[1", true}, {"k[1", "k1", false}, {"k[1", "k[1]", false},
	} {
		assert.Equal(t, c.want, Match(c.pattern, c.text), "%q on %q", c.pattern, c.text)
	}
}

func TestMatchPath(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"/a/*", "/a/b", true}, {"/a/*", "/a/b/c", false}, {"/a/**", "/a/b/c", true}, {"/**/c", "/a/b/c", true},
		{"/a/docker-*.scope", "/a/docker-1.scope", true}, {"/a/[", "/a/[", false},
	} {
		assert.Equal(t, c.want, MatchPath(c.pattern, c.path), "%q on %q", c.pattern, c.path)
	}
}

func TestValid(t *testing.T) {
	for pattern, want := range map[string]bool{"": true, "a*": true, "[a-z]": true, "{a,b}": true, "[": false, "{a": false, `\`: false} {
		assert.Equal(t, want, Valid(pattern), pattern)
	}
}

// TestMatchIsNotExponential: a matcher that tries all ways needs hours for this.
func TestMatchIsNotExponential(t *testing.T) {
	began := time.Now()
	assert.False(t, Match(strings.Repeat("*a", 50)+"b", strings.Repeat("a", 10_000)))
	assert.Less(t, time.Since(began), time.Minute)
}
