// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
)

// Reply is the response to a window or a line.
type Reply struct {
	// Accepted and Rejected count lines, without blank ones.
	Accepted int64 `json:"accepted"`
	Rejected int64 `json:"rejected"`
	// Errors describes the first rejected lines.
	Errors []LineError `json:"errors"`
	// WindowAcknowledged means that the client may delete its copy.
	WindowAcknowledged bool `json:"window_acknowledged"`
	// Waiting counts the spans of the session that wait in memory for lines of another channel. It
	// is absent if there are none, or if they are stored.
	Waiting int `json:"waiting,omitempty"`
	// Error is the reason of a refusal.
	Error string `json:"error,omitempty"`
}

// LineError is the reason why a line was rejected.
type LineError struct {
	// Line counts from 1.
	Line   int64  `json:"line"`
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// MaxErrors bounds the errors of a reply. Further errors are only counted.
const MaxErrors = 100

// Write sends the reply. It ignores errors of the connection, which the client notices.
func (r *Reply) Write(w http.ResponseWriter, status int) {
	if r.Errors == nil {
		r.Errors = []LineError{}
	}
	b, err := json.Marshal(r)
	if err != nil { // strings and numbers only
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// Write sends the refusal.
func (r *Refusal) Write(w http.ResponseWriter) {
	if r.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.RetryAfter.Seconds()))))
	}
	(&Reply{Error: r.Reason}).Write(w, r.Status)
}
