// SPDX-License-Identifier: Apache-2.0

// Package server answers inference requests over HTTP: a plain JSON route, and version 2 of KServe's
// protocol with its binary tensor extension
// (https://github.com/kserve/open-inference-protocol, https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md).
//
// A request is one trace: the server's span, its wait in the queue, and the run with its kernels. A
// run of several requests is a trace of its own, a batch, with links to and from the requests.
package server
