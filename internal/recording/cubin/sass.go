// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// nvdisasm prints text or, in newer versions, JSON. Both need the same time and about the same
// size. For an image of 1 MB with 60 kernels and 22,064 instructions, it takes 1.0 s of processor
// time, of which 0.4 s is the start. It prints 1.4 or 1.2 MB. We read the text because every
// version prints it. In addition, nvdisasm 13.5 crashes after 4,096 bytes of JSON if an image is
// relocatable. The text has labels as branch targets. We replace them by offsets, which are
// meaningful for a single instruction.

// maxLineBytes bounds a line of nvdisasm. Names of functions have lines of their own, in full
// length.
const maxLineBytes = 1 << 18

var (
	errTooMuchText = errors.New("more text than allowed")
	errIncomplete  = errors.New("incomplete disassembly")
)

// sassText is the SASS text of a section, in one string.
type sassText struct {
	text string
	ends []uint32 // end of each instruction's text
}

// at returns the text of the instruction at an offset of the section, or "" if there is none.
func (s *sassText) at(offset uint64) string {
	i := offset / InstructionBytes
	if i >= uint64(len(s.ends)) {
		return ""
	}
	from := uint32(0)
	if i > 0 {
		from = s.ends[i-1]
	}
	return s.text[from:s.ends[i]]
}

func (s *sassText) bytes() int64 { return int64(len(s.text)) + 4*int64(len(s.ends)) }

// parseSASS reads the output of nvdisasm for code sections, and calls add with the listing of each.
// limit bounds the memory of all listings, in bytes.
func parseSASS(r io.Reader, limit int64, add func(section string, text *sassText) error) error {
	p := sassParser{left: limit, add: add}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<14), maxLineBytes)
	for lines.Scan() {
		if err := p.line(lines.Text()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("output of nvdisasm: %w", err)
	}
	return p.end()
}

type sassParser struct {
	left    int64
	add     func(string, *sassText) error
	section string // "" outside code
	texts   []string
	labels  map[string]uint64
}

func (p *sassParser) line(line string) error {
	line = strings.TrimSpace(line)
	name, ok := strings.CutPrefix(strings.ReplaceAll(line, "\t", " "), ".section ")
	switch {
	case ok:
		if err := p.end(); err != nil {
			return err
		}
		name, _, _ = strings.Cut(strings.TrimSpace(name), ",")
		if strings.HasPrefix(name, ".text") {
			p.section, p.labels = name, map[string]uint64{}
		}
	case p.section == "" || line == "":
	case strings.HasPrefix(line, "/*"):
		number, rest, ok := strings.Cut(line[2:], "*/")
		if !ok {
			return fmt.Errorf("%w: %.80q is not an instruction", errIncomplete, line)
		}
		offset, err := strconv.ParseUint(number, 16, 64)
		if err != nil || offset != uint64(len(p.texts))*InstructionBytes {
			return fmt.Errorf("%w: in %s offset %.20q instead of %04x", errIncomplete, p.section, number, len(p.texts)*InstructionBytes)
		}
		rest = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), ";"))
		if !p.take(len(rest)) {
			return errTooMuchText
		}
		p.texts = append(p.texts, rest)
	case strings.HasPrefix(line, ".L_") && strings.HasSuffix(line, ":"):
		if !p.take(len(line)) {
			return errTooMuchText
		}
		p.labels[line[:len(line)-1]] = uint64(len(p.texts)) * InstructionBytes
	}
	return nil
}

// take reports whether the limit permits another text of that length, and counts it.
func (p *sassParser) take(bytes int) bool {
	const besides = 32 // in addition to its bytes
	p.left -= int64(bytes) + besides
	return p.left >= 0
}

// end passes the section to add.
func (p *sassParser) end() error {
	if p.section == "" {
		return nil
	}
	text := &sassText{ends: make([]uint32, len(p.texts))}
	var b strings.Builder
	for i, t := range p.texts {
		p.write(&b, t)
		if b.Len() > 1<<31 {
			return errTooMuchText
		}
		text.ends[i] = uint32(b.Len())
	}
	text.text = b.String()
	section := p.section
	p.section, p.texts, p.labels = "", nil, nil
	return p.add(section, text)
}

// write writes an instruction with offsets in place of labels, which have the form `(.L_x_7).
func (p *sassParser) write(b *strings.Builder, text string) {
	for {
		before, rest, ok := strings.Cut(text, "`(.L_")
		b.WriteString(before)
		if !ok {
			return
		}
		label, after, ok := strings.Cut(rest, ")")
		if offset, known := p.labels[".L_"+label]; ok && known {
			b.WriteString("0x")
			b.WriteString(strconv.FormatUint(offset, 16))
			text = after
			continue
		}
		b.WriteString("`(.L_")
		text = rest
	}
}
