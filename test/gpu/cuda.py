#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cuda receiver against a program of known composition and against CUPTI, on a real GPU, as root.

    sudo python3 test/gpu/cuda.py --bin bin [--only agent,both,attach] [--out FOLDER]

Runs test/gpu/cuda/composition.py (PyTorch) three times, phase by phase:

    agent   under the agent alone: what it counts in each phase is what the phase did, and nothing else
    both    under the agent and `gpuflight trace` at once: kernels by name, copies, sets and kernels in graphs are the same in both
    attach  the agent comes when the program has run for a while: counts are exact from then on, names that were
            asked for before are unknown and say so

Prints a line for each check that fails and the table of the second run; exits with 0 if none failed.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAM = os.path.join(HERE, "cuda", "composition.py")
sys.path.insert(0, os.path.join(HERE, "cuda"))
from agent import Agent, attributes, change  # noqa: E402

PHASES = ["add", "matmul", "convolution", "flash", "cudnn_attention", "triton", "triton_late", "capture", "replay",
          "to_device_pinned", "to_device", "to_host", "on_device", "memory", "sets", "events", "items", "synchronise", "fail"]
SAYS = {
    "add": "200 element-wise additions", "matmul": "200 products in bf16 (cuBLASLt)", "convolution": "100 conv2d (cuDNN)",
    "flash": "100 × flash attention", "cudnn_attention": "100 × attention of cuDNN", "triton": "200 × a Triton kernel",
    "triton_late": "50 × another, compiled in the phase", "capture": "capture of 10 additions", "replay": "100 replays of that graph",
    "to_device_pinned": "100 × 1 MiB to the device, pinned", "to_device": "100 × 1 MiB to the device, pageable",
    "to_host": "100 × 1 MiB to the host, pageable", "on_device": "100 × 1 MiB on the device",
    "memory": "50 × 32 MiB allocated and released", "sets": "100 sets of 1 MiB, 10 of 4 KiB", "events": "50 events awaited",
    "items": "50 `.item()`", "synchronise": "50 waits for a stream, 20 for the device", "fail": "3 allocations of 1 PiB",
}

failures = 0


def check(ok, text):
    global failures
    if not ok:
        failures += 1
        print("FAIL " + text, flush=True)


def total(values):
    return sum(values.values())


class Counted:
    """What the agent counted in one phase, in the words of composition.py."""

    def __init__(self, values):
        self.launches, self.captured, self.blocks = collections.Counter(), collections.Counter(), 0.0
        self.did, self.errors, self.synchronous = collections.Counter(), collections.Counter(), 0
        for (metric, labels), v in values.items():
            a = dict(labels)
            name, kind = a.get("cuda.kernel.name"), a.get("cuda.memcpy.kind", "unknown kind")
            match metric.removeprefix("gpu.cuda."):
                case "kernel.launch.calls":
                    self.launches[name] += v
                case "kernel.captured.launches":
                    self.captured[name] += v
                case "kernel.grid.size":
                    self.blocks += v["sum"]
                case "graph.launch.calls":
                    self.did["graphs"] += v
                case "graph.node.launches":
                    self.did["nodes"] += v
                case "graph.unknown.launches":
                    self.did["unknown graphs"] += v
                case "memory.copies":
                    self.did[kind] += v["count"]
                    self.did[kind + " bytes"] += int(v["sum"])
                    self.synchronous += not a["cuda.memcpy.async"] and v["count"]
                case "memory.copy.timed.bytes":
                    self.did[kind + " timed"] += v
                case "memset.calls":
                    self.did["sets"] += v
                case "memset.bytes":
                    self.did["set bytes"] += v
                case "memory.allocation.calls":
                    self.did["allocations"] += v
                case "memory.allocations":
                    self.did["allocated bytes"] += v
                case "memory.free.calls":
                    self.did["frees"] += v
                case "memory.free.bytes":
                    self.did["freed bytes"] += v
                case "sync.wait.duration":
                    self.did[re.sub(r"_(v2|ptsz|v2_ptsz)$", "", a["cuda.api.name"])] += v["count"]
                case "errors":
                    self.errors[a["error.type"], a.get("cuda.api.name")] += v


# What a phase does not mention it must not have done.
EXACT = ["graphs", "nodes", "unknown graphs", "sets", "allocations", "allocated bytes", "frees", "freed bytes",
         "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize",
         *(k + s for k in ("HtoD", "DtoH", "DtoD", "HtoH", "PtoP", "unknown kind") for s in ("", " bytes", " timed"))]


