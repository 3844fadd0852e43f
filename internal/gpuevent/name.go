// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/ianlancetaylor/demangle"
)

const (
	// maxNameBytes bounds a name. The longest real ones, of templates over templates of matrix
	// tiles, demangle to about ten thousand characters.
	maxNameBytes = 1 << maxNameBits
	maxNameBits  = 14
)

// KernelName is a device function's name in the forms that telemetry needs. Make one per distinct
// name and share it.
type KernelName struct {
	// Full is the demangled name with template arguments and parameters; the name as it came where
	// it cannot be demangled.
	Full string
	// Symbol is the mangled name, "" if unknown or equal to Full.
	Symbol string
	// Short is the function name alone: the span's name. It is empty only if Full is.
	Short string
	// Qualified is the function with its namespaces, without template arguments and parameters:
	// code.function.name.
	Qualified string
}

// NewKernelName derives the forms from a name as a source gives it, mangled or not, whole or cut
// off. The forms are valid UTF-8 and at most 16 KiB long.
func NewKernelName(raw string) *KernelName {
	var n KernelName
	if isMangled(raw) && len(raw) <= maxNameBytes {
		if full, ok := demangled(raw); ok {
			n.Full, n.Symbol = clean(full), clean(raw)
		} else {
			// Recorders cut names at 255 bytes, and half a mangled name cannot be demangled. The
			// function's name stands near the front, though.
			qualified, short := mangledFunction(raw)
			n.Qualified, n.Short = clean(qualified), clean(short)
		}
	}
	if n.Full == "" {
		n.Full = clean(raw)
	}
	if n.Short == "" {
		n.Qualified, n.Short = function(n.Full)
	}
	if n.Symbol == n.Full {
		n.Symbol = ""
	}
	return &n
}

// clean returns s as valid UTF-8, at most maxNameBytes long and without half a rune at the end.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxNameBytes {
		return s
	}
	i := maxNameBytes
	for i > 0 && !utf8.RuneStart(s[i]) {
		i--
	}
	return s[:i]
}

func isMangled(s string) bool {
	return strings.HasPrefix(s, "_Z") || strings.HasPrefix(s, "_R")
}

// demangled returns what the name stands for; ok is false if it is not a whole mangled name. The
// demangler parses by recursion, which the bound on its input keeps shallow; MaxLength ends names
// that multiply themselves by back references.
func demangled(raw string) (full string, ok bool) {
	defer func() {
		// A name is foreign input: whatever the demangler trips over must not end the process.
		if recover() != nil {
			full, ok = "", false
		}
	}()
	full, err := demangle.ToString(raw, demangle.MaxLength(maxNameBits))
	return full, err == nil && full != ""
}

// function returns the function in a demangled name, with and without its namespaces. It reads
// what the usual demanglers and compilers print:
//
//	void at::native::(anonymous namespace)::softmax<float, 7>(float*, int)
//	f(int)::{lambda(long)#1}::operator()(long) const
//	f(int)::<lambda(long)>
//
// and also names that are cut off anywhere: brackets left open reach to the end.
func function(s string) (qualified, short string) {
	p := nameParser{s: s}
	p.parse()
	if len(p.part) == 0 {
		p.back()
	}
	if len(p.part) == 0 {
		return s, s
	}
	qualified = string(p.prefix) + string(p.part)
	return qualified, qualified[len(p.prefix):]
}

// nameParser walks over a demangled name. Its position only ever moves forward, so it takes time
// linear in the name's length.
type nameParser struct {
	s string
	i int
	// prefix holds the namespaces read so far, with "::" after each; part is what is being read,
	// and last the last one that was complete.
	prefix, part, last []byte
}

