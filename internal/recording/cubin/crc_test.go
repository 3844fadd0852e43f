// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// These are results of cuptiGetCubinCrc of CUPTI 13.0. TestCUPTI_Agreement compares with the library
// itself.
func TestCUPTICRC_KnownValues(t *testing.T) {
	for image, want := range map[string]uint64{
		"\x00":             0x3e801244,
		"\xff":             0x3e801244, // one byte is not looked at
		"\x00\x00":         0xf15b217f,
		"\x01\x00":         0xcb58a716,
		"\x00\x01":         0xf05b1fec,
		"\x00\x00\x00":     0xb5c8d2e6,
		"\x00\x00\x00\x01": 0x930aa05e,
		"123456789":        0x91d7b794,
		"\x7fELF":          0x05e7baef,
	} {
		assert.Equal(t, want, CUPTICRC([]byte(image)), "%q", image)
	}
	assert.NotPanics(t, func() { CUPTICRC(nil) })
	// The check value of CRC-32C.
	assert.Equal(t, uint64(0xe3069283), CRC([]byte("123456789")))
}

// CUPTI's number does not depend on most of the image; our CRC depends on all of it.
func TestCUPTICRC_Collision(t *testing.T) {
	image := golden(t, "lines.sm_90")
	theirs, ours := CUPTICRC(image), CRC(image)
	same := 0
	for i := range image {
		image[i]++
		if CUPTICRC(image) == theirs {
			same++
		}
		assert.NotEqual(t, ours, CRC(image))
		image[i]--
	}
	assert.Equal(t, len(image)-30, same)
}
