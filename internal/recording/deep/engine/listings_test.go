// SPDX-License-Identifier: Apache-2.0

//go:build linux

package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/semconv"
)

// nvdisasm is a script in place of it, which prints NOPs for the kernels of an image. Each of its
// runs leaves a folder: it may not write files.
type nvdisasm struct {
	t    *testing.T
	runs string
}

func newNVDisasm(t *testing.T, image []byte, before string) *nvdisasm {
	t.Helper()
	dir := t.TempDir()
	n := &nvdisasm{t: t, runs: t.TempDir()}
	f, err := cubin.Open(image)
	require.NoError(t, err)
	var text strings.Builder
	for _, fn := range f.Functions() {
		if fn.Entry {
			fmt.Fprintf(&text, "\t.section .text.%s,\"ax\",@progbits\n", fn.Name)
			for pc := uint64(0); pc < fn.Size; pc += cubin.InstructionBytes {
				fmt.Fprintf(&text, "        /*%04x*/ NOP ;\n", pc)
			}
		}
	}
	printed, script := filepath.Join(dir, "text"), filepath.Join(dir, "nvdisasm")
	require.NoError(t, os.WriteFile(printed, []byte(text.String()), 0o600))
	require.NoError(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nmkdir %s/$$\n%s\ncat %s\n", n.runs, before, printed), 0o700))
	t.Setenv(cubin.DisassemblerEnv, script)
	return n
}

// count is how often it was run.
func (n *nvdisasm) count() int {
	n.t.Helper()
	all, err := os.ReadDir(n.runs)
	require.NoError(n.t, err)
	return len(all)
}

// entries are kernels of the image.
func entries(t *testing.T, image []byte) (names []string) {
	t.Helper()
	f, err := cubin.Open(image)
	require.NoError(t, err)
	for _, fn := range f.Functions() {
		if fn.Entry {
			names = append(names, fn.Name)
		}
	}
	return names
}

// of is a result with a row of each function, the first the largest.
func of(crc uint64, functions ...string) *cupti.DeepResult {
	r := &cupti.DeepResult{Engine: cupti.EnginePCSampling, Start: time.Unix(100, 0), End: time.Unix(102, 0), Functions: functions, Names: []string{barrier}}
	for i := range functions {
		r.Rows = append(r.Rows, cupti.DeepRow{CRC: crc, Function: uint32(i), PC: 16, Value: uint64(1000 - i)})
		r.Totals.Samples += uint64(1000 - i)
	}
	return r
}

func (k *sink) waitTexts(t *testing.T, listings int) []recorder.WindowTexts {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		k.mu.Lock()
		n := 0
		for i := range k.texts {
			n += len(k.texts[i].Listings)
		}
		if n >= listings {
			defer k.mu.Unlock()
			return k.texts
		}
		k.mu.Unlock()
		select {
		case <-k.arrived:
		case <-limit:
			t.Fatalf("%d texts have not come", listings)
		}
	}
}

// function is what a listing is about.
func function(l recorder.WindowListing) string {
	for _, a := range l.Record.Attrs {
		if a.Key == semconv.CUDAKernelSymbol || a.Key == semconv.CUDAKernelName {
			if strings.HasPrefix(a.Str, "_Z") || !strings.Contains(a.Str, "(") {
				return a.Str
			}
		}
	}
	return ""
}

