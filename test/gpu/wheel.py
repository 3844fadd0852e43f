#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python wheel on a real GPU, as a user installs it, without a network.

    scripts/wheel dist
    python3 test/gpu/wheel.py --wheel dist/gpuflight-*.whl --packages FOLDER

FOLDER has the wheels that a FastAPI service needs besides (scripts/python.txt). This Python has
PyTorch. A new virtual environment sees its packages, and pip installs the wheel there. Then:

  training   gpuflight trace -- python train.py: each step a trace, each kernel recorded
  scopes     gpuflight.scope around the first use of the GPU, in tasks and threads
  sync       a FastAPI service under opentelemetry-instrument, 50 requests at once, in the thread pool:
             the modules that a request calls launch its own kernels and no others
  async      the same in the event loop
  compiled   the hooks with torch.compile, an optimizer and a module that raises an exception
  cost       of launches in scopes, of scopes, and of calls of modules

Prints one line a case, PASS or FAIL; exits with 0 if none failed.

To carry the wheel in 50 MB instead of 66, `wheel.py --wheel FILE --pack FOLDER` writes it uncompressed
into an .xz file, which --wheel accepts.
"""

import argparse
import collections
import concurrent.futures
import glob
import json
import lzma
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAIN = os.path.join(ROOT, "examples", "pytorch", "train.py")
REQUESTS = 50

SCOPES = """
import asyncio, gpuflight, torch

@gpuflight.scope("thread")
def in_thread(x):
    x.mul_(1.5)

@gpuflight.scope("task")
async def task(n):
    x = torch.ones(512 * (n + 1), device="cuda")
    for _ in range(10):
        with gpuflight.scope(f"part {n}"):
            x.mul_(1.5)
        await asyncio.sleep(0.001)
        await asyncio.to_thread(in_thread, x)

async def tasks():
    await asyncio.gather(*(task(n) for n in range(20)))

with gpuflight.scope("first"):
    x = torch.ones(1024, device="cuda")  # here the driver loads the library
    for _ in range(7):
        x.mul_(2.0)
for _ in range(3):
    x.add_(1.0)
asyncio.run(tasks())
torch.cuda.synchronize()
"""

# A service that knows nothing of gpuflight. A request launches 6 kernels whose grid tells its number.
SERVICE = """
import asyncio, os, torch
from fastapi import FastAPI

class Layer(torch.nn.Module):
    def forward(self, x):
        return x.mul_(1.5)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(Layer(), Layer())

    def forward(self, x):
        return self.layers(x)

app, model = FastAPI(), Model()
tensors = [torch.ones(4096 * (n + 1), device="cuda") for n in range(%d)]
torch.cuda.synchronize()

@app.get("/ready")
async def ready():
    return os.getpid()

@app.get("/sync/{n}")
def in_thread_pool(n: int):
    for _ in range(3):
        model(tensors[n])
    return n

@app.get("/async/{n}")
async def in_event_loop(n: int):
    model(tensors[n])
    await asyncio.sleep(0.002)
    model(tensors[n])
    await asyncio.to_thread(model, tensors[n])
    return n
""" % REQUESTS

# torch.compile sees the hooks, and must neither break its graph nor warn of them. An optimizer's step and a
# module that raises an exception are in the span, too.
COMPILED = """
import asyncio
import torch
from opentelemetry.sdk.trace import TracerProvider
import gpuflight.otel

provider = TracerProvider()
provider.add_span_processor(gpuflight.otel.SpanProcessor())
tracer = provider.get_tracer("test")
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
compiled = torch.compile(net, fullgraph=True)
x = torch.randn(32, 64, device="cuda")

class Fails(torch.nn.Module):
    def forward(self, x):
        x.mul_(1.0)
        raise ValueError("as told")

optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

