// SPDX-License-Identifier: Apache-2.0

// Package gpuflogencodingextension decodes messages with lines of GPU Flight logs, for receivers that
// use an encoding extension. The main one is the kafka receiver: GPU Flight's agent writes such lines
// to Kafka.
//
// A message cannot be decoded alone. Its names are in dictionaries of earlier messages, and a kernel's
// details and scopes are in other messages and partitions. The extension therefore keeps a decoder of
// internal/gpuflog per session. Each signal has its own decoders, because three receivers read the
// traces, logs and metrics of a topic, each at its own pace. An Unmarshal call returns everything that
// its message completes, of any session.
//
// All methods are safe for concurrent use; calls for one signal wait for each other.
package gpuflogencodingextension

//go:generate mdatagen metadata.yaml
