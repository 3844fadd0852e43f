# SPDX-License-Identifier: Apache-2.0
"""Launches follow OpenTelemetry's current span. See test_scope.py for what these tests need."""

import asyncio
import gc
import sys
import threading
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from gpuflight import otel
except ImportError:
    trace = None

import gpuflight
from gpuflight import _library, _scope


def read():
    return _library.library.top()


class Recorder:
    """Stands between the package and the library, and keeps what the package begins and ends."""

    def __init__(self, library):
        self.library, self.begun, self.ended = library, {}, []
        self.push, self.pop, self.top = library.push, library.pop, library.top

    def begin(self, name, parent, trace_id, span_id, sampled):
        scope = self.library.begin(name, parent, trace_id, span_id, sampled)
        self.begun[scope] = (name, parent, trace_id, span_id, sampled)
        return scope

    def end(self, scope):
        if scope:
            self.ended.append(scope)
        self.library.end(scope)


class Hooked(unittest.TestCase):
    def setUp(self):
        self.recorder = Recorder(_library.library)
        _library.library = self.recorder
        self.provider = TracerProvider()
        self.provider.add_span_processor(otel.SpanProcessor())
        self.tracer = self.provider.get_tracer("test")

    def tearDown(self):
        self.assertEqual(read(), 0)
        _scope.current_span = None
        _library.library = self.recorder.library

    def check(self, span, scope=None):
        """A launch of this thread, or the scope, is in the span."""
        scope = read() if scope is None else scope
        context = span.get_span_context()
        self.assertIn(scope, self.recorder.begun)
        name, _, trace_id, span_id, sampled = self.recorder.begun[scope]
        self.assertEqual(trace_id, context.trace_id.to_bytes(16, "big"))
        self.assertEqual(span_id, context.span_id.to_bytes(8, "big"))
        self.assertEqual(bool(sampled), context.trace_flags.sampled)
        return name


@unittest.skipIf(trace is None, "opentelemetry-sdk is not installed")
@unittest.skipIf(_library.library is None, "CUDA_INJECTION64_PATH names no libgpuflight.so")
class SpansOfThreads(Hooked):
    """Without an event loop, a span is its thread's scope from its start to its end."""

    def test_nested_spans(self):
        with self.tracer.start_as_current_span("outer") as outer:
            self.assertEqual(self.check(outer), b"outer")
            with self.tracer.start_as_current_span("inner") as inner:
                self.assertEqual(self.check(inner), b"inner")
            self.check(outer)
            self.assertEqual(len(self.recorder.ended), 1)
        self.assertEqual(sorted(self.recorder.ended), sorted(self.recorder.begun))

    def test_threads(self):
        barrier = threading.Barrier(8)

        def request(n):
            for _ in range(20):
                with self.tracer.start_as_current_span(f"request {n}") as span:
                    barrier.wait(30)
                    self.check(span)
                self.assertEqual(read(), 0)

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(request, n) for n in range(8)]:
                future.result()

    def test_span_ended_by_another_thread(self):
        with self.tracer.start_as_current_span("here") as here:
            span = self.tracer.start_span("handed over")
            self.check(span)
            thread = threading.Thread(target=span.end)
            thread.start()
            thread.join()
            # Before the recording, libgpuflight.so keeps no list for other threads.
            _library.library.pop(read())
            self.check(here)
        self.assertEqual(sorted(self.recorder.ended), sorted(self.recorder.begun))

    def test_unsampled(self):
        tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
        with tracer.start_as_current_span("unsampled") as span, gpuflight.scope("s"):
            self.check(span, self.recorder.begun[read()][1])

    def test_other_tasks_of_the_thread(self):
        def no_task():
            raise RuntimeError("must be called from async context")

        trio = types.SimpleNamespace(lowlevel=types.SimpleNamespace(current_task=lambda: "task"))
        for name, module in (("gevent", mock.Mock()), ("eventlet", mock.Mock()), ("trio", trio)):
            with self.subTest(name), mock.patch.dict(sys.modules, {name: module}):
                with self.tracer.start_as_current_span(name):
                    self.assertEqual(read(), 0)
        trio.lowlevel.current_task = no_task
        with mock.patch.dict(sys.modules, {"trio": trio}), self.tracer.start_as_current_span("no task") as span:
            self.check(span)

    def test_names(self):
        for name in ("", "naïve ☃", "a\0b"):
            with self.tracer.start_as_current_span(name) as span:
                self.check(span)


