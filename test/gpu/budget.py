#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what an overhead budget costs a launch-bound training on an NVIDIA GPU.

    test/gpu/budget.py --bin bin [--budget 2%] [--pairs 3] [--steps 900] [--json FILE]

test/gpu/overhead/train.py runs without a recorder and under `gpuflight trace --overhead-budget`. With two GPUs the runs of a
pair are side by side: each has a GPU and half of the processors, which they exchange twice a second, and the GPUs change from
pair to pair. With one GPU they alternate; the order changes from pair to pair. A short run that records everything says how
many kernels a step has. The defaults take about two minutes on an H200.

The table has one row for each run. Then follows one line for each requirement, and the status is 1 if one fails:

* the median of the pairs' slowdowns is at most 1.5 times the budget (3 % for 2 %). With one GPU, on a machine whose speed
  changes by more than that between runs, this fails whatever the recorder costs; the table shows by how much runs without it
  differ;
* within the runs, slices cost at most as much, compared with the steps near them;
* the program launches at least 40,000 kernels a second without the recorder;
* the recorder reports that it kept the budget, and recorded more than one slice;
* slices are complete: during the training, kernels per recorded second are at least 70 % of the launches per second. A
  launch is slower while it is recorded. CUPTI could also lose the records of a thread that launches while it is attached;
* no record was dropped or rejected, and the loss of the training is the same in all runs.

It needs bin/gpuflight and bin/libgpuflight.so, and a Python with PyTorch.
"""
import argparse, concurrent.futures, json, os, statistics, subprocess, sys, tempfile, time

import places

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCHES = "gpu.cuda.kernel.launch.calls"
RUN_LIMIT = 90  # s
METRIC_NS = 250_000_000  # between exports of the recorder


def points(path, name):
    """The data points of a sum or gauge in each export of an OTLP file."""
    with open(path) as f:
        for line in f:
            if name not in line:
                continue
            for r in json.loads(line).get("resourceMetrics", []):
                for s in r.get("scopeMetrics", []):
                    for m in s.get("metrics", []):
                        if m["name"] == name:
                            yield (m.get("sum") or m["gauge"])["dataPoints"]


def exports(path):
    """The exports of an OTLP file: when each was, in ns, and the launches of each kernel name by then."""
    for those in points(path, LAUNCHES):
        at, by_name = 0, {}
        for p in those:
            at = max(at, int(p.get("timeUnixNano", 0)))
            names = [x["value"]["stringValue"] for x in p.get("attributes", []) if x["key"] == "cuda.kernel.name"]
            name = names[0] if names else ""
            by_name[name] = by_name.get(name, 0) + int(p.get("asInt", 0))
        yield at, by_name


def attributes(path, event):
    """The attributes of the first log record with an event name, in an OTLP file."""
    with open(path) as f:
        for line in f:
            if event not in line:
                continue
            for r in json.loads(line).get("resourceLogs", []):
                for s in r.get("scopeLogs", []):
                    for record in s["logRecords"]:
                        if record.get("eventName") == event:
                            return {a["key"]: a["value"] for a in record["attributes"]}
    return {}


def number(value):
    return float(next(iter(value.values()))) if value else 0.0


def kernels_per_recorded_second(path, run):
    """From the exports during the timed steps at which nothing was recorded: all records of the slices before have been read."""
    kernels = {at: sum(by_name.values()) for at, by_name in exports(path)}
    recorded = {int(p["timeUnixNano"]): p["asDouble"] for those in points(path, "gpuflight.recorded.time") for p in those}
    times = sorted(t for t in kernels.keys() & recorded.keys() if 0 <= t - run["begin_ns"] <= run["wall_ms"] * 1e6)
    times = [t for before, t in zip(times, times[1:]) if (recorded[before], kernels[before]) == (recorded[t], kernels[t])]
    if not times or recorded[times[-1]] == recorded[times[0]]:
        return 0.0
    return (kernels[times[-1]] - kernels[times[0]]) / (recorded[times[-1]] - recorded[times[0]])


def slices(path):
    """The intervals in which the recorder was attached, in ns, longer than they were by up to two exports."""
    recorded = sorted((int(p["timeUnixNano"]), p["asDouble"]) for those in points(path, "gpuflight.recorded.time") for p in those)
    found = []
    for (begin, before), (end, after) in zip(recorded, recorded[1:]):
        if after - before < 1e-3:
            continue
        begin, end = begin - METRIC_NS, end + METRIC_NS
        if found and begin <= found[-1][1]:
            found[-1][1] = end
        else:
            found.append([begin, end])
    return found


def lost_in_slices(run, found, near=3e9):
    """The share of a run's time that its slices cost: steps in them, compared with the mean of the steps near them. Unlike
    the difference of two runs it does not contain changes of the machine's speed."""
    ends = [run["begin_ns"], *run["ends_ns"]]
    steps = list(zip(ends, ends[1:]))
    lost = 0.0
    for begin, end in found:
        inside = [b - a for a, b in steps if begin < b and a < end]
        outside = [b - a for a, b in steps if begin - near < a < end + near and not any(x < b and a < y for x, y in found)]
        if inside and outside:
            lost += sum(inside) - len(inside) * statistics.mean(outside)
    return lost / (ends[-1] - ends[0])


def gpus():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return len(listed.stdout.splitlines())


def pair(a, number, side_by_side):
    """A run without a recorder and one with a budget."""
    options = [None, ["--overhead-budget", a.budget]]
    order = [number % 2, 1 - number % 2]
    if side_by_side:
        halves = places.parts(2)
        with places.Swapping(*halves), concurrent.futures.ThreadPoolExecutor() as both:
            runs = list(both.map(lambda gpu, which: train(a, a.steps, options[which], gpu, halves[gpu]), [0, 1], order))
    else:
        runs = [train(a, a.steps, options[which]) for which in order]
    return runs[order.index(0)], runs[order.index(1)]


