# SPDX-License-Identifier: Apache-2.0
"""The functions of libgpuflight.so, and where this interpreter keeps context variables.

See cupti/gpufl_context.h for both.
"""

import atexit
import contextvars
import ctypes
import gc
import struct
import sys

from gpuflight import _library

_word = struct.Struct("@P")


class _Python(ctypes.Structure):
    """gpufl_python."""

    _fields_ = [(name, ctypes.c_void_p) for name in (
        "thread_state", "variable", "context_type", "tree_type", "bitmap_type", "array_type", "bytes_type",
    )] + [(name, ctypes.c_uint32) for name in (
        "hash", "type", "thread_context", "context_tree", "tree_root", "bitmap_length", "bitmap_bits",
        "bitmap_items", "array_items", "bytes_data",
    )]


class Unknown(Exception):
    """This interpreter keeps its context variables in a way that is not known here."""


class Library:
    """The functions of libgpuflight.so. Any thread may call them."""

    def __init__(self, path):
        # PyDLL: the calls take less than a microsecond, and giving up the interpreter's lock costs
        # more. They never wait for a thread that needs the lock.
        so = ctypes.PyDLL(path)
        self.begin = so.gpufl_context_begin
        self.begin.restype = ctypes.c_uint64
        self.begin.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
        self.end = so.gpufl_context_end
        self.end.restype = None
        self.end.argtypes = [ctypes.c_uint64]
        self._python = so.gpufl_context_python
        self._python.argtypes = [ctypes.POINTER(_Python)]
        self._read = so.gpufl_context_read
        self._read.restype = ctypes.c_uint64
        self._read.argtypes = [ctypes.POINTER(_Python)]
        self.layout = _measure()
        _check(self._read, self.layout)
        if self._python(self.layout) != 0:
            raise MemoryError("no memory for the layout of the interpreter")
        # A launch during the end of the interpreter must not read what is being freed.
        atexit.register(self._python, None)

    def read(self):
        """The scope that a launch of this thread belongs to."""
        return self._read(self.layout)


def _offset(of, value, limit, step=8):
    """The offset of a pointer in the memory of an object."""
    memory = ctypes.string_at(of, limit)
    for at in range(0, limit - 7, step):
        if _word.unpack_from(memory, at)[0] == value:
            return at
    raise Unknown("an offset was not found")


def _node(of, what):
    """The only object of a kind that another one refers to."""
    found = [o for o in gc.get_referents(of) if type(o).__name__ == what]
    if len(found) != 1:
        raise Unknown(f"{len(found)} objects of type {what}")
    return found[0]


def _measure():
    """Returns where this interpreter keeps the value of ``current``."""
    if sys.implementation.name != "cpython" or struct.calcsize("P") != 8:
        raise Unknown("not a 64-bit CPython")
    layout = _Python()
    state = ctypes.pythonapi.PyGILState_GetThisThreadState
    state.restype = ctypes.c_void_p
    layout.thread_state = ctypes.cast(state, ctypes.c_void_p).value
    layout.variable = id(_library.current)

    # A tree with one variable has one node, a bitmap, with the variable and the value.
    small, value = contextvars.Context(), bytes(range(8))
    small.run(_library.current.set, value)
    tree = _node(small, "hamt")
    bitmap = _node(tree, "hamt_bitmap_node")
    layout.type = _offset(id(small), id(type(small)), object.__basicsize__)
    layout.context_tree = _offset(id(small), id(tree), type(small).__basicsize__)
    layout.tree_root = _offset(id(tree), id(bitmap), type(tree).__basicsize__)
    layout.bitmap_length = object.__basicsize__
    layout.bitmap_bits = layout.bitmap_length + 8
    size = sys.getsizeof(bitmap)
    layout.bitmap_items = _offset(id(bitmap), id(_library.current), size)
    if layout.bitmap_items + 16 > size or _offset(id(bitmap), id(value), size) != layout.bitmap_items + 8:
        raise Unknown("a node has another order")
    layout.bytes_data = bytes.__basicsize__ - 1
    if ctypes.string_at(id(value) + layout.bytes_data, 8) != value:
        raise Unknown("bytes have another layout")

    # The root of a tree with many variables is an array of 32 nodes.
    large = contextvars.Context()
    for n in range(64):
        large.run(contextvars.ContextVar(f"gpuflight_{n}").set, n)
    array = _node(_node(large, "hamt"), "hamt_array_node")
    layout.array_items = object.__basicsize__
    if type(array).__basicsize__ < layout.array_items + 32 * 8:
        raise Unknown("an array node has another size")

    # The hash as the tree folds it.
    h = hash(_library.current) & 0xFFFFFFFFFFFFFFFF
    folded = (h ^ h >> 32) & 0xFFFFFFFF
    layout.hash = folded if folded != 0xFFFFFFFF else 0xFFFFFFFE

    # Thread states have 250 to 320 bytes before Python 3.13, and more since. The context is not far
    # from the middle.
    def find():
        return _offset(state(), id(small), 512 if sys.version_info >= (3, 13) else 256)

    layout.thread_context = small.run(find)
    layout.context_type, layout.tree_type = id(type(small)), id(type(tree))
    layout.bitmap_type, layout.array_type, layout.bytes_type = id(type(bitmap)), id(type(array)), id(bytes)
    return layout


def _check(read, layout):
    """Compares what the library reads with what Python says, with few and many variables."""
    def compare():
        want = _library.current.get(_library.NONE)
        if read(layout) != struct.unpack("@Q", want)[0]:
            raise Unknown("the library reads another value than Python")

    for n in (0, 1, 2, 5, 16, 17, 33, 300):
        context = contextvars.Context()
        for i in range(n):
            context.run(contextvars.ContextVar(f"gpuflight_{i}").set, i)
        context.run(compare)
        context.run(_library.current.set, struct.pack("@Q", n + 1 << 40))
        context.run(compare)
        copy = context.copy()
        copy.run(_library.current.set, struct.pack("@Q", n + 2))
        copy.run(compare)
        context.run(compare)
        context.run(copy.run, compare)
