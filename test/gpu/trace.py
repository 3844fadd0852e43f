#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check on an NVIDIA GPU that `gpuflight trace` records all of a training, into a local Collector, at the cost of CUPTI.

    test/gpu/trace.py --bin bin [--steps 400] [--repetitions 7] [--pairs N] [--budget 420]

bin has gpuflight, libgpuflight.so, libgpuflight-recorder.so and otelcol-gpuflight, each of them also as FILE.xz. The
Collector runs with config/local.yaml. The program is overhead/train.py, a PyTorch training that is bound by launches,
with an NVTX range around each step. All modes run in turn, or with --pairs and two GPUs side by side with the floor:

    floor           floor.c: CUPTI records kernels, copies and sets, which are counted and thrown away
    trace           gpuflight trace --endpoint http://127.0.0.1:PORT -- python train.py
    torch.profiler  CUDA activities only, for its number of kernels

PASS or FAIL for each of these, and status 1 if one fails:

  * trace has as many kernels as the floor and torch.profiler, in the table at the end and in the Collector's store;
  * nothing was left out, dropped or not sent;
  * each step is a trace of its own, whose kernels are all in it, and the same number in each step;
  * trace takes at most 1.05 times as long as the floor, by medians;
  * launch.c, 45,000 launches a second for --seconds: all kernels are in the store, with gRPC too.
"""
import argparse, contextlib, json, lzma, os, re, shutil, socket, statistics, subprocess, sys, tempfile, time
import urllib.error, urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import overhead, places

RATE = 45_000
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
overhead.MODES[overhead.TRAIN] = ["nothing", "floor", "trace"]


def free_ports(names):
    """Ports that are free now, by variable."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: s.getsockname()[1] for name, s in zip(names, sockets)}


PORTS = free_ports(["GPUFLIGHT_LISTEN", "GPUFLIGHT_LISTEN_HTTP", "GPUFLIGHT_UI", "GPUFLIGHT_PROMETHEUS_PORT", "GPUFLIGHT_METRICS_PORT"])


class Collector:
    """otelcol-gpuflight with config/local.yaml and its store in a folder."""

    def __init__(self, binary, folder):
        self.binary, self.folder, self.log = binary, folder, folder + "/collector.log"
        environment = os.environ | {"GPUFLIGHT_STATE": folder + "/state", "GPUFLIGHT_LOGS": folder} | {
            k: str(v) if k.endswith("_PORT") else f"127.0.0.1:{v}" for k, v in PORTS.items()}
        # Neither reads the GPU nor the driver meanwhile: the floor would pay for them too, or not.
        alone = ["service::pipelines::traces::receivers=[otlp]", "service::pipelines::logs::receivers=[otlp]",
                 "service::pipelines::metrics::receivers=[otlp, gpu_usage]", "extensions::gpu_query::sql=true"]
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([binary, "--config", ROOT + "/config/local.yaml", *(f"--set={s}" for s in alone)],
                                            env=environment, cwd=folder, stdout=out, stderr=out)
        for _ in range(300):
            try:
                self.get("health")
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        with open(self.log) as f:
            raise overhead.Failure("the Collector does not start: " + f.read()[-1500:])

    def get(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{PORTS['GPUFLIGHT_UI']}/api/v1/{path}", body and json.dumps(body).encode(),
                                         {"Content-Type": "application/json"} if body else {})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def kernels(self, service, expected):
        """The kernels that the store has of a service, which sends with other data: it waits for them for 20 s."""
        found = None
        for _ in range(100):
            sessions = [s for s in self.get("sessions?limit=1000")["sessions"] if s.get("service") == service]
            found = sum(s["operations"].get("kernel", 0) for s in sessions)
            if found >= expected:
                break
            time.sleep(0.2)
        return found, [s["id"] for s in sessions]

    def sql(self, session, statement):
        for _ in range(5):
            try:
                return self.get("sql", {"session": session, "statement": statement})["rows"]
            except urllib.error.HTTPError as e:
                if e.code != 503:  # the first statement copies the session
                    raise overhead.Failure(f"{statement}: {e.read().decode()}")
        raise overhead.Failure(f"{statement}: too slow")

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        with open(self.log) as f:
            return [line for line in f if "\terror\t" in line]


