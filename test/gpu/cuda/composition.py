#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program of known composition, for test/gpu/cuda.py.

Everything is prepared first: kernels are chosen and loaded, memory is cached, so that a phase does what it says and
nothing else. Then each line on standard input names a phase. It runs, ends with one torch.cuda.synchronize(), and
is answered by a line of JSON: its name, when it began and ended (nanoseconds since 1970), and what it did.
"""
import ctypes
import json
import os
import sys
import time

import torch
import triton
import triton.language as tl
from torch.nn.attention import SDPBackend, sdpa_kernel

MIB = 1 << 20
PIB = 1 << 50


@triton.jit
def scale_shift(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0 + 1.0, mask=at < n)


@triton.jit
def scale_late(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 3.0, mask=at < n)


def library(name):
    """The library of that name that this process has loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if name in line}
    paths = [p for p in paths if os.path.basename(p).startswith(name)]
    if len(paths) != 1:
        raise SystemExit(f"{name}: {paths}")
    return ctypes.CDLL(paths[0])


def succeed(code):
    if code != 0:
        raise SystemExit(f"a call of CUDA failed: {code}")


class Phases:
    """Each phase returns what it did, by the names that the receiver's metrics have in cuda.py."""

    def __init__(self):
        # The driver counts what is launched; which of its libraries does it must not depend on the weather.
        torch.backends.cudnn.benchmark = False
        self.x = torch.ones(MIB, device="cuda")
        self.y = torch.empty_like(self.x)
        self.a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
        self.product = torch.empty_like(self.a)
        self.conv = torch.nn.Conv2d(64, 64, 3, padding=1).cuda().half().requires_grad_(False)
        self.image = torch.randn(8, 64, 56, 56, device="cuda", dtype=torch.half)
        # Large enough that flash attention does not split the keys, which takes a second kernel.
        self.q = torch.randn(4, 16, 1024, 64, device="cuda", dtype=torch.bfloat16)
        self.pinned = torch.empty(MIB, dtype=torch.uint8).pin_memory()
        self.pageable = torch.ones(MIB, dtype=torch.uint8)
        self.bytes = torch.zeros(MIB, device="cuda", dtype=torch.uint8)
        self.more = torch.zeros_like(self.bytes)
        self.scalar = torch.ones((), device="cuda")
        self.stream = torch.cuda.Stream()
        self.event = torch.cuda.Event()
        self.runtime, self.driver = library("libcudart.so"), library("libcuda.so")
        self.graph = None

    def prepare(self):
        for _ in range(3):
            self.add(1), self.matmul(1), self.convolution(1), self.flash(1), self.cudnn_attention(1), self.triton(1)
            self.to_device_pinned(1), self.to_device(1), self.to_host(1), self.on_device(1), self.sets(1, 1)
            self.events(1), self.items(1)
        with torch.cuda.stream(self.stream):  # graphs want their work warm on a stream that is not the default one
            self.add(3)
        torch.cuda.synchronize()
        self.capture(10)
        self.graph.replay()
        torch.cuda.synchronize()

    def add(self, n=200):
        for _ in range(n):
            self.x.add_(1.0)
        return {"launches": n, "kernels": 1, "name": "vectorized_elementwise_kernel"}

    def matmul(self, n=200):
        for _ in range(n):
            torch.matmul(self.a, self.a, out=self.product)
        return {"launches": n, "kernels": 1, "name": "nvjet|gemm|cutlass"}

    def convolution(self, n=100):
        for _ in range(n):
            self.conv(self.image)
        # How many kernels cuDNN takes for one is its business; CUPTI says it.
        return {"launches of each": n, "name": "conv|fprop|cudnn|xmma|gemm"}

    def flash(self, n=100):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            for _ in range(n):
                torch.nn.functional.scaled_dot_product_attention(self.q, self.q, self.q)
        return {"launches": n, "kernels": 1, "name": "flash_fwd"}

    def cudnn_attention(self, n=100):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            for _ in range(n):
                torch.nn.functional.scaled_dot_product_attention(self.q, self.q, self.q)
        # It clears one counter before each.
        return {"launches": n, "kernels": 1, "name": "sdpa.*flash", "sets": n}

    def triton(self, n=200):
        for _ in range(n):
            scale_shift[(MIB // 1024,)](self.x, self.y, MIB, block=1024)
        return {"launches": n, "kernels": 1, "name": "^scale_shift$", "blocks": n * (MIB // 1024)}

    def triton_late(self, n=50):
        """Compiles its kernel in the phase: a receiver that came before knows the name."""
        for _ in range(n):
            scale_late[(MIB // 1024,)](self.x, self.y, MIB, block=1024)
        return {"launches": n, "kernels": 1, "name": "^scale_late$"}

    def capture(self, n=10):
        # torch.cuda.graph() empties the cache of memory first, which would be frees of a number nobody knows.
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            graph.capture_begin()
            self.add(n)
            graph.capture_end()
        self.graph = graph
        # PyTorch sets its generator's seed and offset before.
        return {"captured": n, "launches": 2, "kernels": 1, "name": "FillFunctor<long>", "cuCtxSynchronize": 1}

    def replay(self, n=100):
        for _ in range(n):
            self.graph.replay()
        return {"graphs": n, "nodes": 10 * n}

    def to_device_pinned(self, n=100):
        for _ in range(n):
            self.bytes.copy_(self.pinned, non_blocking=True)
        return {"HtoD": n, "HtoD bytes": n * MIB}

    def to_device(self, n=100):
        for _ in range(n):
            self.bytes.copy_(self.pageable)
        return {"HtoD": n, "HtoD bytes": n * MIB, "HtoD timed": n * MIB, "cuStreamSynchronize": n}

    def to_host(self, n=100):
        for _ in range(n):
            self.pageable.copy_(self.bytes)
        return {"DtoH": n, "DtoH bytes": n * MIB, "DtoH timed": n * MIB, "cuStreamSynchronize": n}

    def on_device(self, n=100):
        for _ in range(n):
            self.more.copy_(self.bytes)
        return {"DtoD": n, "DtoD bytes": n * MIB}

    def memory(self, n=50):
        torch.cuda.memory.caching_allocator_enable(False)
        try:
            for _ in range(n):
                torch.empty(32 * MIB, device="cuda", dtype=torch.uint8)
        finally:
            torch.cuda.memory.caching_allocator_enable(True)
        return {"allocations": n, "allocated bytes": n * 32 * MIB, "frees": n, "freed bytes": n * 32 * MIB}

    def sets(self, n=100, words=10):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        at = ctypes.c_void_p(self.bytes.data_ptr())
        for _ in range(n):
            succeed(self.runtime.cudaMemsetAsync(at, 1, ctypes.c_size_t(MIB), stream))
        for _ in range(words):
            succeed(self.driver.cuMemsetD32Async(at, 7, ctypes.c_size_t(1024), stream))
        return {"sets": n + words, "set bytes": n * MIB + words * 4096}

    def events(self, n=50):
        for _ in range(n):
            self.event.record()
            self.event.synchronize()
        return {"cuEventSynchronize": n}

    def items(self, n=50):
        for _ in range(n):
            self.scalar.item()
        return {"DtoH": n, "DtoH bytes": n * 4, "DtoH timed": n * 4, "cuStreamSynchronize": n}

    def synchronise(self, n=50, devices=20):
        for _ in range(n):
            self.stream.synchronize()
        for _ in range(devices):
            torch.cuda.synchronize()
        return {"cuStreamSynchronize": n, "cuCtxSynchronize": devices}

    def fail(self, n=3):
        """Asks for a pebibyte. The error is taken back, so that PyTorch does not meet it later."""
        for _ in range(n):
            at = ctypes.c_void_p()
            if self.runtime.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(PIB)) != 2:
                raise SystemExit("a pebibyte was not refused as out of memory")
            self.runtime.cudaGetLastError()
        return {"out_of_memory": n}


def main():
    phases = Phases()
    phases.prepare()
    torch.cuda.synchronize()
    print(json.dumps({"phase": "ready", "pid": os.getpid(), "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        name = line.strip()
        began = time.time_ns()
        did = getattr(phases, name)()
        torch.cuda.synchronize()
        ended = time.time_ns()
        did["cuCtxSynchronize"] = did.get("cuCtxSynchronize", 0) + 1
        print(json.dumps({"phase": name, "began": began, "ended": ended, "did": did}), flush=True)


if __name__ == "__main__":
    main()
