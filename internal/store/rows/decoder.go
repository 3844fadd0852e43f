// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"

	"github.com/cespare/xxhash/v2"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/keys"
	"github.com/gpuflight/gpuflight/semconv"
)

const (
	// MaxSession is the length of the longest session id in bytes. A longer one becomes its first 239
	// bytes, "~" and its hash in 16 hexadecimal digits. The resource keeps it whole.
	MaxSession = 256
	// maxKept is how many entries of a lookup table a Decoder keeps allocated between deliveries.
	maxKept = 1 << 14
)

// Stats counts what rows cannot hold.
type Stats struct {
	// TooDeep is values nested deeper than [store.MaxDepth]. A dictionary entry counts once in a
	// delivery.
	TooDeep int64
	// Metadata is metrics whose metadata was dropped.
	Metadata int64
	// Dropped is resources and scopes whose number of dropped attributes was dropped.
	Dropped int64
}

// Decoder converts deliveries to batches: one batch for each session, in the order of their first
// rows. The batches share strings with the pdata. The zero Decoder is ready to use. It keeps tables
// between calls and belongs to one goroutine.
type Decoder struct {
	stats    Stats
	free     []*builder
	sessions map[string]*builder
	order    []*builder

	// Of the current operation: the bytes that distinguish its shape and its extra attributes.
	shape, extra []byte
	slots        []predicted // by position, of the last operation
	scratch      []byte
}

// Stats returns the counts of all calls.
func (d *Decoder) Stats() Stats { return d.stats }

// builder collects the rows of one session.
type builder struct {
	batch   *store.Batch
	lanes   index[store.Lane]
	places  index[store.Place]
	stacks  index[string]
	origins map[uint64]uint32
	shapes  rawIndex
	extras  rawIndex
	series  rawIndex
	uids    map[store.UID]uint64
}

// index finds entries by content.
type index[T comparable] struct {
	last T
	at   uint32
	all  map[T]uint32
}

// find returns the index of an entry. If fresh, the caller appends it as entry n.
func (x *index[T]) find(v T, n int) (at uint32, fresh bool) {
	if v == x.last {
		return x.at, false
	}
	at, ok := x.all[v]
	if !ok {
		at = uint32(n)
		if x.all == nil {
			x.all = map[T]uint32{}
		}
		x.all[v] = at
	}
	x.last, x.at = v, at
	return at, !ok
}

func (x *index[T]) reset() {
	var zero T
	x.last, x.at = zero, 0
	x.all = emptied(x.all)
}

// rawIndex finds entries by bytes that distinguish their content. Different bytes may stand for
// equal content, which byKey finds.
type rawIndex struct {
	last         []byte
	at           uint32
	byRaw, byKey map[uint64]uint32
}

// find returns the index of the entry, or the hash of raw for add.
func (x *rawIndex) find(raw []byte) (at uint32, hash uint64, ok bool) {
	if x.last != nil && bytes.Equal(raw, x.last) {
		return x.at, 0, true
	}
	hash = xxhash.Sum64(raw)
	if at, ok = x.byRaw[hash]; ok {
		x.last, x.at = append(x.last[:0], raw...), at
	}
	return at, hash, ok
}

// add notes an entry with the canonical key. If fresh, the caller appends it as entry n.
func (x *rawIndex) add(hash, key uint64, n int) (at uint32, fresh bool) {
	at, ok := x.byKey[key]
	if !ok {
		at = uint32(n)
		if x.byKey == nil {
			x.byKey, x.byRaw = map[uint64]uint32{}, map[uint64]uint32{}
		}
		x.byKey[key] = at
	}
	x.byRaw[hash] = at
	return at, !ok
}

func (x *rawIndex) reset() {
	x.last = nil
	x.byRaw, x.byKey = emptied(x.byRaw), emptied(x.byKey)
}

// emptied removes all entries, and the table itself if it is large.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > maxKept {
		return nil
	}
	clear(m)
	return m
}

// begin starts a delivery.
func (d *Decoder) begin() {
	if d.sessions == nil {
		d.sessions = map[string]*builder{}
	}
}

