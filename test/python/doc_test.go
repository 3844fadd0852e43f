// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package python tests the Python package and its wheel, on the fake driver: the package's own
// tests, the wheel in a new virtual environment, and a FastAPI service under
// opentelemetry-instrument.
package python
