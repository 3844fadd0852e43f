#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold the nvml receiver's values against nvidia-smi's, on a machine with an NVIDIA GPU and PyTorch.

    test/gpu/nvml.py --collector bin/otelcol-gpuflight [--device 0] [--interval 1]

The collector, with config/nvml.yaml, reads the device while a program multiplies bf16 matrices for 15 s, idles for 10 s with its
memory held, and adds large vectors for 10 s. In the same seconds `nvidia-smi --query-gpu`, `dmon` and
`--query-compute-apps` run. For each phase, without its first 3 s and last second, means are compared within
what sampling at different moments explains; energy against power times time; process memory against
nvidia-smi's; the profiling metrics against what the program does. The wall time of a scrape comes from the
collector's own telemetry, while the matrices are multiplied once more and no nvidia-smi runs beside, and has
to be under 25 ms. What is compared is printed; the status is 1 when
anything differs.
"""
import argparse, bisect, csv, json, os, platform, re, signal, socket, subprocess, sys, tempfile, threading, time, urllib.request

PROGRAM = """
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
x = torch.randn(1 << 29, device="cuda"); y = torch.empty_like(x)
torch.cuda.synchronize()
def phase(name, seconds, work):
    print(name, time.time(), flush=True)
    end = time.time() + seconds
    while time.time() < end:
        work()
        torch.cuda.synchronize()
    print("end", time.time(), flush=True)
def matmul():
    for _ in range(20): a @ a
def memory():
    for _ in range(50): torch.add(x, 1.0, out=y)
phase("matmul", 15, matmul)
if sys.argv[1:]: sys.exit()
phase("idle", 10, lambda: time.sleep(0.1))
phase("memory", 10, memory)
"""

# Over config/nvml.yaml: a shorter interval, one device, and a file where the values end.
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "config", "nvml.yaml")
CONFIG = """
receivers:
  nvml: {{collection_interval: {interval}s, timeout: {interval}s, initial_delay: 0s, devices: ["{uuid}"]}}
exporters:
  file: {{path: "{work}/metrics.json", flush_interval: 100ms}}
service:
  pipelines:
    metrics: {{receivers: [nvml], exporters: [prometheus, file]}}
    logs: {{receivers: [nvml], exporters: [file]}}
  telemetry: {{metrics: {{level: detailed, readers: [{{pull: {{exporter: {{prometheus: {{host: 127.0.0.1, port: {port}}}}}}}}}]}}}}
"""

QUERY = ["timestamp", "utilization.gpu", "utilization.memory", "memory.used", "power.draw", "power.draw.instant",
         "temperature.gpu", "clocks.sm", "clocks.mem"]


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def mean(values):
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


class Watch:
    """A running nvidia-smi whose lines get the time at which they came."""

    def __init__(self, *args):
        self.rows = []
        self.process = subprocess.Popen(["nvidia-smi", *args], stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.rows.append((time.time(), line.strip()))

    def stop(self):
        if self.process.poll() is not None:
            return
        self.process.terminate()
        self.process.wait(10)
        self.thread.join(10)


class Telemetry:
    """The receiver's data points, as [(time, value, attributes)] by metric."""

    def __init__(self, path):
        self.points, self.resources = {}, []
        for line in open(path):
            try:
                batch = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut off at the end
            for rm in batch.get("resourceMetrics", []):
                resource = {a["key"]: a["value"].get("stringValue") for a in rm["resource"].get("attributes", [])}
                if resource not in self.resources:
                    self.resources.append(resource)
                for sm in rm.get("scopeMetrics", []):
                    for metric in sm["metrics"]:
                        for dp in (metric.get("gauge") or metric.get("sum"))["dataPoints"]:
                            attrs = {a["key"]: next(iter(a["value"].values())) for a in dp.get("attributes", [])}
                            value = float(dp["asInt"]) if "asInt" in dp else float(dp["asDouble"])
                            self.points.setdefault(metric["name"], []).append((int(dp["timeUnixNano"]) / 1e9, value, attrs))

    def get(self, name, start, end, **attrs):
        attrs = {k.replace("__", "."): v for k, v in attrs.items()}
        absent = [k for k, v in attrs.items() if v is None]
        wanted = {k: v for k, v in attrs.items() if v is not None}
        return [(t, v) for t, v, a in self.points.get(name, []) if start <= t <= end
                and all(a.get(k) == w for k, w in wanted.items()) and not any(k in a for k in absent)]

    def mean(self, name, start, end, **attrs):
        return mean([v for _, v in self.get(name, start, end, **attrs)])


