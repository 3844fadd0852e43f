#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare what tracing costs a program on an NVIDIA GPU: ours, the floor of CUPTI itself, and others.

    test/gpu/overhead.py --library bin/libgpuflight.so --wheel gpufl-1.2.1-….whl [--budget 420] [--json FILE]

Two programs of test/gpu/overhead/: (a) launch.c, empty kernels launched back to back, nanoseconds per launch;
(b) train.py, a launch-bound PyTorch training in fp16, wall milliseconds of its timed steps. Each runs alone on
the machine, in these modes, in turn and beginning with another one in every round:

    nothing         no tracing
    floor           floor.c: CUPTI records kernels, copies and sets, which are counted and thrown away
    floor-flushed   the same, and CUPTI is asked five times a second for what is complete, as by ours; only if named by --modes
    ours            libgpuflight.so by CUDA_INJECTION64_PATH as it is by default, writing OTLP to a file in memory
    ours-otlp       the same, sending OTLP over HTTP to a process on loopback that takes and forgets it
    torch.profiler  CUDA activities only; (b) only, since it lives in Python and (a) is a program in C
    gpuflight       GPU Flight's released wheel (PyPI's gpufl 1.2.1), Trace engine; left out without --wheel

A Markdown table says what each costs, and how many of the kernels launched each had in the end. Then one
line per requirement: (ours - nothing) / (floor - nothing) is at most 1.15 in (a); ours is quicker than
torch.profiler and at most 1.05 times the floor in (b), all by medians; ours lost no kernel, and the training
came to the same loss under all. The status is 1 if one of them fails or could not be measured.

Two runs of one program differ by 10 % and more where others use the machine's host. With --pairs and two GPUs each mode runs side by side with
the floor, on halves of the processors that they exchange twice a second, then they change GPUs, so often: then a mode is said by how
many times as long it takes as the floor beside it, in (b) alone and without ours-otlp, and ours must be at most 1.05 times, and less than torch.profiler. Give it
--steps 1500 or so: 60 are over in a second, in which a recorder has just begun.

