// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"crypto/sha256"
	"encoding/binary"
)

// prefixBytes is how much of a window's beginning identifies it. Channels of one session begin with the same `init` or
// `job_start`, about 1–2 KB long; 4096 bytes reach into the records after it, whose times differ.
const prefixBytes = 4096

// fingerprint identifies a window by its first uncompressed bytes. It is comparable.
type fingerprint struct {
	n   uint16 // bytes covered: min(prefixBytes, bytes known)
	sum [16]byte
}

// fingerprintOf covers at most the first prefixBytes of p. The length is hashed too, so that a prefix of zero bytes
// differs from a shorter one.
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

// matches says whether data that begins with p can be the window: only the length that the fingerprint covers counts.
func (f fingerprint) matches(p []byte) bool {
	return len(p) >= int(f.n) && fingerprintOf(p[:f.n]) == f
}
