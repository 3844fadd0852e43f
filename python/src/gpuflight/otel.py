# SPDX-License-Identifier: Apache-2.0
"""Kernels as children of OpenTelemetry's spans.

``opentelemetry-instrument`` finds ``Instrumentor`` by its entry point and starts it. A program that
sets up OpenTelemetry itself adds ``SpanProcessor`` to its tracer provider. Both do nothing in a
process that is not recorded.

The promise: a kernel is a child of the span that ``opentelemetry.trace.get_current_span()`` returns
in the launching thread, at the time of the launch. OpenTelemetry keeps that span in a context
variable, and ``gpuflight`` keeps the span's id in one beside it. Both change together, in attach and
detach, and Python copies and switches both together. So tasks and threads need no hooks.
"""

import functools
import struct
import threading
import weakref

from opentelemetry import trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from gpuflight import _library, _scope

_pack = struct.Struct("@Q").pack


class _Scope:
    """The recorder's scope of a span. It ends with the span, at the latest when that is freed."""

    __slots__ = ("value", "_id", "_end", "_lock", "__weakref__")

    def __init__(self, span, context):
        name = getattr(span, "name", "").encode(errors="replace").replace(b"\0", b"?")
        self._lock = threading.Lock()
        self._end = _library.library.end  # __del__ may run when modules are empty
        self._id = _library.library.begin(
            name, 0, context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"),
            context.trace_flags.sampled,
        )
        self.value = _pack(self._id)

    def end(self):
        with self._lock:
            ended, self._id = self._id, 0
        self._end(ended)

    def __del__(self):
        self.end()


_scopes = weakref.WeakKeyDictionary()  # by span
_by_ids = weakref.WeakValueDictionary()  # the same by trace and span id, for span processors


def _follow():
    """Makes the current span the scope of this task's launches."""
    span = trace.get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        if _library.current.get(None) is not None:
            _library.current.set(_library.NONE)
        return
    scope = _scopes.get(span)
    if scope is None:
        # Two threads that first see a span at once make a scope each, and both are of this span.
        scope = _scopes[span] = _by_ids[context.trace_id, context.span_id] = _Scope(span, context)
    _library.current.set(scope.value)


def _attach(original, self, context):
    token = original(self, context)
    _follow()
    return token


def _detach(original, self, token):
    try:
        return original(self, token)
    finally:
        _follow()


def _wrapper(original, function):
    @functools.wraps(original)
    def method(self, argument):
        return function(original, self, argument)

    method.gpuflight_original = original
    return method


def _start_span(name):
    span = trace.get_tracer("gpuflight").start_span(
        name, attributes={"cuda.operation": "scope", "cuda.scope.source": "sdk"})
    if not span.get_span_context().is_valid:
        return None  # no tracer provider is set
    return trace.use_span(span, end_on_exit=True)


def start():
    """Lets launches follow the current span. It returns False in a process that is not recorded."""
    if _library.library is None:
        return False
    if not hasattr(ContextVarsRuntimeContext.attach, "gpuflight_original"):
        for name, function in (("attach", _attach), ("detach", _detach)):
            setattr(ContextVarsRuntimeContext, name, _wrapper(getattr(ContextVarsRuntimeContext, name), function))
    _scope.start_span = _start_span
    return True


def stop():
    """Undoes start."""
    for name in ("attach", "detach"):
        method = getattr(ContextVarsRuntimeContext, name)
        setattr(ContextVarsRuntimeContext, name, getattr(method, "gpuflight_original", method))
    _scope.start_span = None


class SpanProcessor:
    """A span processor of opentelemetry-sdk. It ends the recorder's scopes with their spans."""

    def __init__(self):
        start()

    def on_start(self, span, parent_context=None):
        pass  # a span that is never current has no kernels

    def _on_ending(self, span):
        pass

    def on_end(self, span):
        context = span.get_span_context()
        scope = _by_ids.get((context.trace_id, context.span_id))
        if scope is not None:
            scope.end()

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=30000):
        return True


class Instrumentor:
    """The entry point of the group opentelemetry_instrumentor."""

    def instrument(self, **kwargs):
        if not start():
            return
        add = getattr(trace.get_tracer_provider(), "add_span_processor", None)
        if add is not None:  # without the SDK a scope ends when its span is freed
            add(SpanProcessor())

    def uninstrument(self, **kwargs):
        stop()