Rounds stop when another one would end past the budget, which the output says. It needs gcc, CUDA's headers and
libcupti (--cuda, default $CUDA_HOME or /usr/local/cuda), and PyTorch for (b).
"""
import argparse, collections, concurrent.futures, glob, gzip, json, os, platform, resource, shutil, signal, statistics
import subprocess, sys, tempfile, threading, time, zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import places

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "overhead")
WARM_UP = 2000  # launches of launch.c that are not timed
RUN_LIMIT = 90  # seconds after which a run has failed
LAUNCH, TRAIN = "a", "b"
UNIT = {LAUNCH: "ns per launch", TRAIN: "ms for the timed steps"}
FIELD = {LAUNCH: "ns_per_launch", TRAIN: "wall_ms"}
MODES = {LAUNCH: ["nothing", "floor", "floor-flushed", "ours", "ours-otlp", "gpuflight"],
         TRAIN: ["nothing", "floor", "floor-flushed", "ours", "ours-otlp", "torch.profiler", "gpuflight"]}
FLOORS = ("floor", "floor-flushed")
OURS = ("ours", "ours-otlp")
# No requirement depends on it and it takes longest: it gives way when time is short, after this many runs.
LEAST_GPUFLIGHT = 3

# Run is what one run of a program gave. value is in UNIT, whole the process's seconds from start to end, cpu
# those of all its cores, kernels what the tool had at its end (None without a tool), said what else it said.
Run = collections.namedtuple("Run", "value loss whole cpu kernels said")


class Failure(Exception):
    pass


def libcupti(pid):
    """Which CUPTI a process has loaded."""
    try:
        with open(f"/proc/{pid}/maps") as f:
            return sorted({line.split()[-1] for line in f if "libcupti" in line})
    except OSError:
        return []


# ---- figures ----

def median(values):
    return statistics.median(values) if values else None


def spread(values):
    """Half of the values lie within so much of each other, as a part of the median."""
    if len(values) < 2:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / statistics.median(values)


def share(nothing, floor, other):
    """How many times what the floor adds to nothing the other adds; None where the floor adds nothing."""
    return (other - nothing) / (floor - nothing) if floor > nothing else None


def expected(program, runs, launches):
    """The kernels that a run launches: known of (a), for (b) what the floor had if it lost none; else None."""
    if program == LAUNCH:
        return launches + WARM_UP
    seen = {r.kernels for r in runs.get("floor", []) if not r.said.get("dropped")}
    return seen.pop() if len(seen) == 1 else None


def requirements(runs, launches):
    """What must hold, as (program, modes compared, holds, sentence). What was not measured does not hold."""
    out = []

    def middle(program, mode):
        return median([r.value for r in runs[program].get(mode, [])])

    def demand(program, modes, holds, sentence):
        out.append((program, modes, holds, f"({program}) {sentence}"))

    for mode in OURS:
        n, f, o = (middle(LAUNCH, m) for m in ("nothing", "floor", mode))
        if None in (n, f, o):
            demand(LAUNCH, {mode}, False, f"{mode}: not measured")
        elif share(n, f, o) is None:
            demand(LAUNCH, {mode}, False, f"{mode}: the floor ({f:.0f} ns) is not above nothing ({n:.0f} ns), so nothing can be said")
        else:
            x = share(n, f, o)
            demand(LAUNCH, {mode}, x <= 1.15,
                   f"{mode} adds {o - n:.0f} ns to a launch, the floor {f - n:.0f} ns: {x:.2f} times, at most 1.15")
    for mode in OURS:
        f, o, t = (middle(TRAIN, m) for m in ("floor", mode, "torch.profiler"))
        if None in (f, o):
            demand(TRAIN, {mode}, False, f"{mode}: not measured")
        else:
            demand(TRAIN, {mode}, o <= 1.05 * f, f"{mode} takes {o:.1f} ms, the floor {f:.1f} ms: {o / f:.3f} times, at most 1.05")
        if None in (o, t):
            demand(TRAIN, {mode, "torch.profiler"}, False, f"{mode} against torch.profiler: not measured")
        else:
            demand(TRAIN, {mode, "torch.profiler"}, o < t, f"{mode} takes {o:.1f} ms, torch.profiler {t:.1f} ms: must be less")
    for program in (LAUNCH, TRAIN):
        want = expected(program, runs[program], launches)
        for mode in OURS:
            done = runs[program].get(mode, [])
            if want is None or not done:
                demand(program, {mode}, False, f"kernels lost by {mode}: not known")
                continue
            off = [r.kernels - want for r in done if r.kernels != want]
            demand(program, {mode}, not off, f"{mode} had all {want} kernels in {len(done) - len(off)} of {len(done)} runs"
                   + (f" (off by {', '.join('%+d' % n for n in off)})" if off else ""))
    for program in (LAUNCH, TRAIN):
        for mode in OURS:
            done = runs[program].get(mode, [])
            unsent = [r.said["unsent"] for r in done if r.said.get("unsent")]
            demand(program, {mode}, bool(done) and not unsent,
                   f"{mode} delivered all that it made in {len(done) - len(unsent)} of {len(done)} runs"
                   + (f" (unsent: {', '.join(map(str, unsent))})" if unsent else ""))
    losses = {m: [r.loss for r in done] for m, done in runs[TRAIN].items() if done}
    if "nothing" in losses and len(losses) > 1:
        want = median(losses["nothing"])
        # Written so that a loss that is no number is far too.
        far = max(((abs(x - want) / abs(want) if x == x else float("inf")), m) for m, xs in losses.items() for x in xs)
        demand(TRAIN, set(), far[0] <= 0.01, f"the loss is {want:.5f} in all modes, within 1 % (farthest: {far[0]:.2%}, {far[1]})")
    else:
        demand(TRAIN, set(), False, "the loss: not measured")
    return out


def table(program, runs, launches):
    want = expected(program, runs, launches)
    middles = {m: median([r.value for r in done]) for m, done in runs.items() if done}
    nothing, floor = middles.get("nothing"), middles.get("floor")
    lines = [f"| mode | runs | median, {UNIT[program]} | min | max | spread | over nothing | times the floor's addition | times the floor | "
             "whole process, s | CPU s | kernels lost, of " + (str(want) if want else "an unknown number") + " |",
             "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for mode in MODES[program]:
        done = runs.get(mode, [])
        if not done:
            continue
        values, m = [r.value for r in done], middles[mode]
        width = spread(values)
        digits = 0 if program == LAUNCH else 1
        part = share(nothing, floor, m) if None not in (nothing, floor) else None
        cells = [mode, str(len(done)), f"{m:.{digits}f}", f"{min(values):.{digits}f}", f"{max(values):.{digits}f}",
                 "" if width is None else f"{width:.1%}",
                 "" if nothing is None or mode == "nothing" else f"{m - nothing:+.{digits}f} ({m / nothing - 1:+.1%})",
                 "" if part is None or mode == "nothing" else f"{part:.2f}",
                 "" if floor is None else f"{m / floor:.3f}",
                 f"{median([r.whole for r in done]):.2f}", f"{median([r.cpu for r in done]):.2f}", lost(done, want)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def lost(done, want):
    """What the runs lost: one number, or the least and the most."""
    if done[0].kernels is None or want is None:
        return ""
    numbers = sorted(want - r.kernels for r in done)
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]} … {numbers[-1]}"


# ---- tools ----

class Sink:
    """An OTLP/HTTP endpoint that takes everything: a process of its own, so that ours does not wait for our GIL."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--be-the-sink"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def taken(self):
        """Requests and bytes since the last call."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def be_the_sink():
    taken, lock = {"requests": 0, "bytes": 0}, threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self):
            size = 0
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                while chunk := int(self.rfile.readline().split(b";")[0], 16):
                    size += len(self.rfile.read(chunk))
                    self.rfile.readline()
                self.rfile.readline()
            else:
                size = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            with lock:
                taken["requests"] += 1
                taken["bytes"] += size
            # An empty message of any of the three kinds: all was accepted.
            self.send_response(200)
            self.send_header("Content-Type", self.headers.get("Content-Type", "application/x-protobuf"))
            answer = b"{}" if "json" in self.headers.get("Content-Type", "") else b""
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for _ in sys.stdin:
        with lock:
            line = json.dumps(taken)
            taken.update(requests=0, bytes=0)
        print(line, flush=True)


def one_json(pattern):
    paths = glob.glob(pattern)
    if len(paths) != 1:
        raise Failure(f"{len(paths)} reports match {pattern}, not one")
    with open(paths[0]) as f:
        return json.load(f)


def gpuflight_kernels(folder):
    """The kernels in GPU Flight's logs, whose batches have a column per field."""
    count = 0
    for path in glob.glob(folder + "/**/*.log*", recursive=True):
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            try:
                for line in f:
                    if b'"kernel_event' not in line:
                        continue
                    try:
                        record = json.loads(line)
                    except ValueError:
                        continue  # cut off at exit: then these are lost
                    if record.get("type") == "kernel_event_batch":
                        count += len(record["rows"])
                    elif record.get("type") == "kernel_event":
                        count += 1
            except (EOFError, zlib.error):
                continue  # an archive cut off at exit: what follows in it is lost
    return count