// parse stops at the function's parameters or at the end. The function is then in part.
func (p *nameParser) parse() {
	for p.i < len(p.s) {
		switch c := p.s[p.i]; c {
		case ' ':
			p.i++
			if p.space() {
				return
			}
		case '(':
			if p.parenthesis() {
				return
			}
		case '<', '[':
			if len(p.part) > 0 {
				p.i = balanced(p.s, p.i) // template arguments, an ABI tag
			} else {
				p.take(balanced(p.s, p.i)) // <lambda(int)>
			}
		case '{':
			p.take(balanced(p.s, p.i)) // {lambda(int)#1}
		default:
			if strings.HasPrefix(p.s[p.i:], "::") {
				p.i += len("::")
				p.enter()
			} else if end, ok := operator(p.s, p.i); ok && len(p.part) == 0 {
				p.take(end)
			} else {
				p.take(p.i + 1)
			}
		}
	}
}

// take adds the text up to end to the part.
func (p *nameParser) take(end int) {
	p.part = append(p.part, p.s[p.i:end]...)
	p.i = end
}

// enter makes the part a namespace.
func (p *nameParser) enter() {
	if len(p.part) > 0 {
		p.prefix = append(append(p.prefix, p.part...), "::"...)
		p.last = append(p.last[:0], p.part...)
		p.part = p.part[:0]
	}
}

// back undoes the last enter or the last space, for a name that is cut off right there.
func (p *nameParser) back() {
	p.part = append(p.part, p.last...)
	p.prefix = bytes.TrimSuffix(p.prefix, append(p.last, "::"...))
}

// space drops a return type, unless a list follows that belongs to what stands before. It reports
// whether the name is complete.
func (p *nameParser) space() bool {
	rest := p.s[p.i:]
	switch {
	case len(p.part) == 0 || rest == "":
		return false
	case rest[0] == '[': // [clone .part.0], [with T = int]
		return true
	case rest[0] == '<' && bytes.HasPrefix(p.part, []byte("operator")): // operator< <int>
		return false
	case rest[0] == '(' && !isAtom(rest) && !isPointer(rest): // f (int), decltype (x)
		return false
	}
	p.last = append(p.last[:0], p.part...)
	p.part, p.prefix = p.part[:0], p.prefix[:0]
	return false
}

// parenthesis steps over a parenthesis and reports whether it opens the function's own
// parameters.
func (p *nameParser) parenthesis() bool {
	switch {
	case isPointer(p.s[p.i:]): // void (*f(int))(char): f returns a pointer to a function
		p.i += 2
		p.part = p.part[:0]
		return false
	case len(p.part) == 0: // (anonymous namespace)
		p.take(balanced(p.s, p.i))
		return false
	case string(p.part) == "decltype":
		p.i = balanced(p.s, p.i)
		return false
	}
	p.i = balanced(p.s, p.i)
	for trimmed := true; trimmed; {
		trimmed = false
		for _, q := range qualifiers {
			if strings.HasPrefix(p.s[p.i:], q) {
				p.i += len(q)
				trimmed = true
			}
		}
	}
	// What the wanted function is local to has parameters, too.
	return !strings.HasPrefix(p.s[p.i:], "::")
}

// qualifiers may stand between the parameters of a function and what is local to it.
var qualifiers = []string{" const", " volatile", " noexcept", " &&", " &", "&&", "&"}

// isAtom reports whether the parenthesis belongs to a name, like (anonymous namespace).
func isAtom(s string) bool { return strings.HasPrefix(s, "(anonymous") }

func isPointer(s string) bool {
	return len(s) > 1 && s[0] == '(' && (s[1] == '*' || s[1] == '&')
}

