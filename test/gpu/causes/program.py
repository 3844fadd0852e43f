#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program with one known cause of lost time, or with its fix.

    program.py CAUSE [--fixed] [--steps 50] [--seed 0]

Each step is an NVTX range. The first steps are outside of ranges, so that libraries are loaded. Prints
one line of JSON: the wall time of the steps in milliseconds, from the first launch to the last result.
A seed other than 0 changes sizes and durations at random, without changing the cause.
"""

import argparse
import collections
import concurrent.futures
import json
import random
import time

import torch
from torch.cuda import nvtx

WARM_UP = 5


class Sizes:
    def __init__(self, seed):
        pick = random.Random(seed).choice if seed else lambda choices: choices[0]
        self.size, self.layers = pick([4096, 3072, 5120]), pick([8, 6, 10, 12])
        self.load = pick([0.006, 0.004, 0.008, 0.012])  # seconds to make a batch
        # Seconds of other work after a read: less than the device takes for a step, at 800 TFLOP/s. Else
        # that work is the cause, and the read is not.
        self.work = min(pick([0.001, 0.0008, 0.0007]), 0.7 * self.layers * 2 * self.size**3 / 800e12)
        self.copy = pick([64, 48, 96, 128]) << 20  # bytes that a step copies
        self.tiny = pick([150, 80, 120, 200])  # kernels of a step
        self.block = pick([128, 64, 200, 256]) << 20  # bytes of an allocation
        self.slow_step, self.slow_calls = pick([25, 7, 31, 44]), pick([4, 5, 8])


sizes = Sizes(0)


class Program:
    """Base: a step of large matrix products, which the host launches much faster than they run."""

    def __init__(self, fixed):
        self.fixed = fixed
        self.x = torch.randn(sizes.size, sizes.size, device="cuda", dtype=torch.bfloat16)
        self.weights = [torch.randn(sizes.size, sizes.size, device="cuda", dtype=torch.bfloat16) / sizes.size**0.5 for _ in range(sizes.layers)]
        self.buffers = [torch.empty_like(self.x) for _ in range(2)]
        self.total = torch.zeros((), device="cuda")

    def layers(self, x):
        for i, w in enumerate(self.weights):
            x = torch.mm(x, w, out=self.buffers[i % 2])
        return x

    def step(self, number):
        self.layers(self.x)


class Balanced(Program):
    pass


class DataLoader(Program):
    """The host waits some ms for each batch. The fix makes batches in other threads."""

    def __init__(self, fixed):
        super().__init__(fixed)
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.batches = collections.deque()

    @staticmethod
    def make_batch():
        time.sleep(sizes.load)

    def step(self, number):
        with nvtx.range("load"):
            if self.fixed:
                while len(self.batches) < 32:
                    self.batches.append(self.pool.submit(self.make_batch))
                self.batches.popleft().result()
            else:
                self.make_batch()
        self.layers(self.x)


def host_work(seconds):
    """Keeps the processor busy, as code for metrics or for the next batch does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Item(Program):
    """Reads a result in each step, and does other work after it. The fix keeps the sum on the device."""

    def step(self, number):
        y = self.layers(self.x)
        value = y[0, 0].float()
        if self.fixed:
            self.total += value
        else:
            value.item()
        host_work(sizes.work)


class Pageable(Program):
    """Copies each batch from pageable memory. The fix pins it and copies in another stream."""

    pinned, overlap = False, False

    def __init__(self, fixed):
        super().__init__(fixed)
        pinned = self.pinned or fixed
        self.host = torch.randn(sizes.copy // 4, pin_memory=pinned)
        self.batches = [torch.empty(sizes.copy // 4, device="cuda") for _ in range(2)]
        self.copies = torch.cuda.Stream()
        self.used = [torch.cuda.Event() for _ in range(2)]

    def step(self, number):
        batch = self.batches[number % 2]
        main = torch.cuda.current_stream()
        if self.fixed:
            # The batch of the next step is copied during this one.
            self.copies.wait_event(self.used[(number + 1) % 2])
            with torch.cuda.stream(self.copies):
                self.batches[(number + 1) % 2].copy_(self.host, non_blocking=True)
                copied = torch.cuda.Event()
                copied.record()
            self.layers(self.x)
            self.total += batch[0]
            self.used[number % 2].record()
            main.wait_event(copied)
            return
        batch.copy_(self.host, non_blocking=self.pinned)
        self.layers(self.x)
        self.total += batch[0]


class NoOverlap(Pageable):
    """Copies each batch from pinned memory, but in the stream of the kernels."""

    pinned = True


class Tiny(Program):
    """Many kernels of a few µs in each step. The fix replays them as one CUDA graph."""

    def __init__(self, fixed):
        super().__init__(fixed)
        self.small = torch.zeros(1000, device="cuda")
        self.graph = None
        if fixed:
            self.work()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.work()

    def work(self):
        for _ in range(sizes.tiny):
            self.small.add_(1)

    def step(self, number):
        if self.graph:
            self.graph.replay()
        else:
            self.work()


class Allocator(Program):
    """Releases all cached memory in each step and allocates it again. The fix keeps the cache."""

    def step(self, number):
        x, keep = self.x, []
        for w in self.weights:
            x = x @ w
            keep.append((x, torch.empty(sizes.block, device="cuda", dtype=torch.uint8)))
        del x, keep
        if not self.fixed:
            torch.cuda.empty_cache()


class SlowLayer(Program):
    """One layer of one step takes much longer."""

    def __init__(self, fixed):
        super().__init__(fixed)
        self.slow = torch.randn(sizes.size, sizes.size, device="cuda", dtype=torch.float64)
        torch.mm(self.slow, self.slow)

    def step(self, number):
        x = self.layers(self.x)
        if number == sizes.slow_step and not self.fixed:
            for _ in range(sizes.slow_calls):
                torch.mm(self.slow, self.slow)
        return x


PROGRAMS = {
    "balanced": Balanced, "data_loader": DataLoader, "item": Item, "pageable": Pageable, "no_overlap": NoOverlap,
    "tiny": Tiny, "allocator": Allocator, "slow_layer": SlowLayer,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cause", choices=PROGRAMS)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    global sizes
    sizes = Sizes(a.seed)
    torch.manual_seed(1)
    program = PROGRAMS[a.cause](a.fixed)
    for i in range(WARM_UP):
        program.step(i)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for i in range(a.steps):
        with nvtx.range("step %d" % i):
            program.step(i)
    torch.cuda.synchronize()
    print(json.dumps({"cause": a.cause, "fixed": a.fixed, "steps": a.steps, "wall_ms": (time.perf_counter() - begin) * 1e3}))


if __name__ == "__main__":
    main()
