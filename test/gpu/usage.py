#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check usage and cost against the records themselves, behind a live recorder on an NVIDIA GPU.

    test/gpu/usage.py --collector bin/otelcol-gpuflight --recorder DIR

DIR is the unpacked wheel of PyPI's `gpuflight` (1.2.1 was used). Two PyTorch programs share the device, one of
them on three streams, each under the recorder; the collector follows both logs through the occupancy
processor into the gpu_usage connector. At the end the script computes busy time, device seconds, launches,
bytes and cost from the raw records by itself and compares: nanosecond for nanosecond, and cost to a
billionth. It prints NVML's utilisation over the same seconds beside ours, and how often the occupancy
agrees with the recorder's own. The status is 1 when anything differs.
"""
import argparse, collections, glob, gzip, json, os, platform, signal, subprocess, sys, tempfile, threading, time

PROGRAM = """
import sys, time, torch
streams = [torch.cuda.Stream() for _ in range(int(sys.argv[1]))]
a = torch.randn(1024, 1024, device="cuda")
host = torch.randn(1024, 1024).pin_memory()
end = time.time() + 15
while time.time() < end:
    for s in streams:
        with torch.cuda.stream(s):
            b = (a @ a).relu() + host.cuda(non_blocking=True)
    torch.cuda.synchronize(); time.sleep(0.01)
"""

CONFIG = """
receivers:
  gpuflog: {{include: ["{logs}/*"]}}
processors:
  occupancy: {{}}
connectors:
  gpu_usage:
    cost: {{currency: EUR, prices: [{{device: "*", price_per_hour: 3.6}}]}}
exporters:
  file/spans: {{path: "{work}/spans.json", flush_interval: 100ms}}
  file/points: {{path: "{work}/points.json", flush_interval: 100ms}}
service:
  pipelines:
    traces: {{receivers: [gpuflog], processors: [occupancy], exporters: [file/spans, gpu_usage]}}
    metrics: {{receivers: [gpu_usage], exporters: [file/points]}}
  telemetry: {{metrics: {{level: none}}}}
"""


def union(intervals):
    total, reach = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def raw(folder):
    """Kernels and copies of all logs: intervals, bytes, and the recorder's occupancy by session and correlation."""
    kernels, copies, size, occupancy = [], [], 0, {}
    for path in glob.glob(folder + "/**/device*.log*", recursive=True):
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            for line in f:
                r = json.loads(line)
                if r["type"] == "kernel_detail":
                    occupancy[r["session_id"], r["corr_id"]] = r["max_active_blocks"]
                if r["type"] not in ("kernel_event_batch", "memcpy_event_batch"):
                    continue
                for row in r["rows"]:
                    cell = dict(zip(r["columns"], row))
                    start = r["base_time_ns"] + cell.get("dt_ns", cell.get("start_ns", 0))
                    (kernels if r["type"] == "kernel_event_batch" else copies).append((start, start + cell["duration_ns"]))
                    size += cell.get("bytes", 0)
    return kernels, copies, size, occupancy


def attributes(x):
    return {a["key"]: next(iter(a["value"].values())) for a in x.get("attributes", [])}


def points(path):
    """The last value of each series: metric, resource and attributes."""
    last, unit = {}, {}
    with open(path) as f:
        for line in f:
            for rm in json.loads(line)["resourceMetrics"]:
                resource = attributes(rm["resource"])
                for m in (m for sm in rm["scopeMetrics"] for m in sm["metrics"]):
                    unit[m["name"]] = m.get("unit")
                    data = next(v for k, v in m.items() if isinstance(v, dict) and "dataPoints" in v)
                    for p in data["dataPoints"]:
                        key = (m["name"], resource.get("service.name"), tuple(sorted((k, str(v)) for k, v in attributes(p).items())))
                        last[key] = p
    return last, unit


def value(p):
    return p.get("asDouble", int(p.get("asInt", 0)))


