// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package inject tests the shipped gpuflight trace and injection library in unmodified programs:
// Python with a fake driver (see testdata/work.py). Each program runs once without and once with
// tracing. Any difference except the recording is a bug.
package inject
