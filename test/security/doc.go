// SPDX-License-Identifier: Apache-2.0

// Package security attacks the shipped Collector with the settings of docs/keys.md. It covers keys for
// OTLP over gRPC and HTTP, for GPU Flight's protocol and for the query API. It also covers projects,
// hostile requests and the audit log.
package security
