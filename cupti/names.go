// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"bytes"
	"runtime/debug"
	"unicode/utf8"
	"unsafe"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

const (
	// maxNames and maxNameBytes bound the table: processes that compile kernels all day make ever
	// new ones. Beyond half of either, those not seen since the last time go.
	maxNames     = 100_000
	maxTextBytes = 64 << 20
	// maxSymbol is where a name is no name any more. Mangled names of nested templates reach some
	// ten thousand bytes.
	maxSymbol = 1 << 16
	pageBytes = 4096
	// frontSlots is a power of two. Programs launch some hundred different kernels.
	frontSlots = 1024
)

// nameTable turns pointers to mangled names into names. The same text is the same *KernelName as
// long as it is not forgotten. It belongs to one goroutine.
//
// CUPTI owns the text and keeps it as long as the module is loaded; then the address may come to
// hold another name. So the bytes are compared with the known ones, once for each pointer and pass.
// A pass is one buffer. A second comparison within it would say nothing about the earlier records.
type nameTable struct {
	read textReader
	pass uint64
	// front holds the entry last found for a hash of the pointer. It is most of the speed.
	front [frontSlots]*nameEntry
	// New entries go to young. When it is half as large as may be, it becomes old, and old is
	// forgotten.
	young, old nameGeneration
	max        int
	maxBytes   int
	// forgotten counts the entries that went to make room.
	forgotten uint64
}

type nameGeneration struct {
	pointers map[uint64]*nameEntry
	texts    map[string]*gpuevent.KernelName
	bytes    int
}

type nameEntry struct {
	pointer uint64
	// pass is when the text was last compared.
	pass uint64
	text []byte
	// name is nil for what is no name.
	name *gpuevent.KernelName
}

// textReader returns the text at an address. It returns cached itself if that is still what stands
// there; ok is false where there can be no text. The result is the table's to keep.
type textReader func(pointer uint64, cached []byte) (text []byte, ok bool)

func newNameTable(read textReader) *nameTable {
	t := &nameTable{read: read, max: maxNames, maxBytes: maxTextBytes}
	t.young, t.old = newNameGeneration(), newNameGeneration()
	return t
}

func newNameGeneration() nameGeneration {
	return nameGeneration{pointers: map[uint64]*nameEntry{}, texts: map[string]*gpuevent.KernelName{}}
}

// begin starts a pass.
func (t *nameTable) begin() { t.pass++ }

// get returns the name at an address, nil if there is none.
func (t *nameTable) get(pointer uint64) *gpuevent.KernelName {
	slot := &t.front[(pointer>>3^pointer>>13)%frontSlots]
	if e := *slot; e != nil && e.pointer == pointer && e.pass == t.pass {
		return e.name
	}
	e := t.entry(pointer)
	*slot = e
	if e == nil {
		return nil
	}
	return e.name
}

// entry returns the entry of an address, compared with what stands there now; nil without a text.
func (t *nameTable) entry(pointer uint64) *nameEntry {
	e, young := t.young.pointers[pointer], true
	if e == nil {
		e, young = t.old.pointers[pointer], false
	}
	var cached []byte
	if e != nil {
		cached = e.text
	}
	if e == nil || e.pass != t.pass {
		text, ok := t.read(pointer, cached)
		if !ok {
			return nil
		}
		if e == nil || !bytes.Equal(text, cached) {
			e, young = &nameEntry{pointer: pointer, text: text, name: t.name(text)}, false
		}
		e.pass = t.pass
	}
	if !young {
		t.makeRoom()
		t.young.pointers[pointer] = e
		t.young.bytes += len(e.text)
		if e.name != nil {
			t.young.texts[string(e.text)] = e.name
		}
	}
	return e
}

// name returns the name that a text is, nil if it is none.
func (t *nameTable) name(text []byte) *gpuevent.KernelName {
	if n := t.young.texts[string(text)]; n != nil {
		return n
	}
	n := t.old.texts[string(text)]
	if n == nil {
		if !isText(text) {
			return nil
		}
		n = gpuevent.NewKernelName(string(text))
	}
	return n
}

func (t *nameTable) makeRoom() {
	if len(t.young.pointers) < t.max/2 && t.young.bytes < t.maxBytes/2 {
		return
	}
	for p := range t.old.pointers {
		if t.young.pointers[p] == nil {
			t.forgotten++
		}
	}
	t.old, t.young = t.young, newNameGeneration()
	clear(t.front[:])
}

// isText reports whether a name is one: not empty, UTF-8, no control characters.
func isText(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c == 0x7f {
			return false
		}
	}
	return len(b) > 0 && utf8.Valid(b)
}

// memoryText is the textReader for this process's memory.
//
// CUPTI vouches for the address: it is one of a mangled name that ends in NUL. Nothing is read
// beyond that NUL that does not lie in the same page as a byte of the text before it. The address
// may not be mapped: the record is broken, its module was unloaded before it was read, or CUPTI was
// unloaded. The fault is caught then, and there is no text.
func memoryText(pointer uint64, cached []byte) (text []byte, ok bool) {
	// The first page is never mapped, and user space on the systems that CUDA knows has 47 or 48
	// bits.
	if pointer < pageBytes || pointer >= 1<<48-maxSymbol-pageBytes {
		return nil, false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			if _, memory := fault.(interface{ Addr() uintptr }); !memory {
				panic(fault)
			}
			text, ok = nil, false
		}
	}()
	if cached != nil && sameText(pointer, cached) {
		return cached, true
	}
	for len(text) <= maxSymbol {
		page := memory(pointer, pageBytes-int(pointer%pageBytes))
		if end := bytes.IndexByte(page, 0); end >= 0 {
			return append(text, page[:end]...), true
		}
		text = append(text, page...)
		pointer += uint64(len(page))
	}
	return nil, false
}

// sameText reports whether the text at an address is the given one. It looks into a page only after
// all before it was equal, so that the text is known to reach there.
func sameText(pointer uint64, text []byte) bool {
	for {
		n := pageBytes - int(pointer%pageBytes)
		if n > len(text) {
			page := memory(pointer, len(text)+1)
			return page[len(text)] == 0 && string(page[:len(text)]) == string(text)
		}
		if string(memory(pointer, n)) != string(text[:n]) {
			return false
		}
		pointer, text = pointer+uint64(n), text[n:]
	}
}

// memory returns n bytes of the process, outside Go's own, at an address. They may change and go.
func memory(address uint64, n int) []byte {
	// The address is a number in C memory, and stays one until it has passed the checks above. An
	// invalid pointer in a pointer variable would crash the garbage collector. The address of the
	// number makes it a pointer, which never points into Go's heap.
	p := uintptr(address)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), n)
}
