// SPDX-License-Identifier: Apache-2.0

package gpuusageconnector

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"go.opentelemetry.io/collector/extension/xextension/storage"
)

// The storage has a snapshot of the state and the records after it, one key each. A record is stored
// before it is applied and before the sender gets its response. A restart loads the snapshot and
// applies the records to it, also after a clean shutdown.
//
// The key of a record has the number of the log (epoch) and of the record. A record of an abandoned log
// is therefore never read as part of the current one. Records and snapshots end with a checksum.
//
// A large snapshot is stored in pieces. Each piece has a key of its own, and the snapshot's key lists
// them. The database of file_storage keeps a value in one place, and a large value does not fit into
// the free space that smaller values leave. With tens of MiB in one value, its file, which is mapped
// into memory, grew by that much with almost every snapshot.

// recordLog writes and reads records and snapshots. Unless stated otherwise, the caller holds the
// connector's lock.
type recordLog struct {
	client storage.Client
	epoch  uint64
	first  uint64 // number of the oldest record that is still stored
	next   uint64 // number of the next record
	// Since the last snapshot:
	records int
	bytes   int
	// size is that of the last snapshot, pieces where it is.
	size   int
	pieces pieces
	// broken means that a record could not be stored, so later records would be useless. Nothing is
	// appended until the next snapshot.
	broken bool
}

// snapshot is a state that is being stored.
type snapshot struct {
	state              []byte
	epoch, first, next uint64 // the records that it takes the place of
	pieces, old        pieces // where it goes, and where the one before is
}

// pieces says where a snapshot is stored: under snapshotKey if count is zero, else under as many keys of
// that number.
type pieces struct {
	number uint64
	count  int
}

const (
	snapshotKey = "snapshot"
	// A snapshot is written when the log is so long that replaying it would take longer than loading
	// two of them, but not for each few spans.
	minLogBytes   = 16 << 20
	maxLogRecords = 50_000
	// pieceBytes is the size from which a snapshot is stored in pieces, and that of each but the last.
	pieceBytes = 64 << 10
	// inPieces stands under snapshotKey where a whole snapshot has its version, which is never 0.
	inPieces = 0
)

var (
	errDamaged  = errors.New("state is damaged")
	errSettings = errors.New("settings have changed")
)

const (
	recordBatch byte = 'b'
	recordFlush byte = 'f'
	// Kind and time; then come the payload and a checksum.
	headerBytes   = 1 + 8
	checksumBytes = 8
)

func recordKey(epoch, n uint64) string {
	return "log/" + strconv.FormatUint(epoch, 16) + "/" + strconv.FormatUint(n, 10)
}

func pieceKey(number uint64, i int) string {
	return "piece/" + strconv.FormatUint(number, 16) + "/" + strconv.Itoa(i)
}

