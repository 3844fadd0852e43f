// SPDX-License-Identifier: Apache-2.0

package cupti

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// A recording is what CUPTI 130001 (CUDA 13.0) wrote on an H200 under driver 580.159.04, captured
// and trimmed by test/gpu/buffers. "default" has graphs as one record and host calls, "nodes" the
// nodes of graphs.
type recording struct {
	data   []byte
	begins []uint32
	names  bookText
}

func readRecording(t *testing.T, name string) recording {
	t.Helper()
	var r recording
	r.data = gunzip(t, name+".buf.gz")
	index := gunzip(t, name+".idx.gz")
	for ; len(index) >= 4; index = index[4:] {
		r.begins = append(r.begins, binary.LittleEndian.Uint32(index))
	}
	r.names = bookText{}
	for line := range strings.Lines(string(gunzip(t, name+".names.gz"))) {
		pointer, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		p, err := strconv.ParseUint(pointer, 16, 64)
		if !ok || err != nil {
			t.Fatalf("names: %q", line)
		}
		r.names[p] = text
	}
	return r
}

func gunzip(t *testing.T, name string) []byte {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// decoder returns a decoder that began when the recording did.
func (r *recording) decoder() *decoder {
	begin := time.Unix(0, int64(le.Uint64(r.data[firstKernel(r)+kernelStart:])))
	d := newDecoder(begin)
	d.now = func() time.Time { return begin.Add(time.Minute) }
	d.names = newNameTable(r.names.read)
	return d
}

func firstKernel(r *recording) int {
	for _, b := range r.begins {
		if le.Uint32(r.data[b:]) == activityConcurrentKernel {
			return int(b)
		}
	}
	return -1
}

func (r *recording) decode(d *decoder) *Batch {
	return d.decode(r.data, newIndexWalker(r.data, r.begins), nil)
}

func TestRecordingsOfAnH200(t *testing.T) {
	for _, name := range []string{"h200-default", "h200-nodes", "h200-p2p"} {
		t.Run(name, func(t *testing.T) {
			r := readRecording(t, name)
			d := r.decoder()
			batch := r.decode(d)
			check(t, d, batch)
			got := listing(d, batch)
			golden := filepath.Join("testdata", name+".golden.txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
				for i := range min(len(g), len(w)) {
					if g[i] != w[i] {
						t.Fatalf("line %d is\n%s\nwant\n%s\n(-update rewrites %s)", i+1, g[i], w[i], golden)
					}
				}
				t.Fatalf("%d lines, want %d", len(g), len(w))
			}
			if s := counted(d); s.Records != uint64(len(r.begins)) || s.Rejected != [NumRejects]uint64{} || s.Unknown != unread(&r) {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

// Records that the recordings have and the decoder does not read: external ids, and what becomes of
// memory pools.
const (
	activityExternal    = 39
	externalID          = 8
	externalCorrelation = 16
	externalBytes       = 24
	activityMemoryPool  = 50
)

// unread counts them.
func unread(r *recording) (n uint64) {
	for _, b := range r.begins {
		if kind := le.Uint32(r.data[b:]); kind == activityExternal || kind == activityMemoryPool {
			n++
		}
	}
	return n
}

// TestRecordingsKnowTheirScopes checks what the workload did against the scopes that it pushed. The
// recordings have them as CUPTI's external ids, each in a record with the call's correlation id:
// they stand in for the table that the C core fills.
func TestRecordingsKnowTheirScopes(t *testing.T) {
	r := readRecording(t, "h200-default")
	pushed := map[uint32]uint64{}
	for _, b := range r.begins {
		if e := r.data[b:]; le.Uint32(e) == activityExternal {
			pushed[le.Uint32(e[externalCorrelation:])] = le.Uint64(e[externalID:])
		}
	}
	d := r.decoder()
	d.scopes = scopesOf(pushed)
	batch := r.decode(d)
	kernels := map[uint64]int{}
	graphs := map[uint64]int{}
	for i := range batch.Len() {
		switch h := batch.Head(i); h.Kind {
		case KindKernel:
			kernels[h.Scope]++
		case KindGraph:
			graphs[h.Scope]++
		}
	}
	for thread := range uint64(3) {
		// Five times ones() and add_(), and whatever PyTorch needs once.
		if n := kernels[600+thread]; n < 10 {
			t.Errorf("%d kernels in thread %d", n, thread)
		}
	}
	for i := range uint64(10) {
		if graphs[500+i] != 1 {
			t.Errorf("replay %d: %d graphs", i, graphs[500+i])
		}
	}
}

// TestRecordingsCorrupted flips bytes of real buffers: everything stays counted, nothing crashes.
func TestRecordingsCorrupted(t *testing.T) {
	for _, name := range []string{"h200-default", "h200-nodes", "h200-p2p"} {
		clean := readRecording(t, name)
		for seed := range 300 {
			r := recording{data: bytes.Clone(clean.data), begins: clean.begins, names: clean.names}
			d := r.decoder()
			// A fixed sequence: what fails, fails again.
			state := uint32(seed)*2654435761 + 1
			for range 200 {
				state = state*1664525 + 1013904223
				r.data[int(state>>4)%len(r.data)] ^= byte(state >> 16)
			}
			if seed%3 == 0 {
				r.data = r.data[:len(r.data)-1-int(state%10_000)]
			}
			check(t, d, r.decode(d))
		}
	}
}

// listing is a batch in words: one line for each record, times counted from the first kernel's
// start.
func listing(d *decoder, batch *Batch) string {
	var s strings.Builder
	for i := range batch.Len() {
		h := batch.Head(i)
		span := func(kind string, sp *gpuevent.Span) {
			fmt.Fprintf(&s, "%s %d+%d", kind, sp.StartNs-d.begin, sp.EndNs-sp.StartNs)
			opt(&s, "device", sp.Device)
			opt(&s, "context", sp.Context)
			opt(&s, "stream", sp.Stream)
			opt(&s, "correlation", sp.Correlation)
		}
		switch h.Kind {
		case KindKernel:
			var k gpuevent.Kernel
			batch.Kernel(i, &k)
			span("kernel", &k.Span)
			fmt.Fprintf(&s, " grid %v block %v", k.Grid, k.Block)
			if k.Cluster[0] != 0 {
				fmt.Fprintf(&s, " cluster %v", k.Cluster)
			}
			opt(&s, "registers", k.RegistersPerThread)
			fmt.Fprintf(&s, " shared %d+%d=%d", k.SharedStatic.V, k.SharedDynamic.V, k.SharedExecuted.V)
			opt(&s, "local", k.LocalPerThread)
			opt(&s, "graph", k.GraphID)
			opt(&s, "node", k.GraphNode)
			fmt.Fprintf(&s, " %s", k.Name.Qualified)
		case KindMemcpy, KindMemcpyP2P:
			var c gpuevent.Copy
			batch.Copy(i, &c)
			span("copy", &c.Span)
			fmt.Fprintf(&s, " %s %s->%s async %d bytes %d", c.Kind, c.SourceKind, c.DestinationKind, c.Async.V, c.Bytes.V)
		case KindMemset:
			var e gpuevent.Set
			batch.Set(i, &e)
			span("set", &e.Span)
			opt(&s, "bytes", e.Bytes)
		case KindMemory:
			var m gpuevent.Memory
			batch.Memory(i, &m)
			span("memory", &m.Span)
			fmt.Fprintf(&s, " free %v %s bytes %d", m.Free, m.Kind, m.Bytes.V)
			if m.Address.OK {
				fmt.Fprintf(&s, " at %x", m.Address.V)
			}
		case KindSync:
			var e gpuevent.Sync
			batch.Sync(i, &e)
			span("sync", &e.Span)
			fmt.Fprintf(&s, " kind %d", e.Kind)
			opt(&s, "event", e.Event)
		case KindGraph:
			var g gpuevent.Graph
			batch.Graph(i, &g)
			span("graph", &g.Span)
			opt(&s, "graph", g.GraphID)
		default:
			fmt.Fprintf(&s, "call %d+%d correlation %d %s", h.Start-d.begin, h.End-h.Start, h.Correlation, batch.API(i))
		}
		s.WriteByte('\n')
	}
	fmt.Fprintf(&s, "%+v\n", counted(d))
	return s.String()
}

func opt(s *strings.Builder, name string, v gpuevent.Int) {
	if v.OK {
		fmt.Fprintf(s, " %s %d", name, v.V)
	}
}