class Bench:
    """Runs the programs, each in a folder of its own in memory that is removed after it."""

    def __init__(self, a, work):
        self.a, self.work, self.sink = a, work, None
        self.programs = {LAUNCH: [os.path.join(work, "launch"), str(a.launches)],
                         TRAIN: [a.python, os.path.join(HERE, "train.py"), "--steps", str(a.steps)]}
        self.clean = {k: v for k, v in os.environ.items()
                      if not k.startswith(("GPUFLIGHT_", "OTEL_", "FLOOR_")) and k not in
                      ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "TRACEPARENT")}

    def build(self):
        include = [f"-I{self.a.cuda}/include", f"-I{self.a.cuda}/extras/CUPTI/include"]
        folders = [f"{self.a.cuda}/{d}" for d in ("extras/CUPTI/lib64", "lib64")]
        libraries = [x for d in folders for x in ("-L" + d, "-Wl,-rpath," + d)]
        gcc = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", *include]
        for command in (
                [*gcc, "-shared", "-fPIC", "-fvisibility=hidden", "-o", self.work + "/libfloor.so", HERE + "/floor.c", *libraries, "-lcupti", "-lpthread"],
                [*gcc, "-o", self.work + "/launch", HERE + "/launch.c", f"-L{self.a.cuda}/lib64/stubs", "-lcuda"]):
            subprocess.run(command, check=True)
        if self.a.wheel:
            subprocess.run([sys.executable, "-m", "zipfile", "-e", self.a.wheel, self.work + "/wheel"], check=True)

    def on(self, gpu, processors):
        """Has all that follows run on one of the GPUs, and begin on these processors."""
        for program, command in self.programs.items():
            self.programs[program] = ["taskset", "-c", ",".join(map(str, processors)), *command]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        self.clean["CUDA_VISIBLE_DEVICES"] = visible[gpu]
        return self

    def environment(self, mode, folder):
        if mode in ("nothing", "torch.profiler"):
            return {}
        if mode in FLOORS:
            flushed = {"FLOOR_FLUSH_MS": "200"} if mode == "floor-flushed" else {}
            return {"CUDA_INJECTION64_PATH": self.work + "/libfloor.so", "FLOOR_REPORT": folder + "/floor.json"} | flushed
        if mode == "gpuflight":
            os.mkdir(folder + "/logs")
            return {"CUDA_INJECTION64_PATH": self.work + "/wheel/lib64/libgpufl_inject.so", "GPUFL_INJECT": "1",
                    "GPUFL_PROFILING_ENGINE": "Trace", "GPUFL_LOG_DIR": folder + "/logs"}
        os.mkdir(folder + "/summary")
        ours = {"CUDA_INJECTION64_PATH": self.a.library, "GPUFLIGHT_SUMMARY_DIR": folder + "/summary"} | dict(self.a.set)
        if mode == "ours":
            return ours | {"GPUFLIGHT_OUTPUT": folder + "/out.otlp.jsonl"}
        return ours | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                       "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.sink.port}"}

    def command(self, program, mode):
        return self.programs[program] + (["--profiler", "torch"] if mode == "torch.profiler" else [])

    def run(self, program, mode):
        """One run. Raises Failure, with the end of the program's stderr, if it or the tool in it failed."""
        folder = tempfile.mkdtemp(dir=self.work)
        try:
            if mode == "ours-otlp":
                self.sink.taken()  # what a run that failed has left there
            command = self.command(program, mode)
            env = self.clean | self.environment(mode, folder)
            before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            with open(folder + "/stdout", "w+") as out, open(folder + "/stderr", "w+") as err:
                child = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                         start_new_session=True)
                threads, libraries = {}, []
                try:
                    status = None
                    while status is None and time.monotonic() - begin < RUN_LIMIT:
                        try:
                            status = child.wait(0.5)
                        except subprocess.TimeoutExpired:
                            threads = places.spent(child.pid) or threads
                            libraries = libcupti(child.pid) or libraries
                    if status is None:
                        status = f"none after {RUN_LIMIT} s"
                finally:
                    if child.returncode is None:
                        os.killpg(child.pid, signal.SIGKILL)
                        child.wait()
                whole, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
                out.seek(0)
                err.seek(0)
                lines = [x for x in out.read().splitlines() if x.startswith("{")]
                if status != 0 or not lines:
                    raise Failure(f"status {status}: {' | '.join(err.read()[-600:].splitlines()[-4:])}")
            result = json.loads(lines[-1])
            kernels, said = self.report(mode, folder, result)
            said = said | {"threads": {f"{name} {i}": used for (name, i), used in threads.items() if used[0] + used[1] >= 0.2},
                           "libraries": libraries}
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            return Run(result[FIELD[program]], result.get("loss"), whole, cpu, kernels, said)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def report(self, mode, folder, result):
        """What the tool had: its kernels, and what it said of itself."""
        if mode == "nothing":
            return None, {}
        if mode in FLOORS:
            said = one_json(folder + "/floor.json")
            if said["result"] != 0:
                raise Failure(f"CUPTI answered {said['result']}")
            return said["kernels"], said
        if mode == "torch.profiler":
            return result["kernels"], {"stop_ms": result["stop_ms"]}
        if mode == "gpuflight":
            size = sum(os.path.getsize(p) for p in glob.glob(folder + "/logs/**/*", recursive=True) if os.path.isfile(p))
            return gpuflight_kernels(folder + "/logs"), {"bytes": size}
        summary = one_json(folder + "/summary/*.json")
        if summary.get("reason"):
            raise Failure(f"not recorded: {summary['reason']}: {summary.get('detail', '')}")
        said = {"spans": summary["spans"], "records": summary["records"], "own_seconds": summary["own_seconds"],
                "unsent": sum(n for d in summary.get("delivery", []) for n in d.get("unsent", {}).values())}
        if mode == "ours":
            said["bytes"] = os.path.getsize(folder + "/out.otlp.jsonl")
        else:
            said |= self.sink.taken()
            if not said["requests"]:
                raise Failure("nothing reached the sink")
        return summary["kernel_count"], said


