// SPDX-License-Identifier: Apache-2.0

// Package settings reads the settings of a recording. A table has one row for each setting, with
// its variable, its flag and its parser. Errors name the variable, or the flag that the user set.
package settings

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Setting is one row of a table.
type Setting struct {
	// Variable is the environment variable.
	Variable string
	// Flag is the flag of gpuflight trace that sets the variable, "" for none. Help describes it in
	// the form of package flag. A switch needs no value.
	Flag, Help string
	Switch     bool
	// Set parses a value that is not "" and stores it. It returns [Want] or another error without
	// the name of the setting. If it is nil, the owner of the table reads the variable by itself.
	Set func(value string) error
}

// Read reads the variables of a table in its order. getenv works like os.Getenv: "" means not set.
// It returns an [Error] for each invalid value, joined, or nil.
func Read(table []Setting, getenv func(variable string) string) error {
	var errs []error
	for _, s := range table {
		v := getenv(s.Variable)
		if v == "" || s.Set == nil {
			continue
		}
		err := s.Set(v)
		var want Want
		switch {
		case errors.As(err, &want):
			errs = append(errs, &Error{s.Variable, fmt.Sprintf(" is %q; %v", v, want)})
		case err != nil:
			errs = append(errs, Wrong(s.Variable, "%v", err))
		}
	}
	return errors.Join(errs...)
}

// Want is the error of a parser that permits other values. It describes them: "true or false".
type Want string

func (w Want) Error() string { return "it must be " + string(w) }

// Error describes an invalid value of one variable.
type Error struct {
	// Variable is the environment variable, or the flag after [Named].
	Variable string
	// Problem is the text after the name, with the separator: ` is "x"; it must be a number`.
	Problem string
}

func (e *Error) Error() string { return e.Variable + e.Problem }

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

// To returns a function for [Setting] that stores the parsed value. An invalid value changes
// nothing.
func To[T any](field *T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		v, err := parse(text)
		if err == nil {
			*field = v
		}
		return err
	}
}

// Text returns the value itself.
func Text(v string) (string, error) { return v, nil }

// List splits a list at its commas. It omits spaces and empty elements.
func List(v string) (list []string, err error) {
	for e := range strings.SplitSeq(v, ",") {
		if e = strings.TrimSpace(e); e != "" {
			list = append(list, e)
		}
	}
	return list, nil
}

// Bool reads a switch: 1, true, yes, on, or 0, false, no, off in any case.
func Bool(v string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "", "0", "false", "no", "off":
		return false, nil
	case "1", "true", "yes", "on":
		return true, nil
	}
	return false, Want("true or false")
}

// Int returns a parser of integers from least to most.
func Int(least, most int) func(string) (int, error) {
	return func(v string) (int, error) {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return 0, Want(fmt.Sprintf("a whole number of %d to %d", least, most))
		}
		return n, nil
	}
}

// Duration returns a parser of durations of at least least.
func Duration(least time.Duration) func(string) (time.Duration, error) {
	return func(v string) (time.Duration, error) {
		d, err := time.ParseDuration(v)
		if err != nil || d < least {
			return 0, Want(fmt.Sprintf("a duration of at least %v, such as 1500us, 200ms or 5s", least))
		}
		return d, nil
	}
}

// Share reads a percentage ("2%", "0.5 %") or a share ("0.02"). It is above 0 and at most 1.
func Share(v string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(v), "%")
	share, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		share /= 100
	}
	if err != nil || math.IsNaN(share) || share <= 0 || share > 1 {
		return 0, Want("a share above 0 and at most 1, such as 2% or 0.02")
	}
	return share, nil
}

// ZeroIsNone returns a parser that reads 0 as -1. It is for fields that use 0 for a default and
// values below 0 for none.
func ZeroIsNone[T int | time.Duration](parse func(string) (T, error)) func(string) (T, error) {
	return func(text string) (T, error) {
		v, err := parse(text)
		if err == nil && v == 0 {
			v = -1
		}
		return v, err
	}
}
