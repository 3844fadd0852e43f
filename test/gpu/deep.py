#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deep windows on a real GPU: the engines name the right reason and line, and leave the program as it was.

    scripts/cuda-tools .tools/cuda-tools        # or any toolkit's nvcc
    test/gpu/build bin
    python3 test/gpu/deep.py --bin bin [--only slow,windows,endure,status,profilers] [--keep FOLDER]
    python3 test/gpu/deep.py --bin bin --dry        # without a GPU: are the checks themselves right?

    slow     each kernel of examples/slow under the engine that must explain it: the reason or line that its code
             implies comes first, lanes and sectors a request are within 2 % of the analytic value (1 minute)
    again    short windows over one of these kernels, --trainings programs side by side for --seconds, only when it is named: has each its kernel?
    windows  200 windows in a row on a PyTorch training, engines in turn: no hang, every cycle of the training ends with
             the loss of the first, memory does not grow but by what is said to be kept, the step afterwards takes what it took
             before (4 minutes). The step is that of the training against one without us that has run as long, in turn. --planned has
             launches watched from the start, as where a schedule opens windows; --engines pc tells whose memory it is, and
             --windows 0 how far the step can be believed, --set what a setting has to do with it
    endure   windows in --trainings trainings side by side on one GPU for --seconds, only when it is named: does one hang or crash? --windows 0
             has none, and tells what recording has to do with it; --guard tells who spoils the heap
    status   a window while another process has one, without permission, while a graph is captured, at the end of the
             process, for a process that is none: one clear answer each, and no effect on the program (2 minutes)
    profilers  a window while torch.profiler is on in the same process, while ncu has the counters in another, and a
             traced program under ncu: collected, or one answer that names the other; neither program is changed (4 minutes). nsight is that
             with ncu alone

Prints a line for each check, PASS or FAIL with figures, and a table at the end; the status is 1 when one failed.
With --keep the recordings stay in that folder, and what CUPTI returned, for tests without a GPU.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import places
import where
from budget import exports, points

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KERNELS = os.path.join(ROOT, "examples", "slow", "kernels.cu")
TRAINING = os.path.join(HERE, "deep", "training.py")

# What the code of each kernel implies (kernels.cu derives it): the engine that shows it, and
# reason:  the stall reason that comes first among those of warps that wait; share: its least share of all samples
# lanes:   active lanes of the marked line, which is the first of the divergent ones
# sectors: sectors a request of the marked line, and ideal; the first of the uncoalesced ones if they differ
# top:     the marked line is the one with most samples
EXPECTED = {
    "chase": {"engine": "pc", "reason": "long_scoreboard", "share": 0.5, "top": True},
    "barrier": {"engine": "pc", "reason": "barrier", "share": 0.5},
    "compute": {"engine": "pc", "reason": "math_pipe_throttle", "top": True},
    "divergent": {"engine": "sass", "lanes": 1.0},
    "strided": {"engine": "sass", "sectors": 32.0, "ideal": 4.0},
    "coalesced": {"engine": "sass", "sectors": 4.0, "ideal": 4.0},
}
# Samples of these are no waiting.
NO_WAIT = ("selected", "not_selected")
NEAR = 0.02

results = []  # (passed, text)
table = []


def check(good, what, *figures):
    line = " ".join(str(x) for x in ("PASS" if good else "FAIL", what, *figures))[:1000]
    print(line, flush=True)
    results.append((bool(good), line))
    return good


def near(got, want, what):
    return check(got is not None and abs(got - want) <= NEAR * want, what, f"{got}, analytic {want}")


def note(text):
    print("    ", text, flush=True)


def marked(path=KERNELS):
    """The source lines of each name that kernels.cu marks."""
    lines = {}
    with open(path) as f:
        for number, text in enumerate(f, 1):
            if m := re.search(r"// line: (\w+)\s*$", text):
                lines.setdefault(m.group(1), set()).add(number)
    return lines


def run(command, timeout=300, **settings):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GPUFLIGHT_DEEP", "GPUFLIGHT_OUTPUT")) and k != "TRACEPARENT"}
    began = time.monotonic()
    p = subprocess.run(command, env=env | settings, capture_output=True, text=True, errors="replace", timeout=timeout)
    p.took = time.monotonic() - began
    return p


class Gpufl:
    def __init__(self, args, work):
        self.path = os.path.join(args.bin, "gpuflight")
        self.bin, self.work, self.keep, self.windows = args.bin, work, args.keep, args.windows
        self.more = dict(x.split("=", 1) for x in args.set)
        self.engines, self.planned, self.rounds, self.rest = args.engines.split(","), args.planned, args.rounds, args.rest
        self.take, self.trainings, self.seconds, self.apart = args.take, args.trainings, args.seconds, args.apart
        self.where = os.path.join(args.bin, "where") if args.where else None
        self.guard = args.guard

    def settings(self, name):
        """What keeps the engines' data, if it shall be kept: a folder for each run."""
        if not self.keep:
            return {}
        folder = os.path.join(self.keep, "engines", name)
        os.makedirs(folder, exist_ok=True)
        return {"GPUFLIGHT_DEEP_DUMP": folder}

    def trace(self, name, flags, command):
        output = os.path.join(self.work, name + ".otlp.jsonl")
        return output, [self.path, "trace", "--output", output, *flags, "--", *command]

    def report(self, output):
        p = run([self.path, "report", "--json", "--functions", "0", "--lines", "0", output])
        if p.returncode != 0:
            note(p.stderr.strip()[-500:])
            return None
        return json.loads(p.stdout)

    def deep(self, pid, engine, length, timeout=60):
        """Asks for a window. status is the one word of what came of it, text the sentence."""
        p = run([self.path, "deep", str(pid), "--for", length, "--engine", engine, "--json"], timeout=timeout)
        p.status, p.text, p.patched, p.kept = "refused", p.stderr.strip(), 0, 0
        if p.stdout.strip():
            window = json.loads(p.stdout)
            p.status, p.text = window["outcome"]["status"], window["outcome"]["text"]
            p.patched, p.kept = window.get("collected", {}).get("patched", 0), window.get("kept_bytes", 0)
        return p


