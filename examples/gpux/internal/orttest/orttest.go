// SPDX-License-Identifier: Apache-2.0

// Package orttest gives tests ONNX Runtime and the models of the repository.
package orttest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/ortlib"
)

// Open loads ONNX Runtime, or skips the test. With GPUFLIGHT_REQUIRE=1 it fails instead.
func Open(t testing.TB) {
	t.Helper()
	found, err := ortlib.Find("")
	if err != nil && os.Getenv("GPUFLIGHT_REQUIRE") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, engine.Open(found.Path))
}

// Digits returns the folder of the example model.
func Digits() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "digits")
}

// Expected is what the framework that trained the model computes for images that it did not see.
type Expected struct {
	Image  [][][][]float32 `json:"image"`
	Digit  []int64         `json:"digit"`
	Logits [][]float32     `json:"logits"`
}

// ReadExpected returns the expected outputs of the example model.
func ReadExpected(t testing.TB) (e Expected) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Digits(), "expected.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &e))
	return e
}
