#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpuflight trace on a real GPU, with PyTorch.

    python3 test/gpu/inject.py --bin bin [--only NAME,...] [--out FOLDER]

Each case runs a command without and with tracing. Exit code and stdout must be equal, and the
recording must hold what the command did: kernels in every process, all processes in one trace,
nothing dropped. Prints one line a case, PASS or FAIL; exits with 0 if none failed.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAIN = os.path.join(ROOT, "examples", "pytorch", "train.py")

SEGV = """
import torch, ctypes, sys
x = torch.ones(1000, device='cuda'); (x + x).sum().item(); print('before', flush=True)
ctypes.string_at(0)
"""
TERM = """
import torch, os, signal, time
x = torch.ones(1000, device='cuda'); (x + x).sum().item(); print('before', flush=True)
time.sleep(1); os.kill(os.getpid(), signal.SIGTERM); time.sleep(10)
"""
INTERRUPT = """
import torch, os, signal, time
x = torch.ones(1000, device='cuda'); (x + x).sum().item()
try:
    os.kill(os.getpid(), signal.SIGINT); time.sleep(10)
except KeyboardInterrupt:
    print('interrupted')
"""
ALARMS = """
import torch, signal
n = 0
def on(*_):
    global n
    n += 1
signal.signal(signal.SIGALRM, on)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
x = torch.ones(1000, device='cuda')
while n < 1000:
    x = x * 1.0
torch.cuda.synchronize(); print('alarms', n >= 1000)
signal.setitimer(signal.ITIMER_REAL, 0)
"""
SPAWN = """
import torch, torch.multiprocessing as mp
def work(rank):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    x = torch.ones(1 << 20, device='cuda')
    for _ in range(100 * (rank + 1)):
        x.mul_(1.0)
    torch.cuda.synchronize()
if __name__ == '__main__':
    mp.spawn(work, nprocs=4)
    print('spawned')
"""
RUN = """
import os, subprocess, sys
ps = [subprocess.Popen([sys.executable, %r, '--steps', '10', '--workers', '1', '--quiet'],
      env=dict(os.environ, LOCAL_RANK=str(i), RANK=str(i), WORLD_SIZE='4'), stdout=subprocess.PIPE, text=True) for i in range(4)]
outs = [p.communicate()[0] for p in ps]
print(''.join(outs), [p.returncode for p in ps])
sys.exit(max(p.returncode for p in ps))
""" % TRAIN
LOOP = """
import torch, sys
x = torch.ones(1024, device='cuda')
for _ in range(20000):
    x.mul_(1.0)
torch.cuda.synchronize(); print('looped')
sys.exit(3)
"""
GRAPH = """
import torch
x = torch.ones(1024, device='cuda')
s = torch.cuda.Stream()
with torch.cuda.stream(s):
    x.mul_(1.0)
torch.cuda.synchronize()
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    for _ in range(8):
        x.mul_(1.0)
for _ in range(50):
    g.replay()
torch.cuda.synchronize(); print('replayed')
"""

PEER = """
import torch
if torch.cuda.device_count() < 2:
    print('one device'); raise SystemExit(0)
a = torch.ones(1 << 20, device='cuda:0')
b = torch.zeros(1 << 20, device='cuda:1')
for _ in range(30):
    b.copy_(a)
    a.copy_(b)
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
print('copied', int(b.sum().item()))
"""


class Failure(Exception):
    pass


def check(ok, text):
    if not ok:
        raise Failure(text)


def run(command, env=None, timeout=300):
    began = time.time()
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                       env=dict(os.environ, **(env or {})), timeout=timeout)
    p.took = time.time() - began
    return p


class Recording:
    """What a file of OTLP holds."""

    def __init__(self, path):
        self.spans, self.captures = [], []
        with open(path) as f:
            for line in f:
                data = json.loads(line)
                for rs in data.get("resourceSpans", []):
                    resource = attributes(rs["resource"])
                    for ss in rs["scopeSpans"]:
                        for s in ss.get("spans", []):
                            s["resource"], s["a"] = resource, attributes(s)
                            self.spans.append(s)
                for rl in data.get("resourceLogs", []):
                    for sl in rl["scopeLogs"]:
                        for r in sl.get("logRecords", []):
                            if r.get("eventName") == "cuda.capture":
                                self.captures.append(attributes(r))

    def of(self, operation):
        return [s for s in self.spans if s["a"].get("cuda.operation") == operation]

    def kernels(self):
        return sum(int(c.get("cuda.capture.kernels", 0)) for c in self.captures)

    def sessions(self):
        return {s["resource"]["service.instance.id"] for s in self.of("session") if "service.instance.id" in s["resource"]}


def attributes(of):
    out = {}
    for a in of.get("attributes", []):
        v = a["value"]
        out[a["key"]] = next(iter(v.values())) if v else None
    return out


