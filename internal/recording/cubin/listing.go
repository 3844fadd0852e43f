// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"fmt"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// Listing is the disassembly of one function, or its PTX text.
type Listing struct {
	Function     *gpuevent.KernelName
	CRC          uint64
	Architecture string
	Kind         string // semconv.CUDAListingKindSASS or CUDAListingKindPTX
	// Text of SASS has one instruction per line, after its hexadecimal offset from the start of the
	// function. Logs of GPU Flight have the same format. Equal adjacent lines, the padding at the
	// end, are one line that ends in their number.
	Text string
}

// Listing returns the disassembly of a function. ok is false if it was not disassembled. See
// [Resolver.Disassemble].
func (r *Resolver) Listing(crc uint64, function string) (l Listing, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(crc)
	if e.file == nil {
		return Listing{}, false
	}
	fn, ok := e.file.Lookup(function)
	if !ok || e.texts[fn.Section] == nil {
		return Listing{}, false
	}
	return Listing{r.name(function), crc, e.file.Architecture(), semconv.CUDAListingKindSASS, listing(fn, e.texts[fn.Section])}, true
}

// PTX returns the PTX text of a function. ok is false if the image does not have it. See [File.PTX].
func (r *Resolver) PTX(crc uint64, function string) (l Listing, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(crc)
	if e.file == nil {
		return Listing{}, false
	}
	text, ok := e.file.PTX(function)
	return Listing{r.name(function), crc, e.file.Architecture(), semconv.CUDAListingKindPTX, text}, ok
}

func listing(fn Function, t *sassText) string {
	var b []byte
	for pc := uint64(0); pc+InstructionBytes <= fn.Size; {
		text := t.at(fn.Offset + pc)
		n := uint64(1)
		for pc+(n+1)*InstructionBytes <= fn.Size && t.at(fn.Offset+pc+n*InstructionBytes) == text {
			n++
		}
		b = fmt.Appendf(b, "%04x  %s", pc, text)
		if n > 1 {
			b = strconv.AppendUint(append(b, "  ×"...), n, 10)
		}
		b = append(b, '\n')
		pc += n * InstructionBytes
	}
	return string(b)
}

// Record returns the log record of the listing. Pass l.Text as the text to [gpuevent.Batch.Text],
// which splits it to the permitted size of records. Ref identifies the owner of the listing.
func (l *Listing) Record(ref gpuevent.Ref, timeNs int64) *gpuevent.Record {
	return &gpuevent.Record{Ref: ref, TimeNs: timeNs, Event: semconv.EventCUDASASSListing, Attrs: []gpuevent.Attr{
		gpuevent.Str(semconv.CUDAListingKind, l.Kind),
		gpuevent.Str(semconv.CUDAKernelName, l.Function.Full),
		gpuevent.Str(semconv.CUDAKernelSymbol, l.Function.Symbol),
		gpuevent.Str(semconv.CUDACubinCRC, strconv.FormatUint(l.CRC, 10)),
		gpuevent.Str(semconv.CUDAListingArchitecture, l.Architecture),
	}}
}
