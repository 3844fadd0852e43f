// SPDX-License-Identifier: Apache-2.0

// Package profiletest reads requests of profiles for tests, as a backend does. It follows indices,
// and an index out of range fails the test.
package profiletest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/gpuflight/gpuflight/internal/recording/profile"
)

// Sample is one sample with everything it refers to.
type Sample struct {
	Resource map[string]any
	// Profile is the id of its profile, and Of that profile's own attributes.
	Profile [16]byte
	Of      map[string]any
	// Type and Period are written "name/unit". Without a period, Period is "" and Every is 0.
	Type, Period string
	Every        int64
	Start        time.Time
	Length       time.Duration
	// Stack is innermost first. Each frame is "function file:line". Symbols are the system names
	// of the functions.
	Stack, Symbols []string
	// Address and File are those of the innermost location, Mapping the attributes of its binary.
	Address    uint64
	File       string
	Mapping    map[string]any
	Attributes map[string]any
	Trace      [16]byte
	Span       [8]byte
	Value      int64
}

// Samples returns all samples of the requests, in their order.
func Samples(t testing.TB, requests ...profile.Profiles) (all []Sample) {
	t.Helper()
	for _, p := range requests {
		all = append(all, read(t, p.Data())...)
	}
	return all
}

func read(t testing.TB, data pprofile.Profiles) (all []Sample) {
	t.Helper()
	d := reader{t, data.Dictionary()}
	for _, rp := range data.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				of := Sample{
					Resource: rp.Resource().Attributes().AsRaw(), Profile: p.ProfileID(), Of: d.attributes(p.AttributeIndices()),
					Type: d.valueType(p.SampleType()), Period: d.valueType(p.PeriodType()), Every: p.Period(),
					Start: p.Time().AsTime(), Length: time.Duration(p.DurationNano()),
				}
				for _, s := range p.Samples().All() {
					one := of
					d.sample(s, &one)
					all = append(all, one)
				}
			}
		}
	}
	return all
}

type reader struct {
	t testing.TB
	pprofile.ProfilesDictionary
}

// in checks an index of a table.
func (d reader) in(i int32, n int, table string) int {
	d.t.Helper()
	if i < 0 || int(i) >= n {
		d.t.Fatalf("index %d of the %d in the table of %s", i, n, table)
	}
	return int(i)
}

func (d reader) str(i int32) string {
	d.t.Helper()
	return d.StringTable().At(d.in(i, d.StringTable().Len(), "strings"))
}

func (d reader) valueType(v pprofile.ValueType) string {
	d.t.Helper()
	return strings.TrimPrefix(d.str(v.TypeStrindex())+"/"+d.str(v.UnitStrindex()), "/")
}

func (d reader) attributes(indices pcommon.Int32Slice) map[string]any {
	d.t.Helper()
	m := map[string]any{}
	for _, i := range indices.All() {
		a := d.AttributeTable().At(d.in(i, d.AttributeTable().Len(), "attributes"))
		key := d.str(a.KeyStrindex())
		if _, twice := m[key]; twice || key == "" {
			d.t.Fatalf("attribute %q comes twice, or has no key", key)
		}
		m[key] = a.Value().AsRaw()
	}
	return m
}

func (d reader) sample(s pprofile.Sample, to *Sample) {
	d.t.Helper()
	if s.Values().Len() != 1 {
		d.t.Fatalf("a sample has %d values", s.Values().Len())
	}
	to.Value = s.Values().At(0)
	to.Attributes = d.attributes(s.AttributeIndices())
	link := d.LinkTable().At(d.in(s.LinkIndex(), d.LinkTable().Len(), "links"))
	to.Trace, to.Span = link.TraceID(), link.SpanID()
	stack := d.StackTable().At(d.in(s.StackIndex(), d.StackTable().Len(), "stacks"))
	for n, i := range stack.LocationIndices().All() {
		l := d.LocationTable().At(d.in(i, d.LocationTable().Len(), "locations"))
		m := d.MappingTable().At(d.in(l.MappingIndex(), d.MappingTable().Len(), "mappings"))
		if n == 0 {
			to.Address, to.File, to.Mapping = l.Address(), d.str(m.FilenameStrindex()), d.attributes(m.AttributeIndices())
		}
		for _, line := range l.Lines().All() {
			f := d.FunctionTable().At(d.in(line.FunctionIndex(), d.FunctionTable().Len(), "functions"))
			text := d.str(f.NameStrindex())
			if file := d.str(f.FilenameStrindex()); file != "" {
				text += fmt.Sprintf(" %s:%d", file, line.Line())
			}
			to.Stack, to.Symbols = append(to.Stack, text), append(to.Symbols, d.str(f.SystemNameStrindex()))
		}
	}
}
