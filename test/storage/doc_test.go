// SPDX-License-Identifier: Apache-2.0

// Package storage_test runs the Collector with faults of its storage. They are damaged files, a
// full disk, a second Collector on the same directory, a directory without permission, and a clock
// that was set back. GPUFLIGHT_SOAK=1 tries each damage on each shipped configuration.
package storage_test