// balanced returns the position after the bracket that closes the one at s[i], the end of s if
// none does. Angle brackets count only where no round one is open inside of them: (a > b) is a
// comparison.
func balanced(s string, i int) int {
	var open []byte
	for ; i < len(s); i++ {
		switch c := s[i]; c {
		case '(', '[', '{', '<':
			open = append(open, c)
		case '>':
			if i > 0 && s[i-1] == '-' {
				continue // ->
			}
			if open[len(open)-1] == '<' {
				open = open[:len(open)-1]
			}
		case ')', ']', '}':
			opener := map[byte]byte{')': '(', ']': '[', '}': '{'}[c]
			k := len(open) - 1
			for k >= 0 && open[k] != opener {
				k--
			}
			if k >= 0 { // a bracket that nothing opened closes nothing
				open = open[:k]
			}
		case 'o':
			if end, ok := operator(s, i); ok {
				i = end - 1
			}
		}
		if len(open) == 0 {
			return i + 1
		}
	}
	return len(s)
}

// symbols are the operators that a function can be called, those that begin another one after it.
var symbols = []string{
	"()", "[]", "->*", "->", "<=>", "<<=", ">>=", "<<", ">>", "<=", ">=", "<", ">", "==", "=", "!=", "!",
	"&&", "&=", "&", "||", "|=", "|", "++", "+=", "+", "--", "-=", "-", "*=", "*", "/=", "/", "%=", "%",
	"^=", "^", "~", ",",
}

// operator reports whether an operator's name starts at s[i], and where it ends.
func operator(s string, i int) (end int, ok bool) {
	const word = "operator"
	if !strings.HasPrefix(s[i:], word) || i > 0 && isIdentifier(s[i-1]) {
		return 0, false
	}
	end = i + len(word)
	rest := s[end:]
	if rest == "" {
		return end, true
	}
	if isIdentifier(rest[0]) {
		return 0, false
	}
	if strings.HasPrefix(rest, `""`) || rest[0] == ' ' {
		// A literal (operator"" _m), a conversion (operator unsigned int) or a word (operator
		// new[]): it lasts to the parameters or template arguments.
		n := strings.IndexAny(rest, "(<")
		if n < 0 {
			n = len(rest)
		}
		return end + len(strings.TrimRight(rest[:n], " ")), true
	}
	for _, sym := range symbols {
		if strings.HasPrefix(rest, sym) {
			return end + len(sym), true
		}
	}
	return end, true
}

func isIdentifier(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf
}

// mangledFunction reads the function from the front of a mangled name that is cut off. It follows
// the Itanium C++ ABI's <nested-name> and <source-name> up to the first template arguments.
// Nothing found gives two empty strings.
func mangledFunction(s string) (qualified, short string) {
	s = strings.TrimPrefix(s, "_Z")
	s = strings.TrimLeft(s, "Z") // local to another function: that one's name comes first
	nested := strings.HasPrefix(s, "N")
	if nested {
		s = strings.TrimLeft(s[1:], "rVKRO") // qualifiers of member functions
	}
	for s != "" {
		switch c := s[0]; {
		case c == 'L': // internal linkage
			s = s[1:]
		case strings.HasPrefix(s, "St"):
			qualified, s = qualified+"std::", s[2:]
		case c == 'S': // the namespace is a back reference: S_, S0_, …, Sa
			i := strings.IndexByte(s, '_')
			if i < 0 || i > 3 {
				return "", ""
			}
			s = s[i+1:]
		case c >= '1' && c <= '9':
			n, digits := 0, 0
			for digits < len(s) && digits < 5 && s[digits] >= '0' && s[digits] <= '9' {
				n = n*10 + int(s[digits]-'0')
				digits++
			}
			s = s[digits:]
			n = min(n, len(s))
			id := s[:n]
			s = s[n:]
			if id == "" {
				return strings.TrimSuffix(qualified, "::"), short
			}
			if len(id) > 9 && strings.HasPrefix(id, "_GLOBAL_") && id[9] == 'N' {
				id = "(anonymous namespace)"
			}
			qualified, short = qualified+id+"::", id
			if !nested {
				return strings.TrimSuffix(qualified, "::"), short
			}
		default:
			if short == "" {
				return "", ""
			}
			return strings.TrimSuffix(qualified, "::"), short
		}
	}
	if short == "" {
		return "", ""
	}
	return strings.TrimSuffix(qualified, "::"), short
}
