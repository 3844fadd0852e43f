// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"encoding/hex"
	"math/bits"
	"slices"
	"testing"
)

const sessionA = "11111111-2222-4333-8444-555555555555"

// The ids are in the stores of everybody who has read a log: these values must never change.
func TestIDsNeverChange(t *testing.T) {
	k := KeyOf(sessionA)
	trace := k.Trace(KindScope, 7, 1)
	kernel := k.Span(KindKernel, 100, 0)
	nvtx := KeyOf("not a uuid").Span(KindNVTX, 1<<63, 1<<40)
	other := SessionTrace("not a uuid")
	for _, tt := range []struct {
		what, got, want string
	}{
		{"key", hex.EncodeToString(binaryKey(k)), "43376e0ffc4567877dc7be6d3ac572a8"},
		{"trace of a scope", hex.EncodeToString(trace[:]), "e37751d8bd854c2db7bb8c807a201e14"},
		{"span of a kernel", hex.EncodeToString(kernel[:]), "b87a3b3af7219975"},
		{"span of an NVTX range", hex.EncodeToString(nvtx[:]), "cc6aeb30eeab9925"},
		{"trace of a session that is no UUID", hex.EncodeToString(other[:]), "733c5a201aac1029f5b3ecc13f98510c"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s is %s, want %s", tt.what, tt.got, tt.want)
		}
	}
	for kind, want := range map[Kind]Kind{
		KindKernel: 1, KindCopy: 2, KindSet: 3, KindSync: 4, KindMemory: 5, KindGraph: 6, KindScope: 7, KindWindow: 8, KindSession: 9, KindNVTX: 10, KindDeepWindow: 11,
	} {
		if kind != want {
			t.Errorf("kind is %d, want %d", kind, want)
		}
	}
}

func binaryKey(k SessionKey) []byte {
	t := make([]byte, 0, 16)
	for _, w := range []uint64{k.Hi, k.Lo} {
		for shift := 56; shift >= 0; shift -= 8 {
			t = append(t, byte(w>>shift))
		}
	}
	return t
}

func TestSessionTraceOfAUUIDIsTheUUID(t *testing.T) {
	id := SessionTrace(sessionA)
	if got := hex.EncodeToString(id[:]); got != "11111111222243338444555555555555" {
		t.Errorf("trace is %s", got)
	}
	upper := SessionTrace("ABCDEFAB-2222-4333-8444-555555555555")
	if got := hex.EncodeToString(upper[:]); got != "abcdefab222243338444555555555555" {
		t.Errorf("trace is %s", got)
	}
	seen := map[TraceID]string{}
	for _, s := range []string{
		"", "x", "00000000-0000-0000-0000-000000000000", "11111111-2222-4333-8444-55555555555", "11111111-2222-4333-8444-5555555555555",
		"1111111g-2222-4333-8444-555555555555", "11111111 2222 4333 8444 555555555555", sessionA,
	} {
		id := SessionTrace(s)
		if id == (TraceID{}) {
			t.Errorf("%q: no trace id", s)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q have the same trace", s, other)
		}
		seen[id] = s
	}
}

// Correlation ids and positions are small and dense: their ids must differ nonetheless, across
// kinds, numbers, parts and sessions.
func TestIDsAreDistinct(t *testing.T) {
	n := uint64(400_000)
	if testing.Short() {
		n = 20_000
	}
	ids := make([]uint64, 0, 12*n)
	low := make([]uint64, 0, 2*n)
	for _, session := range []string{sessionA, "11111111-2222-4333-8444-555555555556"} {
		k := KeyOf(session)
		for i := range n {
			for _, id := range []SpanID{
				k.Span(KindKernel, i, 0), k.Span(KindCopy, i, 0), k.Span(KindKernel, 0, i+1),
				k.Span(KindKernel, i+1, i+2), k.Span(KindScope, i<<32, 0), k.Span(KindKernel, i|1<<48, 7),
			} {
				ids = append(ids, word(id[:]))
			}
			tr := k.Trace(KindScope, i, 3)
			low = append(low, word(tr[8:])^bits.RotateLeft64(word(tr[:8]), 32))
		}
	}
	for what, list := range map[string][]uint64{"span": ids, "trace": low} {
		slices.Sort(list)
		for i := 1; i < len(list); i++ {
			if list[i] == list[i-1] {
				t.Fatalf("%s id %x twice among %d", what, list[i], len(list))
			}
		}
		if list[0] == 0 {
			t.Fatalf("%s id zero means none", what)
		}
	}
}

// Each bit of an id is set in half of the ids: samplers decide by bits of the trace id.
func TestBitsOfIDsAreEven(t *testing.T) {
	const n = 100_000
	k := KeyOf(sessionA)
	var ones [192]int
	for i := range uint64(n) {
		tr, sp := k.Trace(KindScope, i, 0), k.Span(KindKernel, i, 0)
		for b := range 192 {
			src := append(tr[:], sp[:]...)
			ones[b] += int(src[b/8]>>(b%8)) & 1
		}
	}
	for b, c := range ones {
		if c < n*48/100 || c > n*52/100 {
			t.Errorf("bit %d is set in %d of %d ids", b, c, n)
		}
	}
}

func word(b []byte) uint64 {
	var w uint64
	for _, x := range b[:8] {
		w = w<<8 | uint64(x)
	}
	return w
}
