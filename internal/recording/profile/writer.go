// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"encoding/binary"
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// DefaultRequestBytes bounds the JSON of a request, in bytes, unless a single sample is larger. The
// Collector's otlp_json_file receiver truncates lines at 1 MiB. On the network the request is about
// a fifth of that.
const DefaultRequestBytes = 900 << 10

// Attribute has a string value, or a number if IsInt is set. Its key is a constant of semconv.
type Attribute struct {
	Key   string
	Str   string
	Int   int64
	IsInt bool
}

// Type states what the samples of a profile count, or the period at which they were taken.
type Type struct{ Name, Unit string }

// Kind is the profile's value type.
type Kind struct {
	Samples Type
	// A sample is taken every Every of Period. Every is 0 if the interval is unknown.
	Period Type
	Every  int64
	Start  time.Time
	Length time.Duration
	// Attributes apply to the whole profile.
	Attributes []Attribute
}

// Mapping is a binary. The zero value means no mapping.
type Mapping struct {
	File string
	ID   Attribute
}

// Function is a function, or anything else that names a frame. Symbol and File are "" if unknown.
type Function struct{ Name, Symbol, File string }

// Line is a place in a function. Line counts from 1 and is 0 if unknown.
type Line struct {
	Function Function
	Line     int64
}

// Location is one frame of a stack, with the functions that were inlined into it.
type Location struct {
	Mapping Mapping
	// Address is in bytes, 0 if unknown.
	Address uint64
	// Lines are innermost first. Each line but the last was inlined into the next.
	Lines []Line
}

// Link is the span of a sample. The zero value means no span.
type Link struct {
	Trace [16]byte
	Span  [8]byte
}

// Sample is a value at a stack. The Writer copies the parts of it that it keeps.
type Sample struct {
	// Stack is innermost first.
	Stack      []Location
	Attributes []Attribute
	Link       Link
	Value      uint64
}

// Settings configure a Writer.
type Settings struct {
	// Resource and SchemaURL are copied into each request. ScopeName is the name of the
	// instrumentation scope.
	Resource             pcommon.Resource
	SchemaURL, ScopeName string
	// ID returns the id of the nth profile, counted from 0.
	ID func(n uint64) [16]byte
	// RequestBytes bounds the JSON of a request, in bytes. 0 means DefaultRequestBytes.
	RequestBytes int
}

// Writer turns samples into requests. It is not safe for concurrent use.
type Writer struct {
	settings Settings
	base     int // bytes of the resource
	done     []Profiles
	number   uint64
	kind     *Kind

	// The following fields belong to the current request. open is set if it has a profile.
	open    bool
	data    pprofile.Profiles
	profile pprofile.Profile
	scope   pprofile.ScopeProfiles
	bytes   int // upper bound of its JSON
	strings map[string]int32
	// The maps find entries by what they refer to.
	attributes map[attributeKey]int32
	mappings   map[Mapping]int32
	functions  map[Function]int32
	locations  map[string]int32
	stacks     map[string]int32
	links      map[Link]int32

	key     []byte
	indices []int32
}

type attributeKey Attribute

// NewWriter returns a Writer without samples.
func NewWriter(s Settings) *Writer {
	if s.RequestBytes <= 0 {
		s.RequestBytes = DefaultRequestBytes
	}
	w := &Writer{settings: s, base: 1024}
	s.Resource.Attributes().Range(func(k string, v pcommon.Value) bool {
		w.base += 2*entryBytes + quoted(k) + quoted(v.AsString())
		return true
	})
	return w
}

// entryBytes is an upper bound for the JSON of a table entry or of one of its fields, without its
// strings.
const entryBytes = 96

// numberBytes is an upper bound for the JSON of an index or a number in a list.
const numberBytes = 13

// quoted returns an upper bound for the JSON of a string.
func quoted(s string) int {
	n := len(s) + 3
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			n += 5 // \u00xx
		}
	}
	return n
}

// Begin begins a profile. Samples added afterwards have its type. A profile without samples is not
// sent.
func (w *Writer) Begin(k Kind) {
	w.kind, w.open = &k, false
}

// Add adds a sample to the current profile.
func (w *Writer) Add(s *Sample) {
	for value := s.Value; ; value -= math.MaxInt64 {
		w.add(s, int64(min(value, math.MaxInt64)))
		if value <= math.MaxInt64 {
			return
		}
		// A value that exceeds the range becomes several samples, so that the sum is right.
	}
}