@unittest.skipIf(trace is None, "opentelemetry-sdk is not installed")
@unittest.skipIf(_library.library is None, "CUDA_INJECTION64_PATH names no libgpuflight.so")
class ScopesInSpans(Hooked):
    """A scope is a child of the span that is current when it is entered."""

    def in_scope(self, span, name):
        with gpuflight.scope(name):
            found, parent, trace_id, _, _ = self.recorder.begun[read()]
            self.assertEqual((found, trace_id), (name.encode(), None))
            self.check(span, parent)

    def test_tasks_and_threads(self):
        async def request(n):
            with self.tracer.start_as_current_span(f"request {n}") as span:
                self.assertEqual(read(), 0, "the event loop has other tasks")
                for _ in range(5):
                    self.in_scope(span, f"here {n}")
                    await asyncio.sleep(0)
                    await asyncio.to_thread(self.in_scope, span, f"there {n}")

                @gpuflight.scope("decorated")
                async def decorated():
                    first = read()
                    self.check(span, self.recorder.begun[first][1])
                    await asyncio.sleep(0)
                    self.assertEqual(read(), first)

                await asyncio.gather(decorated(), decorated())

        async def main():
            await asyncio.gather(*(request(n) for n in range(30)))

        asyncio.run(main())
        self.assertEqual(sorted(self.recorder.ended), sorted(self.recorder.begun))

    def test_remote_parent(self):
        remote = trace.NonRecordingSpan(trace.SpanContext(0x1234, 0x56, True, trace.TraceFlags(1)))
        token = otel_context.attach(trace.set_span_in_context(remote))
        self.in_scope(remote, "s")
        otel_context.detach(token)
        self.assertEqual(len(self.recorder.ended), 1)
        del remote, token
        gc.collect()
        self.assertEqual(len(self.recorder.ended), 2, "its scope ends when it is freed")

    def test_span_is_begun_once(self):
        async def main():
            with self.tracer.start_as_current_span("span") as span:
                for _ in range(10):
                    self.in_scope(span, "s")

        asyncio.run(main())
        self.assertEqual(len(self.recorder.begun), 11)

    def test_scope_without_span(self):
        with gpuflight.scope("scope"):
            self.assertEqual(self.recorder.begun[read()], (b"scope", 0, None, None, 0))


