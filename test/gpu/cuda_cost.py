#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the cuda receiver costs, on a real GPU, as root, in one run.

    go build -o bin/ ./receiver/cudareceiver/internal/peers/peer
    sudo python3 test/gpu/cuda_cost.py --bin bin [--rounds 9] [--training-rounds 20] [--quick] [--json FILE]

All modes in each round, in random order, against processes that go on while probes come and go:

    bare        nothing attached
    counting    a uprobe that counts calls and nothing else: the least that any uprobe costs
    ours        the cuda receiver
    sampled     the cuda receiver with launch_sampling: 100
    ring        one event a launch through a ring buffer, with a reader that is woken
    ring-quiet  the same, with a reader that looks every 10 ms

1. test/gpu/cuda/launches.c: nanoseconds a launch. 2. The same at 50,000 launches a second: processor time of whoever
reads. 3. test/gpu/cuda/training.py: milliseconds of training steps. What was attached must have seen every launch.
Ratios have a 95 % interval from resampling rounds. Says whether the targets are met; the status is 1 only if something
could not be measured.
"""
import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "cuda"))
from agent import Agent  # noqa: E402

MODES = ["bare", "counting", "ours", "sampled", "ring", "ring-quiet"]
RATE = 50_000


class Work:
    """A process that does some work for each line, and answers with JSON."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the program ended with {self.process.wait()}")
        return json.loads(line)

    def do(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def processor_time(pid):
    """User and system time of a process in seconds, from the scheduler's own clock and not from ticks."""
    return time.clock_gettime((~pid << 3) | 2)


class Bare:
    pid = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def seen(self):
        return None


class Peer:
    def __init__(self, args, mode, library):
        self.command, self.result = [os.path.join(args.bin, "peer"), mode, library], None

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"{self.command}: did not attach")
        return self

    def __exit__(self, *_):
        if self.result is None:
            self.seen()

    def seen(self):
        """Detaches it."""
        time.sleep(0.05)  # what is in the ring is read
        self.result = json.loads(self.process.communicate()[0])
        return self.result


class Ours:
    def __init__(self, args, work, interval="1s", **settings):
        self.work = work
        self.agent = Agent(os.path.join(args.bin, "otelcol-gpuflight"), os.path.join(args.out, "agent"), interval, **settings)

    def __enter__(self):
        self.agent.__enter__()
        self.pid = self.agent.process.pid
        return self

    def __exit__(self, *_):
        self.agent.stop()

    def settled(self):
        """Whether it has seen that libcudart's launches reach the driver, and has let libcudart go."""
        own = self.agent.own()
        return own.get('runtimes{check="passed"}', 0) > 0 and own['runtimes{check="checking"}'] == 0

    def seen(self):
        values = self.agent.collected(self.work.process.pid, seconds=30)
        launches = sum(v for (metric, _), v in values.items() if metric == "gpu.cuda.kernel.launch.calls")
        return {"launches": launches, "lost": sum(self.agent.lost().values())}


def attached(args, mode, work, library, **settings):
    match mode:
        case "bare":
            return Bare()
        case "ours":
            return Ours(args, work, **settings)
        case "driver":
            return Ours(args, work, source="driver", **settings)
        case "sampled":
            return Ours(args, work, launch_sampling=100, **settings)
    return Peer(args, mode, library)


def library(pid):
    with open(f"/proc/{pid}/maps") as f:
        return next(line.split(maxsplit=5)[5].strip() for line in f if "/libcuda.so" in line)


def resampled(rounds, statistic):
    """statistic of all rounds, and its 95 % interval."""
    draws = sorted(statistic(random.choices(rounds, k=len(rounds))) for _ in range(4000))
    return statistic(rounds), draws[100], draws[-101]


def ratio(mode, of, less=None):
    """The ratio of medians of two modes, of what each adds to a third if that is given."""
    def statistic(rounds):
        base = statistics.median(r[less] for r in rounds) if less else 0
        return (statistics.median(r[mode] for r in rounds) - base) / (statistics.median(r[of] for r in rounds) - base)
    return statistic


