// SPDX-License-Identifier: Apache-2.0

// Package deepprofile makes OpenTelemetry profiles of what a deep window yielded: the same sums that are its log
// records, as values at stacks, for stores that draw flame graphs.
//
// A profile has one type of sample. PC sampling makes two, gpu_samples and gpu_samples_not_issued, which has a part
// of the first once more; SASS metrics make one for each metric, of its name. The stall reason is an attribute of
// the sample and no type: so a store can add samples up, and divide them by reason. (Pyroscope makes labels of
// attributes, and of the link the span's id.)
//
// A stack is, innermost first: the instruction, by its offset in the kernel and with the functions inlined there;
// the kernel, where the instruction is in a function that it calls; and where the launch is known, the scopes
// around it.
//
// The package knows the values of gpuevent, places of cubin, and [profile.Writer]. It does no I/O.
package deepprofile

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/cubin"
	"github.com/gpuflight/gpuflight/internal/recording/profile"
	"github.com/gpuflight/gpuflight/semconv"
)

// Types of samples. Not "samples", which a store would add to those of the processor.
const (
	typeSamples   = "gpu_samples"
	typeNotIssued = "gpu_samples_not_issued"
	unitCount     = "count"
	periodType    = "sm_clock"
	periodUnit    = "cycles"

	// notIssued ends the names of reasons that count some of the samples of another reason once more.
	notIssued = "_not_issued"
)

// Figure is one sum of a window: a number of samples, or a metric's value.
type Figure struct {
	// What is the stall reason or metric, by CUPTI's name.
	What  string
	Value uint64
	// At is the instruction, PC its offset in the kernel, and CRC its image.
	At  cubin.Location
	PC  gpuevent.Int
	CRC uint64
	// Device is the device's ordinal, Correlation the launch, where they are known.
	Device, Correlation gpuevent.Int
}

// Part is what one engine yielded.
type Part struct {
	Engine     cupti.Engine
	Start, End time.Time
	// PeriodLog2 says that a sample was taken every 2^PeriodLog2 cycles, 0 if that is not known.
	PeriodLog2 int
	Figures    []Figure
}

// Window is what a window yielded.
type Window struct{ Parts []*Part }

// Session says where a window belongs.
type Session struct {
	Resource pcommon.Resource
	Devices  []gpuevent.Device
	// ID returns the id of the window's nth profile.
	ID func(n uint64) [16]byte
	// Attributes are of each profile.
	Attributes []profile.Attribute
	// Launch returns the span that a figure belongs to, and the names of the scopes around it, innermost first.
	Launch func(correlation gpuevent.Int) (gpuevent.Ref, []string)
}

// Profiles returns the window as requests.
func (w *Window) Profiles(s *Session) []profile.Profiles {
	to := profile.NewWriter(profile.Settings{
		Resource: s.Resource, SchemaURL: semconv.SchemaURL, ScopeName: semconv.ScopeName, ID: s.ID,
	})
	for _, p := range w.Parts {
		p.write(to, s)
	}
	return to.Take()
}

func (p *Part) write(to *profile.Writer, s *Session) {
	byType := map[string][]*Figure{}
	var types []string
	for i := range p.Figures {
		f := &p.Figures[i]
		if f.Value == 0 {
			continue
		}
		name := p.typeOf(f)
		if byType[name] == nil {
			types = append(types, name)
		}
		byType[name] = append(byType[name], f)
	}
	slices.Sort(types)
	for _, name := range types {
		kind := profile.Kind{
			Samples: profile.Type{Name: name, Unit: unitCount},
			Start:   p.Start, Length: p.End.Sub(p.Start), Attributes: s.Attributes,
		}
		if p.Engine == cupti.EnginePCSampling && p.PeriodLog2 > 0 {
			kind.Period, kind.Every = profile.Type{Name: periodType, Unit: periodUnit}, int64(1)<<p.PeriodLog2
		}
		to.Begin(kind)
		for _, f := range byType[name] {
			p.add(to, s, f)
		}
	}
}

// typeOf is the type of sample that a figure counts.
func (p *Part) typeOf(f *Figure) string {
	switch {
	case p.Engine != cupti.EnginePCSampling:
		return f.What
	case strings.HasSuffix(f.What, notIssued):
		return typeNotIssued
	default:
		return typeSamples
	}
}

func (p *Part) add(to *profile.Writer, s *Session, f *Figure) {
	ref, scopes := s.Launch(f.Correlation)
	one := profile.Sample{Value: f.Value, Link: profile.Link{Trace: ref.Trace, Span: ref.Span}, Stack: f.stack(scopes)}
	if p.Engine == cupti.EnginePCSampling {
		one.Attributes = append(one.Attributes, profile.Attribute{Key: semconv.CUDAStallReason, Str: gpuevent.StallReason(f.What)})
	}
	if f.Device.OK {
		for i := range s.Devices {
			if d := &s.Devices[i]; d.Index == f.Device.V && d.UUID != "" {
				one.Attributes = append(one.Attributes, profile.Attribute{Key: semconv.HWID, Str: d.UUID})
			}
		}
		one.Attributes = append(one.Attributes, profile.Attribute{Key: semconv.CUDADeviceIndex, Int: f.Device.V, IsInt: true})
	}
	to.Add(&one)
}

// stack is where a figure is, innermost first.
func (f *Figure) stack(scopes []string) []profile.Location {
	kernel := function(f.At.Function, "")
	place := profile.Location{}
	if f.CRC != 0 && f.PC.OK {
		crc := strconv.FormatUint(f.CRC, 10)
		place.Mapping = profile.Mapping{File: crc + ".cubin", ID: profile.Attribute{Key: semconv.CUDACubinCRC, Str: crc}}
	}
	caller := place // the same image
	if f.PC.OK {
		place.Address = uint64(max(0, f.PC.V))
	}
	for i := range f.At.Frames {
		frame := &f.At.Frames[i]
		place.Lines = append(place.Lines, profile.Line{Function: function(frame.Function, frame.File), Line: int64(frame.Line)})
	}
	if len(place.Lines) == 0 {
		place.Lines = []profile.Line{{Function: kernel}}
	}
	stack := []profile.Location{place}
	if outermost := &place.Lines[len(place.Lines)-1].Function; outermost.Name != kernel.Name || outermost.Symbol != kernel.Symbol {
		// In a function that the kernel calls, from where is not known.
		caller.Lines = []profile.Line{{Function: kernel}}
		stack = append(stack, caller)
	}
	for _, name := range scopes {
		stack = append(stack, profile.Location{Lines: []profile.Line{{Function: profile.Function{Name: cmp.Or(name, unknown)}}}})
	}
	return stack
}

// unknown is the name of what has none: a frame without one would be taken for no frame.
const unknown = "unknown"

func function(n *gpuevent.KernelName, file string) profile.Function {
	if n == nil || n.Full == "" {
		return profile.Function{Name: unknown, File: file}
	}
	return profile.Function{Name: n.Full, Symbol: n.Symbol, File: file}
}