@unittest.skipIf(trace is None, "opentelemetry-sdk is not installed")
@unittest.skipIf(_library.library is None, "CUDA_INJECTION64_PATH names no libgpuflight.so")
class Modules(Hooked):
    """What the functions do that PyTorch calls. test/gpu/wheel.py runs them with PyTorch."""

    def test_outermost_call(self):
        async def request(n):
            with self.tracer.start_as_current_span(f"request {n}") as span:
                for _ in range(3):
                    self.assertEqual(read(), 0)
                    otel.before_module(None, ())
                    self.check(span)
                    otel.before_module(None, ())
                    self.check(span)
                    otel.after_module(None, (), None)
                    self.check(span)
                    otel.after_module(None, (), None)
                    self.assertEqual(read(), 0)
                    await asyncio.sleep(0)
                await asyncio.to_thread(self.call, span)

        async def main():
            await asyncio.gather(*(request(n) for n in range(20)))

        asyncio.run(main())

    def call(self, span):
        otel.before_module(None, ())
        self.check(span)
        otel.after_module(None, (), None)
        self.assertEqual(read(), 0)

    def test_scope_around(self):
        """The scope began later than the span, and stays the innermost."""
        async def main():
            with self.tracer.start_as_current_span("span"):
                with gpuflight.scope("s"):
                    inside = read()
                    otel.before_module(None, ())
                    self.assertEqual(read(), inside)
                    otel.after_module(None, (), None)
                    self.assertEqual(read(), inside)

        asyncio.run(main())

    def test_without_span(self):
        otel.before_module(None, ())
        self.assertEqual(read(), 0)
        otel.after_module(None, (), None)
        otel.after_module(None, (), None)  # of a call whose begin was not seen
        with self.tracer.start_as_current_span("span") as span:
            self.call_in_span(span)

    def call_in_span(self, span):
        otel.before_module(None, ())
        self.check(span)
        otel.after_module(None, (), None)
        self.check(span)

    def test_optimizer(self):
        async def main():
            with self.tracer.start_as_current_span("span") as span:
                otel.before_step(None, (), {})
                self.check(span)
                otel.after_step(None, (), {})
                self.assertEqual(read(), 0)
                otel.before_step(None, (), {})  # this step raises an exception
                self.call(span)
                otel.before_module(None, ())
                otel.before_step(None, (), {})
                otel.after_step(None, (), {})
                self.check(span)
                otel.after_module(None, (), None)

        asyncio.run(main())

    def test_registration(self):
        registered = []

        def register(hook, always_call=False):
            registered.append((hook, always_call))
            return mock.Mock()

        module = types.SimpleNamespace(register_module_forward_pre_hook=register, register_module_forward_hook=register)
        optimizer = types.SimpleNamespace(register_optimizer_step_pre_hook=register, register_optimizer_step_post_hook=register)
        compiling = [False]
        torch = types.SimpleNamespace(compile=None, compiler=types.SimpleNamespace(is_compiling=lambda: compiling[0]))
        modules = {"torch": torch, "torch.nn": mock.Mock(), "torch.nn.modules": types.SimpleNamespace(module=module),
                   "torch.optim": types.SimpleNamespace(optimizer=optimizer), "torch.optim.optimizer": optimizer}
        before = otel._is_compiling
        self.addCleanup(lambda: (setattr(otel, "_hooks", None), setattr(otel, "_is_compiling", before)))
        with self.tracer.start_as_current_span("before the import"):
            self.assertIsNone(otel._hooks)
        with mock.patch.dict(sys.modules, modules):
            for _ in range(2):
                with self.tracer.start_as_current_span("request"):
                    pass
        self.assertEqual(registered, [(otel.before_module, False), (otel.after_module, True),
                                      (otel.before_step, False), (otel.after_step, False)])
        compiling[0] = True
        with trace.use_span(self.tracer.start_span("compiles"), end_on_exit=True) as span:
            pushed = read()
            otel.before_module(None, ())
            self.assertEqual((read(), otel._calls.depth), (pushed, 0))
            otel.after_module(None, (), None)
            self.check(span)

    def test_old_pytorch(self):
        modules = {"torch": types.SimpleNamespace(compile=None), "torch.optim.optimizer": mock.Mock()}
        self.addCleanup(lambda: setattr(otel, "_hooks", None))
        with mock.patch.dict(sys.modules, modules), self.assertLogs("gpuflight", "WARNING") as logs:
            for _ in range(2):
                with self.tracer.start_as_current_span("request"):
                    pass
        self.assertEqual(len(logs.output), 1)


@unittest.skipIf(trace is None, "opentelemetry-sdk is not installed")
class NotRecorded(unittest.TestCase):
    def test_nothing_is_added(self):
        provider = mock.Mock()
        with mock.patch.object(_library, "library", None), mock.patch.object(trace, "get_tracer_provider", lambda: provider):
            otel.Instrumentor().instrument(skip_dep_check=True)
        provider.add_span_processor.assert_not_called()


if __name__ == "__main__":
    unittest.main()
