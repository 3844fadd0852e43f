#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Show that an overhead budget is kept on an NVIDIA GPU, and where the floor is below which none can be.

    test/gpu/budget.py --library bin/libgpuflight.so [--steps 1500] [--repetitions 5] [--budget 540] [--json FILE]

First the floor: test/gpu/budget/modes.c launches empty kernels in each mode of our C core (nothing, subscribed,
records, counts only, neither, records disabled again, CUPTI detached), in turn, and says what a launch costs in each
and how long a change takes. Then test/gpu/overhead/train.py, a training bound by launches, runs alone on the machine in
these modes, in turn and beginning with another one in every round:

    nothing   no tracing
    all       libgpuflight.so without a budget: every launch is recorded
    2%, ...   the same with GPUFLIGHT_OVERHEAD_BUDGET (--budgets); 2%+windows with deep windows of both engines in it

A table has medians. Then one line per requirement: with 2 % the throughput is within 3 % of nothing's (with another
budget within 1.5 times that); the recorder's own estimate is not below half of what was lost; every kernel name was launched as
often as without a budget, or, where the recorder was blind for a time, within the bound that it says; and the
training came to the same loss. Where a budget is missed, the floor says whether any policy could have kept it. The status
is 1 if a requirement fails or could not be measured.

A machine that others use as well changes its mind by more than a budget between two runs. With --pairs and two GPUs a run
with the budget and one of nothing are side by side, on halves of the processors that they exchange every half second, and then
change GPUs, so often: what is compared has met the same.

With --seconds 60 a run has as many steps as take that long without us, and --repetitions 2 of two budgets fit ten minutes. It
needs what overhead.py needs.
"""
import argparse, collections, glob, json, os, shutil, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import overhead, places

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LAUNCHES = "gpu.cuda.kernel.launch.calls"
WINDOWS = {"GPUFLIGHT_DEEP": "1", "GPUFLIGHT_DEEP_AFTER": "10s", "GPUFLIGHT_DEEP_EVERY": "20s", "GPUFLIGHT_DEEP_FOR": "1s", "GPUFLIGHT_DEEP_ENGINE": "both"}
FLOOR = ["before", "subscribed", "trace", "count", "blind", "detached", "recount", "retrace", "recounted", "stopped", "finalised"]


def floor(a, work):
    """The rounds of modes.c: one dictionary each."""
    subprocess.run([HERE + "/build", "--programs", work], check=True)
    found = a.cupti or sorted(glob.glob(a.cuda + "/extras/CUPTI/lib64/libcupti.so.1[0-9]"))[-1:]
    if not found:
        raise overhead.Failure("no libcupti: give --cupti")
    out = subprocess.run([work + "/modes", found if isinstance(found, str) else found[0], str(a.launches), str(a.rounds)],
                         capture_output=True, text=True, timeout=180)
    if out.returncode:
        raise overhead.Failure("modes.c: " + out.stderr.strip()[-400:])
    return [json.loads(x) for x in out.stdout.splitlines()]


def floor_table(rounds):
    bare = statistics.median(r["ns"]["before"] for r in rounds)
    lines = ["| mode | median, ns a launch | least to most | added | of a launch |", "|---|--:|--:|--:|--:|"]
    for mode in FLOOR:
        values = [r["ns"][mode] for r in rounds]
        m = statistics.median(values)
        lines.append(f"| {mode} | {m:.0f} | {min(values):.0f}–{max(values):.0f} | {m - bare:+.0f} | {m / bare - 1:+.1%} |")
    lines.append("")
    lines.append("Changes, median µs: " + ", ".join(f"{k} {statistics.median(r['us'][k] for r in rounds):.1f}" for k in rounds[0]["us"]) + ".")
    missed = collections.Counter()
    for r in rounds:
        missed.update({k: abs(v) for k, v in r["missed"].items()})
    lines.append("Launches missed in all rounds: " + ", ".join(f"{k} {v}" for k, v in missed.items()) + ".")
    return "\n".join(lines), not any(missed.values())


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
        at, by_name = 0, collections.Counter()
        for p in those:
            at = max(at, int(p.get("timeUnixNano", 0)))
            names = [x["value"]["stringValue"] for x in p.get("attributes", []) if x["key"] == "cuda.kernel.name"]
            by_name[names[0] if names else ""] += int(p.get("asInt", 0))
        yield at, by_name


def launches_by_name(path):
    """The launches of each kernel name in the last export of an OTLP file."""
    last = {}
    for _, last in exports(path):
        pass
    return dict(last)


class Bench(overhead.Bench):
    """As overhead.py's, with budgets for modes."""

    def environment(self, mode, folder):
        if mode == "nothing":
            return {}
        env = super().environment("ours", folder) | {"GPUFLIGHT_MAX_SPANS_PER_SECOND": "0"}
        if mode == "all":
            return env
        percent, _, windows = mode.partition("+")
        env = env | {"GPUFLIGHT_OVERHEAD_BUDGET": percent} | ({"GPUFLIGHT_OVERHEAD_LEAVE": "1"} if self.leave else {})
        return env | WINDOWS if windows else env

    def steps(self, n):
        self.programs[overhead.TRAIN][-1] = str(n)

    def report(self, mode, folder, result):
        if mode == "nothing":
            return None, {}
        summary = overhead.one_json(folder + "/summary/*.json")
        if summary.get("reason"):
            raise overhead.Failure(f"not recorded: {summary['reason']}: {summary.get('detail', '')}")
        if mode != "all" and "overhead" not in summary:
            raise overhead.Failure("the library knows no budget")
        said = {"overhead": summary.get("overhead"), "dropped": summary["records"]["dropped"], "own_seconds": summary["own_seconds"],
                "names": launches_by_name(folder + "/out.otlp.jsonl")}
        return summary["kernel_count"], said