// Take returns the requests and leaves the Writer without samples.
func (w *Writer) Take() []Profiles {
	w.finish()
	done := w.done
	w.done = nil
	return done
}

func (w *Writer) add(s *Sample, value int64) {
	if w.strings != nil && w.bytes+w.most(s) > w.settings.RequestBytes {
		w.finish()
	}
	if w.strings == nil {
		w.begin()
	}
	if !w.open {
		w.beginProfile()
	}
	to := w.profile.Samples().AppendEmpty()
	to.SetStackIndex(w.stack(s.Stack))
	to.SetLinkIndex(w.link(s.Link))
	w.attributesOf(s.Attributes, to.AttributeIndices())
	to.Values().Append(value)
	w.bytes += entryBytes + 2*numberBytes
}

// most returns an upper bound for the JSON that a sample adds to a request, with its profile if
// that has not begun there.
func (w *Writer) most(s *Sample) int {
	n := 4*entryBytes + 2*numberBytes
	if !w.open {
		k := w.kind
		n += 4*entryBytes + quoted(k.Samples.Name) + quoted(k.Samples.Unit) + quoted(k.Period.Name) + quoted(k.Period.Unit)
		for i := range k.Attributes {
			n += attributeBytes(&k.Attributes[i])
		}
	}
	for i := range s.Attributes {
		n += attributeBytes(&s.Attributes[i])
	}
	for i := range s.Stack {
		l := &s.Stack[i]
		n += 2*entryBytes + 2*numberBytes + quoted(l.Mapping.File) + attributeBytes(&l.Mapping.ID)
		for j := range l.Lines {
			f := &l.Lines[j].Function
			n += 2*entryBytes + quoted(f.Name) + quoted(f.Symbol) + quoted(f.File)
		}
	}
	return n
}

func attributeBytes(a *Attribute) int {
	return entryBytes + numberBytes + quoted(a.Key) + quoted(a.Str)
}

// begin begins a request.
func (w *Writer) begin() {
	w.data = pprofile.NewProfiles()
	rp := w.data.ResourceProfiles().AppendEmpty()
	rp.SetSchemaUrl(w.settings.SchemaURL)
	w.settings.Resource.CopyTo(rp.Resource())
	w.scope = rp.ScopeProfiles().AppendEmpty()
	w.scope.SetSchemaUrl(w.settings.SchemaURL)
	w.scope.Scope().SetName(w.settings.ScopeName)
	w.bytes = w.base
	// The first entry of each table means "none".
	d := w.data.Dictionary()
	d.StringTable().Append("")
	d.AttributeTable().AppendEmpty()
	d.MappingTable().AppendEmpty()
	d.FunctionTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	d.LinkTable().AppendEmpty()
	w.strings = map[string]int32{"": 0}
	w.attributes = map[attributeKey]int32{}
	w.mappings = map[Mapping]int32{{}: 0}
	w.functions = map[Function]int32{{}: 0}
	w.locations = map[string]int32{}
	w.stacks = map[string]int32{"": 0}
	w.links = map[Link]int32{{}: 0}
}

// beginProfile begins a profile in the request.
func (w *Writer) beginProfile() {
	w.open = true
	k := w.kind
	w.profile = w.scope.Profiles().AppendEmpty()
	w.profile.SetProfileID(w.settings.ID(w.number))
	w.number++
	w.profile.SetTime(pcommon.NewTimestampFromTime(k.Start))
	w.profile.SetDurationNano(uint64(max(0, k.Length)))
	w.profile.SampleType().SetTypeStrindex(w.str(k.Samples.Name))
	w.profile.SampleType().SetUnitStrindex(w.str(k.Samples.Unit))
	if k.Every > 0 {
		w.profile.PeriodType().SetTypeStrindex(w.str(k.Period.Name))
		w.profile.PeriodType().SetUnitStrindex(w.str(k.Period.Unit))
		w.profile.SetPeriod(k.Every)
	}
	w.attributesOf(k.Attributes, w.profile.AttributeIndices())
	w.bytes += 4 * entryBytes
}

// finish ends the request, if there is one.
func (w *Writer) finish() {
	if w.strings != nil {
		w.done = append(w.done, Profiles{w.data})
	}
	w.strings, w.open = nil, false
}