// Figures are handed over while nvdisasm is at work; text follows, of each function once in the
// session, several functions of an image in one run.
func TestFiguresDoNotWaitForText(t *testing.T) {
	image := golden(t)
	gate := filepath.Join(t.TempDir(), "gate")
	require.NoError(t, unix.Mkfifo(gate, 0o600))
	n := newNVDisasm(t, image, "read line < "+gate)
	names := entries(t, image)
	require.GreaterOrEqual(t, len(names), 3)
	src, k := &source{image: image}, newSink()
	e := New(Settings{}, src, k, nil)
	e.Start()
	src.result = of(imageCRC, names[0])
	run(t, e, 1, deep.PC)
	// nvdisasm is at work from here on, until the gate is open.
	opened, err := os.OpenFile(gate, os.O_WRONLY, 0)
	require.NoError(t, err)
	src.result = of(imageCRC, names[1], names[0], names[2])
	run(t, e, 2, deep.PC)
	run(t, e, 3, deep.PC)
	windows := k.wait(t, 3)
	assert.Empty(t, k.texts)
	for i, rows := range []int{1, 3, 3} {
		assert.Len(t, windows[i].Samples, rows)
		assert.Zero(t, windows[i].WithoutListing, "it is on its way")
	}
	require.NoError(t, os.Remove(gate))
	require.NoError(t, os.WriteFile(gate, []byte("go\n"), 0o600))
	require.NoError(t, opened.Close())
	texts := k.waitTexts(t, 6)
	stop(t, e)
	require.Len(t, texts, 2)
	assert.Equal(t, [2]uint64{1, 2}, [2]uint64{texts[0].Window, texts[1].Window})
	// SASS and PTX of each function
	require.Len(t, texts[0].Listings, 2)
	assert.Equal(t, names[0], function(texts[0].Listings[0]))
	assert.Equal(t, names[0], function(texts[0].Listings[1]))
	assert.True(t, strings.HasPrefix(texts[0].Listings[1].Text, ".visible .entry "+names[0]+"("))
	require.Len(t, texts[1].Listings, 4)
	assert.Equal(t, []string{names[1], names[2]}, []string{function(texts[1].Listings[0]), function(texts[1].Listings[2])})
	assert.True(t, strings.HasPrefix(texts[1].Listings[0].Text, "0000  NOP"))
	assert.Equal(t, 2, n.count())
	assert.Zero(t, k.missing)
}

// A function whose SASS fits next to the texts before it, but not with its PTX, keeps both.
func TestTextsOfAFullBatch(t *testing.T) {
	image := golden(t)
	f, err := cubin.Open(image)
	require.NoError(t, err)
	names := entries(t, image)[:2]
	instructions := 0
	for _, name := range names {
		fn, ok := f.Lookup(name)
		require.True(t, ok)
		instructions += int(fn.Size / cubin.InstructionBytes)
	}
	before, ok := f.PTX(names[0])
	require.True(t, ok)
	length := (listingBytes-len(before))/instructions - len("0000  \n")
	var sass strings.Builder
	for _, name := range names {
		fmt.Fprintf(&sass, "\t.section .text.%s,\"ax\",@progbits\n", name)
		fn, _ := f.Lookup(name)
		for pc := uint64(0); pc < fn.Size; pc += cubin.InstructionBytes {
			fmt.Fprintf(&sass, "        /*%04x*/ %0*d ;\n", pc, length, pc)
		}
	}
	printed := filepath.Join(t.TempDir(), "sass")
	require.NoError(t, os.WriteFile(printed, []byte(sass.String()), 0o600))
	newNVDisasm(t, image, "cat "+printed+"; exit")
	src, k := &source{image: image, result: of(imageCRC, names...)}, newSink()
	e := New(Settings{}, src, k, nil)
	e.Start()
	run(t, e, 1, deep.PC)
	texts := k.waitTexts(t, 4)
	stop(t, e)
	require.Len(t, texts, 2)
	for i, name := range names {
		require.Len(t, texts[i].Listings, 2)
		assert.Equal(t, name, function(texts[i].Listings[0]))
		assert.True(t, strings.HasPrefix(texts[i].Listings[1].Text, ".visible .entry "+name+"("))
	}
	assert.Zero(t, k.missing)
}

// At the end of a program the texts are dropped, and counted, not the figures.
func TestEndDropsTexts(t *testing.T) {
	image := golden(t)
	newNVDisasm(t, image, "while :; do sleep 1; done")
	names := entries(t, image)
	src, k := &source{image: image}, newSink()
	e := New(Settings{}, src, k, nil)
	e.Start()
	src.result = of(imageCRC, names[0])
	run(t, e, 1, deep.PC)
	k.wait(t, 1)
	src.result = of(imageCRC, names...)
	for id := range uint64(11) {
		run(t, e, id+2, deep.PC)
	}
	k.wait(t, 12)
	// Half of it is for texts.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, e.Stop(ctx))
	require.Len(t, k.windows, 12)
	for i, w := range k.windows {
		want := len(names)
		if i == 0 {
			want = 1
		}
		assert.Len(t, w.Samples, want)
		assert.Equal(t, w.Collected.Rows, uint64(len(w.Samples)))
	}
	assert.Empty(t, k.texts)
	assert.Equal(t, uint64(len(names)), k.missing)
}

