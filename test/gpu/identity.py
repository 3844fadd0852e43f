#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who the processes and devices are, on a real GPU, as root.

    sudo python3 test/gpu/identity.py --bin bin [--processes 100]

Short processes that use the CUDA driver, while the Collector reads processes only every 10 s: each has the name of its
executable, and exact counts. Every metric of nvml and cuda names the machine and the driver, those of nvml also the
number of the board where nvidia-smi has one. Prints PASS or FAIL and exits with 1 on a failure.
"""
import argparse
import collections
import json
import os
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "cuda"))
from agent import Agent, attributes, number  # noqa: E402

SETS = 5
# No framework: it lives as long as the driver needs to create a context.
PROGRAM = f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *args):
    if code := getattr(cuda, name)(*args):
        raise SystemExit(f"{{name}}: {{code}}")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4096))
for _ in range({SETS}):
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(4096))
call("cuCtxSynchronize")
"""

failures = 0


def check(ok, text):
    global failures
    failures += not ok
    print(("PASS " if ok else "FAIL ") + text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="bin", help="folder of otelcol-gpuflight")
    parser.add_argument("--processes", type=int, default=100)
    args = parser.parse_args()
    smi = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,serial", "--format=csv,noheader"], check=True, capture_output=True, text=True)
    boards = [[f.strip() for f in line.split(",")] for line in smi.stdout.splitlines()]
    driver = boards[0][0]
    serials = {s for _, s in boards if s.isalnum() and s.strip("0")}

    with tempfile.TemporaryDirectory() as work:
        with Agent(os.path.join(args.bin, "otelcol-gpuflight"), work, interval="10s", nvml="2s") as agent:
            pids = []
            for _ in range(args.processes):
                p = subprocess.Popen([sys.executable, "-c", PROGRAM])
                if p.wait() != 0:
                    sys.exit("a process failed")
                pids.append(p.pid)
            lost = agent.lost()
        resources, sets = [], collections.Counter()
        with open(agent.out) as f:
            for line in f:
                for rm in json.loads(line).get("resourceMetrics", []):
                    resource = attributes(rm["resource"])
                    resources.append((resource, {m["name"] for sm in rm["scopeMetrics"] for m in sm["metrics"]}))
                    for sm in rm["scopeMetrics"]:
                        for m in sm["metrics"]:
                            if m["name"] == "gpu.cuda.memset.calls":
                                sets[int(resource["process.pid"])] = number(m["sum"]["dataPoints"][0])

    name = os.path.basename(os.path.realpath(sys.executable))
    names = {int(r["process.pid"]): r.get("process.executable.name") for r, _ in resources if "process.pid" in r}
    named = sum(names.get(pid) == name for pid in pids)
    exact = sum(sets[pid] == SETS for pid in pids)
    check(len(set(pids)) == len(pids) and named == len(pids), f"{named} of {len(pids)} processes are named {name}")
    check(exact == len(pids), f"{exact} of {len(pids)} processes have {SETS} memory sets")
    check(not lost, f"nothing is lost: {lost}")
    for what, wanted in (("host.name", socket.gethostname()), ("hw.driver_version", driver)):
        wrong = [r for r, _ in resources if r.get(what) != wanted]
        check(resources and not wrong, f"{what} is {wanted} on {len(resources)} resources, {len(wrong)} without: {wrong[:1]}")
    found = {r.get("hw.serial_number") for r, metrics in resources if "hw.energy" in metrics} - {None}
    check(found == serials, f"hw.serial_number: {len(found)} of {len(serials)} boards")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
