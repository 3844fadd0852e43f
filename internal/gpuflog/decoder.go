// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"bytes"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// Options are the settings of a Decoder. Zero values take the defaults named here.
type Options struct {
	// MaxSpansPerTrace bounds a trace; it then continues in a new one. A span and its ancestors are
	// never parted, so a bound below their number is exceeded. Default 10000, least 2.
	MaxSpansPerTrace int
	// JoinTimeout is how long, in the session's own time, a kernel row waits for its detail.
	// Default 10 s.
	JoinTimeout time.Duration
	// ScopeWait is how long, in wall time, work waits for the scope channel once that has been
	// read to its present end. Default 400 ms: the recorder writes every channel's rows each 250 ms.
	ScopeWait time.Duration
	// SessionTimeout is how long, in wall time, a session without a shutdown record may be silent
	// until it counts as ended. Default 5 min.
	SessionTimeout time.Duration
	// KernelNameInPath says that the user_scope of kernel_detail ends with the kernel's name, as
	// it does in the layouts before C2 (format document, section 4.5).
	KernelNameInPath bool
	// MaxHeld bounds the events of one session and lane that wait for the scope channel. MaxRows
	// bounds the kernel rows that wait for their detail, and MaxScopes the scope instances known at a
	// time. The default of each is 32768. MaxDictionaryBytes bounds a session's dictionaries (32 MiB),
	// and MaxSessions the sessions of one Decoder (16).
	MaxHeld, MaxRows, MaxScopes, MaxDictionaryBytes, MaxSessions int
}

func (o *Options) fill() {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.MaxSpansPerTrace, 10000)
	o.MaxSpansPerTrace = max(o.MaxSpansPerTrace, 2)
	def(&o.MaxHeld, 32768)
	def(&o.MaxRows, 32768)
	def(&o.MaxScopes, 32768)
	def(&o.MaxDictionaryBytes, 32<<20)
	def(&o.MaxSessions, 16)
	defd := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	defd(&o.JoinTimeout, 10*time.Second)
	defd(&o.ScopeWait, 400*time.Millisecond)
	defd(&o.SessionTimeout, 5*time.Minute)
}

// Decoder decodes one group of files. See the package comment.
type Decoder struct {
	opt      Options
	sessions map[string]*session
	last     *session // the session of the last line
	stats    Stats
	uids     uids // of the line that is being decoded
	problems []Problem
	// tooOld: a header of A0 without a session id was read.
	tooOld bool

	// full empties a full batch, see WhenFull. stopped says that it could not.
	full    func(*gpuevent.Batch) bool
	stopped bool

	// Of the line being decoded:
	channel Channel
	offset  int64
	out     *gpuevent.Batch
	now     int64
	// from is the first row to decode, paused the row before which decoding stopped, or -1.
	from, paused int64

	heads   [numRecordTypes]headCache
	orders  [numRecordTypes]keyOrder
	lastTyp recordType // of the last line that began as the one before
	text    interner   // short strings: names, paths, kinds
	stacks  stackTable
	names   map[string]*gpuevent.KernelName
	columns columnCache
	kernel  kernelLine
	detail  kernelDetail
	item    item
	meter   meters
	ev      scratch
	// lastPath is the scope path of the last record of A2: launches of a scope follow each other.
	lastPath  string
	lastDepth int64
}

// scratch holds one event of each kind that is sent often, so that none is allocated.
type scratch struct {
	kernel gpuevent.Kernel
	copy   gpuevent.Copy
	set    gpuevent.Set
	sync   gpuevent.Sync
	memory gpuevent.Memory
}

// NewDecoder returns a Decoder without state.
func NewDecoder(opt Options) *Decoder {
	opt.fill()
	return &Decoder{
		opt: opt, sessions: map[string]*session{},
		text: newInterner(8 << 20), stacks: newStackTable(16 << 20),
		names: map[string]*gpuevent.KernelName{},
	}
}

// Stats returns the counts so far.
func (d *Decoder) Stats() Stats { return d.stats }

