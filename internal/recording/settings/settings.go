// SPDX-License-Identifier: Apache-2.0

// Package settings reads the values of settings, with one parser for each kind of value. Its errors
// hold the variable of the value, so that a program can report the flag that the user set.
package settings

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Error describes an invalid value of one variable.
type Error struct {
	// Variable is the environment variable, or the flag after [Named].
	Variable string
	// Problem is the text after the name, with the separator: ` is "x"; it must be a number`.
	Problem string
}

func (e *Error) Error() string { return e.Variable + e.Problem }

// Bad returns the error for a variable with an invalid value.
func Bad(variable, value, want string) error {
	return &Error{variable, fmt.Sprintf(" is %q; it must be %s", value, want)}
}

// Wrong returns the error for a variable, with its own text after a colon.
func Wrong(variable, format string, args ...any) error {
	return &Error{variable, ": " + fmt.Sprintf(format, args...)}
}

// Named returns err with other names of the variables, including those in joined errors. name
// returns the name that a user knows, such as "--output", or the variable itself.
func Named(err error, name func(variable string) string) error {
	switch e := err.(type) { //nolint:errorlint // It takes the tree apart.
	case *Error:
		return &Error{name(e.Variable), e.Problem}
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range e.Unwrap() {
			all = append(all, Named(one, name))
		}
		return errors.Join(all...)
	}
	return err
}

// Reader reads values and collects their errors. It belongs to one goroutine.
type Reader struct {
	// Getenv works like os.Getenv: "" means not set.
	Getenv func(variable string) string
	errs   []error
}

// Fail adds an error.
func (r *Reader) Fail(err error) { r.errs = append(r.errs, err) }

// Bad adds the error for an invalid value.
func (r *Reader) Bad(variable, value, want string) { r.Fail(Bad(variable, value, want)) }

// Err returns all errors, joined, or nil.
func (r *Reader) Err() error { return errors.Join(r.errs...) }

// Bool reads a switch: 1, true, yes, on, or 0, false, no, off in any case. An unset variable is
// false.
func (r *Reader) Bool(variable string) bool {
	v := r.Getenv(variable)
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "", "0", "false", "no", "off":
	case "1", "true", "yes", "on":
		return true
	default:
		r.Bad(variable, v, "true or false")
	}
	return false
}

// Int reads a 32-bit integer of at least least. An unset variable is 0.
func (r *Reader) Int(variable string, least int) int {
	v := r.Getenv(variable)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > math.MaxInt32 {
		r.Bad(variable, v, fmt.Sprintf("a whole number of %d to %d", least, math.MaxInt32))
		return 0
	}
	return n
}

// Duration reads a duration of at least least. An unset variable has the value otherwise.
func (r *Reader) Duration(variable string, least, otherwise time.Duration) time.Duration {
	v := r.Getenv(variable)
	if v == "" {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < least {
		r.Bad(variable, v, fmt.Sprintf("a duration of at least %v, such as 1500us, 200ms or 5s", least))
		return otherwise
	}
	return d
}
