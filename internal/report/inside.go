// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpuflight/gpuflight/internal/report/hotspot"
	"github.com/gpuflight/gpuflight/semconv"
)

// Inside has the measurements inside kernels.
type Inside struct {
	hotspot.Totals
	// Unread counts records of such measurements without a value.
	Unread uint64
	// Listed are the functions with the most samples. More is the number of omitted functions.
	Listed []hotspot.Function
	More   int
}

// Empty reports whether there are no such measurements.
func (i *Inside) Empty() bool { return i.Functions == 0 && i.Unread == 0 }

// Inside returns the measurements inside kernels. functions bounds the functions, lines the lines
// of each kind per function. 0 means no limit.
func (r *Report) Inside(functions, lines int) Inside {
	out := Inside{Totals: r.inside.Totals(), Unread: r.unread}
	out.Listed, out.More = r.inside.Functions(hotspot.Options{Functions: functions, Lines: lines})
	return out
}

// place reads where in the code a record belongs.
func place(a pcommon.Map) hotspot.Place {
	p := hotspot.Place{Function: text(a, semconv.CUDAKernelName)}
	if p.Function == "" {
		p.Function = text(a, semconv.CodeFunctionName)
	}
	if v, ok := a.Get(semconv.CUDAPCOffset); ok && v.Type() == pcommon.ValueTypeInt && v.Int() >= 0 {
		p.PC, p.HasPC = v.Int(), true
	}
	if p.Line = number(a, semconv.CodeLineNumber); p.Line > 0 {
		p.File = text(a, semconv.CodeFilePath)
	}
	return p
}

func (r *Report) sample(a pcommon.Map) {
	count := number(a, semconv.CUDASampleCount)
	if count == 0 {
		r.unread++
		return
	}
	reason := text(a, semconv.CUDAStallReason)
	if reason == "" {
		reason = unknownReason
	}
	r.inside.Sample(place(a), reason, uint64(count))
}

// unknownReason is the name of a missing stall reason.
const unknownReason = "unknown"

func (r *Report) counter(a pcommon.Map) {
	metric := text(a, semconv.CUDAMetricName)
	value := uint64(0)
	v, ok := a.Get(semconv.CUDAMetricValue)
	switch {
	case ok && v.Type() == pcommon.ValueTypeInt && v.Int() >= 0:
		value = uint64(v.Int())
	case !ok:
		// The value exceeds an int.
		var err error
		value, err = strconv.ParseUint(text(a, semconv.CUDAMetricValueOverflow), 10, 64)
		ok = err == nil
	default:
		ok = false
	}
	if !ok || metric == "" {
		r.unread++
		return
	}
	r.inside.Counter(place(a), metric, value)
}

// listing reads the instructions of a function. Texts of other languages have no offsets.
func (r *Report) listing(a pcommon.Map, body pcommon.Value) {
	kind := text(a, semconv.CUDAListingKind)
	if kind != "" && kind != semconv.CUDAListingKindSASS || body.Type() != pcommon.ValueTypeStr {
		return
	}
	r.inside.Listing(text(a, semconv.CUDAKernelName), body.Str())
}