// Waiting returns the kernel rows that wait for their detail and the events that wait for the
// scope channel.
func (d *Decoder) Waiting() (rows, events int) {
	for _, s := range d.sessions {
		rows += s.rows.len()
		for l := range s.held {
			events += s.held[l].len()
		}
		events += len(s.lost)
	}
	return rows, events
}

// Newest returns the time of the newest record so far in Unix nanoseconds, 0 before the first.
func (d *Decoder) Newest() (ns int64) {
	for _, s := range d.sessions {
		for _, w := range s.seen {
			ns = max(ns, w)
		}
	}
	return ns
}

// TakeProblems returns what was rejected since the last call, at most a few dozen.
func (d *Decoder) TakeProblems() []Problem {
	p := d.problems
	d.problems = nil
	return p
}

// Want reports which of the scope and the device channel to read next. The scope channel should be
// slightly ahead of the device channel. Then kernels find their scopes, and neither scopes nor held
// events accumulate.
func (d *Decoder) Want() Channel {
	for _, s := range d.sessions {
		if s.held[deviceLane].len() > 0 {
			return Scope
		}
		if !s.shut[Scope] && s.seen[Scope] <= s.seen[Device] {
			return Scope
		}
	}
	if len(d.sessions) == 0 {
		return Scope
	}
	return Device
}

// WhenFull sets the function that empties a full batch. With it, one long line, or the release of many
// waiting events, needs at most the memory of a full batch. The Decoder calls it from Feed, FeedLine
// and EndStep, between two events. If the function returns false, the Decoder stops. EndStep then keeps
// the waiting events for the next call, and FeedLine reports the row at which to continue. Feed skips
// the rest of its data, and the caller must restore the Decoder from an earlier state. Without a
// function a batch grows without bound.
func (d *Decoder) WhenFull(empty func(*gpuevent.Batch) bool) { d.full = empty }

// Stopped reports that the last call of Feed, FeedLine or EndStep stopped early because the batch was
// full and could not be emptied.
func (d *Decoder) Stopped() bool { return d.stopped }

// room makes room in the batch. It returns false if the Decoder must stop.
func (d *Decoder) room() bool {
	if !d.stopped && d.full != nil && d.out.Full() {
		d.stopped = !d.full(d.out)
	}
	return !d.stopped
}

// FeedLine decodes one line of a channel, from a row on: 0, or what an earlier call for the same line
// returned. done says that the line is decoded to its end; otherwise next is the row at which to
// continue. The other parameters are those of Feed.
func (d *Decoder) FeedLine(ch Channel, line []byte, from, offset, now int64, out *gpuevent.Batch) (next int64, done bool) {
	before := d.stats
	d.from, d.paused = from, from
	d.Feed(ch, line, offset, now, out)
	if from > 0 { // counted when its first rows were fed
		d.stats.Lines, d.stats.Bytes, d.stats.Records = before.Lines, before.Bytes, before.Records
	}
	next, d.from = d.paused, 0
	return next, next < 0
}

// Feed decodes whole lines of one channel. offset is that of data in its window, for messages; now
// is the time of [Now]. A last line without newline counts as whole. Data is not
// kept.
func (d *Decoder) Feed(ch Channel, data []byte, offset, now int64, out *gpuevent.Batch) {
	d.channel, d.out = ch, out
	d.setNow(now)
	d.stopped = false
	d.stats.Bytes += uint64(len(data))
	for len(data) > 0 && d.room() {
		line := data
		n := bytes.IndexByte(data, '\n')
		if n >= 0 {
			line, data = data[:n], data[n+1:]
		} else {
			n, data = len(data), nil
		}
		d.offset = offset
		offset += int64(n) + 1
		d.stats.Lines++
		if len(line) > 0 && line[len(line)-1] == '\r' {
			line = line[:len(line)-1]
		}
		d.paused = -1
		if len(line) > 0 {
			d.line(line)
		}
	}
	d.out = nil
}

