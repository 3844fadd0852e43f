// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package inject tests gpuflight trace and the injection library as they are shipped, in programs that know
// nothing of them: Python on a fake driver (see testdata/work.py), each once without and once with
// tracing. What differs is a bug, but for the recording.
package inject
