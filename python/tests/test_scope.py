raise SystemExit("FROM THE LEAD: read LEAD-NOTE-READ-ME-FIRST.md in this worktree NOW: reading CPython internals must not land")
# SPDX-License-Identifier: Apache-2.0
"""Scopes, with the libgpuflight.so that CUDA_INJECTION64_PATH names and without a GPU.

The library says in which scope a launch of the calling thread would be.
"""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import unittest

import gpuflight
from gpuflight import _library


def read():
    return _library.library.read()


@unittest.skipIf(_library.library is None, "CUDA_INJECTION64_PATH names no libgpuflight.so")
class Scopes(unittest.TestCase):
    def setUp(self):
        self.assertEqual(read(), 0)
        self.addCleanup(lambda: self.assertEqual(read(), 0))

    def test_nested(self):
        with gpuflight.scope("outer"):
            outer = read()
            self.assertGreater(outer, 0)
            with gpuflight.scope("inner"):
                self.assertGreater(read(), outer)
            self.assertEqual(read(), outer)

    def test_exception(self):
        with self.assertRaises(KeyError):
            with gpuflight.scope("fails"):
                self.assertNotEqual(read(), 0)
                raise KeyError("x")
        self.assertEqual(read(), 0)

    def test_decorated_function(self):
        @gpuflight.scope("f")
        def f(depth, *, add=0):
            """A function."""
            ids.append(read())
            return f(depth - 1) if depth else add

        ids = []
        self.assertEqual(f(0, add=7), 7)
        self.assertEqual(f(2), 0)
        self.assertEqual(len(set(ids)), 4, "each call is a scope")
        self.assertEqual((f.__name__, f.__doc__), ("f", "A function."))

    def test_decorated_coroutine(self):
        @gpuflight.scope("f")
        async def f(n):
            first = read()
            for _ in range(5):
                await asyncio.sleep(0)
                self.assertEqual(read(), first)
            return first

        async def main():
            found = await asyncio.gather(*(f(n) for n in range(20)))
            self.assertEqual(read(), 0)
            return found

        found = asyncio.run(main())
        self.assertEqual(len(set(found)), 20)
        self.assertTrue(asyncio.iscoroutinefunction(f))

    def test_decorated_generator(self):
        with self.assertRaisesRegex(TypeError, "generator"):
            @gpuflight.scope("f")
            def f():
                yield 1

        with self.assertRaisesRegex(TypeError, "generator"):
            @gpuflight.scope("g")
            async def g():
                yield 1

    def test_one_object_entered_twice(self):
        s = gpuflight.scope("again")
        with s:
            outer = read()
            with s:
                self.assertGreater(read(), outer)
            self.assertEqual(read(), outer)

    def test_one_object_in_many_tasks(self):
        s = gpuflight.scope("shared")

        async def task(n):
            for _ in range(3):
                with s:
                    first = read()
                    await asyncio.sleep(0.001 * (n % 3))
                    with s:
                        inner = read()
                        self.assertNotEqual(inner, first)
                        await asyncio.sleep(0.001 * (n % 2))
                        self.assertEqual(read(), inner)
                    self.assertEqual(read(), first)
                self.assertEqual(read(), 0)

        async def main():
            await asyncio.gather(*(task(n) for n in range(20)))

        asyncio.run(main())
        self.assertEqual(s._open, [])

    def test_threads(self):
        found = []
        with gpuflight.scope("here"):
            here = read()
            thread = threading.Thread(target=lambda: found.append(read()))
            thread.start()
            thread.join()
            copy = contextvars.copy_context()
            thread = threading.Thread(target=lambda: found.append(copy.run(read)))
            thread.start()
            thread.join()

            async def in_pool():
                return await asyncio.gather(*(asyncio.to_thread(read) for _ in range(10)))

            found += asyncio.run(in_pool())
        if getattr(sys.flags, "thread_inherit_context", False):
            found[0] = 0  # a new thread starts with a copy of the context
        self.assertEqual(found, [0] + [here] * 11)

    def test_task_that_outlives_its_scope(self):
        async def later(event):
            await event.wait()
            return read()

        async def main():
            event = asyncio.Event()
            with gpuflight.scope("request"):
                request = read()
                task = asyncio.create_task(later(event))
            event.set()
            self.assertEqual(await task, request)
            self.assertEqual(read(), 0)

        asyncio.run(main())

    def test_left_in_another_context(self):
        context = contextvars.copy_context()
        s = gpuflight.scope("generator")
        context.run(s.__enter__)
        self.assertNotEqual(context.run(read), 0)
        with gpuflight.scope("here"):
            here = read()
            s.__exit__(None, None, None)
            self.assertEqual(read(), here)
        self.assertEqual(s._open, [])

    def test_many_variables(self):
        def inside():
            with gpuflight.scope("one of many"):
                self.assertEqual(read().to_bytes(8, sys.byteorder), _library.current.get())
                self.assertNotEqual(read(), 0)

        for n in (1, 15, 16, 17, 500):
            context = contextvars.Context()
            for i in range(n):
                context.run(contextvars.ContextVar(f"v{i}").set, object())
            context.run(inside)

    def test_names(self):
        for name in ("", "naïve ☃", "a\0b", "\ud800", "x" * 100_000):
            with gpuflight.scope(name):
                self.assertNotEqual(read(), 0)
        with self.assertRaisesRegex(TypeError, "name of a scope is a str, not bytes"):
            gpuflight.scope(b"bytes")

    def test_more_than_fit_before_recording(self):
        """Before the recording there is room for 4096 open scopes."""
        with gpuflight.scope("outermost"):
            self.nest(5000)

    def nest(self, n):
        opened = [gpuflight.scope("s") for _ in range(n)]
        for s in opened:
            s.__enter__()
        inner = read()
        self.assertGreater(inner, 0)
        for s in reversed(opened):
            s.__exit__(None, None, None)

    def test_fork(self):
        with gpuflight.scope("parent"):
            parent = read()
            pid = os.fork()
            if pid == 0:
                ok = read() == parent
                with gpuflight.scope("child"):
                    ok = ok and read() != parent
                os._exit(0 if ok else 1)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)


class NotRecorded(unittest.TestCase):
    def run_python(self, code, path):
        env = {k: v for k, v in os.environ.items() if k != "CUDA_INJECTION64_PATH"}
        if path is not None:
            env["CUDA_INJECTION64_PATH"] = path
        return subprocess.run([sys.executable, "-c", code], env=env, text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_nothing_happens(self):
        code = """
import asyncio, contextvars, sys
import gpuflight
before = list(contextvars.copy_context())
@gpuflight.scope("f")
def f():
    return 1
@gpuflight.scope("g")
async def g():
    return 2
with gpuflight.scope("s"):
    print(f(), asyncio.run(g()), before == list(contextvars.copy_context()))
print("opentelemetry" in sys.modules)
"""
        for name, path in {"no variable": None, "another profiler": "/usr/lib/libother.so"}.items():
            with self.subTest(name):
                p = self.run_python(code, path)
                self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "1 2 True\nFalse\n", ""))

    def test_library_is_missing(self):
        p = self.run_python("import gpuflight\nwith gpuflight.scope('s'): print('runs')", "/nonexistent/libgpuflight.so")
        self.assertEqual((p.returncode, p.stdout), (0, "runs\n"))
        self.assertIn("gpuflight: no scopes: /nonexistent/libgpuflight.so", p.stderr)
        self.assertEqual(p.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
