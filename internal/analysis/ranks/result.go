// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"fmt"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
)

// Result is what [Run] finds. All times are nanoseconds. Its JSON is stable: docs/ranks.md describes
// it.
type Result struct {
	// Base is the Unix time from which aligned times count, on the clock of the rank with the lowest
	// number.
	Base int64 `json:"base,string"`
	// WallNs is the time from the first collective of several ranks to the last one.
	WallNs int64 `json:"wall_ns"`
	// Size is cuda.run.size, 0 if unknown.
	Size int `json:"size,omitempty"`
	// Complete is false if a session was read in part only.
	Complete bool    `json:"complete"`
	Ranks    []Rank  `json:"ranks"`
	Groups   []Group `json:"groups"`
	// Total is the number of collectives of several ranks. Collectives has at most Options.Limit of
	// them, those with the largest delays, by time.
	Total       int        `json:"collectives_total"`
	Collectives []Together `json:"collectives"`
	Findings    []Finding  `json:"findings"`
	// Problems are sentences on what is missing or uncertain.
	Problems []string `json:"problems"`
}

// SpanID is the id of a span. Its JSON is 16 hexadecimal digits.
type SpanID store.SpanID

// MarshalText returns the digits.
func (s SpanID) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(s)), nil }

// UnmarshalText reads the digits.
func (s *SpanID) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 16, 64)
	*s = SpanID(n)
	return err
}

// Rank is one session. Sums are of the collectives in which all ranks of the group take part, unless
// stated otherwise.
type Rank struct {
	Rank    int    `json:"rank"`
	Session string `json:"session"`
	Service string `json:"service,omitempty"`
	Host    string `json:"host,omitempty"`
	// Base is the start of the session on its own clock. Start times of spans count from it.
	Base int64 `json:"base,string"`
	// Collectives is the number of all that were recorded, Matched of those with a partner.
	Collectives int `json:"collectives"`
	Matched     int `json:"matched"`
	// Offset is how far the clock is ahead of that of rank Reference.
	Reference int     `json:"reference"`
	Offset    *Offset `json:"offset,omitempty"`
	// Last is how often the rank came last, Proven how often whatever the offsets are within their
	// bounds.
	Last   int `json:"last"`
	Proven int `json:"last_proven"`
	// LateNs is how much earlier its collectives could have begun if the rank had come with the last but
	// one, and LateAtLeastNs the part that is proven.
	LateNs        int64 `json:"late_ns"`
	LateAtLeastNs int64 `json:"late_at_least_ns"`
	// WaitedNs is how long the rank was inside before the last one entered.
	WaitedNs int64 `json:"waited_ns"`
	// CommunicationNs is the time with kernels of any collective, ExposedNs the part without another
	// kernel of the device, OverlappedNs the rest.
	CommunicationNs int64  `json:"communication_ns"`
	ExposedNs       int64  `json:"exposed_ns"`
	OverlappedNs    int64  `json:"overlapped_ns"`
	Cause           *Cause `json:"cause,omitempty"`
	// Missing is what is missing of the session, nil below 5 %. The result then has no collectives of several ranks.
	Missing *analysis.Missing `json:"missing,omitempty"`
}

// Offset is the offset of a clock in the middle of the run.
type Offset struct {
	Ns int64 `json:"ns"`
	// MinNs and MaxNs are the bounds, absent if the collectives contradict each other or only one side
	// is bounded.
	MinNs *int64 `json:"min_ns,omitempty"`
	MaxNs *int64 `json:"max_ns,omitempty"`
	// PPM is the mean rate in millionths.
	PPM float64 `json:"ppm"`
}

// Group is ranks that take part in the same collectives: a communicator.
type Group struct {
	// Ranks are indices of Result.Ranks.
	Ranks []int `json:"ranks"`
	// Stream is that of the first rank, absent for scopes of the host.
	Stream *int64 `json:"stream,omitempty"`
	// Collectives is the number of collectives, Complete of those of all its ranks.
	Collectives int `json:"collectives"`
	Complete    int `json:"complete"`
	// Uncertain says why the match is in doubt, "" if it is not.
	Uncertain string `json:"uncertain,omitempty"`
	// Peak is the bandwidth of the link between the ranks in one direction, absent if it is unknown.
	Peak float64 `json:"peak_bytes_per_second,omitempty"`
	// Bandwidths are of the collectives whose size is known.
	Bandwidths []Bandwidth `json:"bandwidths,omitempty"`
	// Findings say which large collectives are far below the peak.
	Findings []string `json:"findings,omitempty"`
}

