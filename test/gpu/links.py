#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold the nvml receiver's byte counters against copies of known size, on a machine with PyTorch and one or more NVIDIA GPUs.

    test/gpu/links.py --collector bin/otelcol-gpuflight

Device 0 gets and gives 40 GB over the link to the host, and, where there is a second device, the two copy 200 GB to
each other. The counters may count packets' headers too, and what else goes over the link, so they have to be between
0.97 and 1.25 times the bytes copied. What they did is printed; the status is 1 when one is outside.
"""
import argparse, json, os, signal, subprocess, sys, tempfile, time

PROGRAM = """
import sys, time, torch
n = 1 << 30
host = torch.empty(n, dtype=torch.uint8).pin_memory()
first = torch.empty(n, dtype=torch.uint8, device="cuda:0")
others = [torch.empty(n, dtype=torch.uint8, device="cuda:1")] if torch.cuda.device_count() > 1 else []
for o in others:
    o.copy_(first); first.copy_(o)
def phase(name, gigabytes, to, source):
    for d in range(torch.cuda.device_count()): torch.cuda.synchronize(d)
    time.sleep(4)
    begin = time.time()
    for _ in range(gigabytes): to.copy_(source, non_blocking=True)
    for d in range(torch.cuda.device_count()): torch.cuda.synchronize(d)
    print(name, begin, time.time(), gigabytes * n, flush=True)
    time.sleep(4)
phase("to-device", 40, first, host)
phase("to-host", 40, host, first)
for o in others:
    phase("to-peer", 200, o, first)
    phase("from-peer", 200, first, o)
"""

CONFIG = """
receivers:
  nvml: {{collection_interval: 500ms, timeout: 500ms, initial_delay: 0s}}
exporters:
  file: {{path: "{work}/metrics.json", flush_interval: 100ms}}
service:
  pipelines:
    metrics: {{receivers: [nvml], exporters: [file]}}
  telemetry: {{metrics: {{level: none}}}}
"""


def series(path):
    """Counters by metric, device index and direction, as lists of (time, value)."""
    out = {}
    for line in open(path):
        for rm in json.loads(line).get("resourceMetrics", []):
            for m in (m for sm in rm["scopeMetrics"] for m in sm["metrics"] if m["name"] in ("hw.gpu.io", "hw.gpu.interconnect.io")):
                for dp in m["sum"]["dataPoints"]:
                    a = {x["key"]: next(iter(x["value"].values())) for x in dp["attributes"]}
                    key = (m["name"], int(a.get("cuda.device.index", -1)), a["hw.id"], a["network.io.direction"])
                    out.setdefault(key, []).append((int(dp["timeUnixNano"]) / 1e9, int(dp["asInt"])))
    return out


def grown(points, begin, end):
    """What a counter grew from the last reading before begin to the first a second after end."""
    before = [v for t, v in points if t <= begin]
    after = [v for t, v in points if t >= end + 1]
    return after[0] - before[-1] if before and after else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collector", required=True)
    args = parser.parse_args()
    smi = subprocess.run(["nvidia-smi", "--query-gpu=index,name,uuid,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    rows = [[x.strip() for x in line.split(",")] for line in smi.stdout.splitlines()]
    print(time.strftime("%F"), "|", len(rows), "x", rows[0][1], "| driver", rows[0][3])
    with tempfile.TemporaryDirectory() as work:
        with open(work + "/config.yaml", "w") as f:
            f.write(CONFIG.format(work=work))
        with open(work + "/log", "w") as log:
            collector = subprocess.Popen([args.collector, "--config", work + "/config.yaml"], stdout=log, stderr=log)
        time.sleep(4)
        program = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
        time.sleep(2)
        collector.send_signal(signal.SIGTERM)
        status = [program.returncode, collector.wait(20)]
        counters = series(work + "/metrics.json")
        with open(work + "/log") as f:
            print("".join(x for x in f if "\twarn\t" in x or "\terror\t" in x)[-2000:], end="")
    print("readings:", {" ".join(map(str, (k[0], k[1], k[3]))): len(v) for k, v in sorted(counters.items())})
    device = {row[0]: row[2] for row in rows}
    wrong = any(status)
    expected = {"to-device": [("hw.gpu.io", "0", "receive")], "to-host": [("hw.gpu.io", "0", "transmit")],
                "to-peer": [("hw.gpu.interconnect.io", "0", "transmit"), ("hw.gpu.interconnect.io", "1", "receive")],
                "from-peer": [("hw.gpu.interconnect.io", "1", "transmit"), ("hw.gpu.interconnect.io", "0", "receive")]}
    for line in program.stdout.splitlines():
        name, begin, end, size = line.split()
        begin, end, size = float(begin), float(end), int(size)
        print("%s: %.1f GB in %.2f s, %.1f GB/s" % (name, size / 1e9, end - begin, size / 1e9 / (end - begin)))
        for (metric, _, uuid, direction), points in sorted(counters.items()):
            n = grown(points, begin, end)
            index = next((i for i, u in device.items() if u == uuid), "?")
            meant = (metric, index, direction) in expected[name]
            good = not meant or n is not None and 0.97 <= n / size <= 1.25
            wrong |= not good
            if n is None or n > size / 1000 or meant:
                print("  device %s %s %s: %s By%s" % (index, metric, direction, n, ", %.3f of the copies%s" % (n / size, "" if good else " WRONG") if n is not None else ""))
        for metric, index, direction in expected[name]:
            if not any(k[0] == metric and k[2] == device[index] and k[3] == direction for k in counters):
                print("  device %s %s %s: not given by this machine" % (index, metric, direction))
    print("FAILED" if wrong else "ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
