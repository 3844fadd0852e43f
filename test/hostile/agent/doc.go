// SPDX-License-Identifier: Apache-2.0

// Package agent holds tests that run the collector's cuda receiver as root while an unprivileged user attacks it: by
// files that claim to be libraries, by FIFOs, by thousands of mappings. The attacks are in attacks_test.go; a new one
// is an entry in that list. The test binary is its own helper: it runs an attack as the user nobody.
//
// The test of all attacks at once takes 20 s, and 5 minutes where GPUFLIGHT_SOAK is set:
//
//	make build && sudo GPUFLIGHT_SOAK=1 go test -timeout 20m -v ./test/hostile/agent
package agent