// end returns the batches of the delivery and forgets it.
func (d *Decoder) end() []*store.Batch {
	batches := make([]*store.Batch, len(d.order))
	for i, b := range d.order {
		batches[i] = b.batch
		b.batch = nil
		b.lanes.reset()
		b.places.reset()
		b.stacks.reset()
		b.origins = emptied(b.origins)
		b.shapes.reset()
		b.extras.reset()
		b.series.reset()
		b.uids = emptied(b.uids)
		if len(d.free) < 16 {
			d.free = append(d.free, b)
		}
	}
	clear(d.order)
	d.order = d.order[:0]
	d.sessions = emptied(d.sessions)
	if cap(d.shape)+cap(d.extra)+cap(d.scratch) > 1<<20 {
		d.shape, d.extra, d.scratch = nil, nil, nil
	}
	d.slots = nil
	return batches
}

// sessionOf returns the session that the resource names, or "".
func sessionOf(r pcommon.Resource) string {
	v, ok := r.Attributes().Get(semconv.ServiceInstanceID)
	if !ok {
		return ""
	}
	return v.Str()
}

// observed reports whether eBPF programs observed the process of a resource. Metrics of such
// processes are kept as those of a machine. Otherwise each short program would be a session without
// a recording, with a file and a row in the list.
func observed(r pcommon.Resource) bool {
	v, ok := r.Attributes().Get(semconv.TelemetrySDKName)
	return ok && v.Str() == semconv.EBPFObserver
}

// builder returns the builder of a session.
func (d *Decoder) builder(project, session string) *builder {
	if len(session) > MaxSession {
		hash := binary.BigEndian.AppendUint64(nil, xxhash.Sum64String(session))
		session = session[:MaxSession-17] + "~" + hex.EncodeToString(hash)
	}
	if b, ok := d.sessions[session]; ok {
		return b
	}
	var b *builder
	if n := len(d.free); n > 0 {
		b, d.free = d.free[n-1], d.free[:n-1]
	} else {
		b = &builder{}
	}
	b.batch = &store.Batch{
		Session: session,
		Project: project,
		Origins: make([]store.Origin, 1),
		Extras:  make([]store.Extra, 1),
		Lanes:   make([]store.Lane, 1),
		Shapes:  make([]store.Shape, 1),
		Places:  make([]store.Place, 1),
		Stacks:  make([]store.Stack, 1),
		Series:  make([]store.Series, 1),
	}
	d.sessions[session] = b
	d.order = append(d.order, b)
	return b
}

// resource is the part of an origin that the scopes of a resource share.
type resource struct {
	attrs     store.Attrs
	schemaURL string
	hash      uint64
	empty     bool
}

func (d *Decoder) resource(r pcommon.Resource, schemaURL string) resource {
	if r.DroppedAttributesCount() != 0 {
		d.stats.Dropped++
	}
	a := d.attrs(r.Attributes())
	var hash uint64
	hash, d.scratch = keys.Resource(d.scratch, a, schemaURL)
	return resource{a, schemaURL, hash, len(a) == 0 && schemaURL == ""}
}

// origin returns the index of a resource with a scope.
func (d *Decoder) origin(b *builder, r *resource, s pcommon.InstrumentationScope, schemaURL string) uint32 {
	if s.DroppedAttributesCount() != 0 {
		d.stats.Dropped++
	}
	a := d.attrs(s.Attributes())
	if r.empty && len(a) == 0 && s.Name() == "" && s.Version() == "" && schemaURL == "" {
		return 0
	}
	o := store.Origin{
		Resource: r.attrs, ResourceSchemaURL: r.schemaURL,
		ScopeName: s.Name(), ScopeVersion: s.Version(), ScopeAttrs: a, ScopeSchemaURL: schemaURL,
	}
	o.Key, d.scratch = keys.Origin(d.scratch, r.hash, &o)
	at, ok := b.origins[o.Key]
	if !ok {
		at = uint32(len(b.batch.Origins))
		b.batch.Origins = append(b.batch.Origins, o)
		if b.origins == nil {
			b.origins = map[uint64]uint32{}
		}
		b.origins[o.Key] = at
	}
	return at
}

// extraOf returns the index of extra attributes that raw distinguishes.
func (d *Decoder) extraOf(b *builder, raw []byte, attrs func() store.Attrs) uint32 {
	if len(raw) == 0 {
		return 0
	}
	at, h, ok := b.extras.find(raw)
	if ok {
		return at
	}
	a := attrs()
	var key uint64
	key, d.scratch = keys.Extra(d.scratch, a)
	at, fresh := b.extras.add(h, key, len(b.batch.Extras))
	if fresh {
		b.batch.Extras = append(b.batch.Extras, store.Extra{Key: key, Attrs: a})
	}
	return at
}
