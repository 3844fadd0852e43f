// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package wire_test tests the gpuflog receiver with GPU Flight's wire protocol: the clients'
// requests byte for byte (format document, sections 6 and 7), and the released client itself. It
// compares the output with that for the same files.
package wire_test
