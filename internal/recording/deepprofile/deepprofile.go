// SPDX-License-Identifier: Apache-2.0

// Package deepprofile converts the results of a deep window to OpenTelemetry profiles. They hold
// the same sums as the window's log records, as values at stacks, for stores that draw flame
// graphs.
//
// A profile has one sample type. PC sampling creates two: gpu_samples and gpu_samples_not_issued,
// which counts a part of the first again. SASS metrics create one for each metric, with its name.
// The stall reason is an attribute of the sample, not a type. So a store can add samples up and
// group them by reason. Pyroscope turns attributes into labels, and the link into the span's id.
//
// A stack lists the innermost frame first. It begins with the instruction, by its offset in the
// kernel, with the functions inlined there. The kernel follows if the instruction is in a function
// that it calls. The scopes of the launch follow if the launch is known.
//
// The package depends on the values of gpuevent, the places of cubin, and [profile.Writer]. It does
// no I/O.
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

// Sample types. A store would add a type named "samples" to the samples of the processor.
const (
	typeSamples   = "gpu_samples"
	typeNotIssued = "gpu_samples_not_issued"
	unitCount     = "count"
	periodType    = "sm_clock"
	periodUnit    = "cycles"

	// notIssued ends the names of reasons that count some samples of another reason again.
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

// Part is the result of one engine.
type Part struct {
	Engine     cupti.Engine
	Start, End time.Time
	// PeriodLog2 is the sampling period as a power of two, in cycles. 0 means unknown.
	PeriodLog2 int
	Figures    []Figure
}

// Window is the result of a window.
type Window struct{ Parts []*Part }

// Session describes the origin of a window.
type Session struct {
	Resource pcommon.Resource
	Devices  []gpuevent.Device
	// ID returns the id of the window's nth profile.
	ID func(n uint64) [16]byte
	// Attributes are of each profile.
	Attributes []profile.Attribute
	// Launch returns the span of a figure and the names of its scopes, innermost first.
	Launch func(correlation gpuevent.Int) (gpuevent.Ref, []string)
}

// Profiles converts the window to export requests.
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

// typeOf returns the sample type of a figure.
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

// stack returns the frames of a figure, innermost first.
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
		// The kernel calls this function. The call site is unknown.
		caller.Lines = []profile.Line{{Function: kernel}}
		stack = append(stack, caller)
	}
	for _, name := range scopes {
		stack = append(stack, profile.Location{Lines: []profile.Line{{Function: profile.Function{Name: cmp.Or(name, unknown)}}}})
	}
	return stack
}

// unknown names a frame without a name. A store could ignore a frame with an empty name.
const unknown = "unknown"

func function(n *gpuevent.KernelName, file string) profile.Function {
	if n == nil || n.Full == "" {
		return profile.Function{Name: unknown, File: file}
	}
	return profile.Function{Name: n.Full, Symbol: n.Symbol, File: file}
}
