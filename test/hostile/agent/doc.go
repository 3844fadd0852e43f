// SPDX-License-Identifier: Apache-2.0

// Package agent runs the collector's cuda receiver as root while an unprivileged user attacks it
// with fake libraries, FIFOs and thousands of mappings. attacks_test.go lists the attacks. The test
// binary is its own helper: it runs an attack as the user nobody.
//
// The test of all attacks at once takes 20 s, or 5 minutes with GPUFLIGHT_SOAK:
//
//	make build && sudo GPUFLIGHT_SOAK=1 go test -timeout 20m -v ./test/hostile/agent
package agent
