// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package front is a minimal ClickHouse server for the Collector's ClickHouse exporter, around
// ClickHouse's real engine. No package registry offers the server; the engine is a Python module
// ([Engine]). [Server] adds the HTTP interface: statements and settings from URL or body,
// credentials, compressed blocks and errors. It answers in the Native format of the client's
// protocol revision; the engine writes revision 0 only.
//
// It can also simulate failures: be unavailable, and drop the answer of an INSERT.
//
// It is for tests and measurements on loopback. It runs one statement at a time, without TLS,
// sessions or asynchronous inserts. When an INSERT is answered, it is a part of the table.
package front
