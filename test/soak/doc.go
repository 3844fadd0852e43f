// SPDX-License-Identifier: Apache-2.0

// Package soak holds a test that runs the collector with the cuda receiver for half an hour while
// processes start and exit. It checks that memory and tables do not grow. It needs root, eBPF and a
// C compiler. make soak runs it; make test does not. To run it alone for another duration:
//
//	make build && sudo GPUFLIGHT_SOAK=30m go test -timeout 60m -v ./test/soak
package soak
