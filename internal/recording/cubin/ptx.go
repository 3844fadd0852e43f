// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bytes"
	"strings"
)

// ptxSection has the PTX text that code compiled with -lineinfo or -G was made from. Each line ends with
// a zero byte. Directives of lines and comments are empty lines.
const ptxSection = ".nv_debug_ptx_txt"

// PTX returns the PTX text of a function, without empty lines. ok is false if the image does not have it.
func (f *File) PTX(function string) (text string, ok bool) {
	name := []byte(readable(function))
	for i := range f.sections {
		if f.sections[i].name == ptxSection {
			return ptx(f.sections[i].data, name)
		}
	}
	return "", false
}

// ptx finds the body of a function between the declarations and functions of a module.
func ptx(data, name []byte) (text string, ok bool) {
	var b strings.Builder
	depth, found := 0, false
	for line := range bytes.SplitSeq(data, []byte{0}) {
		line = bytes.TrimRight(line, " \t\r")
		if len(line) == 0 {
			continue
		}
		if depth == 0 && line[0] == '.' && (bytes.Contains(line, []byte(".entry ")) || bytes.Contains(line, []byte(".func "))) {
			b.Reset()
			found = bytes.Equal(ptxName(line), name)
		}
		if !found {
			depth += braces(line)
			continue
		}
		b.Write(line)
		b.WriteByte('\n')
		inside := depth > 0
		if depth += braces(line); inside && depth <= 0 {
			return b.String(), true
		}
		if !inside && depth == 0 && line[len(line)-1] == ';' {
			found = false // a declaration
		}
	}
	return "", false
}

// ptxName returns the name in the first line of a function: ".visible .entry name(" or
// ".func (.param .b32 result) name(".
func ptxName(line []byte) []byte {
	_, rest, _ := bytes.Cut(line, []byte(".entry "))
	if rest == nil {
		_, rest, _ = bytes.Cut(line, []byte(".func "))
		if rest = bytes.TrimSpace(rest); len(rest) > 0 && rest[0] == '(' {
			_, rest, _ = bytes.Cut(rest, []byte(")"))
		}
	}
	rest = bytes.TrimSpace(rest)
	if i := bytes.IndexAny(rest, " \t(;"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

// braces returns by how much a line nests deeper.
func braces(line []byte) int {
	line, _, _ = bytes.Cut(line, []byte("//"))
	return bytes.Count(line, []byte("{")) - bytes.Count(line, []byte("}"))
}