class Own:
    """The collector's telemetry about itself."""

    def __init__(self, port):
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        self.sums, self.counts, self.under = {}, {}, {}
        for line in text.splitlines():
            m = re.match(r'\w*receiver_nvml_scrape_duration\w*_(sum|count|bucket)\{(.*)\} (\S+)$', line)
            if not m:
                continue
            group = re.search(r'group="(\w+)"', m[2])[1]
            if m[1] == "bucket":
                if re.search(r'le="0\.025"', m[2]):
                    self.under[group] = float(m[3])
            else:
                (self.sums if m[1] == "sum" else self.counts)[group] = float(m[3])
        self.errors = [l for l in text.splitlines() if re.match(r"\w*receiver_nvml_call_errors\w*\{", l)]


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


failures = 0


def check(what, ours, theirs, allowed, unit=""):
    """Compare; None on one side only is a difference, on both sides nothing to compare."""
    global failures
    if ours is None and theirs is None:
        print(f"  {what:34} not given by either")
        return
    good = ours is not None and theirs is not None and abs(ours - theirs) <= allowed
    failures += not good
    show = lambda v: "absent" if v is None else f"{v:.2f}"
    print(f"  {what:34} ours {show(ours):>11}  nvidia-smi {show(theirs):>11} {unit:5} (± {allowed:.2f}){'' if good else '   DIFFERS'}")


def same(what, ours, theirs):
    global failures
    failures += ours != theirs
    print(f"  {what:34} ours {ours}, expected {theirs}{'' if ours == theirs else '   DIFFERS'}")


def expect(what, value, good, rule):
    global failures
    fine = value is not None and good(value)
    failures += not fine
    print(f"  {what:34} {'absent' if value is None else f'{value:.3f}'}  ({rule}){'' if fine else '   WRONG'}")


