// SPDX-License-Identifier: Apache-2.0

// Package occupancyprocessor adds to spans of GPU work what follows from them: to a kernel the
// occupancy that CUDA would compute for its launch and how far its grid fills the device, to a copy
// its throughput and what share of the link's peak that is.
//
// It knows spans by the names of semconv, from whatever source, and takes the arithmetic from the
// repository's internal/occupancy. What it cannot know it leaves out and counts. Batches may be
// consumed concurrently; nothing is kept between them but a bounded cache.
package occupancyprocessor

//go:generate mdatagen metadata.yaml
