// SPDX-License-Identifier: Apache-2.0

package rule

import (
	"fmt"
	"math"
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
	BusyRatio
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
	// Name is the glob that kernels or scopes must match; "*" is all. BusyRatio has none.
	Name string
	// Quantile is 0 for a rate or ratio, or 0.01 to 0.99.
	Quantile float64
	Op       Op
	// Value is in 1/s, seconds or 1, or times the baseline.
	Value    float64
	Baseline bool
	// Over is the time that the figure looks at, For the time that the comparison must hold.
	Over, For time.Duration
}

// ParseError says where a rule is wrong and what to write instead.
type ParseError struct {
	Text string
	// Position counts characters from 1.
	Position int
	Problem  string
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("rule %q: position %d: %s", e.Text, e.Position, e.Problem)
}

// Parse reads a rule. An error is a *ParseError.
func Parse(text string) (Rule, error) {
	p := parser{text: strings.TrimSpace(text)}
	r := Rule{Text: p.text}
	switch {
	case p.text == "":
		p.fail(0, `the rule is empty; write one such as "kernel.rate < 100/s for 2s"`)
	case len(p.text) > MaxText:
		p.fail(0, fmt.Sprintf("the rule has %d bytes; %d are the most", len(p.text), MaxText))
		p.err.Text = "" // it would be said in full
	case !utf8.ValidString(p.text):
		p.fail(0, "the rule is not UTF-8; write it in UTF-8")
	default:
		p.rule(&r)
	}
	if p.err != nil {
		return Rule{}, p.err
	}
	return r, nil
}

// parser reads a text once. After the first mistake err is set and nothing else is read.
type parser struct {
	text string
	at   int
	err  *ParseError
}

// fail notes a mistake at a byte of the text.
func (p *parser) fail(at int, problem string) {
	if p.err == nil {
		p.err = &ParseError{Text: p.text, Position: utf8.RuneCountInString(p.text[:min(at, len(p.text))]) + 1, Problem: problem}
		p.at = len(p.text)
	}
}

func (p *parser) rule(r *Rule) {
	p.figure(r)
	p.space()
	r.Over = defaultRateOver
	if r.Quantile > 0 {
		r.Over = defaultQuantileOver
	}
	if p.word("over") {
		r.Over = p.duration(MinOver, MaxOver)
		p.space()
	}
	opAt := p.at
	p.op(r)
	p.space()
	valueAt := p.at
	p.value(r)
	p.possible(r, opAt, valueAt)
	p.space()
	if p.word("for") {
		r.For = p.duration(0, MaxFor)
		p.space()
	}
	if p.err == nil && p.at < len(p.text) {
		p.fail(p.at, fmt.Sprintf(`%q is not expected here; after the value only "for" and a duration may follow, such as "for 2s"`, p.rest()))
	}
}

func (p *parser) figure(r *Rule) {
	at := p.at
	switch name := p.letters(); name {
	case "kernel":
		r.Source, r.Name = Kernel, "*"
		if p.next('(') {
			r.Name = p.name()
		}
	case "scope":
		r.Source = Scope
		if !p.next('(') {
			p.fail(p.at, `scope needs a name; write scope(train_step).p95`)
			return
		}
		r.Name = p.name()
	case "busy":
		r.Source = BusyRatio
	default:
		p.fail(at, fmt.Sprintf("%q is no figure; there are kernel.rate, kernel(NAME).p95, scope(NAME).rate, scope(NAME).p95 and busy.ratio", name+p.rest()))
		return
	}
	if !p.next('.') {
		p.fail(p.at, `a figure has a dot and a statistic after its source; write kernel.rate, scope(NAME).p95 or busy.ratio`)
		return
	}
	p.stat(r)
}

// stat reads rate, ratio or pNN.
func (p *parser) stat(r *Rule) {
	at := p.at
	for p.at < len(p.text) && (isLetter(p.text[p.at]) || isDigit(p.text[p.at])) {
		p.at++
	}
	stat := p.text[at:p.at]
	if r.Source == BusyRatio {
		if stat != "ratio" {
			p.fail(at, fmt.Sprintf("busy has no %q; write busy.ratio", stat))
		}
		return
	}
	if stat == "rate" {
		return
	}
	digits, isQuantile := strings.CutPrefix(stat, "p")
	n, err := strconv.Atoi(digits)
	if !isQuantile || err != nil || n < 1 || n > 99 || digits[0] == '0' || digits[0] == '+' {
		p.fail(at, fmt.Sprintf("%q is no statistic; there are rate and p1 to p99, such as p50 and p95", stat))
		return
	}
	r.Quantile = float64(n) / 100
}

// name reads a name and its closing bracket; the opening one has been read.
func (p *parser) name() string {
	at := p.at
	p.space()
	if p.next('"') {
		start := p.at
		end := strings.IndexByte(p.text[start:], '"')
		if end < 0 {
			p.fail(start-1, "the quote is not closed; put another after the name")
			return ""
		}
		p.at = start + end + 1
		p.space()
		if !p.next(')') {
			p.fail(p.at, "the bracket is not closed; put ) after the quoted name")
		}
		return p.named(start, p.text[start:start+end])
	}
	for depth := 1; p.at < len(p.text); p.at++ {
		switch p.text[p.at] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			name := strings.TrimSpace(p.text[at:p.at])
			p.at++
			return p.named(at, name)
		}
	}
	p.fail(at-1, `the bracket is not closed; put ) after the name, or quote a name with brackets that do not pair up`)
	return ""
}

func (p *parser) named(at int, name string) string {
	if name == "" {
		p.fail(at, "the name is empty; write one, or * for all")
	}
	return name
}