def compare(run, phase, did, counted, named=True):
    """The agent's counts against what the program did."""
    where = f"{run}: {phase}: "
    for what in EXACT:
        check(counted.did[what] == did.get(what, 0), f"{where}{what}: {counted.did[what]} counted, {did.get(what, 0)} done")
    if "set bytes" in did:
        check(counted.did["set bytes"] == did["set bytes"], f"{where}{counted.did['set bytes']} bytes set, {did['set bytes']} done")
    check(total(counted.captured) == did.get("captured", 0), f"{where}captured: {dict(counted.captured)}, {did.get('captured', 0)} done")
    check(counted.synchronous == 0, f"{where}{counted.synchronous} synchronous copies, PyTorch makes none")
    errors = {("out_of_memory", "cuMemAlloc_v2"): did["out_of_memory"]} if "out_of_memory" in did else {}
    check(dict(counted.errors) == errors, f"{where}errors {dict(counted.errors)}, expected {errors}")
    launches = counted.launches
    if "launches of each" in did:
        n = did["launches of each"]
        check(launches and all(v % n == 0 for v in launches.values()), f"{where}{dict(launches)} are not {n} each")
    else:
        check(total(launches) == did.get("launches", 0), f"{where}{dict(launches)}, {did.get('launches', 0)} launches done")
        check(len(launches) == did.get("kernels", 0), f"{where}{len(launches)} kernels: {sorted(launches)}, {did.get('kernels', 0)} used")
    if "blocks" in did:
        check(counted.blocks == did["blocks"], f"{where}{counted.blocks} blocks, {did['blocks']} launched")
    if "name" in did:
        pattern = did["name"] if named else "^unknown@0x"
        wrong = [n for n in launches if not re.search(pattern, n)]
        # cuDNN brings helpers besides.
        check(len(wrong) < len(launches) if "launches of each" in did and named else not wrong,
              f"{where}kernels {wrong} do not match {pattern}")


