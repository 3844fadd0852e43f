// SPDX-License-Identifier: Apache-2.0

// Package kubernetes tests the Helm chart and the example for the OpenTelemetry Operator without a
// cluster. It uses Helm's engine, the types of the Kubernetes API, the API server's evaluation of
// admission policies, and the shipped Collector. Its module is outside go.work, because it would raise
// the versions of modules that the Collector shares with Kubernetes.
package kubernetes