// append appends what stands under snapshotKey for a snapshot in pieces.
func (p pieces) append(b []byte) []byte {
	b = append(b, inPieces)
	b = appendUint(b, p.number)
	b = appendUint(b, p.count)
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// loadPieces reads it. What is no such thing, or damaged, is not ok.
func loadPieces(from []byte) (p pieces, ok bool) {
	sound, err := checked(from)
	if err != nil || len(sound) == 0 || sound[0] != inPieces {
		return pieces{}, false
	}
	d := newDecoder(sound[1:])
	p.number = d.Uint()
	count := d.Uint()
	if !d.OK() || len(d.Rest) > 0 || count == 0 || count > math.MaxInt32 {
		return pieces{}, false
	}
	p.count = int(count)
	return p, true
}

func newRecordLog(client storage.Client) *recordLog { return &recordLog{client: client} }

// begin starts a new log. The pieces of the old one's snapshot go when the first of the new one is put.
func (l *recordLog) begin(epoch uint64) {
	*l = recordLog{client: l.client, epoch: epoch, pieces: l.pieces}
}

// appendBatchRecord appends a record of a batch without its time.
func appendBatchRecord(b []byte, batch *batch) []byte {
	b = append(b, recordBatch)
	b = append(b, make([]byte, headerBytes-1)...)
	return batch.append(b)
}

// appendFlushRecord appends a record of a flush without its time.
func appendFlushRecord(b []byte, all bool) []byte {
	b = append(b, recordFlush)
	b = append(b, make([]byte, headerBytes-1)...)
	if all {
		return append(b, 1)
	}
	return append(b, 0)
}

// append stores a record of that moment.
func (l *recordLog) append(ctx context.Context, record []byte, now int64) error {
	if l.broken {
		return nil // counted when it broke, and at each attempt to write a snapshot
	}
	binary.LittleEndian.PutUint64(record[1:], uint64(now))
	record = binary.LittleEndian.AppendUint64(record, xxhash.Sum64(record))
	// The sender may go away, but what was counted must be stored.
	err := l.client.Set(context.WithoutCancel(ctx), recordKey(l.epoch, l.next), record)
	// Also after an error: the record may have been stored nevertheless.
	l.next++
	l.records++
	l.bytes += len(record)
	if err != nil {
		l.broken = true
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// due says whether it is time for a snapshot.
func (l *recordLog) due() bool {
	return l.broken || l.records > maxLogRecords || l.bytes > max(minLogBytes, 2*l.size)
}

// snapshot encodes the state. Records that follow come after it, so they are worth storing again.
func (l *recordLog) snapshot(s *state) *snapshot {
	// It is about as large as the last one: growing up to there would leave several times that behind.
	b := s.append(appendSnapshotHead(make([]byte, 0, l.size+l.size/4), s, l.epoch, l.next))
	b = binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
	snap := &snapshot{state: b, epoch: l.epoch, first: l.first, next: l.next, old: l.pieces}
	if len(b) > pieceBytes {
		snap.pieces = pieces{number: l.pieces.number + 1, count: (len(b) + pieceBytes - 1) / pieceBytes}
	}
	l.broken = false
	l.records, l.bytes = 0, 0
	return snap
}

// put stores a snapshot and removes the records before it. The lock need not be held.
func (l *recordLog) put(ctx context.Context, snap *snapshot) error {
	var ops []*storage.Operation
	whole := snap.state
	if snap.pieces.count > 0 {
		i := 0
		for piece := range slices.Chunk(snap.state, pieceBytes) {
			ops = append(ops, storage.SetOperation(pieceKey(snap.pieces.number, i), piece))
			i++
		}
		whole = snap.pieces.append(nil)
	}
	// With this order, a storage that executes operations in turn always has a complete snapshot.
	ops = append(ops, storage.SetOperation(snapshotKey, whole))
	for i := range snap.old.count {
		ops = append(ops, storage.DeleteOperation(pieceKey(snap.old.number, i)))
	}
	for n := snap.first; n < snap.next; n++ {
		ops = append(ops, storage.DeleteOperation(recordKey(snap.epoch, n)))
	}
	if err := l.client.Batch(context.WithoutCancel(ctx), ops...); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// written takes note of what came of put.
func (l *recordLog) written(snap *snapshot, err error) {
	if err != nil {
		l.broken = true
		return
	}
	l.first, l.size, l.pieces = snap.next, len(snap.state), snap.pieces
}

// write stores a snapshot.
func (l *recordLog) write(ctx context.Context, snap *snapshot) error {
	err := l.put(ctx, snap)
	l.written(snap, err)
	return err
}

// load returns the stored state, nil if there is none. Errors are errDamaged, errSettings or the
// storage's own.
func (l *recordLog) load(ctx context.Context, cfg *Config) (*state, error) {
	b, err := l.stored(ctx)
	if err != nil || b == nil {
		return nil, err
	}
	sound, err := checked(b)
	if err != nil {
		// Perhaps its head can still be read, and with it what else is to be thrown away.
		if h, _, err := loadSnapshotHead(b); err == nil {
			err = l.discard(ctx, h)
			if err != nil {
				return nil, err
			}
		}
		return nil, fmt.Errorf("snapshot: %w", errDamaged)
	}
	h, rest, err := loadSnapshotHead(sound)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	s, err := l.replay(ctx, cfg, h, rest)
	if errors.Is(err, errDamaged) || errors.Is(err, errSettings) {
		err = errors.Join(err, l.discard(ctx, h))
	}
	l.size = len(b)
	return s, err
}

// stored returns the stored snapshot, nil if there is none. One of which pieces are missing ends there,
// and its checksum will say so.
func (l *recordLog) stored(ctx context.Context) ([]byte, error) {
	b, err := l.client.Get(ctx, snapshotKey)
	if err != nil {
		return nil, err
	}
	p, ok := loadPieces(b)
	if !ok {
		return b, nil
	}
	l.pieces = p
	b = []byte{}
	for i := range p.count {
		piece, err := l.client.Get(ctx, pieceKey(p.number, i))
		if err != nil {
			return nil, err
		}
		if piece == nil {
			break
		}
		b = append(b, piece...)
	}
	return b, nil
}

// replay returns the state that follows from a snapshot and the records after it. They are applied at
// the prices that held when they were stored.
func (l *recordLog) replay(ctx context.Context, cfg *Config, h snapshotHead, rest []byte) (*state, error) {
	if was, is := h.shape, shape(cfg); was != is {
		return nil, fmt.Errorf("%w: were %s, are %s", errSettings, was, is)
	}
	then := *cfg
	then.Cost = h.cost
	s := newState(&then)
	if err := s.load(rest); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	l.begin(h.epoch)
	l.first, l.next = h.next, h.next
	var batch batch
	for ; ; l.next++ {
		r, err := l.client.Get(ctx, recordKey(l.epoch, l.next))
		if err != nil {
			return nil, err
		}
		if r == nil {
			s.adopt(cfg)
			return s, nil
		}
		l.records++
		l.bytes += len(r)
		if r, err = checked(r); err == nil {
			err = s.replay(r, &batch)
		}
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", l.next, err)
		}
	}
}

// discard removes the records of a log that is given up.
func (l *recordLog) discard(ctx context.Context, h snapshotHead) error {
	for n := h.next; ; n++ {
		key := recordKey(h.epoch, n)
		if b, err := l.client.Get(ctx, key); err != nil || b == nil {
			return err
		}
		if err := l.client.Delete(ctx, key); err != nil {
			return err
		}
	}
}

// checked returns what stands before a checksum.
func checked(b []byte) ([]byte, error) {
	n := len(b) - checksumBytes
	if n < 0 || binary.LittleEndian.Uint64(b[n:]) != xxhash.Sum64(b[:n]) {
		return nil, errDamaged
	}
	return b[:n], nil
}

// replay applies a record.
func (s *state) replay(r []byte, b *batch) error {
	if len(r) < headerBytes {
		return errDamaged
	}
	now := int64(binary.LittleEndian.Uint64(r[1:]))
	payload := r[headerBytes:]
	switch {
	case r[0] == recordBatch:
		if err := b.load(payload); err != nil {
			return err
		}
		b.arrived = now
		s.apply(b)
	case r[0] == recordFlush && len(payload) == 1:
		s.flush(now, payload[0] != 0)
		s.nextInterval()
	default:
		return errDamaged
	}
	return nil
}

func (l *recordLog) close(ctx context.Context) error { return l.client.Close(ctx) }