def launches(args, work, at, out):
    """Nanoseconds a launch, by round and mode."""
    rounds, lost = [], dict.fromkeys(MODES, 0)
    modes = args.modes.split(",")
    for n in range(args.rounds):
        values = {}
        for mode in random.sample(modes, len(modes)):
            with attached(args, mode, work, at) as tool:
                times = [work.do(f"burst {args.launches}")["ns_per_launch"] for _ in range(4)][1:]
                values[mode] = statistics.median(times)
                seen = tool.seen()
            if seen:
                made = 4 * args.launches
                if seen["launches"] + seen["lost"] != made:
                    raise SystemExit(f"{mode} saw {seen} of {made} launches")
                lost[mode] += seen["lost"]
        rounds.append(values)
        print(f"round {n + 1}: " + ", ".join(f"{m} {values[m]:.0f}" for m in modes), file=sys.stderr, flush=True)
    base = statistics.median(r["bare"] for r in rounds)
    print(f"\n{args.rounds} rounds of 3 × {args.launches:,} launches:\n")
    print("| | median, ns a launch | least to most | added | × what counting adds (95 %) | × counting, in all (95 %) | launches lost |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for m in modes:
        v = [r[m] for r in rounds]
        row = [m, f"{statistics.median(v):.0f}", f"{min(v):.0f}–{max(v):.0f}"]
        if m == "bare":
            row += ["", "", "", ""]
        else:
            added = "%.2f (%.2f–%.2f)" % resampled(rounds, ratio(m, "counting", "bare"))
            whole = "%.2f (%.2f–%.2f)" % resampled(rounds, ratio(m, "counting"))
            row += [f"{statistics.median(v) - base:.0f}", added, whole, f"{lost[m]:,}"]
        print("| " + " | ".join(row) + " |")
    out["launches"], out["lost"] = rounds, lost
    added, whole = resampled(rounds, ratio("ours", "counting", "bare")), resampled(rounds, ratio("ours", "counting"))
    print(f"\ntarget: a launch costs at most 1.2 × what it costs under counting: {whole[0]:.2f}, {'met' if whole[0] <= 1.2 else 'missed'}; "
          f"what is added, 1.2 × what counting adds: {added[0]:.2f}, {'met' if added[0] <= 1.2 else 'missed'}", flush=True)


def reading(args, work, at, out):
    """Processor time of the one who reads, at RATE launches a second and at none."""
    print("\n| | processor time at 50,000 launches a second, % of one core | at rest | resident | launches lost |\n|---|--:|--:|--:|--:|")
    out["reader"] = {}
    for mode in ["ours", "sampled", "ring", "ring-quiet"]:
        # As it is by default: a collection every 10 s.
        settings = {"interval": "10s"} if mode in ("ours", "sampled") else {}
        with attached(args, mode, work, at, **settings) as tool:
            work.do("paced 50000 50000")
            time.sleep(1)
            seconds = args.seconds if settings else args.seconds / 2
            began, wall = processor_time(tool.pid), time.monotonic()
            done = work.do(f"paced {int(RATE * seconds)} {RATE}")
            busy = (processor_time(tool.pid) - began) / (time.monotonic() - wall)
            if done["rate"] < 0.99 * RATE:
                raise SystemExit(f"{mode}: {done['rate']:.0f} launches a second, not {RATE}")
            began, wall = processor_time(tool.pid), time.monotonic()
            time.sleep(seconds / 2)
            rest = (processor_time(tool.pid) - began) / (time.monotonic() - wall)
            with open(f"/proc/{tool.pid}/status") as f:
                resident = next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) >> 10
            seen = tool.seen()
        if seen["launches"] + seen["lost"] != int(RATE * seconds) + 50000:
            raise SystemExit(f"{mode} saw {seen} of {int(RATE * seconds) + 50000} launches")
        out["reader"][mode] = {"busy": busy, "rest": rest, "resident_mib": resident, **seen}
        print(f"| {mode} | {busy * 100:.2f} | {rest * 100:.2f} | {resident} MiB | {seen['lost']:,} |", flush=True)
    ours = out["reader"]["ours"]["busy"]
    print(f"\ntarget: under 1 % of one core: {ours * 100:.2f} %, {'met' if ours < 0.01 else 'missed'}", flush=True)