def train(a, steps, options=None, gpu=0, processors=None):
    """One run of the training: its result, with what the recorder said if there are options for it."""
    command = [a.python, HERE + "/overhead/train.py", "--steps", str(steps), "--times"]
    with tempfile.TemporaryDirectory() as folder:
        out = folder + "/out.otlp.jsonl"
        if options is not None:
            command = [a.bin + "/gpuflight", "trace", "--quiet", "--max-spans", "0", "--output", out, *options, "--", *command]
        env = os.environ | {"GPUFLIGHT_METRIC_INTERVAL": f"{METRIC_NS // 1_000_000}ms", "CUDA_VISIBLE_DEVICES": str(gpu)}
        if processors is not None:
            command = ["taskset", "-c", ",".join(map(str, processors)), *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT, env=env)
        lines = [x for x in done.stdout.splitlines() if x.startswith("{")]
        if done.returncode or not lines:
            sys.exit(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()[-600:]}")
        run = json.loads(lines[-1])
        if options is not None:
            said = attributes(out, "cuda.capture")
            run["said"] = {k.removeprefix("cuda.capture."): number(v) for k, v in said.items() if "doubleValue" in v or "intValue" in v}
            run["complete"] = kernels_per_recorded_second(out, run)
            run["lost"] = lost_in_slices(run, slices(out))
        return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "bin"), help="the folder of gpuflight and libgpuflight.so")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch")
    parser.add_argument("--budget", default="2%")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=900, help="timed steps of a run")
    parser.add_argument("--json", help="write every run to this file")
    a = parser.parse_args()
    a.bin = os.path.abspath(a.bin)
    for name in "gpuflight", "libgpuflight.so":
        if not os.path.isfile(os.path.join(a.bin, name)):
            parser.error(f"there is no file {a.bin}/{name}")
    try:
        share = float(a.budget.removesuffix("%")) / 100
    except ValueError:
        parser.error(f"--budget {a.budget}: not a percentage")
    if min(a.pairs, a.steps) < 1:
        parser.error("--pairs and --steps are at least 1")

    begin = time.monotonic()
    all_of = train(a, 50, [])  # also fills the file cache
    per_step = all_of["said"]["kernels"] / (all_of["steps"] + all_of["warm_up"])
    side_by_side = gpus() > 1
    bare, limited = zip(*(pair(a, i, side_by_side) for i in range(a.pairs)))

    rate = lambda run: per_step * run["steps"] / run["wall_ms"] * 1e3
    print(f"{a.steps} steps of {per_step:.0f} kernels, budget {a.budget}, {'side by side' if side_by_side else 'in alternation'}, {time.monotonic() - begin:.0f} s in all\n")
    print("| run | bare, ms | with budget, ms | slower | lost in slices | launches/s, bare | recorded, s | recorded of the time | cost by its own estimate | kernels recorded | of the launches in slices |\n"
          "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    slower, complete = [], []
    for i, (b, l) in enumerate(zip(bare, limited), 1):
        said = l["said"]
        slower.append(l["wall_ms"] / b["wall_ms"] - 1)
        complete.append(l["complete"] / rate(l))
        print(f"| {i} | {b['wall_ms']:.0f} | {l['wall_ms']:.0f} | {slower[-1]:+.2%} | {l['lost']:+.2%} | {rate(b):.0f} | {said['recorded.time']:.2f} | {said['recorded.ratio']:.1%} "
              f"| {said['overhead.ratio']:.2%} | {said['kernels']:.0f} | {complete[-1]:.0%} |")
    print()
    said = [l["said"] for l in limited]
    losses = {r["loss"] for r in bare + limited}
    times = [b["wall_ms"] for b in bare]
    print(f"The slowest run without a recorder takes {max(times) / min(times) - 1:.1%} longer than the fastest.\n")
    verdicts = [
        (statistics.median(slower) <= 1.5 * share, f"the median slowdown is {statistics.median(slower):+.2%}, at most {1.5 * share:.1%}"),
        (statistics.median(l["lost"] for l in limited) <= 1.5 * share,
         f"the slices cost {statistics.median(l['lost'] for l in limited):+.2%} in the median, compared with the steps near them, at most {1.5 * share:.1%}"),
        (min(map(rate, bare)) >= 40_000, f"the training launches {min(map(rate, bare)):.0f} kernels a second, at least 40,000"),
        (all(s["overhead.ratio"] <= share for s in said), f"the recorder reports a cost of {max(s['overhead.ratio'] for s in said):.2%}, at most {share:.1%}"),
        (all(0 < s["recorded.ratio"] < 1 for s in said), f"it recorded {min(s['recorded.ratio'] for s in said):.1%} of the time and more"),
        (min(complete) >= 0.7, f"kernels per recorded second are {min(complete):.0%} of the launches per second and more, at least 70 %"),
        (all(s.get("records.dropped", 0) + s.get("records.rejected", 0) == 0 for s in said), "no record was dropped or rejected"),
        (max(losses) - min(losses) <= 0.01 * abs(max(losses)), f"the loss is the same in all runs, within 1 % ({sorted(losses)[:3]})"),
    ]
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"kernels_per_step": per_step, "bare": bare, "limited": limited}, f, indent=1)
    for good, text in verdicts:
        print("PASS" if good else "FAIL", text)
    sys.exit(0 if all(good for good, _ in verdicts) else 1)


if __name__ == "__main__":
    main()
