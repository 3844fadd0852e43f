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

// Digits returns the folder of the example model for images.
func Digits() string { return folder("digits") }

// Languages returns the folder of the example model for texts.
func Languages() string { return folder("languages") }

func folder(name string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", name)
}

// Expected is what the framework that trained the model computes for images that it did not see.
type Expected struct {
	Image  [][][][]float32 `json:"image"`
	Digit  []int64         `json:"digit"`
	Logits [][]float32     `json:"logits"`
}

// ReadExpected returns the expected outputs of the model for images.
func ReadExpected(t testing.TB) (e Expected) {
	t.Helper()
	read(t, Digits(), &e)
	return e
}

// ExpectedTexts is what the framework computes for texts that the training did not see.
type ExpectedTexts struct {
	Text        []string    `json:"text"`
	IDs         [][]int64   `json:"ids"`
	Language    []string    `json:"language"`
	Probability [][]float32 `json:"probability"`
}

// ReadExpectedTexts returns the expected outputs of the model for texts.
func ReadExpectedTexts(t testing.TB) (e ExpectedTexts) {
	t.Helper()
	read(t, Languages(), &e)
	require.Len(t, e.Text, 40)
	return e
}

func read(t testing.TB, dir string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
}
