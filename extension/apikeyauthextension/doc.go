// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package apikeyauthextension is the authenticator api_key_auth. It accepts requests with a key of
// the file that the command gpuflight key edits. A change of the file has effect on the next
// request.
//
// Servers that receive telemetry, such as otlp and gpuflog, call Authenticate, which requires the
// scope ingest. The extension gpu_query requires other scopes with AuthenticateScope. The context of
// an accepted request has the key's project, where the exporter gpu_storage stores the data.
package apikeyauthextension