func (p *parser) op(r *Rule) {
	for _, op := range []Op{LessEqual, GreaterEqual, Less, Greater} {
		if strings.HasPrefix(p.text[p.at:], string(op)) {
			p.at += len(op)
			r.Op = op
			return
		}
	}
	p.fail(p.at, fmt.Sprintf("%q is no comparison; there are <, <=, > and >=", p.rest()))
}

// value reads a value with its unit.
func (p *parser) value(r *Rule) {
	at := p.at
	number := p.number("a value")
	if p.err != nil {
		return
	}
	unit := p.unit()
	gap := p.at
	p.space()
	if unit == "x" || (unit == "%" && p.peek("baseline")) {
		if !p.word("baseline") {
			p.fail(gap, fmt.Sprintf("x goes with baseline; write %gx baseline", number))
			return
		}
		r.Value, r.Baseline = number, true
		if unit == "%" {
			r.Value /= 100
		}
		return
	}
	p.at = gap
	var per float64 // a division rounds better than a product with a fraction
	var problem string
	switch {
	case r.Source == BusyRatio:
		per = map[string]float64{"": 1, "%": 100}[unit]
		problem = "busy.ratio is a share; write 0.5 or 50%"
	case r.Quantile > 0:
		per = map[string]float64{"ns": 1e9, "us": 1e6, "µs": 1e6, "ms": 1e3, "s": 1}[unit]
		problem = "a quantile is a time; give it a unit such as 2ms, or write 1.5x baseline"
	default:
		per = map[string]float64{"/s": 1, "/min": 60, "/h": 3600}[unit]
		problem = "a rate counts per time; give it a unit such as 100/s, or write 0.5x baseline"
	}
	if per == 0 {
		p.fail(at, problem)
		return
	}
	r.Value = number / per
}

// possible refuses comparisons that no figure can meet, and those that every figure meets always.
func (p *parser) possible(r *Rule, opAt, valueAt int) {
	if p.err != nil {
		return
	}
	below := r.Op == Less || r.Op == LessEqual
	switch {
	case r.Value == 0 && r.Baseline:
		p.fail(valueAt, "0x baseline is nothing; write a number above 0, such as 0.5x baseline")
	case r.Value == 0 && (r.Op == Less || r.Op == GreaterEqual):
		p.fail(opAt, "no figure is below 0; write <= 0 or > 0, or another value")
	case r.Source == BusyRatio && !r.Baseline && r.Value > 1:
		p.fail(valueAt, "busy.ratio is between 0 and 1; write 0.5 or 50%")
	case r.Source == BusyRatio && !r.Baseline && r.Value == 1 && (r.Op == Greater || r.Op == LessEqual):
		p.fail(opAt, "busy.ratio is between 0 and 1; write < 1 or >= 1")
	case r.Baseline && below && r.Value >= 1:
		p.fail(valueAt, "the figure is at its baseline most of the time; below it, write less than 1x, such as < 0.5x baseline")
	case r.Baseline && !below && r.Value <= 1:
		p.fail(valueAt, "the figure is at its baseline most of the time; above it, write more than 1x, such as > 1.5x baseline")
	}
}

// duration reads a duration; what asks for it has been read.
func (p *parser) duration(least, most time.Duration) time.Duration {
	p.space()
	at := p.at
	number := p.number("a duration")
	if p.err != nil {
		return 0
	}
	unit, ok := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "min": time.Minute, "h": time.Hour}[p.unit()]
	if !ok {
		p.fail(at, "a duration needs a unit; write one such as 500ms, 2s or 1m")
		return 0
	}
	ns := number * float64(unit)
	if ns < float64(least) || ns > float64(most) {
		p.fail(at, fmt.Sprintf("the duration must be between %v and %v", least, most))
		return 0
	}
	return time.Duration(math.Round(ns))
}

// number reads digits with at most one point. There is no sign and no exponent: "1e3" is a typing
// mistake more often than a number.
func (p *parser) number(what string) float64 {
	at := p.at
	for p.at < len(p.text) && (isDigit(p.text[p.at]) || p.text[p.at] == '.') {
		p.at++
	}
	n, err := strconv.ParseFloat(p.text[at:p.at], 64)
	if err != nil || n > 1e15 {
		p.at = at
		p.fail(at, fmt.Sprintf("%q is not %s; write a number with its unit, such as 100/s, 2ms or 0.5", p.rest(), what))
		return 0
	}
	return n
}

// unit reads what stands directly after a number: letters, a percent sign, or a slash and letters.
func (p *parser) unit() string {
	at := p.at
	if p.next('%') {
		return "%"
	}
	p.next('/')
	if strings.HasPrefix(p.text[p.at:], "µ") {
		p.at += len("µ")
	}
	for p.at < len(p.text) && isLetter(p.text[p.at]) {
		p.at++
	}
	return p.text[at:p.at]
}

func (p *parser) letters() string {
	at := p.at
	for p.at < len(p.text) && isLetter(p.text[p.at]) {
		p.at++
	}
	return p.text[at:p.at]
}

// peek says whether the next word is w.
func (p *parser) peek(w string) bool {
	rest, ok := strings.CutPrefix(p.text[p.at:], w)
	return ok && (rest == "" || !isLetter(rest[0]) && !isDigit(rest[0]))
}

// word reads the word w if it is next.
func (p *parser) word(w string) bool {
	if p.err != nil || !p.peek(w) {
		return false
	}
	p.at += len(w)
	return true
}

func (p *parser) next(c byte) bool {
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) space() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t') {
		p.at++
	}
}

// rest is what has not been read, cut short for messages.
func (p *parser) rest() string {
	rest := p.text[p.at:]
	if r := []rune(rest); len(r) > 24 {
		rest = string(r[:24]) + "…"
	}
	return rest
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