# ---- slow ----

def here(line, name, lines):
    """Whether a line of the report is one that kernels.cu marks."""
    return os.path.basename(line.get("file", "")) == "kernels.cu" and line.get("line") in lines[name]


def place(line):
    if "line" in line:
        return f"{os.path.basename(line.get('file', '?'))}:{line['line']}"
    return f"+{line.get('pc', 0):#x}"


def judge(name, report, lines):
    """Holds what a report says of a kernel against what its code implies."""
    want = EXPECTED[name]
    functions = [f for f in (report or {}).get("inside", {}).get("by_function", []) if f["name"].split("(")[0] == name]
    if not check(len(functions) == 1, f"{name}: the report has the function", f"{len(functions)} times"):
        return
    f = functions[0]
    reasons = f.get("reasons", [])
    if "reason" in want:
        waits = [r for r in reasons if r["name"] not in NO_WAIT]
        first = waits[0] if waits else {"name": "none", "share": 0}
        check(first["name"] == want["reason"], f"{name}: warps wait for {want['reason']} first", ", ".join(f"{r['name']} {100 * r['share']:.1f}%" for r in reasons[:4]))
        if "share" in want:
            check(first["share"] >= want["share"], f"{name}: that is most samples", f"{100 * first['share']:.1f}% of {f['samples']}")
    top = (f.get("lines") or [{}])[0]
    if want.get("top"):
        check(here(top, name, lines), f"{name}: the line with most samples", place(top), top.get("sass", "without SASS"))
    if "lanes" in want:
        worst = (f.get("divergent") or [{}])[0]
        check(here(worst, name, lines), f"{name}: the first divergent line", place(worst), worst.get("sass", "without SASS"))
        near(worst.get("lanes"), want["lanes"], f"{name}: active lanes of it")
    if "sectors" in want:
        own = f
        if want["sectors"] > want["ideal"]:
            own = (f.get("uncoalesced") or [{}])[0]
            check(here(own, name, lines), f"{name}: the first uncoalesced line", place(own), own.get("sass", "without SASS"))
        else:
            check(not f.get("uncoalesced"), f"{name}: no line is uncoalesced", len(f.get("uncoalesced") or []))
        near(own.get("sectors_per_request"), want["sectors"], f"{name}: sectors a request")
        near(own.get("ideal_sectors_per_request"), want["ideal"], f"{name}: ideal")
    table.append((name, want["engine"], f["samples"], reasons[0]["name"] if reasons else "-", f.get("lanes"), f.get("sectors_per_request"), place(top) if reasons else "-"))


def slow(gpuflight):
    program, lines = os.path.join(gpuflight.bin, "slow"), marked()
    for name, want in EXPECTED.items():
        label = f"slow-{name}"
        flags = ["--deep-after", "1s", "--deep-for", "2s", "--deep-engine", want["engine"]]
        output, command = gpuflight.trace(label, flags, [program, name, "6"])
        p = run(command, timeout=120, **gpuflight.settings(label), **gpuflight.more)
        said = json.loads(p.stdout) if p.stdout.strip().startswith("{") else {}
        if not check(p.returncode == 0 and said.get("right"), f"{name}: runs, and its results are right", p.returncode, p.stdout.strip()[:200]):
            note(p.stderr.strip()[-1000:])
            continue
        report = gpuflight.report(output)
        had = (report or {}).get("windows", {})
        losses = {k: v for k, v in had.items() if isinstance(v, (int, float)) and v and k not in ("collected", "samples", "rows", "paused_seconds")}
        check(had.get("collected") == 1, f"{name}: a window was collected; what it lost", had.get("samples"), "samples,", losses, *(w.get("message", "")[:300] for w in had.get("list", []) if w.get("status") != "collected"))
        judge(name, report, lines)


def side_by_side(lanes, deadline, one):
    """Calls one(lane, number) in so many lanes, in each with the numbers one after the other until time is up."""
    def all_of(lane):
        for number in itertools.count():
            if time.monotonic() > deadline:
                return
            one(lane, number)

    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        for running in [pool.submit(all_of, i) for i in range(lanes)]:
            running.result()


def again(gpuflight):
    """Short windows of the first engine over a kernel each, several programs side by side until time is up: has each what was launched in it?"""
    had, empty, engine = collections.Counter(), [], gpuflight.engines[0]
    names = [name for name, want in EXPECTED.items() if want["engine"] == engine]

    def one(lane, number):
        name = names[(lane + number) % len(names)]
        output, command = gpuflight.trace(f"again-{lane}-{number}", ["--deep-after", "400ms", "--deep-for", "300ms", "--deep-engine", engine],
                                      [os.path.join(gpuflight.bin, "slow"), name, "1.5"])
        p = run(command, timeout=120, **gpuflight.more)
        report = gpuflight.report(output) or {}
        windows = report.get("windows", {})
        functions = [f["name"] for f in report.get("inside", {}).get("by_function", [])]
        had[f"{name}: {windows.get('collected', 0)} collected, {len(functions)} functions"] += 1
        if windows.get("collected") != 1 or not any(f.startswith(name) for f in functions):
            empty.append(f"{name}: status {p.returncode}, {p.stdout.strip()[:150]} {json.dumps(windows)[:1200]} {p.stderr.strip()[-600:]}")
        os.remove(output)

    side_by_side(gpuflight.trainings, time.monotonic() + gpuflight.seconds, one)
    for text in empty[:5]:
        note(text)
    check(had and not empty, "again: each window has the kernel that was launched in it", dict(had))


# ---- a training that is told what to do ----

