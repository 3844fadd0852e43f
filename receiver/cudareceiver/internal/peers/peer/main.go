// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Command peer attaches one of the probes of package peers to a driver library and keeps it
// attached until its standard input ends. test/gpu/cuda_cost.py compares the receiver with it.
//
//	peer counting LIBRARY    counts launches in the kernel
//	peer ring LIBRARY        sends an event of each launch to a reader that the kernel wakes
//	peer ring-quiet LIBRARY  sends an event of each launch to a reader that polls every 10 ms
//
// It prints "ready" after it has attached. At the end it prints a line of JSON: the launches that
// were counted or read, and the launches that were lost.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/peers"
)

// ringBytes is the size of the ring buffer.
const ringBytes = 1 << 20

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

type result struct {
	Launches uint64 `json:"launches"`
	Lost     uint64 `json:"lost"`
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: peer counting|ring|ring-quiet LIBRARY")
	}
	wait := func() error {
		if _, err := fmt.Fprintln(out, "ready"); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, in)
		return err
	}
	var r result
	var err error
	switch args[0] {
	case "counting":
		r, err = counting(args[1], wait)
	case "ring", "ring-quiet":
		r, err = ring(args[1], args[0] == "ring", wait)
	default:
		err = fmt.Errorf("%q is none of counting, ring, ring-quiet", args[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

func counting(library string, wait func() error) (r result, err error) {
	c, err := peers.AttachCounting(library)
	if err != nil {
		return r, err
	}
	defer c.Close()
	if err := wait(); err != nil {
		return r, err
	}
	r.Launches, err = c.Calls()
	return r, err
}

func ring(library string, wake bool, wait func() error) (r result, err error) {
	c, err := peers.AttachRing(library, ringBytes, wake)
	if err != nil {
		return r, err
	}
	defer c.Close()
	if err := wait(); err != nil {
		return r, err
	}
	r.Launches = c.Received()
	r.Lost, err = c.Lost()
	return r, err
}
