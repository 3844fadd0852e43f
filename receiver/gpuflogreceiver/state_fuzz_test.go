// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"bytes"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// storedLimit bounds what a decoder of stored bytes may allocate: a table entry of some hundred bytes
// for each few bytes that it reads.
var storedLimit = alloctest.Limit{PerByte: 512, Constant: 1 << 20}

// FuzzPlan parses stored plans: refused, or the same when stored again.
func FuzzPlan(f *testing.F) {
	p := plan{files: []byte("files"), steps: []planStep{
		{end: gpuflog.Step{Now: 2e18, Quiet: time.Second, Gone: true, AtEnd: [gpuflog.NumChannels]bool{true, false, true, false}}}, {},
	}}
	f.Add(p.append(nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var p plan
		var err error
		storedLimit.Check(t, len(b), func() { p, err = parsePlan(b) })
		if err != nil {
			return
		}
		again, err := parsePlan(p.append(nil))
		if err != nil || !bytes.Equal(again.append(nil), p.append(nil)) {
			t.Fatalf("a plan has changed: %v", err)
		}
	})
}

// FuzzStoredSession parses stored sessions of HTTP: refused, or usable within a bound.
func FuzzStoredSession(f *testing.F) {
	s := &intakeSession{in: &intake{}, id: "s", lines: true, windows: &chunkTable{}}
	s.windows.get(chunkKey{known: true}).accepted = 7
	f.Add(s.appendStored(nil, []byte("state")))
	f.Add([]byte("\x01s\x00\x00\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var st storedSession
		var err error
		storedLimit.Check(t, len(b), func() { st, err = parseStored(b, "s") })
		if err == nil && len(st.windows.order) > maxWindows {
			t.Fatalf("%d windows", len(st.windows.order))
		}
	})
}

// FuzzDecoderState loads stored states and dictionaries within a bound of memory.
func FuzzDecoderState(f *testing.F) {
	d := gpuflog.NewDecoder(gpuflog.Options{})
	f.Add(d.AppendState(nil), d.AppendDictionaries(nil))
	f.Fuzz(func(t *testing.T, state, dicts []byte) {
		storedLimit.Check(t, len(state)+len(dicts), func() {
			_ = gpuflog.NewDecoder(gpuflog.Options{}).LoadState(state, dicts)
		})
	})
}