async def main():
    with tracer.start_as_current_span("first"):
        compiled(x)
    with tracer.start_as_current_span("compiled") as span:
        print("compiled", format(span.get_span_context().span_id, "016x"))
        for _ in range(5):
            compiled(x)
    with tracer.start_as_current_span("fails") as span:
        print("fails", format(span.get_span_context().span_id, "016x"))
        for _ in range(3):
            try:
                Fails()(x)
            except ValueError:
                pass
    net(x).sum().backward()
    torch.cuda.synchronize()
    with tracer.start_as_current_span("step") as span:
        print("step", format(span.get_span_context().span_id, "016x"))
        optimizer.step()
    with tracer.start_as_current_span("outside") as span:
        print("outside", format(span.get_span_context().span_id, "016x"))
        x.add_(1.0)

asyncio.run(main())
torch.cuda.synchronize()
print("hooks", len(gpuflight.otel._hooks), "depth", gpuflight.otel._calls.depth)
"""

# The time of a launch outside and inside of a scope, of a scope, and of a module's call.
COST = """
import time, gpuflight, torch
x = torch.ones(16, device="cuda")
def launches(n=200_000):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n):
        x.mul_(1.0)
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / n
def scopes(n=100_000):
    began = time.perf_counter()
    for _ in range(n):
        with gpuflight.scope("s"):
            pass
    return (time.perf_counter() - began) / n
launches()
without, within = [], []
for _ in range(5):
    without.append(launches())
    with gpuflight.scope("all"):
        within.append(launches())

class Nothing(torch.nn.Module):
    def forward(self, x):
        return x

module = Nothing()
def calls(n=100_000):
    began = time.perf_counter()
    for _ in range(n):
        module(x)
    return (time.perf_counter() - began) / n

bare = min(calls() for _ in range(3))
hooked = bare
if gpuflight._library.library is not None:
    from opentelemetry.sdk.trace import TracerProvider
    import gpuflight.otel
    provider = TracerProvider()
    provider.add_span_processor(gpuflight.otel.SpanProcessor())
    with provider.get_tracer("cost").start_as_current_span("span"):
        hooked = min(calls() for _ in range(3))
print(*(f"{t * 1e6:.3f}" for t in (min(without), min(within), min(scopes() for _ in range(3)), bare, hooked)))
"""

COLLECTOR = """
receivers: {otlp: {protocols: {http: {endpoint: "%s"}}}}
exporters: {file: {path: "%s", flush_interval: 100ms}}
service:
  pipelines:
    traces: {receivers: [otlp], exporters: [file]}
    metrics: {receivers: [otlp], exporters: [file]}
    logs: {receivers: [otlp], exporters: [file]}
  telemetry: {metrics: {level: none}}
