#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One computation, with many small kernels or with few large ones. It imports nothing of ours.

    fusion.py eager|compiled|fused [--seconds 10] [--groups 32] [--rows 256] [--width 4096]

Each step scales, shifts, gates and normalises the rows of some groups of tokens, each group with weights of its
own. eager does it as it is written, operation by operation and group by group; compiled lets torch.compile fuse the
operations; fused is a Triton kernel that does all operations of all groups at once. A line of JSON comes when the
timed steps begin, and another at the end. The result is compared with eager's first; the status is 1 if it differs.
"""
import argparse
import json
import os
import sys
import time

import torch
import triton
import triton.language as tl

EPSILON = 1e-6
CHUNK = 50  # steps between two waits for the device


def eager(xs, weights, biases, outs):
    for x, weight, bias, out in zip(xs, weights, biases, outs):
        h = x * weight
        h = h + bias
        h = h * torch.sigmoid(h * 1.702)
        scale = torch.rsqrt((h * h).mean(-1, keepdim=True) + EPSILON)
        h = h * scale
        torch.add(h, x, out=out)


@triton.jit
def gate_and_normalise(x, weight, bias, out, rows, epsilon, width: tl.constexpr):
    row = tl.program_id(0)
    group = row // rows
    column = tl.arange(0, width)
    at = row.to(tl.int64) * width + column
    given = tl.load(x + at).to(tl.float32)
    h = given * tl.load(weight + group * width + column).to(tl.float32) + tl.load(bias + group * width + column).to(tl.float32)
    h = h * tl.sigmoid(h * 1.702)
    h = h * tl.rsqrt(tl.sum(h * h, 0) / width + epsilon)
    tl.store(out + at, (h + given).to(out.dtype.element_ty))


class Work:
    def __init__(self, a):
        torch.manual_seed(42)
        self.x = torch.randn(a.groups, a.rows, a.width, device="cuda", dtype=torch.bfloat16)
        self.weight = torch.randn(a.groups, a.width, device="cuda", dtype=torch.bfloat16)
        self.bias = torch.randn(a.groups, a.width, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.x)
        self.by_group = [list(t.unbind(0)) for t in (self.x, self.weight, self.bias, self.out)]
        self.compiled_step = None

    def eager(self):
        eager(*self.by_group)

    def compiled(self):
        if self.compiled_step is None:
            self.compiled_step = torch.compile(eager)
        self.compiled_step(*self.by_group)

    def fused(self):
        groups, rows, width = self.x.shape
        gate_and_normalise[(groups * rows,)](self.x, self.weight, self.bias, self.out, rows, EPSILON, width=width, num_warps=8)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("variant", choices=["eager", "compiled", "fused"])
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--groups", type=int, default=32)
    p.add_argument("--rows", type=int, default=256)
    p.add_argument("--width", type=int, default=4096, help="a power of two")
    a = p.parse_args()
    work = Work(a)
    step = getattr(work, a.variant)

    work.eager()
    expected = work.out.clone()
    work.out.zero_()
    step()
    # bf16 has 8 bits; eager rounds after every operation, the others once.
    torch.testing.assert_close(work.out, expected, rtol=0.05, atol=0.05)
    for _ in range(20):
        step()
    torch.cuda.synchronize()

    print(json.dumps({"variant": a.variant, "pid": os.getpid(), "began": time.time_ns()}), flush=True)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < a.seconds:
        for _ in range(CHUNK):
            step()
        torch.cuda.synchronize()
        steps += CHUNK
    took = time.perf_counter() - began
    print(json.dumps({"steps": steps, "seconds": took, "ended": time.time_ns()}), flush=True)
    sys.stdin.readline()  # until whoever looks on has seen the last values


if __name__ == "__main__":
    main()
