// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package gpuqueryextension serves a store of GPU telemetry: the query API that openapi.yaml
// describes, and the web UI.
//
// The API reads a store that the extension gpu_storage has opened. Every request has limits of size,
// time and concurrency, and the context of a request ends its queries. On a loopback address, the
// server checks the headers Host and Origin. On other addresses it requires an authenticator.
package gpuqueryextension