def training(args, out):
    """Milliseconds of steps, by round and mode. At first the receiver looks at libcudart, too, which costs more: that is
    waited for, and is a mode of its own, starting. driver is the receiver with source: driver, which never looks there."""
    modes = args.training_modes.split(",")
    work = Work([sys.executable, os.path.join(HERE, "cuda", "training.py")])
    at = library(work.process.pid)
    rounds, a_step = [], None
    for _ in range(args.training_rounds):
        values = {}
        for mode in random.sample(modes, len(modes)):
            with attached(args, "ours" if mode == "starting" else mode, work, at) as tool:
                work.do(5)
                steps = 5 + args.steps
                if mode == "ours":
                    end = time.monotonic() + 20
                    while not tool.settled():
                        if time.monotonic() > end:
                            raise SystemExit("the receiver did not finish with libcudart")
                        work.do(20)
                        steps += 20
                    time.sleep(2.5)  # it detaches from returns a second after entries
                values[mode] = work.do(args.steps)["wall_ms"]
                seen = tool.seen()
            if seen:
                made = seen["launches"] + seen["lost"]
                a_step = a_step or made / steps
                if not made or made != a_step * steps:
                    raise SystemExit(f"{mode} saw {seen} of {a_step} launches in each of {steps} steps")
        rounds.append(values)
        print(f"round {len(rounds)}: " + ", ".join(f"{m} {values[m]:.0f}" for m in modes), file=sys.stderr, flush=True)
    work.end()
    print(f"\n{args.training_rounds} rounds of {args.steps} training steps, {a_step:.0f} launches each:\n")
    print("| | median, ms | least to most | slow-down, % (95 %) |\n|---|--:|--:|--:|")
    for m in modes:
        v = [r[m] for r in rounds]
        slower = ""
        if m != "bare":
            # Pairs of one round: what changes from round to round is in both.
            slower = "%+.1f (%+.1f to %+.1f)" % resampled(rounds, lambda rs: statistics.median(r[m] / r["bare"] for r in rs) * 100 - 100)  # noqa: B023
        print(f"| {m} | {statistics.median(v):.1f} | {min(v):.1f}–{max(v):.1f} | {slower} |", flush=True)
    out["training"], out["launches a step"] = rounds, a_step


def build(args):
    program = os.path.join(args.out, "launches")
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{cuda}/include", "-o", program,
                    os.path.join(HERE, "cuda", "launches.c"), f"-L{cuda}/lib64/stubs", "-lcuda"], check=True)
    return program


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bin", default=os.path.join(ROOT, "bin"), help="folder with otelcol-gpuflight and peer")
    p.add_argument("--only", default="launches,reading,training")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--modes", default=",".join(MODES), help="of the launches; bare, counting and ours are needed")
    p.add_argument("--launches", type=int, default=100_000)
    p.add_argument("--seconds", type=float, default=20, help="of launches at 50,000 a second")
    p.add_argument("--training-rounds", type=int, default=20)
    p.add_argument("--training-modes", default="bare,counting,ours,starting,driver,ring")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--quick", action="store_true", help="3 rounds of each")
    p.add_argument("--json", help="file for what was measured")
    args = p.parse_args()
    if args.quick:
        args.rounds, args.training_rounds, args.seconds = 3, 4, 6
    args.bin, args.out = os.path.abspath(args.bin), tempfile.mkdtemp(prefix="gpuflight-cost-")
    out = {"kernel": platform.release(), "processors": os.cpu_count()}
    only = args.only.split(",")
    try:
        work = Work([build(args)])
        at = library(work.process.pid)
        if "launches" in only:
            launches(args, work, at, out)
        if "reading" in only:
            reading(args, work, at, out)
        work.end()
        if "training" in only:
            training(args, out)
    finally:
        shutil.rmtree(args.out)
        if args.json:
            with open(args.json, "w") as f:
                json.dump(out, f)


if __name__ == "__main__":
    main()
