// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/store"
)

func TestChromeName(t *testing.T) {
	for want, s := range map[string]store.Shape{
		"Memcpy HtoD": {Operation: store.OpCopy, Name: "memcpy HtoD"},
		"Memset":      {Operation: store.OpSet, Name: "memset"},
		"memory_hog":  {Operation: store.OpKernel, Name: "memory_hog"},
		"copy":        {Operation: store.OpCopy, Name: "copy"},
	} {
		assert.Equal(t, want, chromeName(&s))
	}
}
