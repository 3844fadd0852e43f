// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxCell is the longest name that a table shows if the width is unknown, in characters: C++ names
	// fill pages. minCell is the shortest, also if a line then exceeds the width.
	maxCell = 90
	minCell = 12
	// proseWidth is the width of sentences if the width is unknown.
	proseWidth = 100
)

// table has columns that are aligned to the right, and names at the end of its lines.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) widths() []int {
	widths := make([]int, len(t.head)-1)
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i := range widths {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	return widths
}

// room returns the number of characters for a name, in lines of a width; 0 means unknown.
func (t *table) room(width int) int {
	if width <= 0 {
		return maxCell
	}
	for _, w := range t.widths() {
		width -= w + 2
	}
	return max(width-2, minCell)
}

// write prints the table in lines of a width. A name that is too long is shortened.
func (t *table) write(out io.Writer, width int) {
	if len(t.rows) == 0 {
		return
	}
	widths, room := t.widths(), t.room(width)
	var b strings.Builder
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, w := range widths {
			fmt.Fprintf(&b, "  %*s", w, row[i])
		}
		fmt.Fprintf(&b, "  %s\n", clean(row[len(row)-1], room))
	}
	_, _ = io.WriteString(out, b.String()) // callers see errors at their last write
}

// prose prints a text in lines of a width. The first begins with lead, others with as many spaces.
func prose(out io.Writer, lead, text string, width int) {
	if width <= 0 {
		width = proseWidth
	}
	indent := utf8.RuneCountInString(lead)
	line := lead
	empty := true
	for _, word := range strings.Fields(clean(text, 2000)) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			fmt.Fprintln(out, line)
			line, empty = strings.Repeat(" ", indent), true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	fmt.Fprintln(out, line)
}

// kernelLabels returns names of kernels in at most n characters each, so that different names or
// launch shapes have different labels. Of a long name the label omits the result, the namespaces and
// the parameters. If that is not enough, and other names have the same function, it omits what they
// have in common. Names that are still equal have their shape at the end.
func kernelLabels(names, shapes []string, n int) []string {
	labels := make([]string, len(names))
	groups := map[string][]int{}
	for i, name := range names {
		labels[i] = clean(name, 10_000)
		if utf8.RuneCountInString(labels[i]) > n {
			labels[i] = compact(labels[i])
		}
		if at := strings.IndexByte(labels[i], '<'); at > 0 && utf8.RuneCountInString(labels[i]) > n {
			groups[labels[i][:at]] = append(groups[labels[i][:at]], i)
		}
	}
	for function, members := range groups {
		if len(members) < 2 {
			continue
		}
		same := labels[members[0]]
		for _, i := range members[1:] {
			same = commonPrefix(same, labels[i])
		}
		// The difference begins with a whole word.
		cut := len(function) + 1
		if at := strings.LastIndexAny(same, "<(, "); at >= cut {
			cut = at + 1
		}
		if cut-len(function) > 2 && slices.ContainsFunc(members, func(i int) bool { return labels[i] != same }) {
			for _, i := range members {
				labels[i] = function + "<…" + labels[i][cut:]
			}
		}
	}
	seen := map[string]int{}
	for i := range labels {
		labels[i] = cutLabel(labels[i], n)
		seen[labels[i]]++
	}
	for i := range labels {
		if seen[labels[i]] > 1 && shapes[i] != "" {
			suffix := " " + shapes[i]
			labels[i] = cutLabel(labels[i], max(n-utf8.RuneCountInString(suffix), minCell)) + suffix
		}
	}
	return labels
}

func commonPrefix(a, b string) string {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// cutLabel keeps the begin of a template, which has its arguments, and both ends of other names.
func cutLabel(label string, n int) string {
	function, arguments, template := strings.Cut(label, "<")
	if !template || utf8.RuneCountInString(label) <= n {
		return clean(label, n)
	}
	if most := n / 2; utf8.RuneCountInString(function) > most { // leave space for arguments
		label = string([]rune(function)[:most-1]) + "…<" + arguments
	}
	if utf8.RuneCountInString(label) <= n {
		return label
	}
	return string([]rune(label)[:n-1]) + "…"
}

// compact returns a demangled name without its result type, namespaces and parameters.
func compact(name string) string {
	depth, end := 0, len(name)
	for i := 0; i < len(name); i++ { // parameters
		switch name[i] {
		case '<':
			depth++
		case '>':
			depth--
		case '(':
			if depth == 0 && !strings.HasPrefix(name[i:], anonymous) {
				end = i
				i = len(name)
			}
		}
	}
	parameters := end < len(name)
	name = strings.ReplaceAll(name[:end], anonymous+"::", "")
	depth, start := 0, 0
	for i := 0; parameters && i < len(name); i++ { // the result ends with the last space outside arguments
		switch name[i] {
		case '<':
			depth++
		case '>':
			depth--
		case ' ':
			if depth == 0 {
				start = i + 1
			}
		}
	}
	name = name[start:]
	var b strings.Builder
	word := 0 // begin of the current word in b
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == ':' && i+1 < len(name) && name[i+1] == ':' && i > 0 && name[i-1] != '>':
			text := b.String()[:word]
			b.Reset()
			b.WriteString(text)
			i++
		default:
			b.WriteByte(c)
			if strings.IndexByte("<>(), &*", c) >= 0 {
				word = b.Len()
			}
		}
	}
	return b.String()
}

// anonymous is how a demangled name writes an unnamed namespace.
const anonymous = "(anonymous namespace)"
