// SPDX-License-Identifier: Apache-2.0

// Package gpuflogencodingextension decodes messages with lines of GPU Flight logs for receivers that
// take an encoding extension, above all the kafka receiver, where GPU Flight's agent writes such lines.
//
// A message alone means little: names are in dictionaries that came earlier, a kernel's details and
// scopes come in other messages, and out of other partitions. So the extension keeps a decoder of
// internal/gpuflog per session, for each signal by itself: the traces, logs and metrics of a
// topic are read by three receivers, each of which gets every message at a time of its own. What a message
// makes complete is what its Unmarshal call returns, whatever session it is of.
//
// All methods may be called by many goroutines; those of one signal wait for each other.
package gpuflogencodingextension

//go:generate mdatagen metadata.yaml
