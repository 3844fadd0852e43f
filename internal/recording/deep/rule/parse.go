// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a rule.
const (
	// MaxText is the longest text of a rule, in bytes: kernels have long names.
	MaxText = 4096
	// MinOver and MaxOver bound the time that a figure looks at; MaxFor bounds "for".
	MinOver = 100 * time.Millisecond
	MaxOver = 10 * time.Minute
	MaxFor  = time.Hour

	defaultRateOver     = time.Second
	defaultQuantileOver = 10 * time.Second
)

// Source is what a figure is about.
type Source uint8

// The sources.
const (
	Kernel Source = iota
	Scope
)

// Op compares a figure with a value.
type Op string

// The comparisons.
const (
	Less         Op = "<"
	LessEqual    Op = "<="
	Greater      Op = ">"
	GreaterEqual Op = ">="
)

// Rule is one parsed rule. Its zero value is none; make one with Parse.
type Rule struct {
	// Text is the rule as it was written, without space around it.
	Text   string
	Source Source
	// Name is the glob that kernels or scopes must match; "*" is all.
	Name string
	// Quantile is 0 for a rate, or 0.01 to 0.99.
	Quantile float64
	Op       Op
	// Value is in 1/s or seconds, or times the baseline.
	Value    float64
	Baseline bool
	// Over is the time that the figure looks at, For the time that the comparison must hold.
	Over, For time.Duration
}

// form is the grammar of rules. A name ends at the last bracket before a statistic, so it may
// contain brackets.
var form = regexp.MustCompile(`^(kernel|scope)(?:\((.+)\))?\.(rate|p[1-9][0-9]?)(?:\s+over\s+(\S+?))?\s*(<=|>=|<|>)\s*(\S+)(\s+baseline)?(?:\s+for\s+(\S+))?$`)

// Parse reads a rule.
func Parse(text string) (Rule, error) {
	text = strings.TrimSpace(text)
	if len(text) > MaxText {
		return Rule{}, fmt.Errorf("a rule has %d bytes: the maximum is %d", len(text), MaxText)
	}
	r, err := parse(text)
	if err != nil {
		return Rule{}, fmt.Errorf("rule %q: %w", text, err)
	}
	return r, nil
}

func parse(text string) (r Rule, err error) {
	m := form.FindStringSubmatch(text)
	if m == nil || !utf8.ValidString(text) {
		return r, errors.New("not in the form of kernel.rate < 100/s for 2s, kernel(NAME).p50 > 2ms or scope(NAME).p95 > 1.5x baseline")
	}
	source, name, stat, over, op, value, baseline, lasting := m[1], strings.TrimSpace(m[2]), m[3], m[4], m[5], m[6], m[7] != "", m[8]
	r = Rule{Text: text, Source: Kernel, Name: name, Op: Op(op), Baseline: baseline, Over: defaultRateOver}
	switch {
	case source == "scope":
		r.Source = Scope
	case m[2] == "":
		r.Name = "*"
	}
	if r.Name == "" {
		return r, errors.New("no name: write one in brackets, or * for all")
	}
	if digits, ok := strings.CutPrefix(stat, "p"); ok {
		percent, _ := strconv.Atoi(digits) // one or two digits
		r.Quantile, r.Over = float64(percent)/100, defaultQuantileOver
	}
	if r.Value, err = r.parseValue(value); err != nil {
		return r, err
	}
	if over != "" {
		if r.Over, err = parseDuration(over, MinOver, MaxOver); err != nil {
			return r, err
		}
	}
	if lasting != "" {
		r.For, err = parseDuration(lasting, 0, MaxFor)
	}
	return r, err
}

// parseValue reads a value with its unit. It refuses values that no figure can meet, and those that
// every figure meets always.
func (r *Rule) parseValue(text string) (v float64, err error) {
	below := r.Op == Less || r.Op == LessEqual
	if r.Quantile > 0 && !r.Baseline {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, errors.New("a quantile is a time: write a unit such as 2ms, or 1.5x baseline")
		}
		v = d.Seconds()
	} else {
		unit, problem := "/s", "a rate counts per second: write a unit such as 100/s, or 0.5x baseline"
		if r.Baseline {
			unit, problem = "x", "a baseline has a factor: write such as 1.5x baseline"
		}
		digits, ok := strings.CutSuffix(text, unit)
		if v, err = strconv.ParseFloat(digits, 64); !ok || err != nil {
			return 0, errors.New(problem)
		}
	}
	switch {
	case !(v >= 0 && v <= 1e15):
		return 0, errors.New("the value is below 0 or too large")
	case v == 0 && (r.Op == Less || r.Op == GreaterEqual):
		return 0, errors.New("no figure is below 0: write <= 0 or > 0, or another value")
	case r.Baseline && (below && v >= 1 || !below && v <= 1 || v == 0):
		return 0, errors.New("a figure is usually at its baseline: write less than 1x after <, or more than 1x after >")
	}
	return v, nil
}

func parseDuration(text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("duration %.24q: it must be %v to %v, such as 2s", text, least, most)
	}
	return d, nil
}