// Whole reports whether b is one complete JSON object, so that it can be taken as a line although
// its newline has not come.
func Whole(b []byte) bool {
	b = bytes.TrimRight(b, "\r\n \t")
	if len(b) < 2 || b[0] != '{' || b[len(b)-1] != '}' {
		return false
	}
	s := scanner{b: b}
	return s.skip() && s.done()
}

// Step says, at the end of a step, what the caller knows of the files.
type Step struct {
	// Now is the time of the function Now, in Unix nanoseconds.
	Now int64
	// AtEnd says per channel that everything that is there now has been fed, and will be when
	// another Feed follows: a channel without any file is at its end.
	AtEnd [NumChannels]bool
	// Quiet is how long no file of the group has grown.
	Quiet time.Duration
	// Gone says that the writer is known to be gone: no more will come.
	Gone bool
	// Flush releases everything that waits, although what it waits for may still come.
	Flush bool
}

// dataEnd is how long a group must be silent until what is there counts as all there is, for the
// rows that wait for something else in the files. The recorder flushes each 250 ms.
const dataEnd = 2 * time.Second

// EndStep releases what has waited long enough and closes the sessions that have ended.
func (d *Decoder) EndStep(st Step, out *gpuevent.Batch) {
	d.out = out
	d.setNow(st.Now)
	st.Now = d.now
	d.offset, d.stopped = 0, false
	for _, id := range sortedKeys(d.sessions) {
		s := d.sessions[id]
		s.endStep(d, &st)
		if s.closed && st.Quiet > d.opt.SessionTimeout && len(d.sessions) > 1 {
			d.drop(s)
		}
	}
	d.out = nil
}

func (d *Decoder) drop(s *session) {
	delete(d.sessions, s.id)
	if d.last == s {
		d.last = nil
	}
}

// session returns the session of an id, made if need be.
func (d *Decoder) session(id []byte) *session {
	if d.last != nil && string(id) == d.last.id {
		return d.last
	}
	s := d.sessions[string(id)]
	if s == nil {
		if len(d.sessions) >= d.opt.MaxSessions {
			d.forgetOldest()
		}
		s = newSession(text(id))
		d.sessions[s.id] = s
	}
	d.last = s
	return s
}

// forgetOldest closes the session that has been silent longest, by the time of its records.
func (d *Decoder) forgetOldest() {
	var oldest *session
	for _, id := range sortedKeys(d.sessions) {
		s := d.sessions[id]
		if oldest == nil || (s.closed && !oldest.closed) ||
			(s.closed == oldest.closed && slices.Max(s.seen[:]) < slices.Max(oldest.seen[:])) {
			oldest = s
		}
	}
	if !oldest.closed {
		d.reject(SessionsFull, "session "+oldest.id)
		oldest.close(d, crashed)
	}
	d.drop(oldest)
}

// record is the line being decoded.
type record struct {
	scanner
	typ recordType
	// rest says that the scanner stands behind the type's value; otherwise at the line's begin.
	rest bool
	// order predicts the next key, n is its place there; order is nil where prediction ended.
	order *keyOrder
	n     int
	// long says that a text was cut at maxText.
	long bool
	head
}

// maxText bounds a text, in bytes, as NewKernelName bounds a name. A text can stand on each item of a
// session, so a long one would multiply. Lines of source code and PTX stand on one record and have no
// such bound.
const maxText = 16 << 10

// str consumes a string and cuts it at maxText.
func (r *record) str() (content []byte, ok bool) {
	ok = r.strInto(&content)
	return content, ok
}

// cut cuts a text at maxText, between two characters.
func (r *record) cut(content []byte) []byte {
	r.long = true
	n := maxText
	for n > maxText-utf8.UTFMax && !utf8.RuneStart(content[n]) {
		n--
	}
	return content[:n]
}

// keyOrder is the order of a record type's keys behind the head, as the last lines had it. The
// writer's order is fixed, so that the next key need only be compared, not scanned.
type keyOrder struct {
	keys   []orderedKey
	misses int
}

