#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Host stacks of a PyTorch training: are the lines right, and what do they cost?

    python3 test/gpu/stacks.py --bin bin [--pairs 10] [--steps 300] [--only lines,links,cost,bound]
    python3 test/gpu/stacks.py --bin bin --only callbacks,phases

The training (this file, as a child) opens an NVTX range for each line of its forward pass, named after the line. So:

 1. each stack of a launch in such a range must have a frame of that line,
 2. each such line must have a stack,
 3. a launch after the loader, which sleeps, must have the loader's line before it,
 4. launches of the backward pass have no stack,
 5. with emit_nvtx, ranges of the backward pass have a link to a range of the forward pass.

The cost is that of a training without the sleep, recorded with and without stacks: the ratio of the wall times, and its
median over the pairs, which must be at most 1.02. `cost` has small layers, so launches bound its steps; those of `bound` are
bound by the GPU. With two GPUs the runs of a pair are side by side: each has a GPU and half of the processors, which they
exchange twice a second, and the GPUs change from pair to pair. With one GPU they alternate.

Two processes differ by some per cent for other reasons. `callbacks` and `phases` measure the parts of the cost within one process.
`callbacks`: the same launches before and after the recording needs callbacks for launches, for which an NVTX range is opened.
`phases`: steps with and without samples, in turns of half a second. The recorder is built for it, in a folder of its own:

    CGO_CFLAGS="-O2 -g -DGPUFL_STACKS_PHASE=500000000" test/gpu/build bin
"""
import argparse, collections, concurrent.futures, json, os, re, statistics, subprocess, sys, tempfile, time

import places

ME = os.path.abspath(__file__)


def train(steps, seconds, ranges, emit, width, batch, ended=None):
    import contextlib

    import torch

    def line():
        name = f"line {sys._getframe(1).f_lineno}"
        return torch.cuda.nvtx.range(name) if ranges else contextlib.nullcontext()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
            self.norm = torch.nn.LayerNorm(width)

        def forward(self, x):
            with line(): y = self.a(x)
            with line(): y = torch.relu(y)
            with line(): y = y @ self.b.weight
            with line(): y = y + x
            with line(): y = self.norm(y)
            with line(): y = y * y[0]
            return y.sum()

    def load():
        time.sleep(seconds)  # the loader

    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-8)
    x = torch.randn(batch, width, device="cuda")
    taken = []
    with torch.autograd.profiler.emit_nvtx() if emit else contextlib.nullcontext():
        for step in range(steps + 20):
            began = time.perf_counter()
            if seconds:
                load()
            optimizer.zero_grad()
            loss = net(x)
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                torch.cuda.synchronize()
            if step >= 20:
                taken.append(time.perf_counter() - began)
                if ended:
                    ended(int(began * 1e9), time.perf_counter_ns())  # the clock of the recorder
    torch.cuda.synchronize()
    if not ended:
        print(json.dumps({"ms": 1e3 * statistics.median(taken), "wall": sum(taken), "loss": loss.item()}))


def record(args, stacks, steps, seconds=0.0, ranges=False, emit=False, gpu=None, processors=None, width=256, batch=64):
    """Runs the training and returns what it printed and the recorded spans, with attributes as a dictionary."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.otlp.jsonl")
        command = [os.path.join(args.bin, "gpuflight"), "trace", "--quiet", "--output", out, *(["--stacks"] if stacks else []), "--",
                   sys.executable, ME, "--child", str(steps), str(seconds), str(int(ranges)), str(int(emit)), str(width), str(batch)]
        env = os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        if processors:
            command = ["taskset", "-c", ",".join(map(str, processors)), *command]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        if run.returncode != 0:
            sys.exit(f"the training failed: {run.stderr}")
        spans = []
        if ranges or emit:
            with open(out) as f:
                for text in f:
                    for resource in json.loads(text).get("resourceSpans", []):
                        for scope in resource["scopeSpans"]:
                            for s in scope["spans"]:
                                s["attributes"] = {a["key"]: next(iter(a["value"].values())) for a in s.get("attributes", [])}
                                spans.append(s)
        return json.loads(run.stdout.splitlines()[-1]), spans


failures = 0


def check(ok, text):
    global failures
    failures += not ok
    print("PASS" if ok else "FAIL", text, flush=True)


def lines(args):
    _, spans = record(args, True, args.steps, seconds=0.03, ranges=True)
    kernels = [s for s in spans if s["attributes"].get("cuda.operation") == "kernel"]
    seen, found, wrong = collections.Counter(), collections.Counter(), []
    elsewhere = after = 0
    for k in kernels:
        a = k["attributes"]
        name, stack = a.get("cuda.scope.name", ""), a.get("code.stacktrace", "")
        at = re.fullmatch(r"line (\d+)", name)
        if at and not a.get("cuda.scope.inferred"):
            seen[name] += 1
            if stack:
                found[name] += 1
                if f"forward ({ME}:{at[1]})" not in stack:
                    wrong.append(f"{name}: {stack.splitlines()[:3]}")
        elif stack:
            elsewhere += 1
        after += bool(re.match(r"\S*load \(" + re.escape(ME) + r":\d+\)$", a.get("cuda.launch.delay.stacktrace", "").split("\n")[0]))
    check(len(seen) == 6 and not wrong, f"{sum(found.values())} stacks of {sum(seen.values())} launches in {len(seen)} lines, {len(wrong)} wrong {wrong[:3]}")
    check(set(found) == set(seen), f"each line has a stack: {dict(found)}")
    check(after >= args.steps * 0.8, f"{after} of {args.steps} launches after the loader have its line")
    backward = [k for k in kernels if "Backward" in k["attributes"].get("code.stacktrace", "")]
    check(not backward, f"{elsewhere} stacks of other launches (optimizer, loss), {len(backward)} of backward threads")


