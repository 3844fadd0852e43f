# SPDX-License-Identifier: Apache-2.0
"""The binding of libgpuflight.so (cupti/gpufl_context.h).

``library`` is None in a process that is not recorded. ``gpuflight trace`` sets
CUDA_INJECTION64_PATH, and only then the library is opened. It is small and starts nothing: the
CUDA driver makes it load the recorder.
"""

import os


class Library:
    """The functions of libgpuflight.so. Any thread may call them.

    A scope begins and ends once. A thread pushes it before the work in it and pops it after.
    """

    def __init__(self, path):
        import ctypes  # only here: a process that is not recorded does not need it

        def function(name, result, *arguments):
            f = getattr(library, "gpufl_context_" + name)
            f.restype, f.argtypes = result, arguments
            return f

        # PyDLL: the calls take less than a microsecond, and giving up the interpreter's lock costs
        # more. They never wait for a thread that needs the lock.
        library = ctypes.PyDLL(path)
        text, number = ctypes.c_char_p, ctypes.c_uint64
        #: begin(name, parent, trace id, span id, sampled) -> id, 0 if nothing is recorded.
        self.begin = function("begin", number, text, number, text, text, ctypes.c_int)
        #: end(id)
        self.end = function("end", None, number)
        #: push(id, outermost) -> 1, or 0 if outermost is true and the thread is in a later scope.
        self.push = function("push", ctypes.c_int, number, ctypes.c_int)
        #: pop(id) -> 1, or 0 if it was not the thread's innermost.
        self.pop = function("pop", ctypes.c_int, number)
        #: top() -> the scope that a launch of this thread belongs to.
        self.top = function("top", number)


def name_of(text):
    """A name as the library takes it."""
    return text.encode(errors="replace").replace(b"\0", b"?")


def warn(text, *arguments):
    import logging

    logging.getLogger("gpuflight").warning("gpuflight: " + text, *arguments)


def _open():
    path = os.environ.get("CUDA_INJECTION64_PATH", "")
    if os.path.basename(path) != "libgpuflight.so":
        return None
    try:
        return Library(path)
    except (OSError, AttributeError) as e:  # not there, or older than this package
        warn("no scopes: %s: install the package and libgpuflight.so of one version", e)
        return None


library = _open()
