// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/semconv"
)

var (
	operationScope = attribute.String(semconv.CUDAOperation, semconv.CUDAOperationScope)
	sourceSDK      = attribute.String(semconv.CUDAScopeSource, semconv.CUDAScopeSourceSDK)
	// timingEstimated is of a scope that a deep window made longer.
	timingEstimated = attribute.String(semconv.CUDATiming, semconv.CUDATimingEstimated)
)

// ActiveScope is an open scope. Its methods may be called on nil, and all but End by any goroutine.
type ActiveScope struct {
	span  trace.Span
	ended atomic.Bool
	// Set where the scope holds its goroutine on a thread: id is the recorder's number for it.
	session *session
	id      uint64
	thread  uint32
}

// Scope begins a scope: a span named name, child of ctx's span, that what this goroutine launches
// until End is in. The returned context carries the span. Scopes nest. If ctx has no span, the
// scope is the root of a trace of its own, with a link to the session's span. If TRACEPARENT says
// that its trace is not sampled, such a scope is not sampled either.
//
// Where nothing is recorded, before Init included, it is a span and nothing else.
func Scope(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, *ActiveScope) {
	s := current.Load()
	all := append(make([]attribute.KeyValue, 0, 2+len(attributes)), operationScope, sourceSDK)
	options := append(make([]trace.SpanStartOption, 0, 2), trace.WithAttributes(append(all, attributes...)...))
	var tracer trace.Tracer
	if s == nil {
		tracer = otel.GetTracerProvider().Tracer(instrumentationName)
	} else {
		tracer = s.tracer
		if s.span.IsValid() && !trace.SpanContextFromContext(ctx).IsValid() {
			if s.span.IsSampled() {
				options = append(options, s.link)
			} else {
				ctx = trace.ContextWithSpanContext(ctx, s.span)
			}
		}
	}
	ctx, span := tracer.Start(ctx, name, options...)
	a := &ActiveScope{span: span}
	if s == nil || s.recorder == nil {
		return ctx, a
	}
	sc := span.SpanContext()
	if !sc.IsValid() {
		return ctx, a // of a provider that makes no spans: the work is the session's
	}
	runtime.LockOSThread()
	a.id = s.recorder.Begin(recorder.Scope{
		Ref:     gpuevent.Ref{Trace: gpuevent.TraceID(sc.TraceID()), Span: gpuevent.SpanID(sc.SpanID())},
		Sampled: sc.IsSampled(), Name: name, Stack: s.stacks.of(),
	})
	if a.id == 0 {
		runtime.UnlockOSThread()
		return ctx, a
	}
	a.session, a.thread = s, cupti.Thread()
	return ctx, a
}

// End ends the scope and its span. Only the first call does something. Scopes may end in any order.
// The goroutine that called Scope must call it. On another goroutine the scope ends as well, but
// the first goroutine stays locked to its thread. That is counted in [Status] and logged once.
func (a *ActiveScope) End() {
	if a == nil || !a.ended.CompareAndSwap(false, true) {
		return
	}
	if a.id != 0 {
		a.session.recorder.End(a.id)
		if span, ok := a.span.(interface{ StartTime() time.Time }); ok && a.session.recorder.Distorted(span.StartTime) {
			a.span.SetAttributes(timingEstimated)
		}
		// The scope's goroutine has its thread for itself: the same thread is the same goroutine.
		if cupti.Thread() == a.thread {
			runtime.UnlockOSThread()
		} else if a.session.misplaced.Add(1) == 1 {
			a.session.logger.Warn("gpufl: a scope was ended by another goroutine than began it; that one stays on its thread")
		}
	}
	a.span.End()
}

// Span is the scope's span; for nil one that does nothing.
func (a *ActiveScope) Span() trace.Span {
	if a == nil {
		return trace.SpanFromContext(context.Background())
	}
	return a.span
}

// SetAttributes sets attributes of the span.
func (a *ActiveScope) SetAttributes(attributes ...attribute.KeyValue) {
	a.Span().SetAttributes(attributes...)
}

// RecordError adds the error to the span as an event, and marks the span as failed. nil does
// nothing.
func (a *ActiveScope) RecordError(err error) {
	if err == nil {
		return
	}
	a.Span().RecordError(err)
	a.Span().SetStatus(codes.Error, err.Error())
}

// Do calls f in a scope and returns its error, which it records. The scope ends when f returns,
// panics or ends its goroutine; a panic goes on.
func Do(ctx context.Context, name string, f func(context.Context) error, attributes ...attribute.KeyValue) error {
	ctx, scope := Scope(ctx, name, attributes...)
	returned := false
	// No recover: a panic keeps the stack that it was raised with.
	defer func() {
		if !returned {
			scope.span.SetStatus(codes.Error, "the function did not return: panic or runtime.Goexit")
		}
		scope.End()
	}()
	err := f(ctx)
	returned = true
	scope.RecordError(err)
	return err
}