def links(args):
    _, spans = record(args, True, 20, emit=True)
    names = {s["spanId"]: s["name"] for s in spans}
    linked = wrong = total = 0
    for s in spans:
        if "Backward" not in s["name"].split(",")[0] or ", seq = " not in s["name"]:
            continue
        total += 1
        number = s["name"].split(", seq = ")[1].split(",")[0]
        targets = [names.get(x["spanId"], "") for x in s.get("links", [])]
        to = [t for t in targets if f", seq = {number}" in t]
        linked += bool(to)
        wrong += any("Backward" in t for t in to)
    check(total > 0 and linked >= 0.95 * total and wrong == 0, f"{linked} of {total} ranges of backward operators have a link to the forward operator, {wrong} wrong")


def gpus():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(i) for i in range(len(listed.splitlines()))]


def pair(args, number, steps, size):
    """What a training without stacks printed, and one with stacks."""
    order, two = [number % 2 == 1, number % 2 == 0], gpus()[:2]
    if len(two) == 2:
        halves = places.parts(2)
        with places.Swapping(*halves), concurrent.futures.ThreadPoolExecutor() as both:
            runs = list(both.map(lambda stacks, gpu, half: record(args, stacks, steps, gpu=gpu, processors=half, **size)[0], order, two, halves))
    else:
        runs = [record(args, stacks, 3 * steps // 10, **size)[0] for stacks in order]
    return runs[order.index(False)], runs[order.index(True)]


def cost(args, steps=10_000, **size):
    medians, walls = [], []
    for number in range(args.pairs):
        without, stacks = pair(args, number, steps, size)
        medians.append(stacks["ms"] / without["ms"])
        walls.append(stacks["wall"] / without["wall"])
        print(f"     {without['wall']:.3f} s, with stacks {stacks['wall']:.3f} s: {walls[-1]:.4f}; median step {medians[-1]:.4f}", flush=True)
    check(statistics.median(walls) <= 1.02, f"with stacks the wall time is {statistics.median(walls):.4f} times as long, the median step {statistics.median(medians):.4f} times")


def bound(args):
    cost(args, 600, width=4096, batch=4096)


PHASE = 500_000_000  # GPUFL_STACKS_PHASE


def traced(args, *command, stacks=False):
    """Runs a child, and returns what it printed and what the recorder says about it."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([os.path.join(args.bin, "gpuflight"), "trace", "--output", os.path.join(folder, "out.otlp.jsonl"), *(["--stacks"] if stacks else []), "--",
                              sys.executable, ME, *map(str, command)], capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        sys.exit(f"the training failed: {run.stderr}")
    return json.loads(run.stdout.splitlines()[-1]), run.stderr


def launches():
    """The time of a launch of an operator without and with callbacks, in ns: the least of 300 loops."""
    import torch

    y = torch.zeros(64, device="cuda")

    def loop():
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(2_000):
            y.add_(1)
        taken = time.perf_counter_ns() - began
        torch.cuda.synchronize()
        return taken / 2_000

    loop()
    without = min(loop() for _ in range(300))
    torch.cuda.nvtx.range_push("callbacks")
    torch.cuda.nvtx.range_pop()
    print(json.dumps([without, min(loop() for _ in range(300))]))


def callbacks(args):
    for _ in range(10):
        (without, with_callbacks), _ = traced(args, "--launches")
        print(f"     a launch of an operator: {without:.0f} ns, with callbacks {with_callbacks:.0f} ns", flush=True)


def turns(steps):
    """Trains, and prints the mean time of a step in each phase, as [phase, ms, steps]. Steps of twice the median and more are those
    in which the machine did something else."""
    taken = collections.defaultdict(list)

    def ended(began, end):
        if began // PHASE == end // PHASE:
            taken[end // PHASE].append(end - began)

    train(steps, 0, False, False, 256, 64, ended)
    most = 2 * statistics.median(x for t in taken.values() for x in t)
    kept = {n: [x for x in t if x < most] for n, t in sorted(taken.items())}
    print(json.dumps([[n, statistics.fmean(t) / 1e6, len(t)] for n, t in kept.items() if t]))


def phases(args):
    for _ in range(2):
        means, said = traced(args, "--turns", 40_000, stacks=True)
        means = {n: ms for n, ms, steps in means if steps >= 100}
        # Each phase with samples against the mean of its neighbours.
        ratios = sorted(2 * ms / (means[n - 1] + means[n + 1]) for n, ms in means.items() if n % 2 == 1 and n - 1 in means and n + 1 in means)
        k = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2) - 1)
        off = statistics.median(ms for n, ms in means.items() if n % 2 == 0)
        print(f"     {len(ratios)} phases, step without samples {off:.4f} ms, with samples {statistics.median(ratios):.4f} times as long, "
              f"95 % interval {ratios[k]:.4f} to {ratios[-1 - k]:.4f}", flush=True)
        print("     " + next((line for line in said.splitlines() if "host stacks" in line), said), flush=True)


def main():
    if sys.argv[1:2] == ["--launches"]:
        return launches()
    if sys.argv[1:2] == ["--turns"]:
        return turns(int(sys.argv[2]))
    if sys.argv[1:2] == ["--child"]:
        steps, seconds, ranges, emit, width, batch = sys.argv[2:]
        return train(int(steps), float(seconds), ranges == "1", emit == "1", int(width), int(batch))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="bin")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="lines,links,cost,bound")
    args = parser.parse_args()
    for part in lines, links, cost, bound, callbacks, phases:
        if part.__name__ in args.only.split(","):
            part(args)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