// Bandwidth is the bus bandwidths of one kind of collectives in a group, in bytes per second.
type Bandwidth struct {
	Kind        Kind `json:"kind"`
	Collectives int  `json:"collectives"`
	// Bytes is the sum of the sizes.
	Bytes int64 `json:"bytes"`
	// Median is the bandwidth at or below which half of the bytes moved.
	Median float64 `json:"median_bytes_per_second"`
	Best   float64 `json:"best_bytes_per_second"`
}

// Together is one collective of several ranks.
type Together struct {
	Group int    `json:"group"`
	Kind  Kind   `json:"kind"`
	Name  string `json:"name"`
	// Complete says that all ranks of the group have been found.
	Complete bool `json:"complete"`
	// Bytes is the size of the data, as nccl-tests counts it, absent if it is unknown. Algorithm and Bus
	// are bandwidths in bytes per second.
	Bytes     int64   `json:"bytes,omitempty"`
	Algorithm float64 `json:"algorithm_bytes_per_second,omitempty"`
	Bus       float64 `json:"bus_bytes_per_second,omitempty"`
	Parts     []Part  `json:"parts"`
	// Late is who came last, absent for kinds that do not synchronise and for incomplete collectives.
	Late *Late `json:"late,omitempty"`
}

// Part is one rank in a collective.
type Part struct {
	// Rank is an index of Result.Ranks.
	Rank int    `json:"rank"`
	Span SpanID `json:"span"`
	// Start counts from the base of the rank, on its clock.
	Start int64 `json:"start"`
	// Enter and Leave are aligned times, which count from the base of the result.
	Enter        int64 `json:"enter"`
	Leave        int64 `json:"leave"`
	WaitedNs     int64 `json:"waited_ns"`
	ExposedNs    int64 `json:"exposed_ns"`
	OverlappedNs int64 `json:"overlapped_ns"`
}

// Late says who came last.
type Late struct {
	// Rank is an index of Result.Ranks.
	Rank int `json:"rank"`
	// Ns is how much later than the last but one. MinNs and MaxNs are its bounds, absent if unknown.
	// A negative MinNs says that another rank can have been the last.
	Ns    int64  `json:"ns"`
	MinNs *int64 `json:"min_ns,omitempty"`
	MaxNs *int64 `json:"max_ns,omitempty"`
	// SpreadNs is how much later than the first.
	SpreadNs int64 `json:"spread_ns"`
}

// Cause is why a rank was late: what took longer than on the other ranks between the collective before
// and this one.
type Cause struct {
	// Kind is slower_kernels, more_kernels, communication, copy, or a cause of idle time.
	Kind string `json:"kind"`
	Text string `json:"text"`
	// ExcessNs is how much longer than on the median of the others it took, summed over the Collectives
	// that were compared. LateNs is by how much the rank was late there.
	ExcessNs    int64 `json:"excess_ns"`
	LateNs      int64 `json:"late_ns"`
	Collectives int   `json:"collectives"`
	// Kernel is the kernel with the largest excess; Call and Stack are of the longest gap. Scope has the most of this
	// idle time, with "*" for numbers in which its names differ.
	Kernel string `json:"kernel,omitempty"`
	Call   string `json:"call,omitempty"`
	Scope  string `json:"scope,omitempty"`
	Stack  string `json:"stack,omitempty"`
	// Evidence are operations of the rank.
	Evidence []Ref `json:"evidence"`
}

// Ref is an operation. Start counts from the base of its rank. DurationNs is 0 for one that ends a gap.
type Ref struct {
	Span       SpanID `json:"span"`
	Start      int64  `json:"start"`
	DurationNs int64  `json:"duration_ns,omitempty"`
	Name       string `json:"name"`
}

// Finding is one sentence of advice about a rank.
type Finding struct {
	// Rank is an index of Result.Ranks.
	Rank int    `json:"rank"`
	Text string `json:"text"`
	// GainNs is how much shorter the run can become at most, by Formula.
	GainNs  int64  `json:"gain_at_most_ns"`
	Formula string `json:"formula"`
}
