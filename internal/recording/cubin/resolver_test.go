// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cubin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// shelf provides images and counts the requests.
type shelf struct {
	images map[uint64][]byte
	asked  map[uint64]int
}

func (s *shelf) image(crc uint64) []byte {
	if s.asked == nil {
		s.asked = map[uint64]int{}
	}
	s.asked[crc]++
	return s.images[crc]
}

func TestResolve(t *testing.T) {
	cu, cuh := linesOf(t)
	s := &shelf{images: map[uint64][]byte{1: golden(t, "lines.sm_90"), 2: []byte("nothing"), 3: kernelOf(t).image}}
	r := NewResolver(Settings{Image: s.image})
	f, err := Open(s.images[1])
	require.NoError(t, err)

	kernel, _ := f.Lookup(inlinedKernel)
	pc := uint64(0)
	for opcode(f, kernel, pc) != opcodeMUFU {
		pc += InstructionBytes
	}
	loc, reason := r.Resolve(1, inlinedKernel, pc)
	require.Equal(t, Resolved, reason)
	assert.Equal(t, "void inlined<32>(float*, float const*)", loc.Function.Full)
	assert.Equal(t, "/tmp/kernels/lines.cuh", loc.File)
	assert.Equal(t, cuh["reciprocal"][0], loc.Line)
	assert.Empty(t, loc.SASS)
	assert.Empty(t, loc.Source)
	require.Len(t, loc.Frames, 3)
	assert.Equal(t, "reciprocal", loc.Frames[0].Function.Short)
	assert.Equal(t, "squared", loc.Frames[1].Function.Short)
	assert.Same(t, loc.Function, loc.Frames[2].Function)
	assert.Equal(t, cu["inlined"][0], loc.Frames[2].Line)

	inner, _ := f.Lookup(outlinedName)
	loc, reason = r.Resolve(1, inlinedKernel, inner.Offset)
	assert.Equal(t, Resolved, reason)
	assert.Equal(t, "inlined", loc.Function.Short)
	assert.Equal(t, "outlined", loc.Frames[0].Function.Short)

	for i, c := range []struct {
		crc      uint64
		function string
		pc       uint64
		reason   Reason
	}{
		{9, "plain", 0, NoImage},
		{2, "plain", 0, BadImage},
		{1, "_Z4nonev", 0, NoFunction},
		{1, "plain", 1 << 20, OutsideFunction},
		{3, "one", 0, NoLines},
	} {
		loc, reason := r.Resolve(c.crc, c.function, c.pc)
		assert.Equal(t, c.reason, reason, i)
		assert.NotNil(t, loc.Function)
		assert.Zero(t, loc.Line)
	}
	stats := r.Stats()
	assert.Equal(t, [NumReasons]uint64{Resolved: 2, NoImage: 1, BadImage: 1, NoFunction: 1, OutsideFunction: 1, NoLines: 1}, stats.Places)
	assert.Equal(t, 4, stats.Images)
	assert.ErrorContains(t, stats.BadImage, "image 2: cubin: offset 0x7: 7 bytes are too short")
	assert.Equal(t, map[uint64]int{1: 1, 2: 1, 3: 1, 9: 1}, s.asked)
	for reason := range NumReasons {
		assert.NotEmpty(t, reason.String())
	}
	assert.Equal(t, "unknown", NumReasons.String())
}

func TestResolve_Sources(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/k.cu", "one\ntwo\nthree\n")
	table := unitIn(dir, 2, join(setAddress(0), advanceLine(1), copyRow, advancePC(16), endSequence))
	image := imageWithLines(table, addresses(table)...)
	r := NewResolver(Settings{Image: func(uint64) []byte { return image }, Sources: sources(t, dir)})
	loc, reason := r.Resolve(1, "kernel", 0)
	assert.Equal(t, Resolved, reason)
	assert.Equal(t, dir+"/k.cu", loc.File)
	assert.Equal(t, "two", loc.Source)
}

