// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cupti

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// foreign returns memory of a number of pages outside Go's heap, followed by a page that cannot be
// read, and its address.
func foreign(t *testing.T, pages int) ([]byte, uint64) {
	t.Helper()
	size := os.Getpagesize()
	if size != pageBytes {
		t.Skipf("pages of %d bytes", size)
	}
	m, err := unix.Mmap(-1, 0, (pages+1)*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mprotect(m[pages*size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return m[:pages*size], uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m))))
}

func TestTextIsReadUpToItsEndAndNoFurther(t *testing.T) {
	m, base := foreign(t, 3)
	for _, text := range []string{"a", addKernel, strings.Repeat("x", 4095), strings.Repeat("y", 4096), strings.Repeat("z", 9000)} {
		// Against the end of what can be read, and across pages.
		for _, start := range []int{len(m) - len(text) - 1, 0, 100} {
			copy(m[start:], text)
			m[start+len(text)] = 0
			got, ok := memoryText(base+uint64(start), nil)
			if !ok || string(got) != text {
				t.Fatalf("%d bytes at %d: %d bytes, %v", len(text), start, len(got), ok)
			}
			again, ok := memoryText(base+uint64(start), got)
			if !ok || unsafe.SliceData(again) != unsafe.SliceData(got) {
				t.Errorf("%d bytes at %d: the text that is known is not recognized", len(text), start)
			}
			// A longer text that was there before must not be read beyond the end of this one.
			longer := []byte(text + "and more")
			if got, ok := memoryText(base+uint64(start), longer); !ok || string(got) != text {
				t.Errorf("%d bytes at %d after a longer text: %d bytes, %v", len(text), start, len(got), ok)
			}
		}
	}
}

func TestTextThatIsNowhereIsNoText(t *testing.T) {
	m, base := foreign(t, 1)
	for i := range m {
		m[i] = 'x'
	}
	for name, pointer := range map[string]uint64{
		"null":                       0,
		"in the first page":          4095,
		"in a page that is not ours": base + uint64(len(m)),
		"without an end":             base + uint64(len(m)) - 10,
		"not canonical":              0xdead000000000000,
		"all ones":                   1<<64 - 1,
	} {
		if got, ok := memoryText(pointer, nil); ok {
			t.Errorf("%s: %q", name, got)
		}
		if got, ok := memoryText(pointer, []byte(strings.Repeat("x", 10))); ok {
			t.Errorf("%s, with a text known: %q", name, got)
		}
	}
}

func TestTextWithoutEndIsBounded(t *testing.T) {
	m, base := foreign(t, maxSymbol/pageBytes+3)
	for i := range m {
		m[i] = 'x'
	}
	if got, ok := memoryText(base, nil); ok {
		t.Errorf("a name of %d bytes", len(got))
	}
}

func TestSameNameAtTwoAddressesIsOne(t *testing.T) {
	book := bookText{addName: addKernel, otherName: addKernel}
	table := newNameTable(book.read)
	table.begin()
	if a, b := table.get(addName), table.get(otherName); a == nil || a != b {
		t.Errorf("%p and %p", a, b)
	}
}

func TestAddressThatComesToHoldAnotherName(t *testing.T) {
	book := bookText{addName: addKernel}
	table := newNameTable(book.read)
	table.begin()
	first := table.get(addName)
	book[addName] = "vector_add"
	table.begin()
	if got := table.get(addName); got == nil || got.Full != "vector_add" || first.Full != "add(int*)" {
		t.Errorf("now %+v, before %+v", got, first)
	}
	delete(book, addName)
	table.begin()
	if got := table.get(addName); got != nil {
		t.Errorf("nowhere is %+v", got)
	}
	book[addName] = addKernel
	table.begin()
	if got := table.get(addName); got != first {
		t.Errorf("the first name is %+v when it comes back", got)
	}
}

func TestTextIsComparedOnceAPass(t *testing.T) {
	reads := 0
	table := newNameTable(func(p uint64, cached []byte) ([]byte, bool) {
		reads++
		return testNames.read(p, cached)
	})
	for range 3 {
		table.begin()
		for range 10 {
			if table.get(addName) == nil || table.get(otherName) == nil {
				t.Fatal("no name")
			}
		}
	}
	if reads != 6 {
		t.Errorf("%d reads for two names in three passes", reads)
	}
}

func TestTableForgetsWhatIsNotUsed(t *testing.T) {
	book := bookText{0x1000: "kept"}
	for i := range uint64(10_000) {
		book[0x100000+i*16] = fmt.Sprintf("kernel_%d", i)
	}
	for name, limit := range map[string]func(*nameTable){
		"by number": func(t *nameTable) { t.max = 100 },
		"by bytes":  func(t *nameTable) { t.maxBytes = 1200 },
	} {
		table := newNameTable(book.read)
		limit(table)
		table.begin()
		kept := table.get(0x1000)
		for i := range uint64(10_000) {
			table.begin()
			if n := table.get(0x100000 + i*16); n == nil || n.Full != fmt.Sprintf("kernel_%d", i) {
				t.Fatalf("%s: kernel %d is %+v", name, i, n)
			}
			if n := table.get(0x1000); n != kept {
				t.Fatalf("%s: a name in use was forgotten after %d others", name, i)
			}
			if n := len(table.young.pointers) + len(table.old.pointers); n > 150 {
				t.Fatalf("%s: %d names in the table", name, n)
			}
			if n := len(table.young.texts) + len(table.old.texts); n > 150 {
				t.Fatalf("%s: %d texts in the table", name, n)
			}
		}
		if table.forgotten < 9800 || table.forgotten > 10_000 {
			t.Errorf("%s: %d forgotten", name, table.forgotten)
		}
	}
}

func BenchmarkNames(b *testing.B) {
	d, _, _ := benchmarkBuffer(1)
	d.names.begin()
	i := uint64(0)
	for b.Loop() {
		if d.names.get(0x20000+i%20*64) == nil {
			b.Fatal("no name")
		}
		i++
	}
}