// An image of which nvdisasm makes nothing is not given to it again, and that its rows have no text
// is told.
func TestImageThatCannotBeDisassembled(t *testing.T) {
	image := golden(t)
	n := newNVDisasm(t, image, "echo broken >&2; exit 1")
	names := entries(t, image)
	src, k := &source{image: image}, newSink()
	e := New(Settings{}, src, k, nil)
	e.Start()
	src.result = of(imageCRC, names[0])
	run(t, e, 1, deep.PC)
	require.Eventually(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.missing == 1
	}, time.Minute, time.Millisecond)
	src.result = of(imageCRC, names...)
	run(t, e, 2, deep.PC)
	windows := k.wait(t, 2)
	stop(t, e)
	assert.Zero(t, windows[0].WithoutListing, "it was on its way")
	assert.Equal(t, uint64(len(names)), windows[1].WithoutListing)
	assert.Equal(t, uint64(1), k.missing)
	assert.Equal(t, 1, n.count())
	assert.Empty(t, k.texts)
}

// One window asks for the text of a bounded number of functions, a later one for others.
func TestTextsOfAWindowAreBounded(t *testing.T) {
	n := newNVDisasm(t, golden(t), "")
	tx := newTexts(&source{}, newSink(), New(Settings{}, &source{}, newSink(), nil).log, nil, nil)
	var all []listingKey
	for i := range maxListed + 100 {
		all = append(all, listingKey{imageCRC, fmt.Sprint(i)})
	}
	asked := map[listingKey]bool{}
	for {
		wanted := tx.want(all)
		if len(wanted) == 0 {
			break
		}
		assert.LessOrEqual(t, len(wanted), maxDisassembled)
		assert.Equal(t, all[len(asked)], wanted[0], "the largest first")
		for _, f := range wanted {
			asked[f] = true
		}
	}
	assert.Len(t, asked, maxListed)
	assert.True(t, tx.coming(all[maxListed-1]))
	assert.False(t, tx.coming(all[maxListed]))
	assert.Zero(t, n.count())
}

// An image is read for what is not known of it, once for each window, and is not kept.
func TestImagesAreReadOnce(t *testing.T) {
	image, read := golden(t), map[uint64]int{}
	p := newPlaces(func(crc uint64) []byte {
		if read[crc]++; crc == 3 {
			return nil
		}
		return image
	})
	store := storeOf(t, image)
	r := of(0, "plain", "plain", "plain", "plain", "plain", "plain")
	rows := make([]row, len(r.Rows))
	for i := range rows {
		// Rows of different images in turn, as their weights happen to be.
		r.Rows[i].CRC, r.Rows[i].PC, r.Rows[i].What = uint64(1+i%3), store, uint32(i/3)
		rows[i] = row{result: r, DeepRow: &r.Rows[i]}
	}
	open := make(chan struct{})
	for range 3 {
		found, late := p.find(rows, open)
		assert.Zero(t, late)
		for i := range rows {
			if i%3 == 2 {
				assert.False(t, found[i].resolved)
				assert.Equal(t, "plain", found[i].at.Function.Full)
				continue
			}
			assert.True(t, found[i].resolved)
			assert.Equal(t, marked(t, "plain"), int64(found[i].at.Line))
		}
		assert.Zero(t, p.resolver.Stats().Bytes)
	}
	assert.Equal(t, map[uint64]int{1: 1, 2: 1, 3: 3}, read, "what was not there may have come")

	// Where there is no time, rows keep what is known and have their function.
	close(open)
	r.Rows[0].PC = 0
	found, late := p.find(rows, open)
	assert.Equal(t, uint64(3), late)
	assert.Equal(t, "plain", found[0].at.Function.Full)
	assert.Zero(t, found[0].at.Line)
	assert.True(t, found[3].resolved)
	assert.Equal(t, map[uint64]int{1: 1, 2: 1, 3: 3}, read)
}
