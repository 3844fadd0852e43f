// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// Record is a single line from a request of its own.
type Record struct {
	Line    []byte
	Session string
	Type    string
	Channel gpuflog.Channel
}

// envelope is the agent's wrapper of a line (format document, section 7). Its hostname and address
// describe the agent's host, not always the session's, and are ignored.
type envelope struct {
	Data json.RawMessage `json:"data"`
}

// Line returns the line of a checked body. eventType is the last part of the request's path: a
// record type or a channel. key is the header X-Key: the channel, or empty. Every error is a
// *Refusal.
func (b *Body) Line(eventType, key string) (Record, error) {
	// This reserves the text, the line from it and the decoder's copy of both.
	if err := b.budget.reserve(3*b.unpacked, b.taken); err != nil {
		return Record{}, err
	}
	b.taken += 3 * b.unpacked
	text := b.raw
	if b.gzip {
		src, err := b.open()
		if err != nil {
			return Record{}, err
		}
		var unpacked bytes.Buffer
		if _, err := unpacked.ReadFrom(src); err != nil {
			return Record{}, Unreadable("the body is not complete gzip: %v", err)
		}
		text = unpacked.Bytes()
	}
	text = bytes.TrimSpace(text)
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return Record{}, Unreadable("the body is not a JSON object: %v", err)
	}
	r := Record{Line: text} // a line without its envelope
	switch data := bytes.TrimSpace(e.Data); {
	case len(data) == 0:
	case data[0] == '"':
		var line string
		if err := json.Unmarshal(data, &line); err != nil {
			return Record{}, Unreadable("data is not a JSON string: %v", err)
		}
		r.Line = []byte(line)
	default:
		r.Line = data
	}
	r.Line = bytes.TrimRight(r.Line, "\r\n")
	if len(r.Line) > b.limits.LineBytes {
		return Record{}, &Refusal{Status: http.StatusRequestEntityTooLarge, Reason: ErrLineTooLong.Error()}
	}
	if bytes.IndexByte(r.Line, '\n') >= 0 {
		return Record{}, Unreadable("data holds more than one line: send them to events/stream")
	}
	if !gpuflog.Whole(r.Line) {
		return Record{}, Unreadable("data is not a line of a log: it must be one JSON object")
	}
	if r.Type = gpuflog.TypeOf(r.Line); r.Type == "" {
		return Record{}, Unreadable("the line names no type")
	}
	if r.Session = gpuflog.SessionOf(r.Line); r.Session == "" {
		return Record{}, Unreadable("the line names no session_id")
	}
	r.Channel = channelOf(r.Type, eventType, key)
	return r, nil
}

// channelOf returns the channel of a single line. Records of every channel without a key count as
// the sass channel's, because nothing depends on it.
func channelOf(recordType, eventType, key string) gpuflog.Channel {
	for _, name := range []string{key, eventType} {
		if ch, ok := gpuflog.ChannelNamed(name); ok {
			return ch
		}
	}
	if ch, ok := gpuflog.ChannelOf(recordType); ok {
		return ch
	}
	return gpuflog.Sass
}
