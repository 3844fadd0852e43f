// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"
)

// Kind names what an id is derived for; it keeps the ids of different things apart.
type Kind uint64

// The kinds. Values are part of every derived id: never renumber.
const (
	KindKernel Kind = iota + 1
	KindCopy
	KindSet
	KindSync
	KindMemory
	KindGraph
	KindScope
	KindWindow
	KindSession
	KindNVTX
	KindDeepWindow
	KindLog
)

// SessionKey is the root of all ids derived for one session: a 128-bit hash of its identifier.
// Equal identifiers give equal keys in every process and release.
type SessionKey struct{ Hi, Lo uint64 }

// KeyOf returns the key of a session identifier.
func KeyOf(session string) SessionKey {
	lo := xxhash.Sum64String(session)
	return SessionKey{Hi: mix(lo^0x9e3779b97f4a7c15, uint64(len(session))), Lo: lo}
}

// SessionTrace returns the trace of the session's own span: the 16 bytes of a UUID (8-4-4-4-12 hex
// digits), or a hash of any other identifier.
func SessionTrace(session string) TraceID {
	if id, ok := parseUUID(session); ok {
		return id
	}
	return KeyOf(session).Trace(KindSession, 0, 0)
}

// Trace derives a trace id from the kind of its root, the root's number and the part.
func (k SessionKey) Trace(kind Kind, n, part uint64) TraceID {
	var id TraceID
	binary.BigEndian.PutUint64(id[:8], mix(k.Hi^uint64(kind)*0xa0761d6478bd642f, n^part*0xe7037ed1a0b428db))
	binary.BigEndian.PutUint64(id[8:], k.id64(kind, n, part))
	return id
}

// Span derives a span id from the kind of the record and up to two numbers that distinguish it from
// the others of its kind in this session.
func (k SessionKey) Span(kind Kind, a, b uint64) SpanID {
	var id SpanID
	binary.BigEndian.PutUint64(id[:], k.id64(kind, a, b))
	return id
}

// UID identifies a log record: log.record.uid. Two records with the same UID are copies of one.
// The zero value means none.
type UID [16]byte

// UID derives the id of a log record from up to two numbers that distinguish it from the other
// records of the session.
func (k SessionKey) UID(a, b uint64) UID { return UID(k.Trace(KindLog, a, b)) }

// piece derives the id of the i-th record of a text that became several records, from 1.
func (u UID) piece(i uint64) UID {
	if u == (UID{}) {
		return u
	}
	k := SessionKey{Hi: binary.BigEndian.Uint64(u[:8]), Lo: binary.BigEndian.Uint64(u[8:])}
	return k.UID(i, 0)
}

func (u UID) String() string {
	if u == (UID{}) {
		return ""
	}
	var text [2 * len(u)]byte
	hex.Encode(text[:], u[:])
	return string(text[:])
}

func (k SessionKey) id64(kind Kind, a, b uint64) uint64 {
	h := mix(k.Lo^uint64(kind)*0x8ebc6af09c88c6e3, a^0x589965cc75374cc3)
	h = mix(h^k.Hi, b^0x1d8e4e27c47d124f)
	if h == 0 { // an id of zero means none
		return 1
	}
	return h
}

// mix folds the 128-bit product of its arguments, the mixing step of wyhash (Wang Yi, 2019): two
// multiplications an id, against a dozen for a general hash over bytes.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x2d358dccaa6c78a5, b^0x8bb84b93962eacc9)
	return hi ^ lo
}

// parseUUID reads a UUID with hyphens. The other forms that package uuid reads are names of sessions like any other.
func parseUUID(s string) (TraceID, bool) {
	if len(s) != 36 {
		return TraceID{}, false
	}
	id, err := uuid.Parse(s)
	return TraceID(id), err == nil && id != uuid.Nil
}
