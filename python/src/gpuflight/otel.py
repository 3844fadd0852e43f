# SPDX-License-Identifier: Apache-2.0
"""Kernels as children of OpenTelemetry's spans.

``opentelemetry-instrument`` finds ``Instrumentor`` by its entry point and starts it. A program that
sets up OpenTelemetry itself adds ``SpanProcessor`` to its tracer provider. Both do nothing in a
process that is not recorded.

A CUDA launch knows its thread and nothing of tasks. So the current span is put on the thread's
stack of scopes where it is certain what the thread works for, with public interfaces only:

  - gpuflight.scope reads the current span when it is entered;
  - the outermost call of a PyTorch module, and a step of an optimizer, by PyTorch's global hooks;
  - a span of a thread without an event loop, from its start to its end.
"""

import asyncio
import sys
import threading
import warnings
import weakref

from opentelemetry import trace

from gpuflight import _library, _scope


class _Scope:
    """The recorder's scope of a span. It ends with the span, at the latest when that is freed."""

    __slots__ = ("id", "on_thread", "_end", "_lock", "__weakref__")

    def __init__(self, span, context):
        self._lock = threading.Lock()
        self.on_thread = False  # it is on the stack of the thread that started the span
        library = _library.library
        self._end = library.end  # __del__ may run when modules are empty
        self.id = library.begin(
            _library.name_of(getattr(span, "name", "")), 0, context.trace_id.to_bytes(16, "big"),
            context.span_id.to_bytes(8, "big"), context.trace_flags.sampled,
        )

    def end(self):
        with self._lock:
            ended, self.id = self.id, 0
        self._end(ended)

    def __del__(self):
        self.end()


_scopes = weakref.WeakKeyDictionary()  # by span
_by_ids = weakref.WeakValueDictionary()  # the same by trace and span id, for ended spans


def _scope_of(span):
    """The scope of a span, None for an invalid one."""
    scope = _scopes.get(span)
    if scope is None:
        context = span.get_span_context()
        if not context.is_valid:
            return None
        # Two threads that first see a span at once make a scope each, and both are of this span.
        scope = _scopes[span] = _by_ids[context.trace_id, context.span_id] = _Scope(span, context)
    return scope


def _current():
    """The id of the current span's scope, 0 without a span or after its end."""
    scope = _scope_of(trace.get_current_span())
    return scope.id if scope is not None else 0


def _shares_its_thread():
    """Whether the caller is one of several tasks of its thread."""
    if "gevent" in sys.modules or "eventlet" in sys.modules:
        return True
    trio = getattr(sys.modules.get("trio"), "lowlevel", None)
    for current in (asyncio.get_running_loop, getattr(trio, "current_task", None)):
        try:
            if current is not None and current() is not None:
                return True
        except RuntimeError:
            pass  # not in a task
    return False


class _Calls(threading.local):
    """How deep this thread is in modules of PyTorch, and the scope that the outermost call pushed."""

    depth = 0
    pushed = 0

    def enter(self):
        self.leave()  # a step of an optimizer that raised an exception
        span = _current()
        if span and _library.library.push(span, 1):
            self.pushed = span

    def leave(self):
        if self.pushed:
            pushed, self.pushed = self.pushed, 0
            _library.library.pop(pushed)


_calls = _Calls()


def _is_compiling():
    """torch.compiler.is_compiling, once PyTorch is there.

    torch.compile calls the hooks when it compiles. They must leave nothing in its graphs.
    """
    return False


def before_module(module, args):
    if _is_compiling():
        return
    _calls.depth += 1
    if _calls.depth == 1:
        _calls.enter()


def after_module(module, args, output):
    if _is_compiling():
        return
    _calls.depth = max(0, _calls.depth - 1)
    if _calls.depth == 0:
        _calls.leave()


def before_step(optimizer, args, kwargs):
    if not _is_compiling() and _calls.depth == 0:
        _calls.enter()


def after_step(optimizer, args, kwargs):
    if not _is_compiling() and _calls.depth == 0:
        _calls.leave()


_hooks = None  # handles, once they have been added
_hooks_lock = threading.Lock()


def _add_hooks():
    """Adds the hooks once the program has imported PyTorch."""
    global _hooks, _is_compiling
    torch = sys.modules.get("torch")
    # While the import goes on in another thread, its last parts are missing.
    if _hooks is not None or not hasattr(torch, "compile") or "torch.optim.optimizer" not in sys.modules:
        return
    with _hooks_lock:
        if _hooks is not None:
            return
        _hooks = []
        try:
            from torch.nn.modules import module
            from torch.optim import optimizer

            _is_compiling = torch.compiler.is_compiling
            _hooks += [
                module.register_module_forward_pre_hook(before_module),
                module.register_module_forward_hook(after_module, always_call=True),
                optimizer.register_optimizer_step_pre_hook(before_step),
                optimizer.register_optimizer_step_post_hook(after_step),
            ]
        except (AttributeError, ImportError, TypeError) as e:
            remove_hooks()
            _library.warn("kernels of PyTorch's modules are in no request: this PyTorch lacks a hook: %s", e)
            return
        # It is about hooks that count calls. These do not.
        warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global hooks")


def remove_hooks():
    """Removes the hooks for good."""
    for handle in _hooks or ():
        handle.remove()


class SpanProcessor:
    """A span processor of opentelemetry-sdk."""

    def __init__(self):
        if _library.library is not None:
            _scope.current_span = _current

    def on_start(self, span, parent_context=None):
        if _library.library is None:
            return
        _add_hooks()
        # Otherwise the thread goes on with other tasks before the span ends.
        if not _shares_its_thread():
            scope = _scope_of(span)
            if scope is not None and _library.library.push(scope.id, 0):
                scope.on_thread = True

    def _on_ending(self, span):
        pass

    def on_end(self, span):
        context = span.get_span_context()
        scope = _by_ids.get((context.trace_id, context.span_id))
        if scope is not None:
            if scope.on_thread:  # of another thread, the library removes it at that one's next launch
                _library.library.pop(scope.id)
            scope.end()

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=30000):
        return True


class Instrumentor:
    """The entry point of the group opentelemetry_instrumentor."""

    def instrument(self, **kwargs):
        add = getattr(trace.get_tracer_provider(), "add_span_processor", None)
        if _library.library is not None and add is not None:  # opentelemetry-sdk is there
            add(SpanProcessor())

    def uninstrument(self, **kwargs):
        """The span processor stays: OpenTelemetry cannot remove one."""
