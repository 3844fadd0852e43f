// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
)

const traceSupported = false

type ending struct{ code, signal int }

func (e ending) String() string { return "ended with " + strconv.Itoa(e.code) }

func (e ending) die() { os.Exit(e.code) }

func runCommand(*exec.Cmd, string, func(int)) (ending, error) {
	return ending{}, errors.New("tracing is supported on Linux only")
}

func alive(int) bool { return false }
