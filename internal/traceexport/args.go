// SPDX-License-Identifier: Apache-2.0

package traceexport

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// arg is a named value of an event.
type arg struct {
	name  string
	value store.Value
}

func number(name string, v int64) arg {
	return arg{name, store.Value{Kind: store.KindInt, Int: v}}
}

func word(name, v string) arg {
	return arg{name, store.Value{Kind: store.KindString, Str: v}}
}

func appendInt(args []arg, name string, v store.Int) []arg {
	if v.OK {
		args = append(args, number(name, v.V))
	}
	return args
}

func appendWord(args []arg, name, v string) []arg {
	if v != "" {
		args = append(args, word(name, v))
	}
	return args
}

// appendAttrs adds the attributes that are plain values. NaN and infinity have no JSON.
func appendAttrs(args []arg, attrs store.Attrs) []arg {
	for _, a := range attrs {
		switch a.Value.Kind {
		case store.KindDouble:
			if math.IsNaN(a.Value.Double) || math.IsInf(a.Value.Double, 0) {
				continue
			}
		case store.KindString, store.KindInt, store.KindBool:
		case store.KindSlice:
			var parts []string
			for _, v := range a.Value.Slice {
				parts = append(parts, textOf(v))
			}
			args = append(args, word(a.Key, strings.Join(parts, " ")))
			continue
		default:
			continue
		}
		args = append(args, arg{a.Key, a.Value})
	}
	return args
}

func spanText(id store.SpanID) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(id))
	return hex.EncodeToString(b[:])
}

func traceText(id store.TraceID) string {
	if id == (store.TraceID{}) {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// appendOp adds what differs between operations of one shape.
func appendOp(args []arg, o *store.OpRow) []arg {
	args = append(args, word("span id", spanText(o.Span)))
	args = appendWord(args, "trace id", traceText(o.PlaceRef.Trace))
	args = appendWord(args, "scope", scopeOf(o))
	args = appendInt(args, "queue ns", o.QueueNs)
	args = appendInt(args, "bytes", o.Bytes)
	if o.Estimated {
		args = append(args, word(semconv.CUDATiming, semconv.CUDATimingEstimated))
	}
	args = appendWord(args, "host stack", o.StackText)
	return appendAttrs(args, o.Attrs)
}

// scopeOf returns the path of the scope of an operation, or its name.
func scopeOf(o *store.OpRow) string {
	if o.PlaceRef.ScopePath != "" {
		return o.PlaceRef.ScopePath
	}
	return o.PlaceRef.ScopeName
}

func appendSpan(args []arg, p *store.SpanRow) []arg {
	args = append(args, word("span id", spanText(p.Span.Span)))
	args = appendWord(args, "trace id", traceText(p.Trace))
	args = appendWord(args, "status", p.StatusMessage)
	return appendAttrs(args, p.Attrs)
}
