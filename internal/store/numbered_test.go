// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/numbered"
)

func TestNumbered(t *testing.T) {
	n := NewNumbered(Folds{"old *": {}})
	assert.Empty(t, n.Add("forward"))
	assert.Empty(t, n.Add("old 1"))
	assert.Empty(t, n.Add("step 1"))
	assert.Empty(t, n.Add("step 1"))
	assert.Equal(t, "step 1", n.Folds().Name("step 1"))
	assert.Equal(t, "step *", n.Add("step 2"))
	assert.Empty(t, n.Add("step 3"))
	for i := range numbered.Max {
		assert.Empty(t, n.Add(fmt.Sprintf("layer.%d", i)))
		assert.Empty(t, n.Add(fmt.Sprintf("batch_norm_%d", i)))
	}
	names := []string{"train", "step 1", "layer.7"}
	assert.Equal(t, []string{"train", "step *", "layer.7"}, n.Folds().Names(names))
	assert.Equal(t, "layer.*", n.Add("layer.1000"))
	assert.Equal(t, []string{"train", "step *", "layer.*"}, n.Folds().Names(names))
	assert.Equal(t, []string{"train", "step 1", "layer.7"}, names)
	assert.Equal(t, "old *", n.Folds().Name("old 7"))
}

// TestNumbered_Limit adds more names than a Numbered remembers.
func TestNumbered_Limit(t *testing.T) {
	n := NewNumbered(nil)
	for i := range maxNumberedNames + 10 {
		n.Add(fmt.Sprintf("%d%s", i%10, word(i)))
	}
	assert.Equal(t, maxNumberedNames, n.size)

	n = NewNumbered(nil)
	long := strings.Repeat("a name ", 10_000)
	for i := range 1000 {
		n.Add(fmt.Sprintf("%d%s%s", i%10, long, word(i)))
	}
	assert.Less(t, n.bytes, maxNumberedBytes+3*len(long))
}

// word returns a word without digits.
func word(i int) string {
	s := "x"
	for ; i > 0; i /= 16 {
		s += string(rune('g' + i%16))
	}
	return s
}
