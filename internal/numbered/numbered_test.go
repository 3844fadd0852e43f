// SPDX-License-Identifier: Apache-2.0

package numbered

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPattern(t *testing.T) {
	for name, want := range map[string]string{
		"":                 "",
		"forward":          "forward",
		"step 12":          "step *",
		"12":               "*",
		"12 34":            "* *",
		"ProfilerStep#3":   "ProfilerStep#*",
		"iteration_0042":   "iteration_*",
		"epoch 3/batch 17": "epoch */batch *",
		"layers.0.attn":    "layers.*.attn",
		"conv2d":           "conv*d",
		"fc1":              "fc*",
		"decode":           "decode",
		"é7é":              "é*é",
		"request 3fa85f64-5717-4562-b3fc-2c963f66afa6": "request *-*-*-*-*",
		"1.5e3": "*.*e*",
	} {
		assert.Equal(t, want, Pattern(name), name)
		assert.Equal(t, want, Pattern(want), want)
	}
}

func TestCounts(t *testing.T) {
	for pattern, want := range map[string]bool{
		"step *": true, "ProfilerStep#*": true, "iteration_*": true, "epoch */eval": true, "POST /batch/*": true,
		"step": false, "layers.*.attn": false, "batches *": false, "step a*": false, "*": false,
	} {
		assert.Equal(t, want, Counts(pattern), pattern)
	}
}
