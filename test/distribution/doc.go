// SPDX-License-Identifier: Apache-2.0

// Package distribution holds the tests of what is not a library: the manifest and the
// collector generated from it, the configurations, the demo, and what the documentation
// promises about them. It has no code of its own.
package distribution
