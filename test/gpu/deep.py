#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deep windows on a real GPU: the engines name the right reason and line, and leave the program as it was.

    test/gpu/build bin
    python3 test/gpu/deep.py --bin bin [--only slow,windows,nsight] [--windows 100]
    python3 test/gpu/deep.py --bin bin --dry        # without a GPU: are the checks themselves right?

    slow     each kernel of examples/slow under the engine that must explain it: the reason or line that its code implies
             comes first, lanes and sectors a request are within 2 % of the analytic value, and the function has its PTX (1 minute)
    windows  100 windows of PC sampling in a row in a PyTorch training: no hang, each is collected, every cycle of the
             training ends with the loss of the first, and the step afterwards is within 2 % of that before, compared with two
             trainings without windows whose steps run in turn with it (2 minutes)
    nsight   a window of PC sampling while ncu has the counters: refused with one clear message, and collected afterwards.
             Skipped where there is no ncu (1 minute)

It needs the folder with gpuflight, libgpuflight.so and slow, and python3 with torch. It prints a line for each check, PASS or FAIL
with figures; the status is 1 when one failed.
"""
import argparse
import json
import os
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

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KERNELS = os.path.join(ROOT, "examples", "slow", "kernels.cu")
TRAINING = os.path.join(HERE, "deep", "training.py")

# What the code of each kernel implies (kernels.cu derives it): the engine that shows it, and
# reason:  the stall reason that comes first among those of warps that wait; share: its least share of all samples
# lanes:   active lanes of the marked line, which is the first of the divergent ones
# sectors: sectors a request of the marked line, and ideal; the first of the uncoalesced ones if they differ
# top:     the marked line is the one with most samples
# ptx:     the instruction of the marked line, in PTX
EXPECTED = {
    "chase": {"engine": "pc", "reason": "long_scoreboard", "share": 0.5, "top": True, "ptx": "ld.global"},
    "barrier": {"engine": "pc", "reason": "barrier", "share": 0.5, "ptx": "bar.sync"},
    "compute": {"engine": "pc", "reason": "math_pipe_throttle", "top": True, "ptx": "fma.rn.f64"},
    "divergent": {"engine": "sass", "lanes": 1.0, "ptx": "fma.rn.f32"},
    "strided": {"engine": "sass", "sectors": 32.0, "ideal": 4.0, "ptx": "ld.global"},
    "coalesced": {"engine": "sass", "sectors": 4.0, "ideal": 4.0, "ptx": "ld.global"},
}
# Samples of these are no waiting.
NO_WAIT = ("selected", "not_selected")
NEAR = 0.02

results = []  # (passed, text)


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


class Gpuflight:
    def __init__(self, args, work):
        self.path = os.path.join(args.bin, "gpuflight")
        self.bin, self.work, self.windows = args.bin, work, args.windows

    def trace(self, name, flags, command):
        output = os.path.join(self.work, name + ".otlp.jsonl")
        return output, [self.path, "trace", "--force", "--output", output, *flags, "--", *command]

    def report(self, output):
        p = run([self.path, "report", "--json", "--functions", "0", "--lines", "0", output])
        if p.returncode != 0:
            note(p.stderr.strip()[-500:])
            return None
        return json.loads(p.stdout)

    def deep(self, pid, length, timeout=60):
        """Requests a window of PC sampling. status is the result in one word, text the sentence."""
        p = run([self.path, "deep", str(pid), "--for", length, "--engine", "pc", "--json"], timeout=timeout)
        p.status, p.text = "refused", p.stderr.strip()
        if p.stdout.strip():
            window = json.loads(p.stdout)
            p.status, p.text = window["outcome"]["status"], window["outcome"]["text"]
        return p


# ---- slow ----

def here(line, name, lines):
    """Whether a line of the report is one that kernels.cu marks."""
    return os.path.basename(line.get("file", "")) == "kernels.cu" and line.get("line") in lines[name]


def place(line):
    if "line" in line:
        return f"{os.path.basename(line.get('file', '?'))}:{line['line']}"
    return f"+{line.get('pc', 0):#x}"


def listings(output):
    """The listings of a recording: texts by function, image and kind."""
    texts = {}
    with open(output) as f:
        for line in f:
            for resource in json.loads(line).get("resourceLogs", []):
                for r in (r for scope in resource["scopeLogs"] for r in scope["logRecords"] if r.get("eventName") == "cuda.sass_listing"):
                    a = {x["key"]: next(iter(x["value"].values())) for x in r["attributes"]}
                    key = a["cuda.kernel.name"].split("(")[0], a["cuda.cubin.crc"], a["cuda.listing.kind"]
                    texts[key] = texts.get(key, "") + r["body"]["stringValue"]
    return texts


def judge(name, report, texts, lines):
    """Holds what a report and the listings say of a kernel against what its code implies."""
    want = EXPECTED[name]
    own = {key: text for key, text in texts.items() if key[0] == name}
    ptx = next((text for key, text in own.items() if key[2] == "ptx"), "")
    check(sorted(key[2] for key in own) == ["ptx", "sass"] and len({key[1] for key in own}) == 1, f"{name}: has SASS and PTX of one image", *own)
    found = len(re.findall(r"^\s*" + re.escape(want["ptx"]) + r"\b", ptx, re.M))
    check(ptx.startswith(f".visible .entry {name}(") and ptx.endswith("}\n") and found, f"{name}: the PTX is the function, with {want['ptx']}", f"{found} times in {len(ptx.splitlines())} lines")
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


def slow(gpuflight):
    program, lines = os.path.join(gpuflight.bin, "slow"), marked()
    for name, want in EXPECTED.items():
        label = f"slow-{name}"
        flags = ["--deep-after", "1s", "--deep-for", "2s", "--deep-engine", want["engine"]]
        output, command = gpuflight.trace(label, flags, [program, name, "6"])
        p = run(command, timeout=120)
        said = json.loads(p.stdout) if p.stdout.strip().startswith("{") else {}
        if not check(p.returncode == 0 and said.get("right"), f"{name}: runs, and its results are right", p.returncode, p.stdout.strip()[:200]):
            note(p.stderr.strip()[-1000:])
            continue
        report = gpuflight.report(output)
        had = (report or {}).get("windows", {})
        losses = {k: v for k, v in had.items() if isinstance(v, (int, float)) and v and k not in ("collected", "samples", "rows", "paused_seconds")}
        check(had.get("collected") == 1, f"{name}: a window was collected; what it lost", had.get("samples"), "samples,", losses, *(w.get("message", "")[:300] for w in had.get("list", []) if w.get("status") != "collected"))
        judge(name, report, listings(output), lines)


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


# No limit is in the way of one window after the other, and none opens by itself.
ON_DEMAND = ["--deep-max", "0", "--deep-cooldown", "0s", "--deep-blackout", "0s", "--deep-per-hour", "10000", "--deep-share", "100%"]
NEAR_STEP = 0.02
STEP_ROUNDS = 200


def compare(trainings, rounds):
    """Runs single steps of the trainings in turn on the same processors. Returns the median step of each, the median quotient of each to
    the last one, whose steps run next to theirs, and how many cycles had a wrong loss."""
    places.share(*(t.pid for t in trainings))
    steps, wrong = [[] for _ in trainings], 0
    for number in range(rounds):
        for i in range(len(trainings)):
            i = (i + number) % len(trainings)
            answer = trainings[i].ask("step")
            steps[i].append(answer["step_ms"])
            wrong += answer["wrong"]
    quotients = [statistics.median(a / b for a, b in zip(s, steps[-1])) for s in steps]
    return [statistics.median(s) for s in steps], quotients, wrong


def windows(gpuflight):
    output, command = gpuflight.trace("windows", ON_DEMAND, [sys.executable, TRAINING])
    commands = [command] + [gpuflight.trace(name, ON_DEMAND, [sys.executable, TRAINING])[1] for name in ("control", "other")]
    trainings = []
    try:
        for c in commands:
            trainings.append(Training(c, GPUFLIGHT_DEEP="1"))
        t = trainings[0]
        # The first window leaves what CUPTI loads once, so the step is that of a training that has had one. The machine's speed changes
        # by more than the limit within minutes, and that of one process, compared with another, by several percent. Steps are therefore
        # compared with those of a training without windows next to them, and the change of this quotient with its change for a third
        # training, which has no windows either.
        first = gpuflight.deep(t.pid, "50ms")
        check(first.returncode == 0, "windows: the first is collected", first.status, first.text[:300])
        steps_before, before, wrong_before = compare(trainings, STEP_ROUNDS)
        t.send("until")
        bad, longest = [], 0
        for number in range(gpuflight.windows):
            p = gpuflight.deep(t.pid, "50ms")
            longest = max(longest, p.took)
            if p.returncode != 0:
                bad.append(f"{number}: {p.status}: {p.text[:200]}")
        during = t.ask("stop")
        steps_after, after, wrong_after = compare(trainings, STEP_ROUNDS)
        for text in bad[:5]:
            note(text)
        check(not bad, f"windows: {gpuflight.windows} in a row are collected", f"{len(bad)} are not; the longest took {longest:.1f} s")
        check(wrong_before + during["wrong"] + wrong_after == 0, "windows: every cycle ends with the loss of the first", f"{during['cycles']} cycles during them")
        ratio, control = after[0] / before[0], after[1] / before[1]
        check(ratio / control <= 1 + NEAR_STEP, "windows: a step afterwards", f"x {ratio / control:.4f} of before: x {ratio:.4f} compared with a training "
              f"without windows, whose quotient to a third one is x {control:.4f} ({steps_before[0]:.2f} and {steps_after[0]:.2f} ms)")
        check(all([x.end() == 0 for x in trainings]), "windows: the trainings end by themselves")
    except (subprocess.TimeoutExpired, TimeoutError, RuntimeError) as e:
        check(False, "windows: no hang", e, trainings[-1].said()[-500:] if trainings else "")
        for x in trainings:
            x.kill()
        return
    had = (gpuflight.report(output) or {}).get("windows", {})
    check(had.get("collected", 0) >= gpuflight.windows, "windows: the recording has them", had.get("collected"))


def until_said(process, text, timeout):
    """Reads what a process prints until a text is in it."""
    said, until = "", time.monotonic() + timeout
    while text not in said:
        if time.monotonic() > until or not select.select([process.stdout], [], [], 1)[0]:
            if time.monotonic() > until or process.poll() is not None:
                raise TimeoutError(f"no {text!r} in {timeout} s: {said[-300:]}")
            continue
        piece = process.stdout.read(4096)
        if not piece:
            raise RuntimeError(f"it ended without {text!r}: {said[-300:]}")
        said += piece.decode(errors="replace")


def members(group):
    """The processes of a group that have not ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                state, _, pgrp = f.read().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state not in "ZX":
            found.append(int(pid))
    return found


