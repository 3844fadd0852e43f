// SPDX-License-Identifier: Apache-2.0

// Package occupancyprocessor adds computed attributes to spans of GPU work. A kernel gets the occupancy
// that CUDA would compute for its launch, and the share of the device that its grid fills. A copy gets
// its throughput, and the ratio of that to the link's peak.
//
// It recognizes spans by the names of semconv, whatever their source. internal/occupancy has the
// arithmetic. The processor omits and counts what it cannot compute. It may consume batches
// concurrently; between batches it keeps only a bounded cache.
package occupancyprocessor

//go:generate mdatagen metadata.yaml
