// SPDX-License-Identifier: Apache-2.0

package store

import "errors"

// Errors of stores. Errors of calls wrap them.
var (
	// ErrNotFound: the session, span or series does not exist.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the query is outside its limits.
	ErrInvalid = errors.New("invalid query")
	// ErrRetry: the call may succeed later, for example after a full disk has space again.
	ErrRetry = errors.New("temporarily unavailable")
	// ErrInUse: another process uses the directory.
	ErrInUse = errors.New("in use by another process")
	// ErrNotBuilt: this build does not contain the store.
	ErrNotBuilt = errors.New("not built in")
)
