#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follow GPU Flight's released recorder live, on a machine with an NVIDIA GPU and PyTorch.

    test/gpu/live_recorder.py --collector bin/otelcol-gpuflight --recorder DIR

DIR is the unpacked wheel of PyPI's `gpuflight` (1.2.1 was used). A small training runs under the recorder
while the collector follows its logs into a file. At the end the spans in that file are compared with
the raw records: number of kernels, copies and sets, the sum of kernel time to the nanosecond and of
copied bytes, parents, and how late the first kernel came out. The status is 1 when anything differs.
"""
import argparse, collections, glob, gzip, json, os, platform, signal, subprocess, sys, tempfile, time

TRAINING = """
import time, torch
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
end = time.time() + 20
while time.time() < end:
    x = torch.randn(256, 512).cuda()
    loss = net(x).square().mean()
    loss.backward(); opt.step(); opt.zero_grad(set_to_none=False)
    loss.item(); time.sleep(0.02)
"""

CONFIG = """
receivers:
  gpuflog: {{include: ["{logs}"], storage: file_storage}}
exporters:
  file: {{path: "{out}", flush_interval: 100ms}}
extensions:
  file_storage: {{directory: "{state}", create_directory: true}}
service:
  extensions: [file_storage]
  pipelines:
    traces: {{receivers: [gpuflog], exporters: [file]}}
    logs: {{receivers: [gpuflog], exporters: [file]}}
    metrics: {{receivers: [gpuflog], exporters: [file]}}
  telemetry: {{metrics: {{level: none}}}}
"""


def raw(folder):
    """Counts and sums of the records in the logs."""
    n = collections.Counter()
    for path in glob.glob(folder + "/**/*.log*", recursive=True):
        if os.path.basename(path).startswith("device"):
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
                for line in f:
                    r = json.loads(line)
                    kind = {"kernel_event_batch": "kernel", "memcpy_event_batch": "memcpy"}.get(r["type"])
                    for row in r.get("rows", []) if kind else []:
                        cell = dict(zip(r["columns"], row))
                        n[kind] += 1
                        n[kind + " ns"] += cell["duration_ns"]
                        n["bytes"] += cell.get("bytes", 0)
                    if r["type"] == "memset_event":
                        n["memset"] += 1
    return n


def sent(path):
    """The same of the spans, and how many have no parent in their trace."""
    n, spans, known = collections.Counter(), [], set()
    with open(path) as f:
        for line in f:
            for rs in json.loads(line).get("resourceSpans", []):
                for ss in rs["scopeSpans"]:
                    for s in ss["spans"]:
                        known.add((s["traceId"], s["spanId"]))
                        spans.append(s)
    if len(known) != len(spans):
        n["spans twice"] = len(spans) - len(known)
    for s in spans:
        a = {x["key"]: x["value"] for x in s["attributes"]}
        op = a["cuda.operation"]["stringValue"]
        if op in ("kernel", "memcpy", "memset"):
            n[op] += 1
            if op != "memset":
                n[op + " ns"] += int(s["endTimeUnixNano"]) - int(s["startTimeUnixNano"])
            n["bytes"] += int(a.get("cuda.memcpy.size", {}).get("intValue", 0))
        if op not in ("session", "scope") and (s["traceId"], s.get("parentSpanId")) not in known:
            n["without parent"] += 1
    return n


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--collector", required=True)
    args.add_argument("--recorder", required=True)
    args = args.parse_args()
    inject = glob.glob(args.recorder + "/**/libgpufl_inject.so", recursive=True)[0]
    work = tempfile.mkdtemp()
    logs, out = work + "/logs", work + "/out.json"
    os.mkdir(logs)
    with open(work + "/config.yaml", "w") as f:
        f.write(CONFIG.format(logs=logs, out=out, state=work + "/state"))
    with open(work + "/collector.log", "w") as log:
        collector = subprocess.Popen([args.collector, "--config", work + "/config.yaml"], stderr=log)
    time.sleep(2)
    env = dict(os.environ, GPUFL_INJECT="1", GPUFL_PROFILING_ENGINE="Trace", GPUFL_LOG_DIR=logs, CUDA_INJECTION64_PATH=inject)
    begin = time.time()
    training = subprocess.Popen([sys.executable, "-c", TRAINING], env=env)
    first = None
    while training.poll() is None:
        time.sleep(0.1)
        if first is None and os.path.exists(out):
            with open(out) as f:
                if '"stringValue":"kernel"' in f.read():
                    first = time.time() - begin
    lasted = time.time() - begin
    time.sleep(8)
    collector.send_signal(signal.SIGTERM)
    collector.wait(timeout=20)
    want, got = raw(logs), sent(out)
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    print("date", time.strftime("%Y-%m-%d"), "| gpu, driver", smi.stdout.strip(), "| kernel", platform.release())
    print("training", round(lasted, 1), "s, status", training.returncode, "| first kernel span after", first and round(first, 1), "s")
    print("files", sorted(os.path.relpath(p, logs) for p in glob.glob(logs + "/**/*.log*", recursive=True)))
    for key in sorted(set(want) | set(got)):
        print(f"{key:16} logs {want[key]:>14} spans {got[key]:>14}", "" if want[key] == got[key] else "DIFFERENT")
    with open(work + "/collector.log") as f:
        print("".join(x for x in f if "\twarn\t" in x or "\terror\t" in x)[-2000:])
    ok = want == got and want["kernel"] > 100 and training.returncode == 0
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


sys.exit(main())
