// SPDX-License-Identifier: Apache-2.0

// Package hostile_test sends hostile input to the distribution's real binary, run with the shipped
// configurations. It shows that memory stays bounded, that other sessions are served, and that
// SIGTERM ends the process in time.
package hostile_test
