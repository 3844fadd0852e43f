# SPDX-License-Identifier: Apache-2.0
"""Scopes, with the libgpuflight.so that CUDA_INJECTION64_PATH names and without a GPU.

The library says in which scope a launch of the calling thread would be.
"""

import asyncio
import os
import subprocess
import sys
import threading
import unittest

import gpuflight
from gpuflight import _library, _scope


def read():
    return _library.library.top()


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

    def test_decorated_coroutine_that_fails(self):
        @gpuflight.scope("f")
        async def f(how):
            self.assertNotEqual(read(), 0)
            try:
                await asyncio.sleep(0 if how != "cancel" else 60)
            finally:
                self.assertNotEqual(read(), 0)
            raise KeyError(how)

        async def main():
            with self.assertRaises(KeyError):
                await f("raise")
            task = asyncio.create_task(f("cancel"))
            await asyncio.sleep(0.01)
            self.assertEqual(read(), 0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(read(), 0)

        asyncio.run(main())
        # Closed before its end, as the interpreter does with what is never resumed.
        coroutine = f("close")
        coroutine.send(None)
        self.assertEqual(read(), 0)
        coroutine.close()

    def test_decorated_coroutines_nest(self):
        @gpuflight.scope("inner")
        async def inner():
            first = read()
            await asyncio.sleep(0)
            self.assertEqual(read(), first)
            with gpuflight.scope("innermost"):
                self.assertGreater(read(), first)
            return first

        @gpuflight.scope("outer")
        async def outer():
            first = read()
            self.assertGreater(await inner(), first)
            self.assertEqual(read(), first)
            await asyncio.gather(inner(), inner())
            self.assertEqual(read(), first)

        async def main():
            await asyncio.gather(*(outer() for _ in range(20)))

        asyncio.run(main())

    def test_one_object_in_many_tasks(self):
        f = gpuflight.scope("shared")

        @f
        async def task(n):
            first = read()
            for _ in range(3):
                await asyncio.sleep(0.001 * (n % 3))
                with f:
                    self.assertNotEqual(read(), first)
                self.assertEqual(read(), first)

        async def main():
            await asyncio.gather(*(task(n) for n in range(20)))

        asyncio.run(main())

    def test_await_inside_of_with(self):
        """It is noticed, once, and does not last."""
        async def task(entered, leaves):
            with gpuflight.scope("awaits"):
                entered.set()
                await leaves.wait()

        async def main():
            entered, leaves, last = asyncio.Event(), asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(task(entered, leaves))
            await entered.wait()
            second = asyncio.create_task(task(leaves, last))
            await first
            last.set()
            await second
            self.assertEqual(read(), 0)

        _scope._warned = False
        with self.assertLogs("gpuflight", "WARNING") as logs:
            asyncio.run(main())
            asyncio.run(main())
        self.assertEqual(len(logs.output), 1)
        self.assertIn("scope 'awaits' was left out of order", logs.output[0])

    def test_threads(self):
        """A scope is its thread's own."""
        found = []
        with gpuflight.scope("here"):
            thread = threading.Thread(target=lambda: found.append(read()))
            thread.start()
            thread.join()
        self.assertEqual(found, [0])

    def test_left_on_another_thread(self):
        s = gpuflight.scope("moved")
        s.__enter__()
        _scope._warned = False
        with self.assertLogs("gpuflight", "WARNING"):
            thread = threading.Thread(target=s.__exit__, args=(None, None, None))
            thread.start()
            thread.join()
        _library.library.pop(read())

    def test_names(self):
        for name in ("", "naïve ☃", "a\0b", "\ud800", "x" * 100_000):
            with gpuflight.scope(name):
                self.assertNotEqual(read(), 0)
        with self.assertRaisesRegex(TypeError, "name of a scope is a str, not bytes"):
            gpuflight.scope(b"bytes")

    def test_more_than_fit_before_recording(self):
        """Before the recording there is room for 4096 open scopes, and for 64 on a thread."""
        with gpuflight.scope("outermost"):
            outermost = read()
            opened = [gpuflight.scope("s") for _ in range(5000)]
            for s in opened:
                s.__enter__()
            self.assertGreater(read(), outermost)
            _scope._warned = True  # those that did not fit
            for s in reversed(opened):
                s.__exit__(None, None, None)
            self.assertEqual(read(), outermost)

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
import asyncio, sys
import gpuflight
@gpuflight.scope("f")
def f():
    return 1
@gpuflight.scope("g")
async def g():
    return 2
with gpuflight.scope("s"):
    print(f(), asyncio.run(g()))
print("opentelemetry" in sys.modules)
"""
        for name, path in {"no variable": None, "another profiler": "/usr/lib/libother.so"}.items():
            with self.subTest(name):
                p = self.run_python(code, path)
                self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "1 2\nFalse\n", ""))

    def test_library_is_missing(self):
        p = self.run_python("import gpuflight\nwith gpuflight.scope('s'): print('runs')", "/nonexistent/libgpuflight.so")
        self.assertEqual((p.returncode, p.stdout), (0, "runs\n"))
        self.assertIn("gpuflight: no scopes: /nonexistent/libgpuflight.so", p.stderr)
        self.assertEqual(p.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
