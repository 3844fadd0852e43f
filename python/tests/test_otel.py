# SPDX-License-Identifier: Apache-2.0
"""Launches follow OpenTelemetry's current span. See test_scope.py for what these tests need."""

import asyncio
import contextvars
import gc
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from gpuflight import otel
except ImportError:
    trace = None

import gpuflight
from gpuflight import _library


def read():
    return _library.library.read()


class Recorder:
    """Stands between the package and the library, and keeps what the package begins and ends."""

    def __init__(self, library):
        self.library, self.begun, self.ended = library, {}, []
        self.read = library.read

    def begin(self, name, parent, trace_id, span_id, sampled):
        scope = self.library.begin(name, parent, trace_id, span_id, sampled)
        self.begun[scope] = (name, trace_id, span_id, sampled)
        return scope

    def end(self, scope):
        self.ended.append(scope)
        self.library.end(scope)


@unittest.skipIf(trace is None, "opentelemetry-sdk is not installed")
@unittest.skipIf(_library.library is None, "CUDA_INJECTION64_PATH names no libgpuflight.so")
class Spans(unittest.TestCase):
    def setUp(self):
        self.recorder = Recorder(_library.library)
        _library.library = self.recorder
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider.add_span_processor(otel.SpanProcessor())
        self.tracer = self.provider.get_tracer("test")

    def tearDown(self):
        self.assertEqual(read(), 0)
        otel.stop()
        _library.library = self.recorder.library

    def check(self, span):
        """A launch of this thread is in the span."""
        scope = read()
        context = span.get_span_context()
        self.assertNotEqual(scope, 0)
        name, trace_id, span_id, sampled = self.recorder.begun[scope]
        self.assertEqual(trace_id, context.trace_id.to_bytes(16, "big"))
        self.assertEqual(span_id, context.span_id.to_bytes(8, "big"))
        self.assertEqual(bool(sampled), context.trace_flags.sampled)
        return name

    def test_nested_spans(self):
        with self.tracer.start_as_current_span("outer") as outer:
            self.assertEqual(self.check(outer), b"outer")
            with self.tracer.start_as_current_span("inner") as inner:
                self.assertEqual(self.check(inner), b"inner")
            self.check(outer)
            self.assertEqual(len(self.recorder.ended), 1)
        self.assertEqual(sorted(self.recorder.ended), sorted(self.recorder.begun))

    def test_span_that_is_not_current(self):
        with self.tracer.start_as_current_span("current") as current:
            other = self.tracer.start_span("other")
            self.check(current)
            with trace.use_span(other, end_on_exit=False):
                self.check(other)
            self.check(current)
            other.end()
            self.check(current)

    def test_tasks(self):
        async def request(n):
            with self.tracer.start_as_current_span(f"request {n}") as span:
                for _ in range(5):
                    self.check(span)
                    await asyncio.sleep(0)
                    await asyncio.to_thread(self.check, span)

                async def child():
                    self.check(span)
                    with self.tracer.start_as_current_span("child") as inner:
                        await asyncio.sleep(0)
                        self.check(inner)
                    self.check(span)

                await asyncio.gather(child(), child())
                self.check(span)

        async def main():
            await asyncio.gather(*(request(n) for n in range(30)))
            self.assertEqual(read(), 0)

        asyncio.run(main())

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
            token = otel_context.attach(trace.set_span_in_context(span))
            self.check(span)
            thread = threading.Thread(target=span.end)
            thread.start()
            thread.join()
            self.check(span)  # it is still current
            otel_context.detach(token)
            self.check(here)

    def test_detach_in_another_context(self):
        span = self.tracer.start_span("generator")
        token = contextvars.copy_context().run(otel_context.attach, trace.set_span_in_context(span))
        self.assertEqual(read(), 0)
        with self.assertLogs("opentelemetry.context", "ERROR"):
            otel_context.detach(token)
        self.assertEqual(read(), 0)

    def test_remote_parent(self):
        remote = trace.NonRecordingSpan(trace.SpanContext(0x1234, 0x56, True, trace.TraceFlags(1)))
        token = otel_context.attach(trace.set_span_in_context(remote))
        self.assertEqual(self.check(remote), b"")
        otel_context.detach(token)
        self.assertEqual(self.recorder.ended, [])
        del remote, token
        gc.collect()
        self.assertEqual(len(self.recorder.ended), 1, "its scope ends when it is freed")

    def test_unsampled(self):
        tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
        with tracer.start_as_current_span("unsampled") as span:
            self.check(span)

    def test_same_span_attached_often(self):
        with self.tracer.start_as_current_span("span") as span:
            for _ in range(100):
                with trace.use_span(span):
                    self.check(span)
        self.assertEqual(len(self.recorder.begun), 1)

    def test_scope_is_a_span(self):
        trace._TRACER_PROVIDER, before = self.provider, trace._TRACER_PROVIDER
        try:
            with self.tracer.start_as_current_span("request"):
                with self.assertRaises(ValueError):
                    with gpuflight.scope("predict"):
                        self.check(trace.get_current_span())
                        raise ValueError("bad input")
        finally:
            trace._TRACER_PROVIDER = before
        scope, request = self.exporter.get_finished_spans()
        self.assertEqual((scope.name, scope.parent.span_id), ("predict", request.context.span_id))
        self.assertEqual(dict(scope.attributes), {"cuda.operation": "scope", "cuda.scope.source": "sdk"})
        self.assertEqual((scope.status.description, scope.events[0].name), ("ValueError: bad input", "exception"))

    def test_scope_without_a_provider(self):
        """The recorder makes the span then."""
        with gpuflight.scope("scope"):
            self.assertEqual(self.recorder.begun[read()], (b"scope", None, None, 0))

    def test_stop(self):
        otel.stop()
        self.assertFalse(hasattr(ContextVarsRuntimeContext.attach, "gpuflight_original"))
        with self.tracer.start_as_current_span("span"):
            self.assertEqual(read(), 0)
        otel.start()
        otel.start()
        with self.tracer.start_as_current_span("span") as span:
            self.check(span)

    def test_names(self):
        for name in ("", "naïve ☃", "a\0b"):
            with self.tracer.start_as_current_span(name) as span:
                self.check(span)


@unittest.skipIf(trace is None, "opentelemetry-sdk is not installed")
class NotRecorded(unittest.TestCase):
    def test_nothing_is_changed(self):
        library, _library.library = _library.library, None
        try:
            attach = ContextVarsRuntimeContext.attach
            otel.Instrumentor().instrument(skip_dep_check=True)
            self.assertIs(ContextVarsRuntimeContext.attach, attach)
            otel.Instrumentor().uninstrument()
        finally:
            _library.library = library


if __name__ == "__main__":
    unittest.main()