def right_counts(run, want):
    """Whether the counts by name are right, and how."""
    o = run.said["overhead"]
    names = run.said["names"]
    if not o.get("cupti_left") and o["seconds"].get("blind", 0) == 0:
        off = {k: names.get(k, 0) - want.get(k, 0) for k in names.keys() | want.keys() if names.get(k, 0) != want.get(k, 0)}
        return not off, f"exact for {len(want) - len(off)} of {len(want)} names" + (f" (off: {dict(list(off.items())[:3])})" if off else "")
    # Some launches were not counted. The budget begins with the recorder, and so do all launches.
    rows = o.get("estimates") or []
    if not rows:
        return False, "no estimates"
    outside = [r["name"] for r in rows if abs(r["launches"] - want.get(r["name"], 0)) > r["launches_bound"]]
    width = statistics.median(r["launches_bound"] / max(1, r["launches"]) for r in rows)
    return len(outside) <= len(rows) * 0.05, f"{len(rows) - len(outside)} of {len(rows)} names within their bounds, of ±{width:.0%} in the median"


def in_pairs(a, work, budgets, say):
    """Runs of each mode as in_turn's, and for each budget the ratios of its times to those beside it."""
    benches = [Bench(a, work).on(i, half) for i, half in enumerate(places.parts(2))]
    runs, ratios = {m: [] for m in ["nothing", *budgets]}, {b: [] for b in budgets}
    for bench in benches:
        bench.leave = a.leave
    for b in budgets:
        for run, nothing in overhead.beside(benches, b, "nothing", a.pairs, say):
            runs[b].append(run)
            runs["nothing"].append(nothing)
            ratios[b].append(run.value / nothing.value)
    return runs, ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="our libgpuflight.so")
    parser.add_argument("--cuda", default=os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    parser.add_argument("--cupti", help="the libcupti for the floor (default: of --cuda)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch")
    parser.add_argument("--launches", type=int, default=100_000, help="of a mode in a round of the floor")
    parser.add_argument("--rounds", type=int, default=9, help="of the floor")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--pairs", type=int, default=0, help="side by side on two GPUs, so often in each place")
    parser.add_argument("--counts", action="store_true", help="with --pairs: run without a budget as well, to know what is to be counted")
    parser.add_argument("--seconds", type=float, help="of a run without us, instead of --steps")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--budgets", default="2%,5%,10%")
    parser.add_argument("--set", action="append", default=[], type=overhead.setting, metavar="NAME=VALUE", help="a setting of the library")
    parser.add_argument("--leave", action="store_true", help="let the library leave CUPTI (GPUFLIGHT_OVERHEAD_LEAVE)")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--json", help="write every run to this file")
    a = parser.parse_args()
    a.library, a.wheel = os.path.abspath(a.library), None
    if not os.path.isfile(a.library):
        parser.error(f"there is no file {a.library}")
    budgets = [b.strip() for b in a.budgets.split(",")]
    try:
        shares = {b: float(b.removesuffix("+windows").removesuffix("%")) / 100 for b in budgets}
    except ValueError as e:
        parser.error(f"--budgets: {e}")
    if min(a.launches, a.steps, a.repetitions) < 1:
        parser.error("--launches, --steps and --repetitions are at least 1")
    overhead.RUN_LIMIT = 240

    begin = time.monotonic()
    work = tempfile.mkdtemp(dir="/dev/shm", prefix="budget-")
    verdicts, remarks, floors, runs, ratios = [], [], [], {}, {}
    try:
        try:
            floors = floor(a, work) if a.rounds else []
        except (overhead.Failure, subprocess.SubprocessError, OSError) as e:
            remarks.append(f"The floor was not measured: {e}")
        bench = Bench(a, work)
        bench.leave = a.leave
        say = lambda s: print(s[:700], file=sys.stderr, flush=True)
        if a.pairs:
            runs, ratios = in_pairs(a, work, budgets, say)
        else:
            bench.steps(300 if a.seconds else a.steps)
            calm = bench.run(overhead.TRAIN, "nothing")  # fills the file cache and wakes the device
            if a.seconds:
                a.steps = max(1, round(a.seconds * 300 / (calm.value / 1e3)))
                bench.steps(a.steps)
            # What there is to be counted has to be known once; the budgets are compared with nothing.
            modes = ["nothing", "all", *budgets] if not a.seconds else ["nothing", *budgets]
            done, more = overhead.rounds(bench, {overhead.TRAIN: modes}, a.repetitions, begin + a.budget, say)
            runs, remarks = done[overhead.TRAIN], remarks + more
        if "all" not in runs and (a.counts or not a.pairs):
            try:
                runs["all"] = [bench.run(overhead.TRAIN, "all")]
            except (overhead.Failure, KeyError, ValueError, OSError) as e:
                remarks.append(f"all failed: {e!r}")
    except overhead.Failure as e:
        sys.exit(f"without any tool: {e}")
    finally:
        shutil.rmtree(work, ignore_errors=True)

    print(f"{overhead.gpu()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {a.steps} steps, {time.monotonic() - begin:.0f} s in all\n")
    if floors:
        text, exact = floor_table(floors)
        print("**The floor**\n\n" + text + "\n")
        verdicts.append((exact, "empty kernels: each launch was in the records, and in the counts, of its mode"))
    print("**A training bound by launches**\n\n| mode | runs | median, ms | least to most | slower | traced | blind | says it cost | record of a launch, ns | without a record | switches, beside launches |\n"
          "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    middles = {m: statistics.median(r.value for r in done) for m, done in runs.items() if done}
    for mode, done in runs.items():
        if not done:
            continue
        values = [r.value for r in done]
        slower = middles[mode] / middles["nothing"] - 1 if "nothing" in middles else float("nan")
        o = [r.said["overhead"] for r in done if r.said.get("overhead")]
        figures = [""] * 6
        if o:
            middle = lambda f: statistics.median(f(x) for x in o)
            total = lambda x: sum(x["seconds"].values()) or 1
            figures = [f"{middle(lambda x: x['traced_ratio']):.1%}", f"{middle(lambda x: x['seconds'].get('blind', 0) / total(x)):.1%}",
                       f"{middle(lambda x: x['ratio']):.2%}", f"{middle(lambda x: x['launch_cost_ns']):.0f}",
                       f"{sum(x.get('records_missing', 0) for x in o)} of {sum(x['traced_told'] for x in o)}",
                       f"{sum(x['switches'] for x in o)}, {sum(x.get('switches_beside', 0) for x in o)}"]
        print(f"| {mode} | {len(done)} | {middles[mode]:.1f} | {min(values):.1f}–{max(values):.1f} | {slower:+.1%} | " + " | ".join(figures) + " |")
    print()
    want = runs["all"][0].said["names"] if runs.get("all") and not runs["all"][0].said["dropped"] else None
    for b in budgets:
        done = runs.get(b, [])
        if not done or "nothing" not in middles:
            verdicts.append((False, f"{b}: not measured"))
            continue
        lost = 1 - (1 / statistics.geometric_mean(ratios[b]) if b in ratios else middles["nothing"] / middles[b])
        limit = 1.5 * shares[b]
        verdicts.append((lost <= limit, f"{b}: the throughput is {lost:.1%} below nothing's, at most {limit:.1%}"))
        ratio = statistics.median(r.said["overhead"]["ratio"] for r in done)
        verdicts.append((ratio >= lost / 2, f"{b}: the recorder says that it cost {ratio:.1%}, and {lost:.1%} were lost"))
        if want is None and not (a.pairs and not a.counts):
            verdicts.append((False, f"{b}: counts by name: what they should be is not known"))
        for r in done if want else []:
            verdicts.append((right_counts(r, want)[0], f"{b}: counts by name: {right_counts(r, want)[1]}"))
    losses = {r.loss for done in runs.values() for r in done}
    verdicts.append((bool(losses) and max(losses) - min(losses) <= 0.01 * abs(max(losses)), f"the loss is the same in all modes, within 1 % ({sorted(losses)[:3]})"))
    for b, each in ratios.items():
        remarks.append(f"{b} beside nothing: " + ", ".join(f"× {r:.4f}" for r in each))
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"floor": floors, "runs": {m: [r._asdict() for r in done] for m, done in runs.items()}}, f, indent=1)
    sys.exit(overhead.told(["Note: " + r for r in remarks], verdicts))


if __name__ == "__main__":
    main()
