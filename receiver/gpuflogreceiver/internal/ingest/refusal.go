// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"fmt"
	"net/http"
	"time"
)

// Refusal is why a request is not taken, as the client is told.
type Refusal struct {
	// Status is the HTTP status of the answer.
	Status int
	// Reason is a sentence for the client.
	Reason string
	// RetryAfter is when a further attempt makes sense; 0 where none does.
	RetryAfter time.Duration
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason }

// Unreadable refuses what cannot be read at all.
func Unreadable(format string, args ...any) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Reason: fmt.Sprintf(format, args...)}
}

// Busy refuses for now, because of this receiver's own bounds.
func Busy(reason string) *Refusal {
	return &Refusal{Status: http.StatusTooManyRequests, Reason: reason, RetryAfter: time.Second}
}

// Unavailable refuses for now, because of what stands behind this receiver.
func Unavailable(reason string) *Refusal {
	return &Refusal{Status: http.StatusServiceUnavailable, Reason: reason, RetryAfter: 2 * time.Second}
}

func tooLarge(what string, limit int64) *Refusal {
	return &Refusal{
		Status: http.StatusRequestEntityTooLarge,
		Reason: fmt.Sprintf("the body is above the limit of %d bytes %s", limit, what),
	}
}