// maxMisses is after how many lines of another order that is learned instead.
const maxMisses = 256

type orderedKey struct {
	raw  string // with the comma before it and the colon behind
	name []byte
}

// maxOrder bounds the keys that are predicted.
const maxOrder = 64

// predict steps to the next key if it is the expected one.
func (r *record) predict() []byte {
	if r.n >= len(r.order.keys) {
		return nil
	}
	k := &r.order.keys[r.n]
	if end := r.i + len(k.raw); end <= len(r.b) && string(r.b[r.i:end]) == k.raw {
		r.i = end
		r.n++
		return k.name
	}
	return nil
}

// learn records the key that was scanned at a position. After the known keys it becomes the next one.
// If another key was predicted, it ends the prediction for this line; after many such lines, learn
// discards the order and learns it again.
func (r *record) learn(from int, key []byte) {
	o := r.order
	switch {
	case r.n < len(o.keys):
		if o.misses++; o.misses == maxMisses {
			*o = keyOrder{}
		}
		r.order = nil
	case r.n == maxOrder || r.b[from] != ',':
		r.order = nil
	default:
		o.keys = append(o.keys, orderedKey{raw: string(r.b[from:r.i]), name: append([]byte(nil), key...)})
		r.n++
	}
}

// head holds the fields that most records share.
type head struct {
	session []byte
	app     []byte
	pid     gpuevent.Int
	ts      gpuevent.Int
}

// headCache has the beginning of the last line of a type, and its decoded values. The beginning ends at
// the first key whose value differs within a session, after "type", "version", "pid", "app" and
// "session_id". The lines of a session repeat it byte for byte.
type headCache struct {
	raw  []byte
	head head
}

// maxHead bounds the length of a cached beginning.
const maxHead = 1024

// resume takes a cached beginning; false if the line begins otherwise.
func (c *headCache) resume(r *record) bool {
	n := len(c.raw)
	if n == 0 || len(r.b) <= n || string(r.b[:n]) != string(c.raw) {
		return false
	}
	r.i, r.rest, r.head = n, true, c.head
	return true
}

// keep notes that all before the key at the scanner's position belongs to the beginning.
func (c *headCache) keep(r *record, end int) {
	if end > maxHead || r.head.ts.OK || len(r.head.session) == 0 {
		c.raw = c.raw[:0]
		return
	}
	c.raw = append(c.raw[:0], r.b[:end]...)
	c.head = head{
		session: append([]byte(nil), r.head.session...), app: append([]byte(nil), r.head.app...), pid: r.head.pid,
	}
}

// begin steps over the fields that are the same for all lines of a session, from the cache if it
// can. It leaves the scanner before the comma of the first other key.
func (d *Decoder) begin(r *record) bool {
	c := &d.heads[r.typ]
	if r.n == resumed || c.resume(r) {
		r.order, r.n = &d.orders[r.typ], 0
		return true
	}
	for {
		at := r.i
		key, done, ok := r.next()
		if !ok {
			return false
		}
		if done {
			r.i = at
			return true
		}
		switch string(key) {
		case "type", "version":
			ok = r.skip()
		case "pid", "app", "session_id":
			ok = r.field(key)
		default:
			r.i, r.rest = at, at > 0 // at the line's begin the brace comes again
			c.keep(r, at)
			r.order, r.n = &d.orders[r.typ], 0
			return true
		}
		if !ok {
			return false
		}
	}
}

// next steps to the next key; done is true at the end of a sound line, and false with ok false at
// the end of a broken one.
func (r *record) next() (key []byte, done, ok bool) {
	if r.order != nil {
		if key := r.predict(); key != nil {
			return key, false, true
		}
	}
	first := false
	if !r.rest {
		if !r.enter('{') {
			return nil, false, false
		}
		r.rest, first = true, true
	}
	from := r.i
	member, ok := r.more(first, '}')
	if !ok {
		return nil, false, false
	}
	if !member {
		return nil, r.done(), r.done()
	}
	key, ok = r.key()
	if ok && r.order != nil {
		r.learn(from, key)
	}
	return key, false, ok
}

