// SPDX-License-Identifier: Apache-2.0

package gpuflogencodingextension

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// Reasons for rejecting a message or a line. gpuflog has further reasons.
const (
	// The message is neither lines, a JSON string of lines, nor gzip.
	reasonUnreadable = "unreadable"
	// The message is longer than max_message_bytes after decompression.
	reasonTooLarge = "too_large"
	// The line names no session.
	reasonNoSession = "no_session"
	// The line's session id is too long.
	reasonSessionID = "session_id"
	// The line is not a JSON object, or is truncated.
	reasonMalformed = "malformed"
	// The gzip data is truncated. Complete lines before the end are accepted.
	reasonTruncated = "truncated"
	// The session was closed before its end had arrived in three channels.
	reasonEarlyEnd = "early_end"
	// The line arrived after its session was closed. It is accepted, but its parent may differ.
	reasonAfterEnd = "after_end"
	// The last rows of the line are dropped, because the message returns too much data.
	reasonExpands = "expands"
	// The stored state of sessions cannot be read.
	reasonState = "state"
)

// messageError is why a message, or its rest, is not taken.
type messageError struct {
	reason string
	err    error
}

func (e *messageError) Error() string { return e.reason + ": " + e.err.Error() }
func (e *messageError) Unwrap() error { return e.err }

// open returns the lines in a message. GPU Flight's agent writes a line as a JSON string, or as JSON
// strings go over HTTP: as "data" of an object (format document, section 7). Also taken are lines as they
// are, one or more, and a window of a log, plain or compressed by gzip. limit bounds it in bytes,
// unpacked. Lines are valid as long as message; what was read before an error is returned with it.
func open(message []byte, limit int) (lines []byte, err error) {
	if len(message) > limit {
		return nil, &messageError{reasonTooLarge, fmt.Errorf("%d bytes", len(message))}
	}
	message = bytes.TrimSpace(message)
	switch {
	case len(message) == 0:
		return nil, &messageError{reasonUnreadable, errors.New("nothing in it")}
	case bytes.HasPrefix(message, []byte{0x1f, 0x8b}):
		return unpack(message, limit)
	case message[0] == '"':
		return text(message)
	case message[0] != '{':
		return nil, &messageError{reasonUnreadable, fmt.Errorf("starts with %.16q", message)}
	}
	// A line names its type and session; the envelope has a line in its data.
	var envelope struct {
		Data json.RawMessage `json:"data"`
	}
	if gpuflog.SessionOf(message) == "" && json.Unmarshal(message, &envelope) == nil && len(envelope.Data) > 0 {
		if envelope.Data[0] == '"' {
			return text(envelope.Data)
		}
		return envelope.Data, nil
	}
	return message, nil
}

// text reads a JSON string. Its lines may have been written as a JSON string once more.
func text(quoted []byte) ([]byte, error) {
	for range 2 {
		var s string
		if err := json.Unmarshal(quoted, &s); err != nil {
			return nil, &messageError{reasonUnreadable, err}
		}
		quoted = bytes.TrimSpace([]byte(s))
		if len(quoted) == 0 || quoted[0] != '"' {
			return quoted, nil
		}
	}
	return quoted, nil
}

func unpack(message []byte, limit int) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(message))
	if err != nil {
		return nil, &messageError{reasonUnreadable, err}
	}
	var lines bytes.Buffer
	n, err := lines.ReadFrom(io.LimitReader(z, int64(limit)+1))
	switch {
	case n > int64(limit):
		return nil, &messageError{reasonTooLarge, fmt.Errorf("more than %d bytes unpacked", limit)}
	case err != nil:
		// Whole lines of what could be read.
		whole := lines.Bytes()
		whole = whole[:bytes.LastIndexByte(whole, '\n')+1]
		return whole, &messageError{reasonTruncated, err}
	}
	return lines.Bytes(), nil
}
