#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The arguments and the output of ../overhead/train.py, with the fake driver instead of PyTorch. It stands for the
interpreter: its first argument is the path of that script."""
import json, os, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "inject", "testdata"))
import work

KERNELS, WARM_UP = 100, 10
options = sys.argv[2:]
steps = int(options[options.index("--steps") + 1])
gpu = work.GPU()
ranges = work.Ranges() if "--ranges" in options and "NVTX_INJECTION64_PATH" in os.environ else None


def step():
    if ranges:
        ranges.push(b"step")
    gpu.launch("gemm", KERNELS)
    time.sleep(0.002)
    if ranges:
        ranges.pop()


for _ in range(WARM_UP):
    step()
begin, begin_ns = time.perf_counter(), time.time_ns()
for _ in range(steps):
    step()
result = {"steps": steps, "warm_up": WARM_UP, "begin_ns": begin_ns, "wall_ms": (time.perf_counter() - begin) * 1e3, "loss": 1.5}
if "torch" in options:
    result |= {"stop_ms": 0, "kernels": KERNELS * (steps + WARM_UP)}
print(json.dumps(result))
