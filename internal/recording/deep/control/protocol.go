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
	// maxRequest bounds the headers and the body of a request, maxReply the body of a response.
	// Both are in bytes. A response has at most ten windows and the rules.
	maxRequest = 4 << 10
	maxReply   = 1 << 20
	// maxConnections bounds concurrent connections. Further connections wait.
	maxConnections = 16
	// requestTime bounds reading a request, replyTime writing a response.
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

// Routes of the server.
const (
	statusPath  = "/status"
	windowsPath = "/windows"
)

// Request is the body of a POST to /windows.
type Request struct {
	// Engine is pc, sass or both. For is a duration such as "2s". "" selects the setting of the
	// process.
	Engine string `json:"engine,omitempty"`
	For    string `json:"for,omitempty"`
}

// reply is a JSON value of a response. The status code says which fields are set.
type reply struct {
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
	// TempDir has the folder otherwise; "" is /tmp. TMPDIR is not used: two programs of one user
	// often differ in it.
	TempDir string
}

// PlaceFromEnv returns the place that the environment says.
func PlaceFromEnv(getenv func(string) string) Place {
	return Place{RuntimeDir: getenv("XDG_RUNTIME_DIR")}
}

// parseRequest decodes the body of a request for a window.
func parseRequest(body []byte) (r deep.Request, err error) {
	var q Request
	if err := json.Unmarshal(body, &q); err != nil {
		return r, errors.New(`the body is not JSON such as {"engine":"pc","for":"2s"}`)
	}
	r.Cause = deep.CauseSocket
	if q.Engine != "" {
		if r.Engine, err = deep.ParseEngine(q.Engine); err != nil {
			return r, fmt.Errorf("engine %.32q is unknown; use pc, sass or both", q.Engine)
		}
	}
	if q.For != "" {
		r.For, err = time.ParseDuration(q.For)
		// deep.Request uses 0 for the default. An explicit 0 is a mistake.
		if err != nil || r.For < deep.MinFor || r.For > deep.MaxFor {
			return r, fmt.Errorf("window length %.32q is invalid; use %v to %v, such as 2s", q.For, deep.MinFor, deep.MaxFor)
		}
	}
	return r, nil
}

func (p Place) temp() string {
	if p.TempDir != "" {
		return p.TempDir
	}
	return string(os.PathSeparator) + "tmp"
}
