// SPDX-License-Identifier: Apache-2.0

// Package window runs deep windows on a CUPTI collector: it arms and disarms the engines for package
// deep, and makes of what a window yielded samples and counters with the function, the line of source
// and the instruction that they belong to, for package recorder to send.
//
// It knows packages cupti, cubin, deep and recorder, and nothing of who asked for a window or where the
// telemetry goes.
//
// Figures are ready a tenth of a second after their window, and go at once: one goroutine reads what it needs of the
// images, a window after the other. The text of instructions takes nvdisasm seconds or minutes. It follows when it is ready,
// from a goroutine of its own, once for each function in a session. When the session ends what was
// collected is sent, without lines if there is no time for them; texts that are not ready are dropped, and counted.
//
// What waits is bounded; what finds no room is counted as lost in the window that it belongs to. Figures
// above the most that one window may send are summed, so that no sum is wrong.
package window