def rounds(bench, modes, repetitions, deadline, log):
    """Runs all modes in turn until all have their repetitions or time is up. Returns the runs and remarks."""
    runs = {p: {m: [] for m in modes[p]} for p in modes}
    cost, failures, remarks = {}, collections.Counter(), []
    for number in range(repetitions):
        turn = [(p, m) for p in modes for m in rotated(modes[p], number) if failures[p, m] < 2]
        left = deadline - time.monotonic()
        if number >= LEAST_GPUFLIGHT and sum(cost[x] for x in turn) * (repetitions - number) > left:
            turn = [x for x in turn if x[1] != "gpuflight"]
        if number and sum(cost[x] for x in turn) > left:
            remarks.append(f"The budget was enough for {number} of {repetitions} rounds.")
            break
        for program, mode in turn:
            begin = time.monotonic()
            try:
                run = bench.run(program, mode)
            except (Failure, KeyError, ValueError, OSError) as e:
                failures[program, mode] += 1
                remarks.append(f"({program}) {mode} failed in round {number + 1}: {e if isinstance(e, Failure) else repr(e)}")
                log(remarks[-1])
            else:
                runs[program][mode].append(run)
                log(f"{number + 1} ({program}) {mode}: {run.value:.1f}, {run.kernels} kernels, {json.dumps(run.said)}")
            # The slowest so far: a round must not end past the budget.
            cost[program, mode] = max(cost.get((program, mode), 0), time.monotonic() - begin)
    for program in modes:
        most = max(len(done) for done in runs[program].values())
        remarks += [f"({program}) {mode} has {len(done)} runs, others {most}." for mode, done in runs[program].items() if len(done) < most]
    return runs, remarks


