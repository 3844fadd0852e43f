// SPDX-License-Identifier: Apache-2.0

// Package storage_test gives the real Collector what can happen to its storage: damaged files, a full
// disk, a second Collector on the same directory, a directory that it may not use, and a clock that
// was set back. GPUFLIGHT_SOAK=1 tries each damage on each shipped configuration.
package storage_test