// fields hands each key of the line to field, which consumes the value. It is for the records that are
// not read by the million; those loop over next themselves.
func (r *record) fields(field func(key []byte) bool) bool {
	for {
		key, done, ok := r.next()
		if !ok || done {
			return done
		}
		if !field(key) {
			return false
		}
	}
}

// field takes the fields that records share, and skips what it does not know.
func (r *record) field(key []byte) bool {
	switch string(key) {
	case "session_id":
		v, ok := r.str()
		r.head.session = v
		return ok
	case "app":
		v, ok := r.str()
		r.head.app = v
		return ok
	case "pid":
		return r.intInto(&r.head.pid)
	case "ts_ns":
		return r.intInto(&r.head.ts)
	}
	return r.skip()
}

func (r *record) intInto(v *gpuevent.Int) bool {
	n, _, ok := r.integer()
	*v = gpuevent.Int{V: n, OK: ok}
	return ok
}

func (r *record) strInto(b *[]byte) bool {
	v, ok := r.scanner.str()
	if len(v) > maxText {
		v = r.cut(v)
	}
	*b = v
	return ok
}

var typePrefix = []byte(`{"type":"`)

// identify finds a line's type: usually the first or, behind version, the second key.
func identify(line []byte) (typ []byte, behind int, ok bool) {
	if bytes.HasPrefix(line, typePrefix) {
		if n := bytes.IndexByte(line[len(typePrefix):], '"'); n >= 0 {
			end := len(typePrefix) + n
			return line[len(typePrefix):end], end + 1, true
		}
		return nil, 0, false
	}
	s := scanner{b: line}
	if !s.enter('{') {
		return nil, 0, false
	}
	for first := true; ; first = false {
		member, ok := s.more(first, '}')
		if !ok || !member {
			return nil, 0, false
		}
		key, ok := s.key()
		if !ok {
			return nil, 0, false
		}
		if string(key) == "type" {
			typ, ok := s.str()
			if first || !ok {
				return typ, s.i, ok
			}
			return typ, -s.i, ok
		}
		if string(key) == "version" && first {
			// "version" stands before "type" and says nothing that the columns do not say.
			if _, _, ok := s.integer(); !ok {
				return nil, 0, false
			}
			if m, ok := s.more(false, '}'); !ok || !m {
				return nil, 0, false
			}
			if key, ok = s.key(); !ok {
				return nil, 0, false
			}
			if string(key) == "type" {
				typ, ok := s.str()
				return typ, s.i, ok
			}
		}
		if !s.skip() {
			return nil, 0, false
		}
	}
}

// resumed in record.n says that the head came from the cache already.
const resumed = -1

func (d *Decoder) line(line []byte) {
	if r := (record{scanner: scanner{b: line}, typ: d.lastTyp, n: resumed}); d.heads[d.lastTyp].resume(&r) {
		d.record(&r)
		return
	}
	typ, behind, ok := identify(line)
	if !ok {
		d.reject(Malformed, "no type in "+excerpt(line))
		return
	}
	t, known := recordByName[string(typ)]
	if !known {
		d.stats.Records[recUnknown]++
		if isTooOld(typ) {
			d.reject(TooOld, string(typ))
			return
		}
		d.reject(UnknownType, excerpt(typ))
		return
	}
	d.lastTyp = t
	r := record{scanner: scanner{b: line}, typ: t}
	if behind > 0 {
		r.i, r.rest = behind, true
	}
	d.record(&r)
}

// record decodes a line whose type is known.
func (d *Decoder) record(r *record) {
	d.stats.Records[r.typ]++
	d.uids = uids{line: r.b}
	if !decoders[r.typ](d, r) {
		d.reject(Malformed, recordNames[r.typ]+": "+excerptAt(r.b, r.i))
	}
	if r.long {
		d.reject(TextTooLong, recordNames[r.typ])
	}
	d.uids = uids{}
}

