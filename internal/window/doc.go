// SPDX-License-Identifier: Apache-2.0

// Package window runs deep windows on a CUPTI collector: it arms and disarms the engines for package
// deep, and makes of what a window yielded samples and counters with the function, the line of source
// and the instruction that they belong to, for package recorder to send.
//
// It knows packages cupti, cubin, deep and recorder, and nothing of who asked for a window or where the
// telemetry goes. All that takes time (reading images, running nvdisasm) happens on one goroutine of
// its own, a window after the other. What waits for it is bounded; what finds no room is counted as lost
// in the window that it belongs to. Figures above the most that one window may send are summed, so that no sum
// is wrong.
package window
