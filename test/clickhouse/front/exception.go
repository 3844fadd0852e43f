// SPDX-License-Identifier: Apache-2.0

//go:build linux

package front

import (
	"regexp"
	"strconv"
)

// Exception is an error that ClickHouse's engine reports for a statement.
type Exception struct {
	// Code is ClickHouse's error code; 0 if the message has none.
	Code int
	// Message is the complete text, with the code.
	Message string
}

// Error returns the message.
func (e *Exception) Error() string { return e.Message }

var exceptionCode = regexp.MustCompile(`Code: (\d+)\. DB::Exception`)

func newException(message string) *Exception {
	e := &Exception{Message: message}
	if m := exceptionCode.FindStringSubmatch(message); m != nil {
		e.Code, _ = strconv.Atoi(m[1]) // 0 for a number out of range
	}
	return e
}
