// SPDX-License-Identifier: Apache-2.0

// Package agent holds tests that run the collector's cuda receiver as root while an unprivileged user attacks it: by
// files that claim to be libraries, by FIFOs, by thousands of mappings. The attacks are in attacks_test.go; a new one
// is an entry in that list. The test binary is its own helper: it runs an attack as the user nobody.
//
// GPUFLIGHT_HOSTILE is the time of the test of all attacks at once, 20 s by default:
//
//	make build && sudo GPUFLIGHT_HOSTILE=5m go test -timeout 20m -v ./test/hostile/agent
package agent