func (w *Writer) str(s string) int32 {
	s = strings.ToValidUTF8(s, "\ufffd") // or a server could refuse the whole request
	if i, ok := w.strings[s]; ok {
		return i
	}
	table := w.data.Dictionary().StringTable()
	i := index(table.Len())
	table.Append(s)
	w.strings[s] = i
	w.bytes += quoted(s)
	return i
}

// index is a position in a table. The bound of a request keeps it far below the range of an int32.
func index(n int) int32 { return int32(n) }

func (w *Writer) attribute(a *Attribute) int32 {
	key := attributeKey(*a)
	if i, ok := w.attributes[key]; ok {
		return i
	}
	table := w.data.Dictionary().AttributeTable()
	i := index(table.Len())
	to := table.AppendEmpty()
	to.SetKeyStrindex(w.str(a.Key))
	if a.IsInt {
		to.Value().SetInt(a.Int)
	} else {
		to.Value().SetStr(strings.ToValidUTF8(a.Str, "\ufffd"))
	}
	w.attributes[key] = i
	w.bytes += entryBytes + quoted(a.Str)
	return i
}

func (w *Writer) attributesOf(all []Attribute, to pcommon.Int32Slice) {
	to.EnsureCapacity(len(all))
	for i := range all {
		to.Append(w.attribute(&all[i]))
		w.bytes += numberBytes
	}
}

func (w *Writer) mapping(m *Mapping) int32 {
	if i, ok := w.mappings[*m]; ok {
		return i
	}
	table := w.data.Dictionary().MappingTable()
	i := index(table.Len())
	to := table.AppendEmpty()
	to.SetFilenameStrindex(w.str(m.File))
	if m.ID.Key != "" {
		w.attributesOf([]Attribute{m.ID}, to.AttributeIndices())
	}
	w.mappings[*m] = i
	w.bytes += entryBytes
	return i
}

func (w *Writer) function(f *Function) int32 {
	if i, ok := w.functions[*f]; ok {
		return i
	}
	table := w.data.Dictionary().FunctionTable()
	i := index(table.Len())
	to := table.AppendEmpty()
	to.SetNameStrindex(w.str(f.Name))
	to.SetSystemNameStrindex(w.str(f.Symbol))
	to.SetFilenameStrindex(w.str(f.File))
	w.functions[*f] = i
	w.bytes += entryBytes
	return i
}

func (w *Writer) location(l *Location) int32 {
	mapping := w.mapping(&l.Mapping)
	w.key = binary.AppendUvarint(w.key[:0], uint64(mapping))
	w.key = binary.AppendUvarint(w.key, l.Address)
	for i := range l.Lines {
		w.key = binary.AppendUvarint(w.key, uint64(w.function(&l.Lines[i].Function)))
		w.key = binary.AppendVarint(w.key, l.Lines[i].Line)
	}
	if i, ok := w.locations[string(w.key)]; ok {
		return i
	}
	table := w.data.Dictionary().LocationTable()
	i := index(table.Len())
	to := table.AppendEmpty()
	to.SetMappingIndex(mapping)
	to.SetAddress(l.Address)
	to.Lines().EnsureCapacity(len(l.Lines))
	for j := range l.Lines {
		line := to.Lines().AppendEmpty()
		line.SetFunctionIndex(w.function(&l.Lines[j].Function))
		line.SetLine(l.Lines[j].Line)
		w.bytes += entryBytes
	}
	w.locations[string(w.key)] = i
	w.bytes += entryBytes
	return i
}

func (w *Writer) stack(frames []Location) int32 {
	w.indices = w.indices[:0]
	for i := range frames {
		w.indices = append(w.indices, w.location(&frames[i]))
	}
	w.key = w.key[:0]
	for _, i := range w.indices {
		w.key = binary.AppendUvarint(w.key, uint64(i))
	}
	if i, ok := w.stacks[string(w.key)]; ok {
		return i
	}
	table := w.data.Dictionary().StackTable()
	i := index(table.Len())
	table.AppendEmpty().LocationIndices().FromRaw(w.indices)
	w.stacks[string(w.key)] = i
	w.bytes += entryBytes/2 + numberBytes*len(frames)
	return i
}

func (w *Writer) link(l Link) int32 {
	if i, ok := w.links[l]; ok {
		return i
	}
	table := w.data.Dictionary().LinkTable()
	i := index(table.Len())
	to := table.AppendEmpty()
	to.SetTraceID(l.Trace)
	to.SetSpanID(l.Span)
	w.links[l] = i
	w.bytes += 2 * entryBytes
	return i
}
