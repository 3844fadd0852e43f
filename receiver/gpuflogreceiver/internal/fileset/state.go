// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/varint"
)

const (
	stateVersion = 1
	// maxOffset bounds offsets in stored states: 2^60 bytes, far above any file and far below an
	// overflow.
	maxOffset = 1 << 60
	// maxNumber bounds file numbers in stored states. The expected number of a live log file is one
	// above the largest.
	maxNumber = gpuflog.MaxFileIndex + 1
)

var errState = errors.New("malformed or of another version")

const (
	flagCur = 1 << iota
	flagParked
	flagEvicted
)

const (
	flagSkipping = 1 << iota
	flagTail
)

// AppendState appends the progress of the stream, for LoadState after a restart: at most 5 KB,
// usually less than 200 bytes.
func (s *Stream) AppendState(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var flags byte
	cur := s.cur
	if cur != nil && cur.off == 0 {
		cur = nil // nothing taken: it will be picked again
	}
	if cur != nil {
		flags |= flagCur
	}
	if s.parked != nil {
		flags |= flagParked
	}
	if s.evicted {
		flags |= flagEvicted
	}
	b = append(b, stateVersion, flags)
	b = binary.AppendUvarint(b, s.doneN)
	b = binary.AppendUvarint(b, uint64(len(s.holes)))
	for _, h := range s.holes {
		b = binary.AppendUvarint(b, h.from)
		b = binary.AppendUvarint(b, h.to-h.from)
	}
	b = binary.AppendUvarint(b, uint64(len(s.done)))
	for _, d := range s.done {
		b = binary.AppendUvarint(b, d.n)
		b = binary.AppendUvarint(b, uint64(d.size))
		b = append(b, d.fp.sum[:]...)
	}
	for _, w := range [...]*logFile{cur, s.parked} {
		if w != nil {
			b = w.append(b)
		}
	}
	return b
}

func (w *logFile) append(b []byte) []byte {
	var flags byte
	if w.skipping {
		flags |= flagSkipping
	}
	if w.tail {
		flags |= flagTail
	}
	fp := w.fingerprint()
	b = append(b, flags)
	b = binary.AppendUvarint(b, w.n)
	b = binary.AppendUvarint(b, w.hint)
	b = binary.AppendUvarint(b, w.ent.id.dev)
	b = binary.AppendUvarint(b, w.ent.id.ino)
	b = binary.AppendUvarint(b, uint64(w.off))
	b = binary.AppendUvarint(b, uint64(w.size))
	if w.skipping {
		b = binary.AppendUvarint(b, uint64(w.skipFrom))
	}
	return append(b, fp.sum[:]...)
}

// LoadState loads the result of AppendState. It replaces all progress and must precede the first
// Next. On an error the stream is unchanged. The error means that the state is malformed; the
// caller then reads from the beginning.
func (s *Stream) LoadState(b []byte) error {
	st, err := parseState(b)
	if err != nil {
		return fmt.Errorf("stream state: %w", err)
	}
	s.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur, s.parked = st.cur, st.parked
	s.done, s.evicted, s.doneN, s.holes = st.done, st.evicted, st.doneN, st.holes
	s.dirty, s.seenGen = true, 0
	return nil
}

// streamState is the part of a Stream that is stored.
type streamState struct {
	cur, parked *logFile
	done        []completedFile
	evicted     bool
	doneN       uint64
	holes       []span
}

func parseState(b []byte) (st streamState, err error) {
	d := decoder{varint.Reader{Rest: b}}
	version, flags := d.Byte(), d.Byte()
	if !d.OK() || version != stateVersion || flags >= flagEvicted<<1 {
		return st, errState
	}
	st.evicted = flags&flagEvicted != 0
	st.doneN = d.Max(maxNumber)
	next := uint64(1)
	for range d.Max(maxHoles) {
		from := d.Max(maxNumber)
		to := from + d.Max(maxNumber)
		if !d.OK() || from < next || to > st.doneN {
			return st, errState
		}
		next = to + 1
		st.holes = append(st.holes, span{from, to})
	}
	for range d.Max(maxDone) {
		w := completedFile{n: d.Max(maxNumber), size: int64(d.Max(maxOffset))}
		w.fp = d.fingerprint(w.size)
		if !d.OK() || w.size == 0 {
			return st, errState
		}
		st.done = append(st.done, w)
	}
	if flags&flagCur != 0 {
		st.cur = d.logFile()
	}
	if flags&flagParked != 0 {
		st.parked = d.logFile()
	}
	if !d.OK() || len(d.Rest) > 0 {
		return st, errState
	}
	return st, nil
}

// decoder reads stored state.
type decoder struct{ varint.Reader }

const damaged = "a value is out of range"

func (d *decoder) fingerprint(size int64) fingerprint {
	fp := fingerprint{n: uint16(min(size, prefixBytes))}
	copy(fp.sum[:], d.Bytes(len(fp.sum)))
	return fp
}

func (d *decoder) logFile() *logFile {
	flags := d.Byte()
	w := &logFile{skipping: flags&flagSkipping != 0, tail: flags&flagTail != 0}
	w.n, w.hint = d.Max(maxNumber), d.Max(maxNumber)
	w.ent.id = fileID{dev: d.Max(math.MaxUint64), ino: d.Max(math.MaxUint64)}
	w.off, w.size = int64(d.Max(maxOffset)), int64(d.Max(maxOffset))
	if w.skipping {
		w.skipFrom = int64(d.Max(maxOffset))
	}
	w.fp = d.fingerprint(w.off)
	w.scanned = w.off
	if w.off == 0 || w.skipFrom > w.off || flags >= flagTail<<1 {
		d.Fail(damaged)
	}
	return w
}

// AppendState appends the group's layout and the states of its streams.
func (g *Group) AppendState(b []byte) []byte {
	strong := byte(0)
	if g.strong {
		strong = 1
	}
	b = append(b, stateVersion, byte(g.layout), strong)
	for _, s := range g.streams {
		st := s.AppendState(nil)
		b = binary.AppendUvarint(b, uint64(len(st)))
		b = append(b, st...)
	}
	return b
}

// LoadState loads the result of AppendState. The rules of Stream.LoadState apply. On an error
// nothing is changed.
func (g *Group) LoadState(b []byte) error {
	d := decoder{varint.Reader{Rest: b}}
	version, layout, strong := d.Byte(), Layout(d.Byte()), d.Byte()
	if !d.OK() || version != stateVersion || layout > Numbered || strong > 1 {
		return fmt.Errorf("group state: %w", errState)
	}
	var states [gpuflog.NumChannels][]byte
	for ch := range states {
		states[ch] = d.Bytes(int(d.Max(1 << 20)))
		if _, err := parseState(states[ch]); err != nil {
			return fmt.Errorf("group state: %s: %w", gpuflog.Channel(ch), err)
		}
	}
	if !d.OK() || len(d.Rest) > 0 {
		return fmt.Errorf("group state: %w", errState)
	}
	if layout != Undecided && layout != g.layout {
		g.layout, g.strong = layout, strong == 1
		g.needList.Store(true) // the next listing may show more under this layout
		for _, s := range g.streams {
			s.rearrange()
		}
	}
	for ch, s := range g.streams {
		if err := s.LoadState(states[ch]); err != nil {
			return err
		}
	}
	return nil
}
