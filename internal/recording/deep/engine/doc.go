// SPDX-License-Identifier: Apache-2.0

// Package engine runs deep windows on a CUPTI collector. It arms and disarms the engines for
// package deep. It makes samples and counters of their results for package recorder to send, with
// the function, source line and instruction of each.
//
// It depends on packages cupti, cubin, deep and recorder, not on who requested a window or where
// telemetry goes.
//
// Results are ready a tenth of a second after their window, and are sent immediately: one goroutine
// reads the images, one window after the other. Listings of instructions take nvdisasm seconds or
// minutes. A second goroutine sends each when it is ready, once per function and session. At the
// end of the session all results are sent, without lines if there is no time for them. Listings
// that are not ready are dropped and counted.
//
// Queues are bounded, and what they drop is counted in its window. Rows above the maximum of a
// window are summed, so that all sums stay right.
package engine