def integrate(samples, start, end):
    """Power over time by trapezes between start and end, in J."""
    times = [t for t, _ in samples]
    def at(t):
        i = bisect.bisect(times, t)
        if i == 0 or i == len(times):
            return samples[min(i, len(samples) - 1)][1]
        (t0, p0), (t1, p1) = samples[i - 1], samples[i]
        return p0 + (p1 - p0) * (t - t0) / (t1 - t0)
    inner = [(t, p) for t, p in samples if start < t < end]
    path = [(start, at(start))] + inner + [(end, at(end))]
    return sum((p0 + p1) / 2 * (t1 - t0) for (t0, p0), (t1, p1) in zip(path, path[1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collector", required=True, help="path of otelcol-gpuflight")
    parser.add_argument("--device", default="0", help="index of the device; the program runs on it alone")
    parser.add_argument("--interval", type=int, default=1, help="seconds between two scrapes")
    parser.add_argument("--python", default=sys.executable, help="a Python with PyTorch")
    args = parser.parse_args()

    def smi(fields, *more):
        return subprocess.run(["nvidia-smi", "-i", args.device, f"--query-gpu={fields}", "--format=csv,noheader,nounits", *more],
                              check=True, capture_output=True, text=True).stdout.strip()
    uuid, name, driver, serial = [f.strip() for f in smi("uuid,name,driver_version,serial").split(",")]
    print(f"{name}, driver {driver}, {platform.machine()}, a scrape every {args.interval} s")

    with tempfile.TemporaryDirectory() as work:
        port = free_port()
        config = os.path.join(work, "config.yaml")
        with open(config, "w") as f:
            f.write(CONFIG.format(interval=args.interval, uuid=uuid, work=work, port=port))
        log = open(os.path.join(work, "collector.log"), "w+")
        collector = subprocess.Popen([args.collector, "--config", SHIPPED, "--config", config], stdout=log, stderr=log,
                                     env=dict(os.environ, GPUFLIGHT_PROMETHEUS_PORT=str(free_port())))
        watches = []
        try:
            deadline = time.time() + 30
            while True:
                try:
                    if Own(port).counts.get("scrape", 0) >= 1:
                        break
                except OSError:
                    pass
                if collector.poll() is not None or time.time() > deadline:
                    log.seek(0)
                    sys.exit("the collector does not scrape:\n" + log.read()[-4000:])
                time.sleep(0.2)
            watches = [
                Watch("-i", args.device, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "-lms", "500"),
                Watch("dmon", "-i", args.device, "-s", "u", "-d", "1"),
                Watch("-i", args.device, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", "-lms", "1000"),
            ]
            time.sleep(3)
            first, cpu, began = Own(port), cpu_seconds(collector.pid), time.time()
            env = dict(os.environ, CUDA_VISIBLE_DEVICES=uuid)
            program = subprocess.run([args.python, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True, timeout=180)
            beside = Own(port)
            finished = time.time()
            time.sleep(2 * args.interval)
            # What a scrape costs is measured without nvidia-smi, which keeps the driver busy.
            for w in watches:
                w.stop()
            beside_from, first, cpu = first, Own(port), cpu_seconds(collector.pid)
            alone = subprocess.run([args.python, "-c", PROGRAM, "matmul only"], env=env, stdout=subprocess.PIPE, text=True, timeout=180)
            last, cpu = Own(port), cpu_seconds(collector.pid) - cpu
        finally:
            for w in watches:
                w.stop()
            collector.send_signal(signal.SIGTERM)
            try:
                status = collector.wait(20)
            except subprocess.TimeoutExpired:
                collector.kill()
                status = "killed after 20 s"
            log.seek(0)
            output = log.read()
            log.close()
        if program.returncode or alone.returncode or status != 0:
            sys.exit(f"the program ended with {program.returncode}, the collector with {status}:\n{output[-4000:]}")
        ours = Telemetry(os.path.join(work, "metrics.json"))
        same("resources", len(ours.resources), 1)
        for resource in ours.resources:
            same("hw.driver_version", resource.get("hw.driver_version"), driver)
            same("hw.serial_number", resource.get("hw.serial_number"), serial if serial.strip("0") and serial.isalnum() else None)
            same("host.name", resource.get("host.name"), platform.node())
        report(ours, watches, program.stdout, began, finished)

    print("cost, under the matrix product and without nvidia-smi")
    scrapes = last.counts["scrape"] - first.counts["scrape"]
    wall = (last.sums["scrape"] - first.sums["scrape"]) / scrapes * 1000
    expect("wall time of a scrape, mean, ms", wall, lambda v: v < 25, "under 25")
    if "scrape" in last.under:
        share = (last.under["scrape"] - first.under["scrape"]) / scrapes
        expect("scrapes within 25 ms, share", share, lambda v: v >= 0.9, "at least 0.9: the slow group comes once a minute")
    for group in sorted(last.counts):
        n = last.counts[group] - first.counts.get(group, 0)
        if group != "scrape" and n:
            print(f"    {group:12} {(last.sums[group] - first.sums.get(group, 0)) / n * 1000:8.2f} ms ({n:.0f} times)")
    n = beside.counts["scrape"] - beside_from.counts["scrape"]
    print(f"  beside three nvidia-smi: {(beside.sums['scrape'] - beside_from.sums['scrape']) / n * 1000:.2f} ms in the mean")
    print(f"  CPU time of the collector per scrape {cpu / scrapes * 1000:.2f} ms, all its work included ({scrapes:.0f} scrapes)")
    for line in last.errors:
        print("  " + line)
    for line in output.splitlines():
        if "\twarn\t" in line or "\terror\t" in line:
            print("  collector: " + line[:300])
    print("all agrees" if not failures else f"{failures} DIFFERENCES")
    return 1 if failures else 0


def report(ours, watches, stdout, began, finished):
    gpu = []
    for t, line in watches[0].rows:
        row = [c.strip() for c in next(csv.reader([line]), [])]
        if len(row) == len(QUERY):
            gpu.append((t, dict(zip(QUERY, [None] + [number(c) for c in row[1:]]))))
    dmon, columns = [], []
    for t, line in watches[1].rows:
        if line.startswith("#"):
            columns = columns or line.lstrip("# ").split()
        elif columns:
            dmon.append((t, dict(zip(columns, [number(c) for c in line.split()]))))
    apps = []
    for t, line in watches[2].rows:
        parts = [p.strip() for p in line.split(",")]
        if len(parts) == 2 and parts[0].isdigit():
            apps.append((t, int(parts[0]), number(parts[1])))

    phases, lines = [], [l.split() for l in stdout.splitlines()]
    for (name, start), (_, end) in zip(lines[::2], lines[1::2]):
        phases.append((name, float(start) + 3, float(end) - 1))
    for name, start, end in phases:
        print(f"{name}, {end - start:.0f} s")
        theirs = lambda key: mean([r[key] for t, r in gpu if start <= t <= end])
        column = lambda key: mean([r.get(key) for t, r in dmon if start <= t <= end])
        m = lambda metric, scale=1.0, **attrs: (lambda v: None if v is None else v * scale)(ours.mean(metric, start, end, **attrs))
        check("utilisation", m("hw.gpu.utilization", 100, hw__gpu__task="general"), theirs("utilization.gpu"), 8, "%")
        check("utilisation, dmon", m("hw.gpu.utilization", 100, hw__gpu__task="general"), column("sm"), 8, "%")
        check("memory controller", m("hw.gpu.memory.controller.utilization", 100), theirs("utilization.memory"), 8, "%")
        check("memory controller, dmon", m("hw.gpu.memory.controller.utilization", 100), column("mem"), 8, "%")
        used = theirs("memory.used")
        check("memory in use", m("hw.gpu.memory.usage", 1 / (1 << 20)), used, max(2, 0.005 * (used or 0)), "MiB")
        power = theirs("power.draw.instant") or theirs("power.draw")
        check("power", m("hw.power"), power, max(5, 0.07 * (power or 0)), "W")
        check("temperature", m("hw.temperature", hw__sensor_location=None), theirs("temperature.gpu"), 2, "Cel")
        for domain, key in (("sm", "clocks.sm"), ("memory", "clocks.mem")):
            clock = theirs(key)
            check(f"clock, {domain}", m("hw.gpu.speed", 1e-6, hw__gpu__clock_domain=domain), clock, max(15, 0.05 * (clock or 0)), "MHz")
        memory = {}
        for t, pid, mib in apps:
            if start <= t <= end and mib is not None:
                memory[pid] = mib
        for pid, mib in sorted(memory.items()):
            values = [v for t, v, a in ours.points.get("process.gpu.memory.usage", []) if start <= t <= end and int(a["process.pid"]) == pid]
            check(f"memory of process {pid}", values[-1] / (1 << 20) if values else None, mib, 1, "MiB")
        if not memory:
            expect("processes by nvidia-smi", None, bool, "the program is to be seen")
        sm, tensor, dram = m("hw.gpu.sm.utilization"), m("hw.gpu.pipe.utilization", hw__gpu__pipe="tensor"), m("hw.gpu.memory.bandwidth.utilization")
        if sm is None and "hw.gpu.sm.utilization" not in ours.points:
            print("  no GPM: older than Hopper, or profiling is for the administrator only")
            continue
        print(f"  GPM: SM {sm}, occupancy {m('hw.gpu.sm.occupancy')}, tensor {tensor}, DRAM {dram}, "
              + ", ".join(f"{p} {m('hw.gpu.pipe.utilization', hw__gpu__pipe=p)}" for p in ("fp64", "fp32", "fp16", "integer")))
        if name == "matmul":
            expect("SM utilisation", sm, lambda v: v > 0.8, "above 0.8")
            expect("tensor pipe", tensor, lambda v: v > 0.5, "above 0.5")
        elif name == "idle":
            expect("SM utilisation", sm, lambda v: v < 0.05, "below 0.05")
            expect("tensor pipe", tensor, lambda v: v < 0.02, "below 0.02")
        else:
            expect("DRAM bandwidth", dram, lambda v: v > 0.5, "above 0.5")
            expect("tensor pipe", tensor, lambda v: v < 0.05, "below 0.05")
    print("the whole run")
    energy = ours.get("hw.energy", began, finished)
    # power.draw.instant, where there is one: the average lags behind the phases by a second.
    key = "power.draw.instant" if any(r["power.draw.instant"] is not None for _, r in gpu) else "power.draw"
    power = [(t, r[key]) for t, r in gpu if r[key] is not None]
    if len(energy) < 2 or len(power) < 2:
        expect("energy", None, bool, "two readings of both")
        return
    (t0, e0), (t1, e1) = energy[0], energy[-1]
    joules = integrate(power, t0, t1)
    check(f"energy over {t1 - t0:.0f} s", e1 - e0, joules, 0.05 * joules, "J")
    falls = sum(b < a for (_, a), (_, b) in zip(energy, energy[1:]))
    expect("energy falls, times", float(falls), lambda v: v == 0, "a counter")
    print(f"  PCIe receive {[int(v) for _, v in ours.get('hw.gpu.io', began, finished, network__io__direction='receive')][-1:]} By, "
          f"transmit {[int(v) for _, v in ours.get('hw.gpu.io', began, finished, network__io__direction='transmit')][-1:]} By; "
          f"{len(ours.points)} metrics: {', '.join(sorted(ours.points))}")


if __name__ == "__main__":
    sys.exit(main())