class Bench(overhead.Bench):
    """A mode trace besides those of overhead.py."""

    number = 0

    def __init__(self, a, work, collector):
        super().__init__(a, work)
        self.collector = collector
        self.programs[overhead.TRAIN].append("--ranges")

    def traced(self, command, service, *flags):
        return [self.a.bin + "/gpuflight", "trace", "--service", service,
                *(flags or ["--endpoint", f"http://127.0.0.1:{PORTS['GPUFLIGHT_LISTEN_HTTP']}"]), "--", *command]

    def command(self, program, mode):
        command = super().command(program, mode)
        if mode != "trace":
            return command
        Bench.number += 1
        self.service = f"{program}-{Bench.number}"
        return self.traced(command, self.service)

    def environment(self, mode, folder):
        return {} if mode == "trace" else super().environment(mode, folder)

    def report(self, mode, folder, result):
        if mode != "trace":
            return super().report(mode, folder, result)
        with open(folder + "/stderr") as f:
            kernels, missing = summary(f.read())
        return kernels, {"service": self.service, "missing": missing}


def summary(text):
    """The kernels in gpuflight's table, and its lines that say what is missing."""
    row = re.search(r"^\s*\S+\s+100\.0%\s+([\d,]+)\s.*\(all\)$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("gpuflight: warning: ")
             and re.search(r"could not be|without a span|drop|lost|nothing|cannot|rejected|unread", line)]
    return int(row.group(1).replace(",", "")) if row else 0, lines


def steps(collector, session, expected):
    """What is wrong with the traces of the steps, as sentences."""
    wrong = []
    ranges = collector.sql(session, "SELECT trace_id, count(*) FROM spans WHERE name = 'step' AND operation = 'scope' GROUP BY 1")
    if len(ranges) != expected or any(n != 1 for _, n in ranges):
        wrong.append(f"{len(ranges)} traces have a step, {sum(n for _, n in ranges)} steps in all; {expected} expected")
    traces = {trace for trace, _ in ranges}
    counts = dict(collector.sql(session, "SELECT trace_id, count(*) FROM operations WHERE operation = 'kernel' GROUP BY 1"))
    inside = [n for trace, n in counts.items() if trace in traces]
    usual = statistics.mode(inside) if inside else 0
    # The first steps also make the optimizer's state and choose kernels.
    if len(inside) != expected or sum(n != usual for n in inside) > 3:
        wrong.append(f"steps have {sorted(set(inside))} kernels in {len(inside)} traces")
    spanned = collector.sql(session, "SELECT count(*) FROM operations o JOIN spans s ON o.parent_id = s.span_id AND o.trace_id = s.trace_id WHERE o.operation = 'kernel' AND s.name = 'step'")[0][0]
    if spanned != sum(inside):
        wrong.append(f"{spanned} of {sum(inside)} kernels are children of their step")
    return wrong, f"{len(inside)} steps with {', '.join(map(str, sorted(set(inside))))} kernels, {sum(counts.values()) - sum(inside)} kernels outside steps"


def paced(bench, collector, seconds):
    """launch.c with 45,000 launches a second, by both protocols, and the same into a file."""
    verdicts = []
    launches = RATE * seconds
    want = launches + overhead.WARM_UP
    for name, flags in {"http/protobuf": ["--endpoint", f"http://127.0.0.1:{PORTS['GPUFLIGHT_LISTEN_HTTP']}"],
                        "grpc": ["--endpoint", f"http://127.0.0.1:{PORTS['GPUFLIGHT_LISTEN']}", "--protocol", "grpc"]}.items():
        service = "paced-" + name[:4]
        begin = time.monotonic()
        done = subprocess.run(bench.traced([bench.work + "/launch", str(launches), str(RATE)], service, *flags), env=bench.clean,
                              capture_output=True, text=True, timeout=seconds + 90)
        took = time.monotonic() - begin
        if done.returncode != 0:
            verdicts.append((False, f"{name}: status {done.returncode}: {done.stderr[-400:]}"))
            continue
        rate = 1e9 / json.loads(done.stdout.splitlines()[-1])["ns_per_launch"]
        table, lines = summary(done.stderr)
        stored, _ = collector.kernels(service, want)
        verdicts.append((table == stored == want and not lines and rate > 0.98 * RATE,
                         f"{name}: {rate:,.0f} launches/s for {seconds} s, {want:,} launches, {table:,} in the table, {stored:,} in the store; "
                         f"{took - seconds:.1f} s more than the launches in all; missing: {lines or 'nothing'}"))
    return verdicts


