# SPDX-License-Identifier: Apache-2.0
"""Scopes."""

import functools
import inspect

from gpuflight import _library

#: Returns the recorder's scope of OpenTelemetry's current span, 0 if there is none; set by
#: gpuflight.otel while that is in use.
current_span = None

_warned = False


def _warn_misplaced(name):
    global _warned
    if not _warned:
        _warned = True
        _library.warn("scope %r was left out of order or by another thread: do not await inside of it, "
                      "decorate the coroutine function instead", name)


def _begin(name):
    parent = current_span() if current_span is not None else 0
    return _library.library.begin(_library.name_of(name), parent, None, None, 0)


class scope:
    """A context manager and a decorator that names the GPU work inside of it.

    Kernels that the calling thread launches inside become children of the scope. Scopes nest. An
    exception ends a scope and passes. If OpenTelemetry is in use, the scope is a child of the
    current span. In a process that is not recorded it does nothing.

    Do not await inside of the with statement: other tasks of the thread would be in the scope.
    A decorated coroutine function is in the scope in each of its steps and not between them.
    """

    __slots__ = ("_name", "_open")

    def __init__(self, name):
        if not isinstance(name, str):
            raise TypeError(f"the name of a scope is a str, not {type(name).__name__}")
        self._name = name
        self._open = []  # by this object, which may be entered again and by several threads

    def __enter__(self):
        library = _library.library
        if library is not None:
            opened = _begin(self._name)
            library.push(opened, 0)
            self._open.append(opened)
        return self

    def __exit__(self, *exception):
        if self._open:
            library = _library.library
            # The thread's own, unless scopes were left out of order.
            top = library.top()
            opened = top if top in self._open else self._open[-1]
            self._open.remove(opened)
            if opened != 0:
                if not library.pop(opened):
                    _warn_misplaced(self._name)
                library.end(opened)
        return False

    def __call__(self, function):
        name = self._name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a scope cannot decorate a generator: use it in a with statement inside")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(*args, **kwargs):
                if _library.library is None:
                    return await function(*args, **kwargs)
                return await _Steps(name, function(*args, **kwargs))

            return coroutine

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if _library.library is None:
                return function(*args, **kwargs)
            with scope(name):
                return function(*args, **kwargs)

        return wrapper


class _Steps:
    """Awaits a coroutine with a scope on the thread's stack in each of its steps."""

    __slots__ = ("_name", "_coroutine")

    def __init__(self, name, coroutine):
        self._name, self._coroutine = name, coroutine

    def __await__(self):
        library = _library.library
        opened = _begin(self._name)
        resume, value = self._coroutine.send, None
        try:
            while True:
                library.push(opened, 0)
                try:
                    waits_for = resume(value)
                except StopIteration as end:
                    return end.value
                finally:
                    library.pop(opened)
                try:
                    value = yield waits_for
                    resume = self._coroutine.send
                except GeneratorExit:
                    self._close(opened)
                    raise
                except BaseException as e:
                    resume, value = self._coroutine.throw, e
        finally:
            library.end(opened)

    def _close(self, opened):
        _library.library.push(opened, 0)
        try:
            self._coroutine.close()
        finally:
            _library.library.pop(opened)
