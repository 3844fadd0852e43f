// SPDX-License-Identifier: Apache-2.0

// Package distribution tests everything that is not a library: the manifest and the generated
// collector, the configurations, gpuflight view, and the statements of the documentation. It has no code
// of its own.
package distribution
