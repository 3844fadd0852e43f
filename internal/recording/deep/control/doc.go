// SPDX-License-Identifier: Apache-2.0

// Package control lets a user ask a running process for a deep window: the process listens on a local
// socket ([Listen]), gpuflight deep talks to it ([Client]). It knows package deep and neither what a window
// is made of nor who runs it.
//
// # Where
//
// The socket is PID.sock, in $XDG_RUNTIME_DIR/gpuflight if that variable names a folder that only its owner
// can change, else in /tmp/gpuflight-UID. The folder belongs to the user, with mode 0700; one that does not,
// or that is a symbolic link, is not used. It is held open and everything in it is reached through it, so that
// no change of the path in between matters. PID is the process's id as it sees it itself: a process in a
// container is reached from outside through /proc/PID/root.
//
// The kernel says who is at the other end, on both sides: the process answers its own user and root, and
// the client believes only the process that it asked for. A forked child holds the socket too, but does
// not answer; one that holds it after its parent was killed is found out by the parent's id.
//
// # What is said
//
// Each side sends lines of JSON. The client sends one, a [Request]; the process answers with a [Reply], and
// to one that opens a window with a second when the window has closed, and then closes the connection. A
// request has at most 4 KiB and must come within five seconds; sixteen connections are served at a time,
// and one more is told so. Whoever asks may go: the window ends by itself.
package control