def end_group(group):
    """Kills what is left of a group that this script started, waits for it, and returns what was left."""
    left = members(group)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    until = time.monotonic() + 30
    while members(group):
        if time.monotonic() > until:
            raise TimeoutError(f"processes {members(group)} of ncu do not end")
        time.sleep(0.1)
    return left


def nsight(gpuflight):
    ncu = shutil.which("ncu")
    if not ncu:
        note("skipped: there is no ncu in PATH")
        return
    _, command = gpuflight.trace("nsight", ON_DEMAND, [sys.executable, TRAINING])
    t, other = Training(command, GPUFLIGHT_DEEP="1"), None
    try:
        t.ask("cycles 1")
        t.send("until")
        # Under ncu the second kernel takes many times as long, so the window is requested in the middle of it.
        other = subprocess.Popen([ncu, "--set", "full", os.path.join(gpuflight.bin, "slow"), "chase", "10", "200000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, start_new_session=True)
        until_said(other, '==PROF== Profiling "chase"', 90)
        time.sleep(1)
        p = gpuflight.deep(t.pid, "500ms")
        check(p.returncode != 0 and "has the GPU's counters" in p.text and p.text.count("\n") == 0, "nsight: refused with one clear message", p.returncode, p.status, p.text[:300])
        other.terminate()
        other.wait(30)
        # ncu's target is a process of its own and has the counters as long as it lives.
        note(f"processes of ncu that outlived it: {end_group(other.pid)}")
        p = gpuflight.deep(t.pid, "500ms")
        check(p.returncode == 0, "nsight: collected afterwards", p.status, p.text[:300])
        check(t.ask("stop")["wrong"] == 0 and t.end() == 0, "nsight: the training is right, and ends by itself")
    except (subprocess.TimeoutExpired, TimeoutError, RuntimeError) as e:
        check(False, "nsight: no hang", e)
        t.kill()
    finally:
        if other is not None and other.poll() is None:
            end_group(other.pid)
            other.wait()


# ---- dry ----

class Logs:
    """Recordings as a recorder would write them, for judging the judge."""

    def __init__(self):
        self.records = []

    def listing(self, function, kind, text):
        attributes = {"cuda.kernel.name": function, "cuda.cubin.crc": "1", "cuda.listing.kind": kind}
        self.records.append({"eventName": "cuda.sass_listing", "body": {"stringValue": text}, "attributes": [
            {"key": k, "value": {"stringValue": v}} for k, v in attributes.items()]})

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
    logs.listing(name, "sass", "0000  NOP\n")
    logs.listing(name if fault != "ptx" else "other", "ptx", f".visible .entry {name}(\n)\n{{\n")
    logs.listing(name if fault != "ptx" else "other", "ptx", f"{want['ptx']} x;\n}}\n")
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
        for fault in (None, "reason", "line", "value", "ptx"):
            if fault == "line" and (name == "barrier" or name == "coalesced"):
                continue  # of these no line is expected
            path = os.path.join(gpuflight.work, f"dry-{name}-{fault}.otlp.jsonl")
            made(name, lines, fault).write(path)
            results.clear()
            report = gpuflight.report(path) if fault != "reason" or EXPECTED[name]["engine"] == "pc" else {}
            judge(name, report, listings(path), lines)
            good = bool(results) and all(ok for ok, _ in results)
            right = good == (fault is None)
            passed &= right
            print("PASS" if right else "FAIL", f"dry: {name} with {fault or 'no'} fault is", "taken" if good else "rejected", flush=True)
    results.clear()
    check(passed, "dry: the checks tell right from wrong")
    # A training that cannot run, for want of PyTorch or a GPU, is told apart from one that hangs.
    try:
        Training([sys.executable, "-c", "import sys; sys.exit('no GPU')"])
        check(False, "dry: a training that ends at once is noticed")
    except RuntimeError as e:
        check("no GPU" in str(e), "dry: a training that ends at once is noticed")


CASES = {"slow": slow, "windows": windows, "nsight": nsight}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default=os.path.join(ROOT, "bin"), help="folder with gpuflight, libgpuflight.so and slow")
    p.add_argument("--only", default="slow,windows,nsight", help="cases, separated by commas")
    p.add_argument("--windows", type=int, default=100, help="how many windows in a row")
    p.add_argument("--dry", action="store_true", help="check the checks, without a GPU")
    a = p.parse_args()
    a.bin = os.path.abspath(a.bin)
    unknown = [c for c in a.only.split(",") if c not in CASES]
    if unknown:
        p.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory(prefix="gpuflight-deep-") as work:
        gpuflight = Gpuflight(a, work)
        if a.dry:
            dry(gpuflight)
        for name in [] if a.dry else a.only.split(","):
            began = time.monotonic()
            try:
                CASES[name](gpuflight)
            except (subprocess.TimeoutExpired, TimeoutError, RuntimeError, OSError, KeyError, ValueError) as e:
                check(False, f"{name}: {type(e).__name__}", e)
            note(f"{name} took {time.monotonic() - began:.0f} s")
    failed = [text for ok, text in results if not ok]
    print("\n".join([f"{len(failed)} of {len(results)} checks failed:"] + failed) if failed else f"all {len(results)} checks passed")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