def setting(text):
    """A name and a value of an argument NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def beside(benches, mode, other, pairs, say):
    """Runs (b) in two modes side by side, each on a GPU and half of the processors, which they exchange; then they change GPUs. Returns
    (mode's, other's) runs, twice as many as pairs."""
    done = []
    for number in range(2 * pairs):
        modes = [mode, other] if number % 2 == 0 else [other, mode]
        with places.Swapping(*places.parts(2)), concurrent.futures.ThreadPoolExecutor() as both:
            pair = dict(zip(modes, both.map(lambda bench, m: bench.run(TRAIN, m), benches, modes)))
        say(f"{mode} on {number % 2}: {pair[mode].value:.1f} beside {pair[other].value:.1f} of {other}, {json.dumps([pair[mode].said, pair[other].said])}")
        done.append((pair[mode], pair[other]))
    return done


def by_the_floor(a, work, modes, say):
    """Each mode side by side with the floor. Returns what is to be printed, and (holds, sentence) of what is required."""
    benches, times, said = [Bench(a, work).on(i, half) for i, half in enumerate(places.parts(2))], {}, []
    benches[0].build()
    kernels = collections.Counter()
    for mode in [m for m in modes if m != "floor"]:
        try:
            pairs = beside(benches, mode, "floor", a.pairs, say)
        except (Failure, KeyError, ValueError, OSError) as e:
            said.append(f"{mode}: {e if isinstance(e, Failure) else repr(e)}")
            continue
        ratios = [one.value / floor.value for one, floor in pairs]
        times[mode] = statistics.geometric_mean(ratios)
        kernels[mode] += sum(abs(floor.kernels - one.kernels) for one, floor in pairs if one.kernels is not None)
        said.append(f"{mode}, of the floor beside it: " + ", ".join(f"× {r:.4f}" for r in ratios) + f"; × {times[mode]:.4f}, {kernels[mode]} kernels more or fewer")
    return said, judged(times, kernels)


def judged(times, kernels):
    """What is required of modes, by how many times as long as the floor they take, and by how many kernels they differ from it."""
    ours = times.get("ours")
    if ours is None:
        return [(False, "ours: not measured")]
    verdicts = [(ours <= 1.05, f"ours takes {ours:.3f} times as long as the floor beside it, at most 1.05"),
                (kernels["ours"] == 0, f"ours had {kernels['ours']} kernels more or fewer than the floor")]
    if "torch.profiler" in times:
        verdicts.append((ours < times["torch.profiler"], f"torch.profiler takes {times['torch.profiler']:.3f} times as long: ours must be less"))
    return verdicts


def rotated(modes, number):
    """Begins with another mode each time, so that none always comes after the same state of the machine."""
    number %= len(modes)
    return modes[number:] + modes[:number]


def gpu():
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True, timeout=20)
        return answer.stdout.splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "unknown GPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="our libgpuflight.so")
    parser.add_argument("--wheel", help="GPU Flight's wheel, for the mode gpuflight")
    parser.add_argument("--cuda", default=os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch")
    parser.add_argument("--launches", type=int, default=300_000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--budget", type=float, default=420, help="seconds in all")
    parser.add_argument("--quick", action="store_true", help="3 repetitions of 100,000 launches and 20 steps")
    parser.add_argument("--programs", default="a,b", help="a, b or both")
    parser.add_argument("--modes", help="only these, by commas; nothing and floor always run")
    parser.add_argument("--set", action="append", default=[], type=setting, metavar="NAME=VALUE", help="a setting of ours, such as GPUFLIGHT_FLUSH_INTERVAL=2s")
    parser.add_argument("--pairs", type=int, default=0, help="each mode side by side with the floor on two GPUs, so often in each place")
    parser.add_argument("--json", help="write every run to this file")
    a = parser.parse_args()
    if a.quick:
        a.repetitions, a.launches, a.steps = 3, 100_000, 20
    a.library, a.wheel = os.path.abspath(a.library), a.wheel and os.path.abspath(a.wheel)
    for path in filter(None, (a.library, a.wheel)):
        if not os.path.isfile(path):
            parser.error(f"there is no file {path}")
    programs = a.programs.split(",")
    if not set(programs) <= {LAUNCH, TRAIN} or min(a.repetitions, a.launches, a.steps) < 1:
        parser.error("--programs is a, b or a,b; --repetitions, --launches and --steps are at least 1")
    chosen = {"nothing", "floor"} | (set(a.modes.split(",")) if a.modes else set(MODES[TRAIN]) - {"floor-flushed"})
    if unknown := chosen - set(MODES[TRAIN]):
        parser.error(f"no such mode: {', '.join(sorted(unknown))}")
    if not a.wheel:
        chosen.discard("gpuflight")
    modes = {p: [m for m in MODES[p] if m in chosen] for p in programs}

    begin = time.monotonic()
    deadline = begin + a.budget
    work = tempfile.mkdtemp(dir="/dev/shm", prefix="overhead-")
    if a.pairs:
        try:
            said, verdicts = by_the_floor(a, work, [m for m in MODES[TRAIN] if m in chosen - {"ours-otlp"}], lambda s: print(s[:2000], file=sys.stderr, flush=True))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(f"{gpu()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {a.steps} steps, {time.monotonic() - begin:.0f} s in all\n")
        sys.exit(told([*said, ""], verdicts))
    bench = Bench(a, work)
    try:
        bench.sink = Sink()
        bench.build()
        for program in programs:
            bench.run(program, "nothing")  # fills the file cache and wakes the device
        runs, remarks = rounds(bench, modes, a.repetitions, deadline, lambda s: print(s, file=sys.stderr, flush=True))
    except Failure as e:
        sys.exit(f"without any tool: {e}")
    except subprocess.CalledProcessError as e:
        sys.exit(f"{' '.join(e.cmd)}: status {e.returncode}")
    finally:
        if bench.sink:
            bench.sink.close()
        shutil.rmtree(work, ignore_errors=True)

    runs = {p: runs.get(p, {}) for p in (LAUNCH, TRAIN)}
    print(f"{gpu()}, Linux {platform.release()}, {os.cpu_count()} cores, {time.monotonic() - begin:.0f} s in all\n")
    titles = {LAUNCH: f"(a) {a.launches:,} empty kernels", TRAIN: f"(b) PyTorch, {a.steps} training steps"}
    for program in programs:
        print(f"**{titles[program]}**\n\n{table(program, runs[program], a.launches)}\n")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({p: {m: [r._asdict() for r in done] for m, done in runs[p].items()} for p in runs}, f, indent=1)
    # What was not asked for is not required.
    verdicts = [(holds, sentence) for program, compared, holds, sentence in requirements(runs, a.launches)
                if program in programs and compared <= chosen]
    sys.exit(told(["Note: " + r for r in remarks], verdicts))


def told(lines, verdicts):
    """Prints lines and verdicts, and returns the exit status."""
    for line in lines:
        print(line)
    for holds, sentence in verdicts:
        print(("PASS " if holds else "FAIL ") + sentence)
    return 0 if verdicts and all(holds for holds, _ in verdicts) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--be-the-sink"]:
        be_the_sink()
    else:
        main()
