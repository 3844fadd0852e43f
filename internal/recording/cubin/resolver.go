// SPDX-License-Identifier: Apache-2.0

package cubin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// DefaultMaxBytes bounds the memory of a Resolver.
const DefaultMaxBytes = 256 << 20

const (
	// maxEntries bounds the number of known images, readable or not.
	maxEntries = 1 << 16
	// entryBytes is the approximate memory of an image in addition to its bytes and tables.
	entryBytes = 512
	// maxNamesBytes bounds the stored demangled names. All are dropped when it is reached:
	// demangling is faster than reading images.
	maxNamesBytes = 8 << 20
)

// Settings configure a Resolver.
type Settings struct {
	// Image returns the image with a CRC, or nil if there is none. It is called again after the
	// image, or its absence, was evicted. It is never called concurrently and must not call the
	// Resolver. The Resolver keeps the image, which must not change.
	Image func(crc uint64) []byte
	// MaxBytes bounds the memory for images, tables and listings. 0 means DefaultMaxBytes. The
	// Resolver evicts the least recently used image and reads it again when needed. A single image
	// above the limit is not read (TooLarge). An image in disassembly is not evicted.
	MaxBytes int64
	// Disassembler provides the SASS text. nil means none.
	Disassembler *Disassembler
	// Sources reads lines of source. nil means none.
	Sources *Sources
}

// Location is the place of an instruction.
type Location struct {
	// Function is the function of the query. It is never nil.
	Function *gpuevent.KernelName
	// File and Line are the source of the instruction, from the innermost of Frames. They are ""
	// and 0 if unknown.
	File string
	Line int
	// Source is the current text of that line in its file. It is "" if unknown or not configured.
	Source string
	// SASS is the instruction with its operands. It is "" if it was not disassembled.
	SASS string
	// Frames are the inlined calls, innermost first: each but the last was inlined into the next.
	// The last is Function, or a device function that it calls and that was not inlined. The place
	// of that call is unknown. Frames is empty if the function or the image is unknown.
	Frames []NamedFrame
}

// NamedFrame is a [Frame] with the forms of its function's name.
type NamedFrame struct {
	Function *gpuevent.KernelName
	File     string
	Line     int
}

// Stats counts the work of a Resolver.
type Stats struct {
	// Places counts calls of Resolve by result.
	Places [NumReasons]uint64
	// Texts counts the calls that returned SASS text.
	Texts uint64
	// Images is the number of images in memory or known to be missing. Bytes is their memory, with
	// their tables and listings.
	Images int
	Bytes  int64
	// Forgotten counts evicted images.
	Forgotten uint64
	// Broken counts skipped invalid parts of images, each time they were read.
	Broken uint64
	// Runs counts runs of the disassembler, FailedRuns those without a result.
	Runs, FailedRuns uint64
	// BadImage and BadRun are the first error of an image, with its CRC, and of a run. They are
	// nil without an error.
	BadImage, BadRun error
}

// Resolver finds functions, lines and instructions in the images of a process. It is safe for
// concurrent use. Calls block each other, but only Disassemble waits for nvdisasm.
type Resolver struct {
	settings Settings

	running sync.Mutex // held during a run of nvdisasm; lock it before mu

	mu         sync.Mutex
	entries    map[uint64]*entry
	frames     []Frame // of the last call
	tick       uint64
	stats      Stats
	names      map[string]*gpuevent.KernelName
	namesBytes int
}

// entry is one image.
type entry struct {
	file    *File             // nil if it cannot be read
	reason  Reason            // the reason, if file is nil
	texts   map[int]*sassText // by section; nil if disassembly failed
	inTexts int64             // bytes.
	counted int64             // its part of Stats.Bytes
	broken  int               // its part of Stats.Broken
	used    uint64            // time of the last use.
	held    int               // number of runs of nvdisasm on it
}

// NewResolver returns a Resolver without images.
func NewResolver(settings Settings) *Resolver {
	if settings.MaxBytes <= 0 {
		settings.MaxBytes = DefaultMaxBytes
	}
	if settings.Image == nil {
		settings.Image = func(uint64) []byte { return nil }
	}
	return &Resolver{settings: settings, entries: map[uint64]*entry{}, names: map[string]*gpuevent.KernelName{}}
}

// Resolve looks up the instruction at pc, in bytes from the start of a function, of the image with
// the CRC. CUPTI reports these three values. The Reason is Resolved if the line is known. The SASS
// text may be known without the line. Resolve starts no process: see [Resolver.Disassemble].
func (r *Resolver) Resolve(crc uint64, function string, pc uint64) (Location, Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	loc := Location{Function: r.name(function)}
	e := r.entry(crc)
	if e.file == nil {
		r.stats.Places[e.reason]++
		return loc, e.reason
	}
	var reason Reason
	r.frames, reason = e.file.Locate(function, pc, r.frames)
	r.stats.Places[reason]++
	if len(r.frames) > 0 {
		loc.Frames = make([]NamedFrame, len(r.frames))
		for i, f := range r.frames {
			loc.Frames[i] = NamedFrame{r.name(f.Function), f.File, f.Line}
		}
		loc.File, loc.Line = r.frames[0].File, r.frames[0].Line
		if r.settings.Sources != nil && loc.Line > 0 {
			loc.Source = r.settings.Sources.Line(loc.File, loc.Line)
		}
		fn, _ := e.file.Lookup(function)
		if t := e.texts[fn.Section]; t != nil {
			if loc.SASS = t.at(fn.Offset + pc); loc.SASS != "" {
				r.stats.Texts++
			}
		}
	}
	r.account(e)
	return loc, reason
}

