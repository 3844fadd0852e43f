// SPDX-License-Identifier: Apache-2.0

// Package soak holds a test that runs the collector with the cuda receiver for half an hour while processes come and go,
// and checks that it holds no more at the end than soon after the start. It needs root, eBPF and a C compiler, and is
// no part of make test, but of make soak. It alone, for another time:
//
//	make build && sudo GPUFLIGHT_SOAK=30m go test -timeout 60m -v ./test/soak
package soak
