# SPDX-License-Identifier: Apache-2.0
"""Scopes."""

import contextvars
import functools
import inspect
import struct

from gpuflight import _library

#: Begins a span of OpenTelemetry for a scope and returns its context manager, or None if there is no
#: tracer provider. gpuflight.otel sets it while that is in use.
start_span = None

#: The innermost open scope of this task and those around it, as nested pairs.
_innermost = contextvars.ContextVar("gpuflight_innermost", default=None)

_pack = struct.Struct("@Q").pack
_unpack = struct.Struct("@Q").unpack


class scope:
    """A context manager and a decorator that names the GPU work inside of it.

    Kernels that the code inside launches become children of the scope, in this thread, in awaited
    coroutines, in tasks that it starts, and in threads that run with a copy of its context
    (``asyncio.to_thread``, FastAPI's thread pool). Scopes nest. Exceptions end a scope and pass.

    In a process that is not recorded it does nothing. Where gpuflight.otel is in use, a scope is
    also a span of the application's tracer provider.
    """

    __slots__ = ("_name", "_open")

    def __init__(self, name):
        if not isinstance(name, str):
            raise TypeError(f"the name of a scope is a str, not {type(name).__name__}")
        self._name = name
        # What entering has opened. Several tasks may be in one object, and a task more than once.
        self._open = []

    def __enter__(self):
        if _library.library is not None:
            opened = start_span(self._name) if start_span is not None else None
            if opened is None:
                opened = _Recorded(self._name)
            opened.__enter__()
            self._open.append(opened)
            _innermost.set((opened, _innermost.get()))
        return self

    def __exit__(self, *exception):
        if not self._open:
            return False
        # The one of this task, unless it was entered in another context, for example by a generator.
        opened = None
        if _innermost.get() is not None:
            opened, around = _innermost.get()
        if opened in self._open:
            _innermost.set(around)
        else:
            opened = self._open[-1]
        self._open.remove(opened)
        opened.__exit__(*exception)
        return False

    def __call__(self, function):
        name = self._name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a scope cannot decorate a generator: use it in a with statement inside")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(*args, **kwargs):
                with scope(name):
                    return await function(*args, **kwargs)

            return coroutine

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with scope(name):
                return function(*args, **kwargs)

        return wrapper


class _Recorded:
    """A scope whose span the recorder makes."""

    __slots__ = ("_name", "_id", "_token")

    def __init__(self, name):
        self._name = name

    def __enter__(self):
        parent = _unpack(_library.current.get(_library.NONE))[0]
        name = self._name.encode(errors="replace").replace(b"\0", b"?")
        self._id = _library.library.begin(name, parent, None, None, 0)
        # Nothing is recorded, for example after the recording has ended: the scope around stays.
        self._token = _library.current.set(_pack(self._id)) if self._id else None

    def __exit__(self, *exception):
        if self._token is None:
            return
        try:
            _library.current.reset(self._token)
        except ValueError:
            pass  # it is left in another context than it was entered in, for example by a generator
        _library.library.end(self._id)
