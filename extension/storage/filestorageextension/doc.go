// SPDX-License-Identifier: Apache-2.0

// Package filestorageextension is contrib's file_storage extension for a Collector that must start
// after any damage to its files. It has the same type and settings, and stores the same files.
//
// It adds three things. A file is checked before bbolt opens it, and a damaged one is renamed, counted
// and logged. Errors name the file and the next step. fsync is on by default, so that what a component
// has stored survives a power failure.
//
// Damage to a file that is in use ends the process: bbolt follows it in goroutines of its own, where
// nobody can recover a panic or a memory fault. The next start sets the file aside.
package filestorageextension

//go:generate mdatagen metadata.yaml
