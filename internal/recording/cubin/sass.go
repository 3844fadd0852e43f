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

// nvdisasm prints text or, in newer versions, JSON. Both take it as long (1.0 s of processor time for an image of 1 MB
// with 60 kernels and 22,064 instructions; 0.4 s of that is its start) and are about as large (1.4 and 1.2 MB).
// The text is read because every version prints it, and because nvdisasm 13.5 crashes after 4,096 bytes of JSON where
// an image is relocatable. The text has labels where branches go; they are replaced by offsets, which mean
// something beside a single instruction.

// maxLineBytes is the longest line that nvdisasm may print. Names of functions stand on lines of their own, at
// length.
const maxLineBytes = 1 << 18

var (
	errTooMuchText = errors.New("more text than allowed")
	errIncomplete  = errors.New("incomplete disassembly")
)

// sassText is the text of the instructions of a section, in one string.
type sassText struct {
	text string
	ends []uint32 // where that of each instruction ends
}

// at returns the text of the instruction at that offset of the section, "" if there is none.
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

// parseSASS reads what nvdisasm prints of sections of code, and calls add with the texts of each. All texts may
// take limit bytes of memory.
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
			return fmt.Errorf("%w: %.80q is no instruction", errIncomplete, line)
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

// take reports whether there is room for another text of that length, and takes it.
func (p *sassParser) take(bytes int) bool {
	const besides = 32 // what it takes beside its bytes
	p.left -= int64(bytes) + besides
	return p.left >= 0
}

// end hands over the section that was read.
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

// write writes an instruction with offsets in place of labels, which stand as `(.L_x_7).
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