class Test:
    def __init__(self, args):
        self.gpuflight = os.path.join(args.bin, "gpuflight")
        self.out = args.out or tempfile.mkdtemp(prefix="gpuflight-inject-")
        self.note = ""

    def traced(self, name, command, flags=(), env=None):
        path = os.path.join(self.out, name + ".otlp.jsonl")
        p = run([self.gpuflight, "trace", "--force", "--output", path, *flags, "--", *command], env)
        return p, path

    def same(self, name, command, sessions=1, flags=(), spans=True, more=False, code=0):
        """Runs a command both ways and returns the recording, after what holds for all."""
        bare = run(command)
        check(bare.returncode == code, f"the command itself ends with {bare.returncode}\n{bare.stderr[-3000:]}")
        p, path = self.traced(name, command, flags)
        check(p.returncode == bare.returncode, f"exit code {p.returncode}, without tracing {bare.returncode}\n{p.stderr[-3000:]}")
        check(p.stdout == bare.stdout, f"stdout differs:\n{p.stdout[-500:]}\nwithout tracing:\n{bare.stdout[-500:]}")
        r = Recording(path)
        if spans:
            check(r.kernels() > 0, f"no kernels were recorded\n{p.stderr[-3000:]}")
            found = len(r.sessions())
            check(found == sessions or more and found > sessions, f"{found} sessions, expected {sessions}\n{p.stderr[-3000:]}")
            check(len(r.captures) == found, f"{len(r.captures)} captures of {found} sessions")
            dropped = sum(int(c.get("cuda.capture.records.dropped", 0)) for c in r.captures)
            rejected = sum(int(c.get("cuda.capture.records.rejected", 0)) for c in r.captures)
            check(dropped == 0 and rejected == 0, f"{dropped} dropped, {rejected} rejected")
            command_span = [s for s in r.of("session") if "service.instance.id" not in s["resource"]]
            check(len(command_span) == 1, f"{len(command_span)} spans of the command")
            # Further parts of a session, and what goes on in them, have traces of their own.
            traces = {s["traceId"] for s in r.of("session") if "cuda.scope.part" not in s["a"]}
            check(traces == {command_span[0]["traceId"]}, f"sessions are in {len(traces)} traces")
        self.note = f"{bare.took:.1f}s without, {p.took:.1f}s with, {len(r.spans)} spans, {r.kernels()} kernels"
        return r, p, bare

    # The cases.

    def doctor(self):
        p = run([self.gpuflight, "doctor"], {"GPUFLIGHT_OUTPUT": os.path.join(self.out, "doctor.jsonl")})
        check(p.returncode == 0, p.stdout + p.stderr)
        self.note = p.stdout.splitlines()[1].strip()

    def training(self):
        r, p, _ = self.same("training", [sys.executable, TRAIN, "--steps", "30", "--workers", "0", "--quiet"])
        scopes = [s for s in r.of("scope") if "cuda.scope.part" not in s["a"]]
        names = {s["name"] for s in scopes}
        check({"step", "load", "forward", "backward", "optimizer"} <= names, f"scopes: {sorted(names)[:20]}")
        steps = sum(s["name"] == "step" for s in scopes)
        check(steps == 30, f"{steps} steps, not 30")
        ids = {s["spanId"]: s["name"] for s in r.of("scope")}
        inside = sum(ids.get(k.get("parentSpanId")) == "forward" for k in r.of("kernel"))
        check(inside > 100, f"{inside} kernels are children of forward")
        # PyTorch launches the backward pass on a thread of its own.
        inferred = sum(ids.get(k.get("parentSpanId")) == "backward" and "cuda.scope.inferred" in k["a"] for k in r.of("kernel"))
        check(inferred > 100, f"{inferred} kernels of another thread are children of backward")
        check(any(s["a"].get("cuda.memcpy.kind") == "HtoD" for s in r.of("memcpy")), "no copies to the device")
        check(re.search(r"\(all\)", p.stderr), "no table:\n" + p.stderr)

    def workers(self):
        self.same("workers", [sys.executable, TRAIN, "--steps", "20", "--workers", "4", "--quiet"])

    def triton(self):
        r, _, _ = self.same("triton", [sys.executable, TRAIN, "--steps", "10", "--workers", "2", "--compile", "--quiet"],
                            more=True)  # the processes that compile ask the driver, too
        check(any("triton" in s["name"] for s in r.of("kernel")), "no kernel of Triton's")

    def graphed(self):
        r, _, _ = self.same("graphed", [sys.executable, TRAIN, "--steps", "20", "--workers", "2", "--graphs", "--quiet"])
        check(len(r.of("graph")) >= 40, f"{len(r.of('graph'))} launches of graphs, at least 40 expected")

    def graph_nodes(self):
        r, _, _ = self.same("graph_nodes", [sys.executable, "-c", GRAPH], flags=["--graph-nodes"])
        check(r.kernels() >= 400, f"{r.kernels()} kernels, at least 400 are in the graphs")
        r, _, _ = self.same("graph_whole", [sys.executable, "-c", GRAPH])
        check(len(r.of("graph")) == 50, f"{len(r.of('graph'))} launches of graphs, 50 expected")

    def peer(self):
        r, p, _ = self.same("peer", [sys.executable, "-c", PEER], spans=False)
        if "one device" in p.stdout:
            self.note = "left out: one device"
            return
        copies = [s["a"] for s in r.of("memcpy") if s["a"].get("cuda.memcpy.kind") == "PtoP"]
        sizes = {int(a["cuda.memcpy.size"]) for a in copies}
        check(len(copies) == 60 and sizes == {4 << 20}, f"{len(copies)} copies between devices of {sizes} bytes, 60 of 4 MiB expected")
        check(len({a.get("hw.id") for a in copies}) >= 1, "copies without a device")
        devices = {a.get("cuda.device.index") for k in r.of("kernel") for a in [k["a"]]}
        check({"0", "1"} <= devices, f"kernels on devices {devices}")
        self.note += f", {len(copies)} copies between devices"

    def spawn(self):
        path = os.path.join(self.out, "spawn.py")
        with open(path, "w") as f:
            f.write(SPAWN)
        r, _, _ = self.same("spawn", [sys.executable, path], sessions=4)
        check(r.kernels() >= 1000, f"{r.kernels()} kernels, at least 1000 were launched")

    def four(self):
        self.same("four", [sys.executable, "-c", RUN], sessions=4)

    def exact(self):
        r, _, _ = self.same("exact", [sys.executable, "-c", LOOP], flags=["--max-spans", "1000"], code=3)
        mul = [int(c["cuda.capture.spans.emitted"]) + int(c["cuda.capture.spans.left_out"]) for c in r.captures]
        check(mul[0] >= 20000, f"spans and what was left out are {mul[0]}")

    def segv(self):
        bare = run([sys.executable, "-c", SEGV])
        p, _ = self.traced("segv", [sys.executable, "-c", SEGV])
        check(bare.returncode == -signal.SIGSEGV and p.returncode == bare.returncode, f"{p.returncode}, {bare.returncode}")
        check(p.stdout == bare.stdout, "stdout differs")

    def term(self):
        bare = run([sys.executable, "-c", TERM])
        p, path = self.traced("term", [sys.executable, "-c", TERM])
        check(bare.returncode == -signal.SIGTERM and p.returncode == bare.returncode, f"{p.returncode}, {bare.returncode}")
        check(len(Recording(path).of("kernel")) > 0, "what ran before the end is lost")

    def interrupt(self):
        self.same("interrupt", [sys.executable, "-c", INTERRUPT])

    def alarms(self):
        self.same("alarms", [sys.executable, "-c", ALARMS])

    def unreachable(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(16)
            for endpoint in ("http://127.0.0.1:9", f"http://127.0.0.1:{silent.getsockname()[1]}"):
                for protocol in ("http/protobuf", "grpc"):
                    bare = run([sys.executable, "-c", LOOP])
                    p = run([self.gpuflight, "trace", "--quiet", "--endpoint", endpoint, "--protocol", protocol, "--", sys.executable, "-c", LOOP])
                    check(p.returncode == bare.returncode == 3, f"{p.returncode}, {bare.returncode}")
                    lines = p.stderr.splitlines()
                    check(len(lines) == 1 and "could not be sent" in lines[0], f"{endpoint} {protocol}: {lines}")
                    # Two seconds for what starts of CUDA and CUPTI vary by.
                    check(p.took - bare.took < 7, f"{endpoint} {protocol}: {p.took:.1f}s, without tracing {bare.took:.1f}s")
                    self.note = f"{p.took - bare.took:+.1f}s"


CASES = ["doctor", "training", "workers", "triton", "graphed", "graph_nodes", "peer", "spawn", "four", "exact",
         "segv", "term", "interrupt", "alarms", "unreachable"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bin", default=os.path.join(ROOT, "bin"), help="folder with gpuflight and libgpuflight.so")
    p.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    p.add_argument("--out", help="folder for the recordings")
    args = p.parse_args()
    args.bin = os.path.abspath(args.bin)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
    failed = 0
    test = Test(args)
    for name in args.only.split(","):
        test.note = ""
        began = time.time()
        try:
            getattr(test, name)()
            print(f"PASS {name} ({time.time() - began:.1f}s) {test.note}", flush=True)
        except (Failure, subprocess.TimeoutExpired, OSError, KeyError, ValueError) as e:
            failed += 1
            print(f"FAIL {name} ({time.time() - began:.1f}s): {e}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