func TestResolver_Eviction(t *testing.T) {
	s := &shelf{images: map[uint64][]byte{}}
	one := bigImage(t, 20)
	for crc := range uint64(10) {
		s.images[crc] = one
	}
	most := int64(4 * len(one))
	r := NewResolver(Settings{Image: s.image, MaxBytes: most})
	for range 3 {
		for crc := range uint64(10) {
			for k := range 20 {
				_, reason := r.Resolve(crc, fmt.Sprintf("kernel%d", k), 0x100)
				require.Equal(t, Resolved, reason)
				require.LessOrEqual(t, r.Stats().Bytes, most)
			}
		}
	}
	stats := r.Stats()
	assert.Positive(t, stats.Images)
	assert.Less(t, stats.Images, 4)
	assert.Equal(t, uint64(30-stats.Images), stats.Forgotten)
	assert.Equal(t, uint64(600), stats.Places[Resolved])
	assert.Equal(t, 3, s.asked[0])

	// The most recently used image stays.
	r.Resolve(9, "kernel0", 0)
	assert.Equal(t, 3, s.asked[9])
	// An image above the limit is not kept.
	s.images[99] = bigImage(t, 90)
	_, reason := r.Resolve(99, "kernel0", 0)
	assert.Equal(t, TooLarge, reason)
	assert.ErrorContains(t, r.Stats().BadImage, "image 99")
	assert.LessOrEqual(t, r.Stats().Bytes, most)
}

// An image is requested once until it is evicted, also if it does not exist.
func TestResolver_Forget(t *testing.T) {
	s := &shelf{images: map[uint64][]byte{1: kernelOf(t).image}}
	r := NewResolver(Settings{Image: s.image, Disassembler: &Disassembler{TimeLimit: toolsLimit, Path: script(t, twoInstructions)}})
	for n := range 3 {
		for range 5 {
			_, reason := r.Resolve(1, "one", 0)
			assert.Equal(t, NoLines, reason)
			_, reason = r.Resolve(2, "one", 0)
			assert.Equal(t, NoImage, reason)
		}
		require.NoError(t, r.Disassemble(t.Context(), 1, []string{"one"}))
		_, ok := r.Listing(1, "one")
		assert.True(t, ok)
		assert.Equal(t, map[uint64]int{1: n + 1, 2: n + 1}, s.asked)
		assert.Equal(t, 2, r.Stats().Images)
		assert.Positive(t, r.Stats().Bytes)
		r.Forget(1)
		r.Forget(1)
		r.Forget(2)
		assert.Zero(t, r.Stats().Images)
		assert.Zero(t, r.Stats().Bytes)
	}
	assert.Equal(t, uint64(3), r.Stats().Runs)
	s.images[2] = s.images[1]
	_, reason := r.Resolve(2, "one", 0)
	assert.Equal(t, NoLines, reason, "it has come since")
}

func TestResolver_NameBound(t *testing.T) {
	r := NewResolver(Settings{})
	long := strings.Repeat("x", 10_000)
	for i := range 300 {
		loc, reason := r.Resolve(1, fmt.Sprint(long, i), 0)
		assert.Equal(t, NoImage, reason)
		assert.Equal(t, fmt.Sprint(long, i), loc.Function.Full)
		assert.LessOrEqual(t, r.namesBytes, maxNamesBytes)
	}
	assert.Less(t, len(r.names), 300)
}

func TestDisassemble_Once(t *testing.T) {
	s := &shelf{images: map[uint64][]byte{1: kernelOf(t).image}}
	r := NewResolver(Settings{Image: s.image, Disassembler: &Disassembler{
		TimeLimit: toolsLimit, Path: script(t, twoInstructions),
	}})
	_, ok := r.Listing(1, "one")
	assert.False(t, ok)
	for range 3 {
		require.NoError(t, r.Disassemble(t.Context(), 1, []string{"one", "none"}))
	}
	require.NoError(t, r.Disassemble(t.Context(), 9, []string{"one"}))
	stats := r.Stats()
	assert.Equal(t, uint64(1), stats.Runs)
	assert.Zero(t, stats.FailedRuns)
	loc, reason := r.Resolve(1, "one", 16)
	assert.Equal(t, NoLines, reason, "text and lines are separate")
	assert.Equal(t, "EXIT", loc.SASS)
	loc, _ = r.Resolve(1, "one", 32)
	assert.Empty(t, loc.SASS)
	assert.Equal(t, uint64(1), r.Stats().Texts)
	l, ok := r.Listing(1, "one")
	assert.True(t, ok)
	assert.Equal(t, "0000  NOP\n0010  EXIT\n", l.Text)
	_, ok = r.Listing(1, "none")
	assert.False(t, ok)
	_, ok = r.Listing(9, "one")
	assert.False(t, ok)
}