class Training:
    def __init__(self, command, **settings):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GPUFLIGHT_DEEP"))}
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env | settings)
        self.pid = self.process.pid  # until it says its own
        ready = self.answer(180)
        self.pid, self.steps = ready["pid"], ready["steps"]  # of a cycle

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self, timeout):
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise TimeoutError(f"the training did not answer in {timeout} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the training ended: " + self.said()[-1000:])
        return json.loads(line)

    def ask(self, line, timeout=180):
        self.send(line)
        return self.answer(timeout)

    def resident_mib(self):
        with open(f"/proc/{self.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self, timeout=60):
        self.process.stdin.close()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        """Ends the training and, where there is one, the gpuflight around it: both are of this script."""
        for pid in {self.pid, self.process.pid}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def stacks(pid):
    """Notes where the threads of a process that hangs are, those that wait in CUPTI or in the driver first."""
    symbols = where.Symbols()
    found = sorted(where.stacks(pid), key=lambda x: (not any("crash.so" in file for file, _ in x[2]), not any("libcu" in file for file, _ in x[2])))
    for who, state, frames in found[:24]:
        note(f"{who} {state}: " + " < ".join(f"{os.path.basename(file)}:{symbols.name(file, offset)}+{offset:x}" for file, offset in frames[:40]))


def state(pid):
    """In a word, as the kernel has it."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return next(line.split(None, 1)[1].strip() for line in f if line.startswith("State:"))
    except OSError:
        return "gone"


# No limit is in the way of one window after the other, and none opens by itself.
ON_DEMAND = ["--deep-max", "0", "--deep-cooldown", "0s", "--deep-blackout", "0s", "--deep-per-hour", "10000", "--deep-share", "100%", "--deep-memory", "0"]


def counted():
    """A time by which all that was launched before is in an export of metrics: they come every 3 s."""
    time.sleep(4)
    return time.time_ns()


def between(sums, begin, end):
    known = [max((n for at, n in sums if at <= limit), default=0) for limit in (begin, end)]
    return known[1] - known[0]


class DeviceMemory:
    """What NVML says is in use of the first GPU that the training sees."""

    def __init__(self):
        self.nvml, self.handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(self.handle)):
            raise RuntimeError("NVML does not know the GPU")

    def mib(self):
        total_free_used = (ctypes.c_ulonglong * 3)()
        if self.nvml.nvmlDeviceGetMemoryInfo(self.handle, total_free_used):
            raise RuntimeError("NVML does not say how much memory is in use")
        return total_free_used[2] / 2**20


def growth(levels):
    """How much levels rise from one to the next once the first few have settled, by engine: of (engine, level)."""
    rises = {}
    for (_, before), (engine, after) in list(itertools.pairwise(levels))[20:]:
        rises.setdefault(engine, []).append(after - before)
    return {engine: round(statistics.fmean(all), 2) for engine, all in rises.items()}


def in_turn(traced, bare, idle, rounds, program=None):
    """Cycles of the traced training and of two without us, a step each in turn and on the same processors: the machine has its moods,
    and all meet the same. Returns wrong losses, the median step of the first two, and the median ratios of the traced one and of the idle
    one to the bare one: what is compared, and how far such a comparison can be believed."""
    if not places.share(traced.pid, bare.pid, idle.pid):
        note("there are too few processors for all to have the same: the step cannot be believed")
    three = traced, bare, idle
    number = traced.steps * rounds
    so_far = [spent(t.pid) for t in three]
    steps = []
    with contextlib.ExitStack() as watched:
        watches = [watched.enter_context(where.Watch(program, t.pid)) for t in (traced, bare)] if program else []
        for i in range(number):
            answers = {}
            for k in range(3):
                t = three[(i + k) % 3]
                answers[t] = t.ask("step")
            steps.append([answers[t] for t in three])
    for t, name, before in zip(three, ("traced", "bare", "idle"), so_far):
        note(f"a step of the {name} one: {used(t.pid, before, number)}")
    ms = [[one["step_ms"] for one in step] for step in steps]
    return {
        "cycles": rounds, "wrong": sum(one[0]["wrong"] for one in steps), "loss": steps[0][0]["loss"],
        "step_ms": statistics.median(m[0] for m in ms), "bare_ms": statistics.median(m[1] for m in ms),
        "ratio": statistics.median(m[0] / m[1] for m in ms), "apart": statistics.median(m[2] / m[1] for m in ms),
        "steps": number, "spent": [w.spent for w in watches],
    }


def moved(before, after):
    """Notes where the time of a step goes that changed, of the traced training and of the one without us."""
    symbols = where.Symbols()
    for name, was, now in zip(("traced", "bare"), before["spent"], after["spent"]):
        for view in (where.by_file, lambda spent: where.by_function(spent, symbols)):
            note(f"what changed of the {name} one:")
            for line in where.differences(view(was), view(now), after["steps"])[:60]:
                note("  " + line)


def spent(pid):
    """What a process's threads have used so far, the main one, autograd's and all others: seconds of their own and of the kernel's, and
    page faults."""
    all = {}
    for (role, _), mine in places.spent(pid).items():
        role = role if role in ("main", "autograd") else "others"
        all[role] = tuple(map(sum, zip(mine, all.get(role, (0, 0, 0)))))
    return all


def used(pid, before, steps):
    """The same since then and by step, in words."""
    since = {role: [now - then for now, then in zip(all, before.get(role, (0, 0, 0)))] for role, all in spent(pid).items()}
    return ", ".join(f"{role} {own * 1e3 / steps:.2f} ms and {kernel * 1e3 / steps:.2f} in the kernel, {faults / steps:.1f} faults" for role, (own, kernel, faults) in sorted(since.items()))


def parts_of(pid):
    """MiB resident of a process, by what they are of: Go's heap, malloc's, other memory without a file, and each file."""
    parts, part = {}, ""
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            if m := re.match(r"([0-9a-f]+)-[0-9a-f]+ \S+ \S+ \S+ (\d+)\s*(.*)", line):
                address, inode, name = int(m.group(1), 16), m.group(2), m.group(3)
                # Go names what it maps, if the kernel can. A thread's arena of malloc begins at a multiple of 64 MiB.
                part = (os.path.basename(name) if inode != "0" else "go" if "Go:" in name else
                        "malloc" if name == "[heap]" or (not name and address % (64 << 20) == 0) else "other")
            elif line.startswith("Rss:"):
                parts[part] = parts.get(part, 0) + int(line.split()[1]) / 1024
    return parts


def grown(before, after):
    """The parts that grew by a MiB and more, to how much."""
    rises = sorted(((after[k] - before.get(k, 0), k) for k in after), reverse=True)
    return ", ".join(f"{k} by {rise:.0f} to {after[k]:.0f}" for rise, k in rises if rise >= 1) or "none"


def held(output):
    """What gpuflight.deep.heap said in an OTLP file, the most and the last: KiB."""
    said = [0] + [int(p["asInt"]) >> 10 for those in points(output, "gpuflight.deep.heap") for p in those]
    return max(said), said[-1]


def windows(gpuflight, length="100ms"):
    count, engines, memory = gpuflight.windows, itertools.cycle(gpuflight.engines), DeviceMemory()
    bare, idle = (Training([sys.executable, TRAINING]) for _ in range(2))
    reference = bare.ask("cycles 5")
    planned = ["--deep-after", "24h"] if gpuflight.planned else []
    output, command = gpuflight.trace("windows", ON_DEMAND + planned, [sys.executable, TRAINING])
    t = Training(command, GPUFLIGHT_DEEP="1", GPUFLIGHT_METRIC_INTERVAL="3s", **gpuflight.settings("windows"), **gpuflight.more)
    try:
        times = [counted()]
        pieces = [t.ask("pieces")["free"]]
        before = in_turn(t, bare, idle, gpuflight.rounds, gpuflight.where)
        times.append(counted())
        t.send("until")
        time.sleep(0 if count else gpuflight.rest)
        resident, device, codes, longest, patched, kept = [], [], {}, 0.0, 0, []
        for i, engine in zip(range(count), engines):
            p = gpuflight.deep(t.pid, engine, length)
            codes[p.returncode] = codes.get(p.returncode, 0) + 1
            longest = max(longest, p.took)
            if p.returncode != 0:
                note(f"window {i}: {p.returncode}: {p.status}: {p.text[:300]}")
                if p.returncode == 1:
                    raise RuntimeError(f"window {i} left an engine armed, or nobody knows")
            resident.append((engine, t.resident_mib()))
            device.append((engine, memory.mib()))
            kept.append(p.kept)
            patched += p.patched if i >= 20 else 0
            if i == 30:
                parts = parts_of(t.pid)
            elif i == count - 1 > 30:
                note(f"resident since window 31, in MiB: {grown(parts, parts_of(t.pid))}")
        during = t.ask("stop")
        bare.ask(f"cycles {during['cycles']}", 600)  # a training changes as it runs: this one has run as long
        times.append(counted())
        pieces.append(t.ask("pieces")["free"])
        after = in_turn(t, bare, idle, gpuflight.rounds, gpuflight.where)
        pieces.append(t.ask("pieces")["free"])
        times.append(counted())
        if gpuflight.take:
            pieces.append(t.ask("take " + os.path.join(gpuflight.bin, "sequence.so"))["free"])
            taken = in_turn(t, bare, idle, gpuflight.rounds, gpuflight.where)
        code = t.end()
    except (subprocess.TimeoutExpired, TimeoutError, RuntimeError) as e:
        check(False, "windows: nothing hangs", e)
        looked_at(t)
        for some in (t, bare, idle):
            some.kill()
        return
    bare.end()
    idle.end()
    check(codes == ({0: count} if count else {}), f"windows: {count} windows, engines in turn, were collected", codes, f"longest answer {longest:.2f} s")
    check(code == 0, "windows: the program ends by itself", code)
    wrong = before["wrong"] + during["wrong"] + after["wrong"]
    check(wrong == 0 and during["cycles"] > 0, "windows: every cycle ends with the loss of the first", f"{wrong} wrong of {before['cycles'] + during['cycles'] + after['cycles']}")
    check(before["loss"] == reference["loss"], "windows: which is that of the program without us", before["loss"], reference["loss"])
    if count >= 40:
        early, late = (statistics.median(mib for _, mib in some) for some in (resident[20:40], resident[-20:]))
        note(f"a window adds, in MiB: to the process {growth(resident)}, to the device {growth(device)}")
        check(late - early <= max(32, 0.02 * early), "windows: memory is flat", f"{early:.0f} MiB after 30 windows, {late:.0f} MiB after {count}")
        if "sass" in gpuflight.engines:
            # CUPTI keeps all code that it ever patched. What we say it keeps has to be what it keeps, or no limit holds.
            rise = (device[-1][1] - device[19][1]) * 2**20
            each = rise / 2**20 / sum(engine == "sass" for engine, _ in device[20:])
            said = kept[-1] - kept[19]
            check(0.8 <= rise / max(1, said) <= 1.25, "windows: the device's grows by what is said to be kept of sass",
                  f"{each:.2f} MiB a window of sass, {rise / max(1, patched):.0f} bytes an instruction, × {rise / max(1, said):.2f} of what is said, {kept[-1] / 2**20:.0f} MiB in all")
        if "pc" in gpuflight.engines:
            check(growth(device)["pc"] <= 0.1, "windows: and by nothing for pc", f"{growth(device)['pc']} MiB a window")
    sums = [(at, sum(by_name.values())) for at, by_name in exports(output)]
    kernels = between(sums, *times[:2]), between(sums, *times[2:])
    check(kernels[0] == kernels[1] > 0, "windows: as many kernels are recorded afterwards as before", *kernels)
    ratio = after["ratio"] / before["ratio"]
    most, last = held(output)
    note(f"free small pieces that threads held, by gpuflight.deep.heap: {most} KiB at most, {last} last")
    note(f"free in small pieces of malloc, by arena: before {pieces[0] or 'few'}; after the windows {pieces[1] or 'few'}; after all {pieces[2] or 'few'}")
    moved(before, after)
    if gpuflight.take:
        note(f"without these pieces ({pieces[3] or 'few'} are left) × {taken['ratio']:.3f}: × {taken['ratio'] / before['ratio']:.3f}")
        moved(after, taken)
    check(ratio <= 1 + NEAR, "windows: the step afterwards takes what it took before, each against the training without us",
          f"× {before['ratio']:.3f} and × {after['ratio']:.3f} of {before['bare_ms']:.3f} and {after['bare_ms']:.3f} ms: × {ratio:.3f}; one without us that was idle meanwhile × {before['apart']:.3f} and × {after['apart']:.3f}")
    table.append(("training", "untraced / before / during / after", *(f"{x['step_ms']:.3f} ms" for x in (reference, before, during, after)), f"longest step {during['longest_ms']:.0f} ms"))
    report = gpuflight.report(output)
    functions = (report or {}).get("inside", {}).get("by_function", [])
    brought = {"pc": any(f["samples"] for f in functions), "sass": any("lanes" in f or "times_ideal" in f for f in functions)}
    check(count == 0 or all(brought[e] for e in gpuflight.engines), "windows: each engine brought figures", f"{len(functions)} functions")


def endure(gpuflight):
    """Windows in several trainings side by side until time is up, to see whether one hangs. Each training ends after so many, and another begins."""
    deadline, count, done, wrong, said = time.monotonic() + gpuflight.seconds, gpuflight.windows, collections.Counter(), [], []

    def one(lane, number):
        planned = ["--deep-after", "24h"] if gpuflight.planned else []
        output, command = gpuflight.trace(f"endure-{lane}-{number}", ON_DEMAND + planned, [sys.executable, TRAINING])
        libraries = ["crash.so", "guard.so"] if gpuflight.guard else ["crash.so"]
        t = Training(command, GPUFLIGHT_DEEP="1", LD_PRELOAD=":".join(os.path.join(gpuflight.bin, name) for name in libraries), **gpuflight.more)
        try:
            t.ask("cycles 1")
            while count == 0 and time.monotonic() < deadline:
                done["cycles"] += t.ask("cycles 10")["cycles"]
                if "crash.so:" in t.said():
                    raise RuntimeError("it crashed")
            t.send("until")
            time.sleep(0.1)  # it reads a line at a time
            for engine in itertools.islice(itertools.cycle(gpuflight.engines), count):
                if time.monotonic() > deadline:
                    break
                time.sleep(random.uniform(0, 2 * gpuflight.apart))
                p = gpuflight.deep(t.pid, engine, "100ms")
                done[engine if p.returncode == 0 else f"{engine}: {p.status}"] += 1
                taken = engine == "pc" and gpuflight.trainings > 1 and refused_for(p, "another_profiler")  # by another of these trainings
                if not taken and (p.returncode != 0 or (engine == "sass" and p.patched == 0)):
                    said.append(f"training {lane}.{number}, window {sum(done.values())} of all: {p.returncode}, {p.patched} patched: {p.text[:300]}")
                if p.returncode == 1 or "crash.so:" in t.said():
                    raise RuntimeError("it crashed, an engine stays armed, or nobody knows")
            during = t.ask("stop")
            after = t.ask("cycles 2")
            wrong.append(during["wrong"] + after["wrong"])
            if (code := t.end()) != 0:
                said.append(f"training {lane}.{number} ended with {code}")
        except (subprocess.TimeoutExpired, TimeoutError, RuntimeError) as e:
            said.append(f"training {lane}.{number}, window {sum(done.values())} of all: {e}")
            looked_at(t)
            t.kill()
        finally:
            if os.path.exists(output):
                os.remove(output)  # it would fill the disk

    side_by_side(gpuflight.trainings, deadline, one)
    check(not said and sum(done.values()) > 0, f"endure: every window was collected, or refused while another had the counters, and nothing hangs, {gpuflight.trainings} trainings side by side",
          dict(done), *said)
    check(wrong and not any(wrong), "endure: every cycle ends with the loss of the first", f"{sum(wrong)} wrong in {len(wrong)} trainings")


# ---- status ----

def refused_for(p, *statuses):
    """Whether a window that cannot be has 3, the status that says why, and a sentence."""
    return p.returncode == 3 and p.status in statuses and len(p.text.splitlines()) == 1


def refused(p, what, *statuses):
    return check(refused_for(p, *statuses), what, p.returncode, p.status, p.text[:300])


def beside(p, what, training=None):
    """A window beside another profiler was collected, or has 3 and the status and sentence that say who is in the way."""
    if p.returncode == 0:
        good = check(p.status == "collected", what + " is collected", p.status, p.text[:300])
    else:
        good = refused(p, what + " is told why not", "another_profiler")
    if training and not good:
        looked_at(training)


def looked_at(training):
    """Notes what a training said, and where its threads are."""
    said = training.said()
    begin = min((at for at in map(said.find, ("guard.so:", "crash.so:")) if at >= 0), default=max(0, len(said) - 1500))
    note(f"process {training.pid} is {state(training.pid)}, and said: {said[begin:begin + 8000]}")
    try:
        stacks(training.pid)
    except OSError as e:
        note(f"its stacks: {e}")


def status(gpuflight):
    program = os.path.join(gpuflight.bin, "slow")
    _, command = gpuflight.trace("status", ON_DEMAND, [sys.executable, TRAINING])
    t = Training(command, GPUFLIGHT_DEEP="1")
    try:
        t.send("capture 10")
        time.sleep(2)  # in the middle of it
        refused(gpuflight.deep(t.pid, "pc", "200ms"), "status: while a graph is captured, pc", "capture_under_way")
        refused(gpuflight.deep(t.pid, "sass", "200ms"), "status: while a graph is captured, sass", "capture_under_way")
        check(t.answer(60).get("right"), "status: the capture is whole, and its replays right")
        p = gpuflight.deep(t.pid, "pc", "200ms")
        check(p.returncode == 0, "status: and afterwards there is a window", p.returncode, p.status, p.text[:200])

        # Two processes on one GPU: either both can, or the second is told why not.
        _, other = gpuflight.trace("status-other", ON_DEMAND, [sys.executable, TRAINING])
        u = Training(other, GPUFLIGHT_DEEP="1")
        t.send("until")
        first = subprocess.Popen([gpuflight.path, "deep", str(t.pid), "--for", "8s", "--engine", "pc"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(3)
        p = gpuflight.deep(u.pid, "pc", "200ms")
        beside(p, "status: a window while another process has one")
        first.communicate(timeout=60)
        check(first.returncode == 0, "status: the first has its window all the same", first.returncode)
        check(t.ask("stop")["wrong"] == 0 and u.ask("cycles 3")["wrong"] == 0, "status: neither program noticed")
        check(u.end() == 0, "status: the second ends by itself")
    finally:
        check(t.end() == 0, "status: the first ends by itself")

    bare = run([program, "compute", "2"], timeout=60)
    _, command = gpuflight.trace("status-exit", ["--deep-after", "1s", "--deep-for", "30s"], [program, "compute", "2"])
    p = run(command, timeout=120)
    check(p.returncode == bare.returncode == 0, "status: a window open at the end: the program ends as ever", p.returncode)
    check(p.took - bare.took < 20, "status: and soon", f"{p.took:.1f} s, without us {bare.took:.1f} s")

    p = run([gpuflight.path, "deep", "2147483647", "--for", "1s", "--engine", "pc"])
    check(p.returncode == 1 and len(p.stderr.strip().splitlines()) == 1, "status: a process that is none", p.returncode, p.stderr.strip()[:200])
    unprivileged(gpuflight, program)


def unprivileged(gpuflight, program):
    """Without permission for counters: as nobody, where the driver asks for an administrator."""
    try:
        with open("/proc/driver/nvidia/params") as f:
            restricted = "RmProfilingAdminOnly: 1" in f.read()
    except OSError:
        restricted = False
    if os.geteuid() != 0 or not restricted or not shutil.which("setpriv"):
        note("left out: without permission (needs root, setpriv, and a driver that restricts profiling); test/inject has it with a stand-in")
        return
    # nobody may read neither our folders nor write into them.
    folder = tempfile.mkdtemp(prefix="gpuflight-nobody-", dir="/tmp")
    for name in ("gpuflight", "libgpuflight.so", "slow"):
        shutil.copy(os.path.join(gpuflight.bin, name), folder)
    os.chmod(folder, 0o777)
    output = os.path.join(folder, "out.otlp.jsonl")
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    p = run([*nobody, os.path.join(folder, "gpuflight"), "trace", "--output", output, "--deep-after", "1s", "--deep-for", "1s", "--",
             os.path.join(folder, "slow"), "compute", "4"], timeout=120)
    check(p.returncode == 0, "status: without permission the program runs as ever", p.returncode, p.stdout.strip()[:200])
    text = p.stderr + (open(output).read() if os.path.exists(output) else "")
    check("no_permission" in text or "RestrictProfiling" in text, "status: without permission, and why", p.stderr.strip()[-300:])
    shutil.rmtree(folder)


# ---- profilers ----

def torch_profiler(gpuflight):
    """kineto subscribes to CUPTI and takes its activity buffers in the process that we record."""
    bare = Training([sys.executable, TRAINING])
    reference = bare.ask("cycles 3")
    bare.end()
    output, command = gpuflight.trace("torch-profiler", ON_DEMAND, [sys.executable, TRAINING])
    t = Training(command, GPUFLIGHT_DEEP="1")
    try:
        first = t.ask("cycles 3")
        t.send("profile")
        check(t.answer(120).get("profiling"), "profilers: torch.profiler is on")
        for engine in ("pc", "sass"):
            beside(gpuflight.deep(t.pid, engine, "500ms"), f"profilers: under torch.profiler, {engine}", t)
        during = t.ask("stop")
        note(f"torch.profiler had {during['kernels']} kernels of {during['cycles']} cycles")
        for engine in ("pc", "sass"):
            beside(gpuflight.deep(t.pid, engine, "500ms"), f"profilers: after torch.profiler, {engine}", t)
        last = t.ask("cycles 3")
        wrong = first["wrong"] + during["wrong"] + last["wrong"]
        check(wrong == 0 and during["cycles"] > 0 and last["loss"] == reference["loss"], "profilers: results are those without us and without it", last["loss"], reference["loss"])
        check(t.end() == 0, "profilers: the training ends by itself")
    except (subprocess.TimeoutExpired, TimeoutError, RuntimeError):
        t.kill()
        raise
    # What of the kernels is whose: either has them, and what the user is told of it.
    report = gpuflight.report(output) or {"kernels": [], "lost": {}}
    ours = sum(k["count"] for k in report["kernels"])
    note(f"we had {ours} kernels of {first['cycles'] + during['cycles'] + last['cycles']} cycles and the warm-up, lost {report['lost']}")
    table.append(("torch.profiler", f"{during['kernels']} kernels of {during['cycles']} cycles", f"ours {ours}"))
    for line in t.said().splitlines():
        if line.startswith("gpuflight"):
            note(line[:300])


def until_said(process, word, timeout):
    """What a process prints until the word, which must come within timeout seconds. Its output is a pipe of bytes."""
    said, end, pipe = b"", time.monotonic() + timeout, process.stdout.fileno()
    while word.encode() not in said:
        if not select.select([pipe], [], [], max(0, end - time.monotonic()))[0]:
            raise TimeoutError(f"no {word!r} in {timeout} s: {said[-500:]}")
        more = os.read(pipe, 1 << 16)
        if not more:
            raise RuntimeError(f"it ended before {word!r}: {said[-500:]}")
        said += more
    return said.decode(errors="replace")


def nsight(gpuflight):
    """ncu replays each kernel with the counters for itself."""
    ncu = shutil.which("ncu")
    if not ncu:
        note("left out: Nsight Compute (no ncu in PATH)")
        return
    program = os.path.join(gpuflight.bin, "slow")
    recording, command = gpuflight.trace("ncu-beside", ON_DEMAND, [sys.executable, TRAINING])
    t = Training(command, GPUFLIGHT_DEEP="1", GPUFLIGHT_METRIC_INTERVAL="3s", LD_PRELOAD=os.path.join(gpuflight.bin, "crash.so"))
    other = None
    try:
        times = [counted()]
        t.ask("cycles 2")
        times.append(counted())
        t.send("until")
        # Its second kernel takes so long, and forty times as long under ncu, that windows are asked for in the middle of it. Before the
        # first one ncu has not the counters yet: a window that came then had them, and ncu gave up.
        other = subprocess.Popen([ncu, "--set", "full", program, "chase", "15", "200000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        until_said(other, '==PROF== Profiling "chase"', 120)
        time.sleep(1)
        for engine in ("pc", "sass"):
            beside(gpuflight.deep(t.pid, engine, "500ms"), f"profilers: while ncu has the counters, {engine}", t)
        rest = other.stdout.read().decode(errors="replace")
        code = other.wait(180)
        # A window that comes between two of ncu's kernels has the counters when ncu wants them again.
        check(code == 0 or "concurrently collecting" in rest, "profilers: ncu ends as ever, or says that something else has the counters", code, rest.strip()[-300:])
        for engine in ("pc", "sass"):
            p = gpuflight.deep(t.pid, engine, "500ms")
            if not check(p.returncode == 0, f"profilers: after ncu, {engine} is collected", p.returncode, p.status, p.text[:300]):
                looked_at(t)
        check(t.ask("stop")["wrong"] == 0, "profilers: the training beside ncu is right")
        times.append(counted())
        t.ask("cycles 2")
        times.append(counted())
        check(t.end() == 0, "profilers: and ends by itself")
        sums = [(at, sum(by_name.values())) for at, by_name in exports(recording)]
        kernels = between(sums, *times[:2]), between(sums, *times[2:])
        check(kernels[0] == kernels[1] > 0, "profilers: as many kernels are recorded after ncu as before", *kernels)
    except (subprocess.TimeoutExpired, TimeoutError, RuntimeError):
        t.kill()
        raise
    finally:
        if other is not None and other.poll() is None:
            other.kill()

    # The program that we record under ncu: one of the two has CUPTI, and says so.
    output, command = gpuflight.trace("ncu-around", ["--deep-after", "1s", "--deep-for", "500ms"], [program, "compute", "3"])
    p = run([ncu, "--target-processes", "all", "--launch-count", "3", *command], timeout=300)
    check(p.returncode == 0 and '"right": true' in p.stdout.replace('"right":true', '"right": true'), "profilers: a traced program under ncu ends as ever", p.returncode, p.stdout.strip()[-300:])
    said = [line for line in p.stderr.splitlines() if line.startswith("gpuflight")]
    refused_once = [line for line in said if "another profiler holds CUPTI" in line]
    recorded = sum(k["count"] for k in (gpuflight.report(output) or {"kernels": []})["kernels"])
    check(bool(refused_once) != (recorded > 0), "profilers: and is recorded, or told once why not", f"{recorded} kernels", *(line[:200] for line in said))


def profilers(gpuflight):
    torch_profiler(gpuflight)
    nsight(gpuflight)


# ---- dry ----

class Logs:
    """Recordings as a recorder would write them, for judging the judge."""

    def __init__(self):
        self.records = []

    def add(self, event, function, pc, line, **values):
        attributes = {"cuda.kernel.name": function, "cuda.pc.offset": pc, "code.file.path": KERNELS, "code.line.number": line}
        attributes |= {k.replace("__", "."): v for k, v in values.items()}
        self.records.append({"eventName": event, "attributes": [
            {"key": k, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}} for k, v in attributes.items()]})

    def sample(self, function, pc, line, reason, count):
        self.add("cuda.pc_sample", function, pc, line, cuda__stall__reason=reason, cuda__sample__count=count)

    def counters(self, function, pc, line, **values):
        for name, value in values.items():
            self.add("cuda.sass_metric", function, pc, line, cuda__metric__name="smsp__sass_" + name, cuda__metric__value=value)

    def write(self, path):
        resource = {"attributes": [{"key": "service.instance.id", "value": {"stringValue": "dry"}}]}
        with open(path, "w") as f:
            f.write(json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": self.records}]}]}) + "\n")


def made(name, lines, fault):
    """A recording of a kernel as it must be, or with one fault."""
    logs, function = Logs(), name + "(void*, int)"
    first = min(lines[name])
    other = first + (100 if fault == "line" else 0)
    off = 1.05 if fault == "value" else 1.0
    want = EXPECTED[name]
    if want["engine"] == "pc":
        reason = "drain" if fault in ("reason", "value") else want["reason"]
        logs.sample(function, 32, other, reason, 700)
        logs.sample(function, 32, other, reason + "_not_issued", 600)
        logs.sample(function, 48, first - 1 if fault != "line" else first, "wait", 200)
        logs.sample(function, 64, first - 1, "selected", 100)
    else:
        n = 1000
        lanes = int(32 * n * off) if "lanes" not in want else int(want["lanes"] * n * off)
        if fault == "reason":
            return logs  # the engine brought nothing
        logs.counters(function, 16, first - 2, inst_executed=n, thread_inst_executed=32 * n)
        sectors = {} if "sectors" not in want else {"sectors_mem_global": int(want["sectors"] * n * off), "sectors_mem_global_ideal": int(want["ideal"] * n)}
        logs.counters(function, 32, other, inst_executed=n, thread_inst_executed=min(lanes, 32 * n), **sectors)
    return logs


def dry(gpuflight):
    """Each check of slow passes on a recording as it must be, and fails on one with a fault."""
    lines = marked()
    missing = [n for n in EXPECTED if n not in lines]
    passed = not missing
    if missing:
        print("FAIL kernels.cu marks no line", missing)
    for name in EXPECTED:
        for fault in (None, "reason", "line", "value"):
            if fault == "line" and (name == "barrier" or name == "coalesced"):
                continue  # of these no line is expected
            path = os.path.join(gpuflight.work, f"dry-{name}-{fault}.otlp.jsonl")
            made(name, lines, fault).write(path)
            results.clear()
            report = gpuflight.report(path) if fault != "reason" or EXPECTED[name]["engine"] == "pc" else {}
            judge(name, report, lines)
            good = bool(results) and all(ok for ok, _ in results)
            right = good == (fault is None)
            passed &= right
            print("PASS" if right else "FAIL", f"dry: {name} with {fault or 'no'} fault is", "taken" if good else "rejected", flush=True)
    # What comes of a window beside another profiler is judged by code, status and sentence.
    for code, state, text, good in (
        (0, "collected", "the window was opened and its data collected", True), (3, "another_profiler", "something else has the counters: stop it", True),
        (0, "failed", "no", False), (1, "failed", "no", False), (3, "unsupported", "no", False), (3, "another_profiler", "two\nlines", False),
    ):
        results.clear()
        beside(argparse.Namespace(returncode=code, status=state, text=text), "dry: a window")
        right = [ok for ok, _ in results] == [good]
        passed &= right
        print("PASS" if right else "FAIL", f"dry: {code} {state} beside another profiler is", "taken" if good else "rejected", flush=True)
    passed &= growth([(e, 10 * i + (5 if e == "pc" else 0)) for i, e in enumerate(["pc", "sass"] * 20)]) == {"pc": 15, "sass": 5}
    results.clear()
    check(passed, "dry: the checks tell right from wrong")
    with subprocess.Popen([sys.executable, "-c", "print('a', flush=True); print('now b')"], stdout=subprocess.PIPE, bufsize=0) as p:
        check(until_said(p, "now b", 60).startswith("a\n"), "dry: a word that is waited for")
    with subprocess.Popen([sys.executable, "-c", "print('a')"], stdout=subprocess.PIPE, bufsize=0) as p:
        try:
            until_said(p, "b", 60)
            check(False, "dry: a word that never comes is noticed")
        except RuntimeError as e:
            check("a" in str(e), "dry: a word that never comes is noticed")
    # A training that cannot run, for want of PyTorch or a GPU, is told apart from one that hangs.
    try:
        Training([sys.executable, "-c", "import sys; sys.exit('no GPU')"])
        check(False, "dry: a training that ends at once is noticed")
    except RuntimeError as e:
        check("no GPU" in str(e), "dry: a training that ends at once is noticed")


CASES = {"slow": slow, "again": again, "windows": windows, "endure": endure, "status": status, "profilers": profilers, "nsight": nsight}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.path.join(ROOT, "bin"), help="folder with gpuflight, libgpuflight.so and slow")
    p.add_argument("--only", default="slow,windows,status,profilers", help="cases, separated by commas")
    p.add_argument("--keep", help="leave recordings, and what the engines returned, in this folder")
    p.add_argument("--windows", type=int, default=200, help="how many windows in a row")
    p.add_argument("--rest", type=float, default=1, help="seconds that the training runs instead of windows, where there are none")
    p.add_argument("--rounds", type=int, default=30, help="in which the step is measured, before them and after")
    p.add_argument("--trainings", type=int, default=3, help="side by side, of endure; programs, of again")
    p.add_argument("--apart", type=float, default=0, help="seconds between the windows of a training, in the mean, of endure")
    p.add_argument("--seconds", type=float, default=400, help="after which endure begins no window, and again no program")
    p.add_argument("--engines", default="pc,sass", help="of these windows, in turn")
    p.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the training in windows")
    p.add_argument("--planned", action="store_true", help="as with a schedule: launches are watched from the start")
    p.add_argument("--where", action="store_true", help="tell what a step is longer by, by kind of thread, file and function")
    p.add_argument("--take", action="store_true", help="hold the free small pieces of malloc afterwards, and measure the step once more")
    p.add_argument("--guard", action="store_true", help="notice who writes where nothing is allocated, in endure")
    p.add_argument("--dry", action="store_true", help="check the checks, without a GPU")
    a = p.parse_args()
    a.bin = os.path.abspath(a.bin)
    if any("=" not in x for x in a.set):
        p.error("--set takes NAME=VALUE")
    if not set(a.engines.split(",")) <= {"pc", "sass"}:
        p.error("--engines are pc, sass or both with a comma")
    unknown = [c for c in a.only.split(",") if c not in CASES]
    if unknown:
        p.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if a.keep:
        a.keep = os.path.abspath(a.keep)
    with tempfile.TemporaryDirectory(prefix="gpuflight-deep-") as temporary:
        work = a.keep or temporary
        os.makedirs(work, exist_ok=True)
        gpuflight = Gpufl(a, work)
        if a.dry:
            dry(gpuflight)
        for name in [] if a.dry else a.only.split(","):
            began = time.monotonic()
            try:
                CASES[name](gpuflight)
            except (subprocess.TimeoutExpired, TimeoutError, RuntimeError, OSError, KeyError, ValueError) as e:
                check(False, f"{name}: {type(e).__name__}", e)
            note(f"{name} took {time.monotonic() - began:.0f} s")
    for row in table if not a.dry else []:
        print("  ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row))
    failed = [text for ok, text in results if not ok]
    print("\n".join([f"{len(failed)} of {len(results)} checks failed:"] + failed) if failed else f"all {len(results)} checks passed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
