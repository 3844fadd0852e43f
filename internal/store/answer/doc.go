// SPDX-License-Identifier: Apache-2.0

// Package answer computes in Go what stores have in common when they answer queries: limits, paths
// of scopes, bins of the timeline, percentiles and the reduction of points. It has no SQL. Its types
// are not safe for concurrent use, unless they say so.
package answer