func TestDisassemble_Errors(t *testing.T) {
	s := &shelf{images: map[uint64][]byte{1: kernelOf(t).image}}
	r := NewResolver(Settings{Image: s.image, Disassembler: &Disassembler{TimeLimit: toolsLimit, Path: script(t, "echo no >&2; exit 1")}})
	require.ErrorContains(t, r.Disassemble(t.Context(), 1, []string{"one"}), "disassembly of image 1")
	require.NoError(t, r.Disassemble(t.Context(), 1, []string{"one"}), "not tried again")
	stats := r.Stats()
	assert.Equal(t, uint64(1), stats.Runs)
	assert.Equal(t, uint64(1), stats.FailedRuns)
	assert.ErrorContains(t, stats.BadRun, "exit status 1: no")
	loc, _ := r.Resolve(1, "one", 0)
	assert.Empty(t, loc.SASS)
	_, ok := r.Listing(1, "one")
	assert.False(t, ok)

	// A cancelled call does not change the state of the image.
	r = NewResolver(Settings{Image: s.image, Disassembler: &Disassembler{TimeLimit: toolsLimit, Path: script(t, twoInstructions)}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Disassemble(ctx, 1, []string{"one"}), context.Canceled)
	require.NoError(t, r.Disassemble(t.Context(), 1, []string{"one"}))
	_, ok = r.Listing(1, "one")
	assert.True(t, ok)

	r = NewResolver(Settings{Image: s.image})
	require.NoError(t, r.Disassemble(t.Context(), 1, []string{"one"}), "without a disassembler there is nothing to do")
	assert.Zero(t, r.Stats().Runs)
}

func TestResolver_Concurrent(t *testing.T) {
	big, small := bigImage(t, 10), kernelOf(t).image
	r := NewResolver(Settings{
		Image: func(crc uint64) []byte {
			if crc == 0 {
				return small
			}
			return big
		},
		MaxBytes:     3 * int64(len(big)),
		Disassembler: &Disassembler{TimeLimit: toolsLimit, Path: script(t, twoInstructions)},
	})
	var all sync.WaitGroup
	for n := range uint64(4) {
		all.Go(func() {
			for i := range uint64(200) {
				_, reason := r.Resolve(1+(i+n)%5, fmt.Sprintf("kernel%d", i%10), 16*i%0x700)
				assert.Equal(t, Resolved, reason)
			}
			assert.NoError(t, r.Disassemble(t.Context(), 0, []string{"one"}))
		})
	}
	all.Wait()
	assert.Equal(t, uint64(800), r.Stats().Places[Resolved])
	l, ok := r.Listing(0, "one")
	if !ok { // evicted in the meantime
		require.NoError(t, r.Disassemble(t.Context(), 0, []string{"one"}))
		l, ok = r.Listing(0, "one")
	}
	assert.True(t, ok)
	assert.Equal(t, "0000  NOP\n0010  EXIT\n", l.Text)
}

// A listing becomes log records as in GPU Flight's logs: below 64 KiB each, together the whole
// text.
func TestListing_Records(t *testing.T) {
	fn := Function{Name: "one", Size: 4000 * InstructionBytes}
	var p sassText
	for i := range 3990 {
		p.text += fmt.Sprintf("IMAD.MOV.U32 R%d, RZ, RZ, R%d", i, i)
		p.ends = append(p.ends, uint32(len(p.text)))
	}
	for range 10 {
		p.text += "NOP"
		p.ends = append(p.ends, uint32(len(p.text)))
	}
	l := Listing{gpuevent.NewKernelName("_Z3onePf"), 4711, "sm_90", semconv.CUDAListingKindSASS, listing(fn, &p)}
	assert.True(t, strings.HasSuffix(l.Text, "f950  IMAD.MOV.U32 R3989, RZ, RZ, R3989\nf960  NOP  ×10\n"))
	assert.Equal(t, 3991, strings.Count(l.Text, "\n"))

	b := gpuevent.NewBatch(gpuevent.Signals{Logs: true})
	b.Text(&gpuevent.Session{}, l.Record(gpuevent.Ref{}, 5), l.Text)
	_, logs, _ := b.Take()
	records := logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords()
	require.Greater(t, records.Len(), 2)
	text := ""
	for _, lr := range records.All() {
		assert.Equal(t, semconv.EventCUDASASSListing, lr.EventName())
		assert.Equal(t, map[string]any{
			"cuda.listing.kind": "sass", "cuda.kernel.name": "one(float*)", "cuda.kernel.symbol": "_Z3onePf", "cuda.cubin.crc": "4711",
			"cuda.listing.architecture": "sm_90",
		}, without(lr.Attributes().AsRaw(), "cuda.text."))
		assert.Less(t, len(lr.Body().Str()), 64<<10)
		text += lr.Body().Str()
	}
	assert.Equal(t, l.Text, text)
}

func without(attrs map[string]any, prefix string) map[string]any {
	for key := range attrs {
		if strings.HasPrefix(key, prefix) {
			delete(attrs, key)
		}
	}
	return attrs
}
