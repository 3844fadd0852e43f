// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"hash/crc32"
	"math/bits"
)

// CUPTICRC returns the number by which CUPTI names an image: what cuptiGetCubinCrc returns, and what is in the
// records of PC sampling and SASS metrics unless a client has registered a function of its own.
//
// In spite of its name it is no CRC, and not of the whole image: it is FNV-1a of 32 bits over the size, as
// eight bytes, and 2⌈log2 size⌉ bytes at equal distances, some 30 of a usual image. Two builds of one program
// may well have the same. Found with CUPTI 11.8, 12.9 and 13.0, which agree with this on images of 1 byte to 4 MiB.
func CUPTICRC(image []byte) uint64 {
	const offset, prime = 2166136261, 16777619
	h := uint32(offset)
	n := uint64(len(image))
	for shift := 0; shift < 64; shift += 8 {
		h = (h ^ uint32(n>>shift&0xff)) * prime
	}
	if n == 0 {
		return uint64(h)
	}
	samples := 2 * uint64(bits.Len64(n-1))
	for i := range samples {
		h = (h ^ uint32(image[i*n/samples])) * prime
	}
	return uint64(h)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC returns a number of the whole image, for a client that tells CUPTI its own: the CRC-32C. It has 32 bits,
// as records of SASS metrics have no room for more.
func CRC(image []byte) uint64 { return uint64(crc32.Checksum(image, castagnoli)) }