def unpacked(source, target):
    """A folder with the files of source. Those that end in .xz are unpacked."""
    os.mkdir(target)
    for name in os.listdir(source):
        with (lzma.open if name.endswith(".xz") else open)(os.path.join(source, name), "rb") as f:
            path = os.path.join(target, name.removesuffix(".xz"))
            with open(path, "wb") as out:
                shutil.copyfileobj(f, out)
            os.chmod(path, 0o755)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="bin")
    parser.add_argument("--cuda", default=os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--launches", type=int, default=300_000)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=0, help="trace side by side with the floor on two GPUs, so often in each place")
    parser.add_argument("--seconds", type=int, default=15, help="of launch.c")
    parser.add_argument("--budget", type=float, default=420, help="seconds for the rounds")
    parser.add_argument("--work", help="folder for the store and the programs (default: a temporary one)")
    a = parser.parse_args()
    work = a.work or tempfile.mkdtemp(prefix="gpuflight-trace-")
    a.bin, a.wheel, a.set = unpacked(os.path.abspath(a.bin), work + "/bin"), None, []
    a.library = a.bin + "/libgpuflight.so"
    say = lambda s: print(s, file=sys.stderr, flush=True)
    verdicts, lines, begin = [], [], time.monotonic()
    collector = Collector(a.bin + "/otelcol-gpuflight", work)
    try:
        bench = Bench(a, work, collector)
        bench.build()
        bench.run(overhead.TRAIN, "nothing")  # fills the file cache and wakes the device
        verdicts += paced(bench, collector, a.seconds)
        for holds, sentence in verdicts:
            say(("PASS " if holds else "FAIL ") + sentence)
        torch = bench.run(overhead.TRAIN, "torch.profiler")
        if a.pairs:
            benches = [bench.on(0, places.parts(2)[0]), Bench(a, work, collector).on(1, places.parts(2)[1])]
            pairs = overhead.beside(benches, "trace", "floor", a.pairs, say)
            runs = {"trace": [one for one, _ in pairs], "floor": [floor for _, floor in pairs]}
            ratio = statistics.geometric_mean([one.value / floor.value for one, floor in pairs])
            lines.append("of the floor beside it: " + ", ".join(f"× {one.value / floor.value:.3f}" for one, floor in pairs))
        else:
            found, remarks = overhead.rounds(bench, {overhead.TRAIN: ["nothing", "floor", "trace"]}, a.repetitions, time.monotonic() + a.budget, say)
            runs, lines = found[overhead.TRAIN], lines + remarks
            if not runs["floor"] or not runs["trace"]:
                raise overhead.Failure("; ".join(remarks))
            lines.append(overhead.table(overhead.TRAIN, runs, a.launches))
            ratio = overhead.median([r.value for r in runs["trace"]]) / overhead.median([r.value for r in runs["floor"]])
        want = overhead.expected(overhead.TRAIN, runs, a.launches)
        rates = [want / (a.steps + 10) * a.steps / (r.value / 1e3) for r in runs["trace"]] if want else []
        verdicts.append((ratio <= 1.05, f"trace takes {ratio:.3f} times as long as the floor, at most 1.05; {overhead.median(rates) or 0:,.0f} kernels/s"))
        verdicts.append((want == torch.kernels, f"the floor had {want} kernels, torch.profiler {torch.kernels}"))
        off = [r.kernels - (want or 0) for r in runs["trace"] if r.kernels != want]
        verdicts.append((not off, f"trace had all {want} kernels in {len(runs['trace']) - len(off)} of {len(runs['trace'])} runs, off by {off}"))
        missing = [line for r in runs["trace"] for line in r.said["missing"]]
        verdicts.append((not missing, f"missing, as gpuflight says: {missing or 'nothing'}"))
        for r in runs["trace"]:
            stored, sessions = collector.kernels(r.said["service"], want or 0)
            if stored != want or len(sessions) != 1:
                verdicts.append((False, f"{r.said['service']}: the store has {stored} of {want} kernels in {len(sessions)} sessions"))
        verdicts.append((len({r.loss for m in runs for r in runs[m]} | {torch.loss}) == 1, "the training came to the same loss in all modes"))
        wrong, text = steps(collector, sessions[0], a.steps + 10)
        verdicts.append((not wrong, f"one trace a step: {text}" + "".join("; " + w for w in wrong)))
    except overhead.Failure as e:
        verdicts.append((False, str(e)))
    finally:
        errors = collector.close()
        if not a.work:
            shutil.rmtree(work, ignore_errors=True)
    verdicts.append((not errors, f"the Collector logged {len(errors)} errors" + "".join(": " + e[:300] for e in errors[:3])))
    print(f"{overhead.gpu()}, {os.cpu_count()} cores, {a.steps} steps, {time.monotonic() - begin:.0f} s in all\n")
    sys.exit(overhead.told(lines + [""], verdicts))


if __name__ == "__main__":
    main()
