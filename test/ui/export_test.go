// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ui

import (
	"testing"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestUI_Export runs web/test/export.test.mjs against a Collector without data.
func TestUI_Export(t *testing.T) {
	collector := process.Collector.Find(t)
	web := installBrowserTests(t)
	ui, _ := startCollector(t, collector, t.TempDir())
	run(t, web, "test/export.test.mjs", "GPUFLIGHT_URL=http://"+ui)
}
