// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package wire_test speaks GPU Flight's wire protocol to the gpuflog receiver as its clients do: by
// their requests, byte for byte (format document, sections 6 and 7), and by the released client
// itself, unchanged. What comes out is compared with what the same files give when they are followed.
package wire_test
