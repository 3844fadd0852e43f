// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// minWidth is the least width that is used. Narrower text is hard to read.
	minWidth = 40
	// helpWidth is the width of help that does not go to a terminal.
	helpWidth = 100
)

// terminalWidth returns the number of columns of out: COLUMNS, or the width of the terminal. It
// returns 0 for a file or a pipe without COLUMNS.
func terminalWidth(out io.Writer) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return max(n, minWidth)
	}
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	if n := fileWidth(f); n > 0 {
		return max(n, minWidth)
	}
	return 0
}

// wrap breaks a line at spaces, so that no part is longer than width. Parts after the first begin
// with indent. Longer words stay whole. With a width of 0 it returns the line.
func wrap(line string, width int, indent string) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	lead := len(line) - len(strings.TrimLeft(line, " "))
	var b strings.Builder
	b.WriteString(line[:lead])
	column := lead
	for i, word := range strings.Split(line[lead:], " ") {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// printUsage prints a subcommand's help with its flags.
func printUsage(out io.Writer, text string, fs *flag.FlagSet) {
	width := terminalWidth(out)
	if width == 0 {
		width = helpWidth
	}
	fmt.Fprint(out, wrapText(text, width))
	fs.VisitAll(func(f *flag.Flag) {
		name, usage := flag.UnquoteUsage(f)
		line := "  --" + f.Name
		if name != "" {
			line += " " + strings.ToUpper(strings.ReplaceAll(name, " ", "-"))
		}
		fmt.Fprintln(out, line)
		usage, notes := splitNotes(usage)
		if isSetDefault(f) {
			notes = append(notes, "default: "+f.DefValue)
		}
		for _, text := range append([]string{usage}, notes...) {
			fmt.Fprintln(out, wrap(flagIndent+text, width, flagIndent))
		}
	})
}

const flagIndent = "        "

// splitNotes separates the default and the example, which are in parentheses at the end of the help
// of a flag: "(default: 2s)", "(example: 5us)".
func splitNotes(usage string) (text string, notes []string) {
	for {
		at := max(strings.LastIndex(usage, " (default: "), strings.LastIndex(usage, " (example: "))
		if at < 0 || !strings.HasSuffix(usage, ")") {
			return usage, notes
		}
		notes = append([]string{usage[at+2 : len(usage)-1]}, notes...)
		usage = usage[:at]
	}
}

// isSetDefault reports whether the help should name the default of a flag.
func isSetDefault(f *flag.Flag) bool {
	switch f.DefValue {
	case "", "0", "0s", "false":
		return false
	}
	return !strings.Contains(f.Usage, "(default: ")
}

// wrapText fits help into a width. Paragraphs of the source are joined first, except for lines that
// are indented or end with a colon.
func wrapText(text string, width int) string {
	var out []string
	var paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			out = append(out, wrap(strings.Join(paragraph, " "), width, ""))
			paragraph = nil
		}
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		switch {
		case line == "":
			flush()
			out = append(out, "")
		case strings.HasPrefix(line, " "):
			flush()
			out = append(out, line)
		case strings.HasSuffix(line, ":"):
			flush()
			out = append(out, line)
		default:
			paragraph = append(paragraph, line)
		}
	}
	flush()
	return strings.Join(out, "\n") + "\n"
}

// folded returns a writer that breaks lines at the columns of out, if they are known. It buffers an
// incomplete line.
func folded(out io.Writer) io.Writer {
	width := terminalWidth(out)
	if width == 0 {
		return out
	}
	return &foldWriter{out: out, width: width}
}

type foldWriter struct {
	out   io.Writer
	width int
	line  []byte
}

func (w *foldWriter) Write(p []byte) (int, error) {
	for i, b := range p {
		if b != '\n' {
			w.line = append(w.line, b)
			continue
		}
		line := string(w.line)
		w.line = w.line[:0]
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		if _, err := fmt.Fprintln(w.out, wrap(line, w.width, indent+"  ")); err != nil {
			return i, err
		}
	}
	return len(p), nil
}
