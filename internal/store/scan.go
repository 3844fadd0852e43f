// SPDX-License-Identifier: Apache-2.0

package store

import "context"

// Scanner is what a [Reader] may also implement for analyses. It reads many rows with few of their values,
// several times as fast as [Reader.Ops] and [Reader.Spans] do. And it keeps values that were computed from a
// session, as long as the session exists. They are no part of it: an export does not have them, and its size
// does not include them. Their names have the characters a to z, 0 to 9 and "-", at most 100.
type Scanner interface {
	// ScanOps calls visit for each operation that the query selects, by start, then by span. Of Op a row
	// has StartNs, EndNs, Span, Lane, Shape, LaunchStartNs, LaunchEndNs and QueueNs. It has LaneRef,
	// ShapeRef, OriginRef and StackText too, and Attrs if the session has at most a few thousand
	// different ones. It is valid until visit returns. An error of visit ends the call, which returns it.
	// The store sorts the interval as a whole, so callers bound its rows.
	ScanOps(ctx context.Context, q ScanQuery, visit func(*OpRow) error) error
	// ScanScopes calls visit for each scope in the same way. With prefixes, its name begins with one of
	// them. A row has StartNs, EndNs, Span, Parent and Name, and Attrs if its name begins with nccl.
	ScanScopes(ctx context.Context, q ScanQuery, prefixes []string, visit func(*Span) error) error
	// ScopeSums calls visit with a sum of the scopes that the query selects for each bin of 2^shift ns in
	// which one starts or ends, by time. Sums differ if scopes do, but for collisions of 64 bits. A new
	// version of the store may have other sums. An error of visit ends the call, which returns it.
	ScopeSums(ctx context.Context, q ScanQuery, shift uint8, visit func(*ScopeSum) error) error
	// OpCounts calls visit with the number of operations that start in each bin of 2^shift ns, without empty
	// bins, by time. The shift is one of Levels, and the bounds are multiples of a bin. Overlapping has no
	// effect. An error of visit ends the call, which returns it.
	OpCounts(ctx context.Context, q ScanQuery, shift uint8, visit func(*OpCount) error) error

	// Keep keeps a value in the place of an earlier one with its name, or forgets it if it is nil. A
	// session that does not exist gives ErrNotFound.
	Keep(ctx context.Context, project, session, name string, value []byte) error
	// Kept returns the names of all values of a session in order.
	Kept(ctx context.Context, project, session string) ([]string, error)
	// KeptValue returns a value, nil if there is none.
	KeptValue(ctx context.Context, project, session, name string) ([]byte, error)
}

// ScopeSum is the exclusive or of the hashes of scopes that start in a bin, and of those that end in it.
type ScopeSum struct {
	FromNs       int64
	Starts, Ends uint64
}

// OpCount is the number of operations that start in a bin.
type OpCount struct{ FromNs, Ops int64 }

// ScanQuery selects rows that start in [From, To), with Overlapping also those that start before From
// and end after it. From 0 and To 0 each mean no bound.
type ScanQuery struct {
	Project, Session string
	From, To         int64
	Overlapping      bool
	// Places adds PlaceRef to operations, which takes longer: a place can be of one scope only.
	Places bool
	// Limit is the most scopes of ScanScopes, the first ones; 0 means all. Other calls do not use it.
	Limit int
}
