// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/deep"
)

const (
	// maxRequest and maxReply bound a line, in bytes with its end. A reply has ten windows and the rules.
	maxRequest = 4 << 10
	maxReply   = 1 << 20
	// maxConnections bounds what is served at a time.
	maxConnections = 16
	// requestTime is how long a request may take to come, replyTime how long a reply to go.
	requestTime = 5 * time.Second
	replyTime   = 2 * time.Second
)

// Errors of Client.
var (
	// ErrNoProcess says that there is no process of that id.
	ErrNoProcess = errors.New("there is no such process")
	// ErrNotListening says that the process takes no requests.
	ErrNotListening = errors.New("the process takes no requests for deep windows: start it with GPUFLIGHT_DEEP=1, as this user, and ask once it has used the GPU")
	// ErrNotAnswering says that the process did not answer in time.
	ErrNotAnswering = errors.New("the process does not answer")
	// ErrNotSupported says that this system has no such sockets.
	ErrNotSupported = errors.New("deep windows can be asked for on Linux only")
)

// What a Request can do.
const (
	DoOpen   = "open"
	DoClose  = "close"
	DoStatus = "status"
)

// Request is what a client sends.
type Request struct {
	Do string `json:"do"`
	// Engine is pc, sass or both, and For a duration such as "2s", of an open; "" is as the process
	// has them set.
	Engine string `json:"engine,omitempty"`
	For    string `json:"for,omitempty"`
}

// What a Reply says.
const (
	Accepted = "accepted" // an open: Window is as it began
	Closed   = "closed"   // an open: Window is as it ended; a close: Found says whether there was one
	Refused  = "refused"  // an open: Outcome says why
	State    = "status"   // a status: Process and Report
	Wrong    = "error"    // Error says what is wrong with the request, or why nothing is answered
)

// Reply is what a process answers.
type Reply struct {
	Event   string        `json:"event"`
	Error   string        `json:"error,omitempty"`
	Found   bool          `json:"found,omitempty"`
	Outcome *deep.Outcome `json:"outcome,omitempty"`
	Window  *deep.Window  `json:"window,omitempty"`
	Process *Process      `json:"process,omitempty"`
	Report  *deep.Report  `json:"report,omitempty"`
}

// Process says which process answers.
type Process struct {
	// PID is the id as the process sees it itself.
	PID     int    `json:"pid"`
	Service string `json:"service,omitempty"`
	Command string `json:"command,omitempty"`
}

// Place says where sockets are looked for and made.
type Place struct {
	// RuntimeDir is $XDG_RUNTIME_DIR, "" for none.
	RuntimeDir string
	// TempDir has the folder otherwise; "" is /tmp. TMPDIR is not used: two programs of one user often
	// differ in it.
	TempDir string
}

// PlaceFromEnv returns the place that the environment says.
func PlaceFromEnv(getenv func(string) string) Place {
	return Place{RuntimeDir: getenv("XDG_RUNTIME_DIR")}
}

// parseRequest reads a line.
func parseRequest(line []byte) (do string, r deep.Request, err error) {
	var q Request
	if err := json.Unmarshal(line, &q); err != nil {
		return "", r, errors.New(`the request is no line of JSON such as {"do":"open","engine":"pc","for":"2s"}`)
	}
	switch q.Do {
	case DoClose, DoStatus:
		return q.Do, r, nil
	case DoOpen:
	default:
		return "", r, fmt.Errorf("%.32q is nothing to do; there are open, close and status", q.Do)
	}
	r.Cause = deep.CauseSocket
	if q.Engine != "" {
		if r.Engine, err = deep.ParseEngine(q.Engine); err != nil {
			return "", r, fmt.Errorf("%.32q is no engine; there are pc, sass and both", q.Engine)
		}
	}
	if q.For != "" {
		r.For, err = time.ParseDuration(q.For)
		// 0 would be the default, and nobody says 0 for that.
		if err != nil || r.For < deep.MinFor || r.For > deep.MaxFor {
			return "", r, fmt.Errorf("%.32q is no length of a window; it is %v to %v, such as 2s", q.For, deep.MinFor, deep.MaxFor)
		}
	}
	return DoOpen, r, nil
}

func (p Place) temp() string {
	if p.TempDir != "" {
		return p.TempDir
	}
	return string(os.PathSeparator) + "tmp"
}
