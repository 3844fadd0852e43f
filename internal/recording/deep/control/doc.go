// SPDX-License-Identifier: Apache-2.0

// Package control lets a user request deep-profiling windows from a running process. The process
// serves HTTP on a Unix socket ([Listen]). The command gpuflight deep uses [Client].
//
// # Socket
//
// The socket is PID.sock in $XDG_RUNTIME_DIR/gpuflight, or in /tmp/gpuflight-UID if the first cannot
// be used. The folder must belong to the user, have mode 0700 and not be a symbolic link. PID is the
// id inside the process's own PID namespace. The client reaches a process in a container through
// /proc/PID/root.
//
// Both sides check the peer with SO_PEERCRED. The server accepts its own user and root. The client
// accepts only the process that it asked for. A forked child inherits the socket but does not
// answer.
//
// # Requests
//
//   - GET /status returns the process and its report.
//   - POST /windows opens a window. A rejected request returns 409 and the reason. Otherwise the
//     response has two JSON lines: the window when it opens and the window when it has closed. The
//     window continues if the client disconnects.
//   - DELETE /windows closes the open window and says whether there was one.
//
// Headers and body are limited to 4 KiB each. A request must arrive within five seconds. The server
// serves sixteen connections at a time; further ones wait.
package control