"""


class Failure(Exception):
    pass


def pack(wheel, folder):
    """Writes the wheel without the compression of each file, and compresses the whole."""
    path = os.path.join(folder, os.path.basename(wheel))
    with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(path, "w") as stored:
        for info in packed.infolist():
            data = packed.read(info)
            info.compress_type = zipfile.ZIP_STORED
            stored.writestr(info, data)
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 192 << 20}]
    with open(path, "rb") as f, lzma.open(path + ".xz", "wb", filters=filters) as out:
        shutil.copyfileobj(f, out)
    os.remove(path)


def unpack(path, folder):
    """The path of the wheel that pack has packed."""
    wheel = os.path.join(folder, os.path.basename(path).removesuffix(".xz"))
    with lzma.open(path) as f, open(wheel, "wb") as out:
        shutil.copyfileobj(f, out)
    return wheel


def check(ok, text):
    if not ok:
        raise Failure(text)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def attributes(of):
    out = {}
    for a in of.get("attributes", []):
        v = a["value"]
        if "arrayValue" in v:
            out[a["key"]] = tuple(next(iter(x.values())) for x in v["arrayValue"]["values"])
        else:
            out[a["key"]] = next(iter(v.values())) if v else None
    return out


def read(path):
    """The spans and the cuda.capture logs of a file of OTLP."""
    spans, captures = [], []
    with open(path) as f:
        for line in f:
            data = json.loads(line)
            for rs in data.get("resourceSpans", []):
                for ss in rs["scopeSpans"]:
                    for s in ss.get("spans", []):
                        s["a"] = attributes(s)
                        spans.append(s)
            for rl in data.get("resourceLogs", []):
                for sl in rl["scopeLogs"]:
                    captures += [attributes(r) for r in sl.get("logRecords", []) if r.get("eventName") == "cuda.capture"]
    return spans, captures


def of(spans, operation):
    return [s for s in spans if s["a"].get("cuda.operation") == operation]


class Test:
    def __init__(self, args):
        self.out = args.out or tempfile.mkdtemp(prefix="gpuflight-wheel-")
        os.makedirs(self.out, exist_ok=True)
        if args.wheel.endswith(".xz"):
            args.wheel = unpack(args.wheel, self.out)
        self.args, self.note = args, ""
        self.bin = os.path.join(self.out, "venv", "bin")

    def run(self, *command, env=None, timeout=200, code=0):
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
                           env=dict(os.environ, **(env or {})), cwd=self.out)
        check(p.returncode == code, f"{' '.join(command[:6])} ends with {p.returncode}:\n{p.stdout[-2000:]}{p.stderr[-3000:]}")
        return p

    def trace(self, name, *command, flags=()):
        path = os.path.join(self.out, name + ".otlp.jsonl")
        p = self.run(os.path.join(self.bin, "gpuflight"), "trace", "--force", "--output", path, *flags, "--", *command)
        spans, captures = read(path)
        check(captures, f"no cuda.capture log\n{p.stderr[-3000:]}")
        for c in captures:
            dropped = {k: v for k, v in c.items() if k in ("cuda.capture.records.dropped", "cuda.capture.records.rejected") and int(v)}
            check(not dropped, f"dropped: {dropped}")
        return spans, captures, p

    def install(self):
        venv = os.path.join(self.out, "venv")
        self.run(sys.executable, "-m", "venv", "--without-pip", venv)
        site = glob.glob(os.path.join(venv, "lib", "python3*", "site-packages"))[0]
        # A virtual environment of a virtual environment sees the system's packages only.
        with open(os.path.join(site, "base.pth"), "w") as f:
            f.write(sysconfig.get_path("purelib") + "\n")
        python = os.path.join(self.bin, "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-cache-dir"]
        self.run(*pip, self.args.wheel)
        if self.args.packages:
            self.run(*pip, "--no-deps", "--ignore-installed", *glob.glob(os.path.join(self.args.packages, "*.whl")))
        version = self.run(os.path.join(self.bin, "gpuflight"), "--version").stdout.strip()
        collector = self.run(os.path.join(self.bin, "otelcol-gpuflight"), "--version").stdout.strip()
        doctor = self.run(os.path.join(self.bin, "gpuflight"), "doctor", env={"GPUFLIGHT_OUTPUT": os.path.join(self.out, "doctor.jsonl")})
        size = os.path.getsize(self.args.wheel) / 1e6
        self.note = f"{os.path.basename(self.args.wheel)} ({size:.1f} MB), {version}, {collector}; {doctor.stdout.splitlines()[1].strip()}"

    def training(self):
        steps = 30
        train = [os.path.join(self.bin, "python"), TRAIN, "--steps", str(steps), "--workers", "0", "--quiet"]
        bare = self.run(*train)
        spans, captures, p = self.trace("training", *train, flags=["--max-spans", "1000000"])
        check(p.stdout == bare.stdout, f"stdout differs: {p.stdout[-300:]!r} and {bare.stdout[-300:]!r}")
        found = [s for s in of(spans, "scope") if s["name"] == "step" and "cuda.scope.part" not in s["a"]]
        check(len(found) == steps, f"{len(found)} steps, not {steps}")
        check(len({s["traceId"] for s in found}) == steps, "a step is not a trace of its own")
        kernels, counted = len(of(spans, "kernel")), sum(int(c["cuda.capture.kernels"]) for c in captures)
        check(kernels == counted > 1000, f"{kernels} spans of {counted} kernels")
        self.note = f"{steps} steps in {steps} traces, {kernels} kernels, all with spans"

    def scopes(self):
        spans, _, _ = self.trace("scopes", os.path.join(self.bin, "python"), "-c", SCOPES)
        ids = {s["spanId"]: s for s in spans}
        muls = collections.Counter()
        for k in of(spans, "kernel"):
            parent = ids.get(k["parentSpanId"])
            muls[parent["name"] if parent else None] += 1
        # torch.ones is a kernel, too.
        want = {"first": 8, "task": 20, "thread": 200, **{f"part {n}": 10 for n in range(20)}}
        wrong = {name: (muls[name], n) for name, n in want.items() if muls[name] != n}
        check(not wrong, f"kernels in scopes, and how many are expected: {wrong}")
        parts = [s for s in of(spans, "scope") if s["name"].startswith("part ")]
        check(len(parts) == 200 and all(ids[s["parentSpanId"]]["name"] == "task" for s in parts), "a part is not in its task")
        outside = sum(muls.values()) - sum(want.values())
        check(outside == 3, f"{outside} kernels outside, not 3: {muls}")
        self.note = f"{sum(muls.values())} kernels, each in its scope"

    def service(self, kind):
        port, otlp = free_port(), free_port()
        config, data = os.path.join(self.out, kind + ".yaml"), os.path.join(self.out, kind + ".jsonl")
        app = os.path.join(self.out, "service.py")
        for path, text in ((app, SERVICE), (config, COLLECTOR % (f"127.0.0.1:{otlp}", data))):
            with open(path, "w") as f:
                f.write(text)
        log = open(os.path.join(self.out, kind + ".log"), "w+")
        collector = subprocess.Popen([os.path.join(self.bin, "otelcol-gpuflight"), "--config", config], stdout=log, stderr=log)
        env = dict(os.environ, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{otlp}", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
                   OTEL_TRACES_EXPORTER="otlp_proto_http", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none",
                   OTEL_SERVICE_NAME="predictor", OTEL_PYTHON_FASTAPI_EXCLUDED_URLS="ready")
        service = subprocess.Popen(
            [os.path.join(self.bin, "gpuflight"), "trace", "--max-spans", "1000000", "--", os.path.join(self.bin, "opentelemetry-instrument"),
             os.path.join(self.bin, "python"), "-m", "uvicorn", "--log-level", "warning", "--port", str(port), "service:app"],
            env=env, cwd=self.out, stdout=log, stderr=log, start_new_session=True)

        def get(path):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as r:
                return r.read()

        try:
            deadline = time.time() + 90
            while True:
                try:
                    get("ready")
                    break
                except OSError:
                    check(service.poll() is None and time.time() < deadline, "the service does not start")
                    time.sleep(0.2)
            began = time.time()
            with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
                list(pool.map(get, (f"{kind}/{n}" for n in range(REQUESTS))))
            took = time.time() - began
            os.killpg(service.pid, signal.SIGINT)
            service.wait(60)
            collector.send_signal(signal.SIGTERM)
            collector.wait(30)
        except Exception:
            log.seek(0)
            print(log.read()[-4000:])
            raise
        finally:
            for p in (service, collector):
                if p.poll() is None:
                    p.kill()
        spans, _ = read(data)
        served = {s["spanId"]: s for s in spans if s["name"] == f"GET /{kind}/{{n}}" and s["kind"] == 2}
        check(len(served) == REQUESTS, f"{len(served)} spans of {REQUESTS} requests")
        grids, other = collections.defaultdict(list), collections.Counter()
        for k in of(spans, "kernel"):
            parent = served.get(k["parentSpanId"])
            if parent is None:
                other[k["name"]] += 1
                continue
            check(parent["traceId"] == k["traceId"], "a kernel is in another trace than its request")
            grids[k["parentSpanId"]].append((k["a"]["cuda.kernel.grid"], k["a"]["cuda.kernel.name"]))
        counts = collections.Counter(len(g) for g in grids.values())
        check(counts == {6: REQUESTS}, f"kernels of each request: {dict(counts)}; elsewhere: {dict(other)}")
        check(all(len(set(g)) == 1 for g in grids.values()), "a request has kernels of another one")
        check(len({g[0] for g in grids.values()}) == REQUESTS, "two requests have equal kernels")
        # torch.ones of the start.
        check(sum(other.values()) == REQUESTS, f"kernels outside of requests: {dict(other)}")
        self.note = f"{REQUESTS} requests at once in {took:.2f} s, each with its own 6 kernels"

    def sync(self):
        self.service("sync")

    def async_(self):
        self.service("async")

    def compiled(self):
        spans, _, p = self.trace("compiled", os.path.join(self.bin, "python"), "-c", COMPILED)
        lines = dict(line.split(" ", 1) for line in p.stdout.splitlines())
        check(lines["hooks"] == "4 depth 0", f"hooks: {lines['hooks']}")
        check("global hooks" not in p.stderr, p.stderr[-2000:])
        kernels = collections.Counter(k["parentSpanId"] for k in of(spans, "kernel"))
        found = {name: kernels[lines[name]] for name in ("compiled", "fails", "step", "outside")}
        check(found["compiled"] >= 5 and found["fails"] == 3 and found["step"] >= 1 and found["outside"] == 0, f"kernels of spans: {found}")
        self.note = f"kernels of spans: {found}"

    def cost(self):
        python = os.path.join(self.bin, "python")
        bare = self.run(python, "-c", COST).stdout.split()
        path = os.path.join(self.out, "cost.otlp.jsonl")
        p = self.run(os.path.join(self.bin, "gpuflight"), "trace", "--quiet", "--force", "--output", path, "--max-spans", "0", "--", python, "-c", COST)
        traced = p.stdout.split()
        self.note = (f"us a launch: {bare[0]} not traced, {traced[0]} traced outside of scopes, {traced[1]} in a scope; "
                     f"us a scope: {bare[2]} not traced, {traced[2]} traced; us a call of a module: {bare[3]} not traced, "
                     f"{traced[3]} traced, {traced[4]} with hooks")
        check(float(traced[1]) < 1.1 * float(traced[0]) + 0.1, self.note)


CASES = {"install": "install", "training": "training", "scopes": "scopes", "sync": "sync", "async": "async_", "compiled": "compiled", "cost": "cost"}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--wheel", required=True)
    p.add_argument("--packages", help="folder with the wheels of FastAPI, uvicorn and OpenTelemetry")
    p.add_argument("--only", default=",".join(CASES), help="cases, separated by commas; the first is install")
    p.add_argument("--out", help="folder for the environment and the recordings")
    p.add_argument("--pack", metavar="FOLDER", help="pack the wheel into this folder and end")
    args = p.parse_args()
    if args.pack:
        pack(args.wheel, args.pack)
        return
    args.wheel = os.path.abspath(args.wheel)
    args.packages = args.packages and os.path.abspath(args.packages)
    args.out = args.out and os.path.abspath(args.out)
    test, failed = Test(args), 0
    for name in args.only.split(","):
        test.note, began = "", time.time()
        try:
            getattr(test, CASES[name])()
            print(f"PASS {name} ({time.time() - began:.1f}s) {test.note}", flush=True)
        except (Failure, subprocess.TimeoutExpired, OSError, KeyError, IndexError, ValueError) as e:
            failed += 1
            print(f"FAIL {name} ({time.time() - began:.1f}s): {type(e).__name__}: {e}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