def main():
    o = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    o.add_argument("--collector", required=True)
    o.add_argument("--recorder", required=True)
    o = o.parse_args()
    inject = glob.glob(o.recorder + "/**/libgpufl_inject.so", recursive=True)[0]
    work = tempfile.mkdtemp()
    logs = work + "/logs"
    for name in "ab":
        os.makedirs(logs + "/" + name)
    with open(work + "/config.yaml", "w") as f:
        f.write(CONFIG.format(logs=logs, work=work))
    with open(work + "/collector.log", "w") as log:
        collector = subprocess.Popen([o.collector, "--config", work + "/config.yaml"], stderr=log)
    time.sleep(2)

    stop, seen = threading.Event(), []

    def nvml():
        import pynvml
        pynvml.nvmlInit()
        h = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not stop.wait(0.1):
            seen.append((time.time(), pynvml.nvmlDeviceGetUtilizationRates(h).gpu / 100))
    watcher = threading.Thread(target=nvml)
    watcher.start()
    programs = [subprocess.Popen([sys.executable, "-c", PROGRAM, streams], env=dict(
        os.environ, GPUFL_INJECT="1", GPUFL_PROFILING_ENGINE="Trace", GPUFL_LOG_DIR=logs + "/" + name, GPUFL_APP_NAME="program-" + name,
        CUDA_INJECTION64_PATH=inject)) for name, streams in (("a", "1"), ("b", "3"))]
    status = [p.wait() for p in programs]
    stop.set()
    watcher.join()
    time.sleep(8)
    collector.send_signal(signal.SIGTERM)
    status.append(collector.wait(timeout=60))

    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    print("date", time.strftime("%Y-%m-%d"), "| gpu, driver", smi.stdout.strip(), "| kernel", platform.release(), "| status", status)
    kernels, copies, size, occupancy = raw(logs)
    last, unit = points(work + "/points.json")
    total, series = collections.Counter(), collections.Counter()
    for (name, service, labels), p in last.items():
        series[name] += 1
        if name == "gpu.cuda.memory.copies":
            total["bytes copied"] += p["sum"]
        elif name == "gpu.cuda.kernel.duration":
            total["kernels in durations"] += int(p["count"])
        elif "asInt" in p or "asDouble" in p:
            total[name + (" " + dict(labels).get("cuda.operation", "") if name == "gpu.cuda.time" else "")] += value(p)
            if name == "gpu.cuda.cost":
                total["cost of " + str(service)] += value(p)
    busy = union(kernels)
    want = {
        "gpu.cuda.busy.time": busy / 1e9,
        "gpu.cuda.time kernel": sum(e - s for s, e in kernels) / 1e9,
        "gpu.cuda.time memcpy": sum(e - s for s, e in copies) / 1e9,
        "gpu.cuda.kernel.launch.calls": len(kernels),
        "kernels in durations": len(kernels),
        "bytes copied": size,
        "gpu.cuda.cost": total["gpu.cuda.observed.time"] / 1000,  # 3.6 an hour
    }
    failed = any(status) or len(kernels) < 1000
    for key, v in want.items():
        same = abs(total[key] - v) <= 1e-9 * max(1, abs(v))
        failed |= not same
        print(f"{key:30} records {v:>18.9f} metrics {total[key]:>18.9f}", "" if same else "DIFFERENT")
    for key in sorted(total):
        if key not in want:
            print(f"{key:30} {total[key]:.9f}")
    print("series", dict(series))
    begin, end = min(s for s, _ in kernels) / 1e9, max(e for _, e in kernels) / 1e9
    during = [u for t, u in seen if begin <= t <= end]
    print("utilisation: busy time %.3f, NVML's mean %.3f over %.1f s" % (busy / 1e9 / (end - begin), sum(during) / max(1, len(during)), end - begin))

    agree, missing = collections.Counter(), 0
    with open(work + "/spans.json") as f:
        for line in f:
            for rs in json.loads(line)["resourceSpans"]:
                session = attributes(rs["resource"]).get("service.instance.id")
                for s in (s for ss in rs["scopeSpans"] for s in ss["spans"]):
                    a = attributes(s)
                    if a.get("cuda.operation") != "kernel":
                        continue
                    reported = occupancy.get((session, int(a.get("cuda.correlation.id", 0))))
                    ours = a.get("cuda.occupancy.active_blocks_per_sm")
                    if reported is None or ours is None:
                        missing += 1
                    else:
                        agree["alike" if int(ours) == reported else "recorder %d, ours %s" % (reported, ours)] += 1
    print("active blocks a multiprocessor:", dict(agree), "| without either:", missing)
    failed |= not agree or set(agree) != {"alike"}
    with open(work + "/collector.log") as f:
        print("".join(x for x in f if "\twarn\t" in x or "\terror\t" in x)[-2000:])
    print("FAILED" if failed else "ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
