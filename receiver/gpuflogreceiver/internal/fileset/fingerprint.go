// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"crypto/sha256"
	"encoding/binary"
)

// prefixBytes is the number of bytes that identify a log file. Channels of one session begin with
// the same `init` or `job_start` of about 1–2 KB. 4096 bytes include later records, whose times
// differ.
const prefixBytes = 4096

// fingerprint identifies a log file by its first uncompressed bytes. It is comparable.
type fingerprint struct {
	n   uint16 // bytes covered: min(prefixBytes, bytes known)
	sum [16]byte
}

// fingerprintOf covers at most the first prefixBytes of p. It also hashes the length, so that a
// prefix of zero bytes differs from a shorter one.
func fingerprintOf(p []byte) fingerprint {
	if len(p) > prefixBytes {
		p = p[:prefixBytes]
	}
	h := sha256.New()
	var l [2]byte
	binary.LittleEndian.PutUint16(l[:], uint16(len(p)))
	h.Write(l[:])
	h.Write(p)
	var sum [sha256.Size]byte
	fp := fingerprint{n: uint16(len(p))}
	copy(fp.sum[:], h.Sum(sum[:0]))
	return fp
}

// matches reports whether data that begins with p can be the log file. It compares only the length
// that the fingerprint covers.
func (f fingerprint) matches(p []byte) bool {
	return len(p) >= int(f.n) && fingerprintOf(p[:f.n]) == f
}
