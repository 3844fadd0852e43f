// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package front is as much of a ClickHouse server as the Collector's ClickHouse exporter needs, around
// ClickHouse's real engine. No server is published as a package that tests could fetch; the engine is, as
// a Python module ([Engine]). What it lacks is the server's HTTP interface, and that is what [Server] adds:
// statements and settings from the URL or the body, credentials, compressed blocks, errors, and answers in
// the Native format of the protocol revision that the client asks for, where the engine only writes
// revision 0.
//
// It can also fail as servers do: be away, and run an INSERT whose answer never arrives.
//
// It is for tests and measurements on loopback. One statement runs at a time, there is no TLS, no session
// and no queue of asynchronous inserts: each INSERT is in the table, as a part of its own, when it is
// answered.
package front