// decoders decode a record each; false means that the line is malformed. What is wrong in another
// way they reject themselves.
var decoders [numRecordTypes]func(*Decoder, *record) bool

func init() {
	decoders = [numRecordTypes]func(*Decoder, *record) bool{
		recInit: (*Decoder).header, recJobStart: (*Decoder).header, recShutdown: (*Decoder).shutdown,
		recKernelEvent: (*Decoder).kernelEvent, recKernelBatch: (*Decoder).kernelBatch,
		recKernelDetail: (*Decoder).kernelDetail,
		recMemcpyEvent:  (*Decoder).memcpyEvent, recMemcpyBatch: (*Decoder).memcpyBatch,
		recMemsetEvent: (*Decoder).memsetEvent,
		recScopeBegin:  (*Decoder).scopeEvent, recScopeEnd: (*Decoder).scopeEvent,
		recScopeBatch:    (*Decoder).scopeBatch,
		recProfileSample: (*Decoder).profileSample, recSampleBatch: (*Decoder).sampleBatch,
		recPMConfig: (*Decoder).recorderConfig, recSassConfig: (*Decoder).recorderConfig,
		recPMBatch:    (*Decoder).pmBatch,
		recPerfMetric: (*Decoder).perfMetric, recKernelPerfMetric: (*Decoder).perfMetric,
		recSystemStart: (*Decoder).systemSample, recSystemStop: (*Decoder).systemSample,
		recSystemSample: (*Decoder).systemSample,
		recDeviceBatch:  (*Decoder).deviceBatch, recHostBatch: (*Decoder).hostBatch,
		recDictionary:   (*Decoder).dictionary,
		recCapabilities: (*Decoder).capabilities,
		recSegmentStart: (*Decoder).segment, recSegmentEnd: (*Decoder).segment,
		recRunEnd:    (*Decoder).segment,
		recSyncBatch: (*Decoder).syncBatch, recMemoryBatch: (*Decoder).memoryBatch,
		recNVTX: (*Decoder).nvtx, recGraphLaunch: (*Decoder).graphLaunch,
		recGraphNode: (*Decoder).graphNode, recSignature: (*Decoder).signature,
		recDeepWindow: (*Decoder).deepWindow, recDeepRule: (*Decoder).deepRule,
		recCounterQuality: (*Decoder).counterQuality,
		recSource:         (*Decoder).sourceFile, recCubin: (*Decoder).listing, recPTX: (*Decoder).listing,
	}
}

func isTooOld(typ []byte) bool {
	return string(typ) == "kernel_begin" || string(typ) == "kernel_end"
}

// owner returns the session that a record belongs to and notes the record's time. It is nil where
// the record names none or one of an unsupported generation; the reject is then counted.
func (d *Decoder) owner(h *head, ts int64) *session {
	if len(h.session) == 0 {
		if d.tooOld {
			d.reject(TooOld, "no session_id")
		} else {
			d.reject(MissingField, "no session_id")
		}
		return nil
	}
	s := d.session(h.session)
	if s.tooOld {
		d.reject(TooOld, "session "+s.id)
		return nil
	}
	if len(h.app) > 0 && s.ev.App == "" {
		s.learn(d, h)
	}
	s.saw(d.channel, ts)
	return s
}

func excerpt(b []byte) string { return text(b[:min(len(b), 80)]) }

func excerptAt(line []byte, i int) string {
	i = min(max(i, 0), len(line))
	return "near " + text(line[max(0, i-20):min(len(line), i+40)])
}

// minTime is the least time taken for one on the wall clock; A0 wrote the machine's uptime.
const minTime = int64(1e17)

// maxTime keeps sums of times and durations inside 64 bits.
const maxTime = math.MaxInt64 / 2

// Finished reports that every session was closed and nothing came since.
func (d *Decoder) Finished() bool {
	for _, s := range d.sessions {
		if s.live && !s.tooOld {
			return false
		}
	}
	return true
}