// Disassemble runs nvdisasm once on all functions of an image without a listing, and keeps the
// listings for Resolve and Listing. It skips functions that the image does not have. A function is
// tried once while the image is in memory. The error is that of this run. It is also in the Stats.
func (r *Resolver) Disassemble(ctx context.Context, crc uint64, functions []string) error {
	d := r.settings.Disassembler
	if d == nil {
		return nil
	}
	r.running.Lock()
	defer r.running.Unlock()
	e, wanted := r.untried(crc, functions)
	if len(wanted) == 0 {
		return nil
	}
	texts, err := d.disassemble(ctx, e.file, wanted)

	r.mu.Lock()
	defer r.mu.Unlock()
	e.held--
	r.stats.Runs++
	if err != nil {
		r.stats.FailedRuns++
		err = fmt.Errorf("disassembly of image %d: %w", crc, err)
		if r.stats.BadRun == nil {
			r.stats.BadRun = err
		}
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			// The image is not the cause.
			r.account(e)
			return err
		}
	}
	for _, fn := range wanted {
		t := texts[e.file.sections[fn.Section].name]
		if had, tried := e.texts[fn.Section]; tried && had != nil {
			continue
		}
		e.texts[fn.Section] = t
		e.inTexts += entryBytes / 8
		if t != nil {
			e.inTexts += t.bytes()
		}
	}
	r.account(e)
	return err
}

// untried returns the functions whose sections have not been disassembled. If there are any, it
// protects the entry from eviction.
func (r *Resolver) untried(crc uint64, functions []string) (*entry, []Function) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(crc)
	if e.file == nil {
		return nil, nil
	}
	var wanted []Function
	for _, name := range functions {
		if fn, ok := e.file.Lookup(name); ok {
			if _, tried := e.texts[fn.Section]; !tried {
				wanted = append(wanted, fn)
			}
		}
	}
	if len(wanted) > 0 {
		e.held++
	}
	return e, wanted
}

// Stats returns the counts so far.
func (r *Resolver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Forget evicts an image with its tables and listings, or the knowledge that it does not exist. It
// is for callers that process images sequentially and need memory for one of them only. An image in
// disassembly stays.
func (r *Resolver) Forget(crc uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[crc]; e != nil && e.held == 0 {
		r.drop(crc, e)
	}
}

func (r *Resolver) drop(crc uint64, e *entry) {
	delete(r.entries, crc)
	r.stats.Bytes -= e.counted
	r.stats.Images--
}

// entry returns the image with a CRC. Its file is nil if there is none, or it is invalid.
func (r *Resolver) entry(crc uint64) *entry {
	e := r.entries[crc]
	if e == nil {
		e = &entry{texts: map[int]*sassText{}}
		image := r.settings.Image(crc)
		switch file, err := Open(image); {
		case image == nil:
			e.reason = NoImage
		case err != nil:
			e.reason = BadImage
			if r.stats.BadImage == nil {
				r.stats.BadImage = fmt.Errorf("image %d: %w", crc, err)
			}
		case file.bytes() > r.settings.MaxBytes:
			e.reason = TooLarge
			if r.stats.BadImage == nil {
				r.stats.BadImage = fmt.Errorf("image %d: its %d bytes are more than the %d for all", crc, file.bytes(), r.settings.MaxBytes)
			}
		default:
			e.file = file
		}
		r.entries[crc] = e
		r.stats.Images++
	}
	r.tick++
	e.used = r.tick
	r.account(e)
	return e
}

// account counts the memory of e and evicts other images above the limit.
func (r *Resolver) account(e *entry) {
	size := int64(entryBytes) + e.inTexts
	if e.file != nil {
		size += e.file.bytes()
		r.stats.Broken += uint64(e.file.Broken() - e.broken)
		e.broken = e.file.Broken()
	}
	r.stats.Bytes += size - e.counted
	e.counted = size
	for r.stats.Bytes > r.settings.MaxBytes || r.stats.Images > maxEntries {
		var oldest uint64
		var victim *entry
		for crc, other := range r.entries {
			if other != e && other.held == 0 && (victim == nil || other.used < victim.used) {
				oldest, victim = crc, other
			}
		}
		if victim == nil {
			return // the tables and listings of one image; the next query replaces it
		}
		r.drop(oldest, victim)
		r.stats.Forgotten++
	}
}

// name returns the forms of a symbol's name.
func (r *Resolver) name(symbol string) *gpuevent.KernelName {
	if n := r.names[symbol]; n != nil {
		return n
	}
	n := gpuevent.NewKernelName(readable(symbol))
	size := 128 + len(symbol) + len(n.Full) + len(n.Symbol) + len(n.Short) + len(n.Qualified)
	if r.namesBytes += size; r.namesBytes > maxNamesBytes {
		clear(r.names)
		r.namesBytes = size
	}
	r.names[strings.Clone(symbol)] = n
	return n
}

// readable returns the symbol of a device function without the prefix of ptxas. The prefix is the
// section's kernel, or a number, between dollars ($_Z3fooPf$_Z3barf,
// $__internal_0_$__cuda_sm20_rem_s64).
func readable(symbol string) string {
	if len(symbol) > 1 && symbol[0] == '$' {
		if i := strings.LastIndexByte(symbol, '$'); i > 0 && i+1 < len(symbol) {
			return symbol[i+1:]
		}
	}
	return symbol
}
