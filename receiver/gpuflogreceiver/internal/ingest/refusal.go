// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"fmt"
	"net/http"
	"time"
)

// Refusal is the reason why a request is rejected, as sent to the client.
type Refusal struct {
	// Status is the HTTP status of the response.
	Status int
	// Reason is a sentence for the client.
	Reason string
	// RetryAfter is the delay before a retry, or 0 if a retry cannot succeed.
	RetryAfter time.Duration
}

// Error returns the reason.
func (r *Refusal) Error() string { return r.Reason }

// Unreadable rejects a request that cannot be parsed.
func Unreadable(format string, args ...any) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Reason: fmt.Sprintf(format, args...)}
}

// Busy rejects a request temporarily, because of the bounds of this receiver.
func Busy(reason string) *Refusal {
	return &Refusal{Status: http.StatusTooManyRequests, Reason: reason, RetryAfter: time.Second}
}

// Unavailable rejects a request temporarily, because of the components after this receiver.
func Unavailable(reason string) *Refusal {
	return &Refusal{Status: http.StatusServiceUnavailable, Reason: reason, RetryAfter: 2 * time.Second}
}

func tooLarge(what string, limit int64) *Refusal {
	return &Refusal{
		Status: http.StatusRequestEntityTooLarge,
		Reason: fmt.Sprintf("the body is above the limit of %d bytes %s", limit, what),
	}
}