class Program:
    """The running program."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
        ready = self.answer()
        self.pid, self.torch = ready["pid"], ready["torch"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the program ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, phase):
        self.process.stdin.write(phase + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        check(self.process.wait(60) == 0, f"the program ended with {self.process.returncode}")


class Recorded:
    """What CUPTI recorded within the time of one phase."""

    def __init__(self, spans, began, ended):
        self.launches, self.did, self.waits = collections.Counter(), collections.Counter(), collections.Counter()
        slack = 50_000_000  # the device's clock against the host's; phases are farther apart
        for s in spans:
            if not began - slack <= int(s["startTimeUnixNano"]) <= ended + slack:
                continue
            a = s["a"]
            match a.get("cuda.operation"):
                case "kernel":
                    self.launches[a["cuda.kernel.name"]] += 1
                case "memcpy":
                    self.did[a["cuda.memcpy.kind"]] += 1
                    self.did[a["cuda.memcpy.kind"] + " bytes"] += int(a["cuda.memcpy.size"])
                case "memset":
                    self.did["sets"] += 1
                    self.did["set bytes"] += int(a["cuda.memset.size"])


def read_spans(path):
    spans, dropped = [], 0
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
                    for r in sl.get("logRecords", []):
                        a = attributes(r)
                        dropped += int(a.get("cuda.capture.records.dropped", 0)) + int(a.get("cuda.capture.spans.left_out", 0))
    return spans, dropped


def equal_to_cupti(phase, counted, recorded):
    where = f"both: {phase}: "
    if phase == "replay":  # the kernels of graphs; the agent knows how many, CUPTI which
        check(counted.did["nodes"] == total(recorded.launches), f"{where}{counted.did['nodes']} kernels in graphs, CUPTI {dict(recorded.launches)}")
    else:
        check(counted.launches == recorded.launches, f"{where}{dict(counted.launches)}, CUPTI {dict(recorded.launches)}")
    for what in ("HtoD", "DtoH", "DtoD", "sets"):
        check(counted.did[what] == recorded.did[what], f"{where}{what}: {counted.did[what]}, CUPTI {recorded.did[what]}")
        size = "set bytes" if what == "sets" else what + " bytes"
        check(counted.did[size] == recorded.did[size], f"{where}{size}: {counted.did[size]}, CUPTI {recorded.did[size]}")


def short(name):
    name = re.sub(r"^void ", "", name)
    return "`" + (name if len(name) <= 60 else name[:40] + "…" + name[-19:]) + "`"


def cell(launches, did):
    parts = [f"{n} × {short(k)}" for k, n in launches.most_common(3)]
    if len(launches) > 3:
        parts.append(f"{total(launches) - sum(n for _, n in launches.most_common(3))} of {len(launches) - 3} others")
    order = [k for k in did if did[k] and not k.endswith((" bytes", " timed")) and k != "cuCtxSynchronize"]
    for k in order:
        size = {"sets": "set bytes", "allocations": "allocated bytes", "frees": "freed bytes"}.get(k, k + " bytes")
        parts.append(f"{did[k]} {k}" + (f", {did[size]:,} B" if did.get(size) else ""))
    return "; ".join(parts) or "–"


def phases(run, program, agent, names, expected=None, late=()):
    """Runs phases, checks the counts of each and yields them."""
    before = agent.collected(program.pid)
    for phase in names:
        done = program.run(phase)
        after = agent.collected(program.pid)
        counted = Counted(change(before, after))
        before = after
        compare(run, phase, (expected or {}).get(phase) or done["did"], counted, named=phase not in late)
        yield done, counted
    check(agent.lost() == {}, f"{run}: lost: {agent.lost()}")


def alone(args):
    with Agent(args.collector, os.path.join(args.out, "agent")) as agent:
        program = Program([sys.executable, PROGRAM])
        count = sum(1 for _ in phases("agent", program, agent, PHASES))
        program.end()
        print(f"agent: {count} phases, PyTorch {program.torch}; the agent holds {agent.resident() >> 20} MiB, "
              f"took {agent.cpu():.2f} s of processor time", flush=True)


def both(args):
    recording = os.path.join(args.out, "cupti.otlp.jsonl")
    with Agent(args.collector, os.path.join(args.out, "both")) as agent:
        program = Program([os.path.join(args.bin, "gpuflight"), "trace", "--quiet", "--graph-nodes", "--max-spans", "1000000",
                           "--output", recording, "--", sys.executable, PROGRAM])
        seen = list(phases("both", program, agent, PHASES))
        program.end()
    spans, dropped = read_spans(recording)
    check(dropped == 0, f"both: CUPTI dropped or left out {dropped}")
    print("\n| The program did | The agent counted | CUPTI recorded |\n|---|---|---|")
    for done, counted in seen:
        recorded = Recorded(spans, done["began"], done["ended"])
        equal_to_cupti(done["phase"], counted, recorded)
        did = counted.did
        if counted.captured:
            did["captured"] = total(counted.captured)
        for (error, function), n in counted.errors.items():
            did[f"{error} of {function}"] = n
        print(f"| {SAYS[done['phase']]} | {cell(counted.launches, did)} | {cell(recorded.launches, recorded.did)} |")
    print("", flush=True)


def attach(args):
    """The agent comes late."""
    program = Program([sys.executable, PROGRAM])
    for phase in ("add", "replay", "triton"):
        program.run(phase)
    with Agent(args.collector, os.path.join(args.out, "attach")) as agent:
        program.run("add")  # something, so that there is a first value
        unknown = {"replay": {"graphs": 100, "unknown graphs": 100, "cuCtxSynchronize": 1}}
        names = ["add", "matmul", "triton", "to_device", "to_host", "memory", "sets", "replay"]
        for done, counted in phases("attach", program, agent, names, unknown, late=("add", "matmul", "triton")):
            print(f"attach: {SAYS[done['phase']]}: {cell(counted.launches, counted.did)}")
        # What is asked for, or captured, from now on is known.
        for done, counted in phases("attach, later", program, agent, ["triton_late", "capture", "replay"], late=("capture",)):
            print(f"attach: {SAYS[done['phase']]}: {cell(counted.launches, counted.did)}")
    program.end()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bin", default=os.path.join(ROOT, "bin"), help="folder with otelcol-gpuflight, gpuflight and libgpuflight.so")
    p.add_argument("--only", default="agent,both,attach", help="runs, separated by commas")
    p.add_argument("--out", help="folder for what is recorded")
    args = p.parse_args()
    args.bin = os.path.abspath(args.bin)
    args.collector = os.path.join(args.bin, "otelcol-gpuflight")
    args.out = args.out or tempfile.mkdtemp(prefix="gpuflight-cuda-")
    runs = {"agent": alone, "both": both, "attach": attach}
    for name in args.only.split(","):
        failed = failures
        try:
            runs[name](args)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as e:
            check(False, f"{name}: {e}")
        print(f"{'PASS' if failures == failed else 'FAIL'} {name}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
