# SPDX-License-Identifier: Apache-2.0
"""One of each kind of device work, a few times over, for capture by dump.c. Prints what it did."""

import ctypes
import os
import sys
import threading

import torch

dump = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
dump.gpufl_dump_push.argtypes = [ctypes.c_uint64]


class scope:
    def __init__(self, number):
        self.number = number

    def __enter__(self):
        assert dump.gpufl_dump_push(self.number) == 0

    def __exit__(self, *_):
        assert dump.gpufl_dump_pop() == 0


torch.cuda.init()
torch.ones(1, device="cuda")
cudart = ctypes.CDLL(None)


def runtime(name, *args):
    """A call of the CUDA runtime that PyTorch brought along, if its symbols are visible."""
    f = getattr(cudart, name, None)
    if f is None:
        print("no", name)
        return -1
    rc = f(*args)
    if rc != 0:
        print(name, "->", rc)
    return rc


for lib in ("libcudart.so.13", "libcudart.so.12"):
    try:
        cudart = ctypes.CDLL(lib)
        break
    except OSError:
        continue

# Kernels: element-wise, a reduction, matrix products (tensor cores, clusters on Hopper), one sort.
with scope(1):
    a = torch.randn(512, 512, device="cuda")
    b = torch.randn(512, 512, device="cuda", dtype=torch.float16)
    for i in range(20):
        with scope(100 + i):
            a = torch.relu(a @ a).add(1).div(10)
            b = (b @ b).softmax(dim=0)
    torch.sort(a.flatten()[:4096])
    a.sum().item()

# Copies: pageable, pinned, both directions, within the device, and a 2-D one.
with scope(2):
    host = torch.arange(1 << 16, dtype=torch.int32)
    pinned = torch.arange(1 << 16, dtype=torch.int32).pin_memory()
    device = torch.empty(1 << 16, dtype=torch.int32, device="cuda")
    for n in (1, 100, 1 << 10, 1 << 16):
        device[:n].copy_(host[:n])
        device[:n].copy_(pinned[:n], non_blocking=True)
        host[:n].copy_(device[:n])
        pinned[:n].copy_(device[:n], non_blocking=True)
        other = torch.empty_like(device)
        other.copy_(device)

# Sets and raw allocations through the runtime.
with scope(3):
    p = ctypes.c_void_p()
    for size in (4, 4096, 1 << 20):
        if runtime("cudaMalloc", ctypes.byref(p), ctypes.c_size_t(size)) == 0:
            runtime("cudaMemset", p, 7, ctypes.c_size_t(size))
            runtime("cudaMemsetAsync", p, 0, ctypes.c_size_t(size), ctypes.c_void_p(0))
            runtime("cudaFree", p)
    h = ctypes.c_void_p()
    if runtime("cudaMallocHost", ctypes.byref(h), ctypes.c_size_t(4096)) == 0:
        runtime("cudaFreeHost", h)
    m = ctypes.c_void_p()
    if runtime("cudaMallocManaged", ctypes.byref(m), ctypes.c_size_t(1 << 20), 1) == 0:
        runtime("cudaMemset", m, 1, ctypes.c_size_t(1 << 20))
        runtime("cudaDeviceSynchronize")
        runtime("cudaFree", m)
    for size in (512, 1 << 22):
        if runtime("cudaMallocAsync", ctypes.byref(p), ctypes.c_size_t(size), ctypes.c_void_p(0)) == 0:
            runtime("cudaFreeAsync", p, ctypes.c_void_p(0))
    runtime("cudaDeviceSynchronize")

# Streams, events, waits of every sort.
with scope(4):
    streams = [torch.cuda.Stream() for _ in range(3)]
    event = torch.cuda.Event()
    for s in streams:
        with torch.cuda.stream(s):
            torch.ones(1000, device="cuda").mul_(2)
            event.record(s)
        torch.cuda.current_stream().wait_event(event)
        s.synchronize()
    event.synchronize()
    torch.cuda.synchronize()

# A graph, replayed.
graph = torch.cuda.CUDAGraph()
static = torch.ones(256, 256, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    (static @ static).relu_()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    out = (static @ static).relu_()
    copy = out.clone()
    out.zero_()
with scope(5):
    for i in range(10):
        with scope(500 + i):
            graph.replay()
torch.cuda.synchronize()


# Threads with scopes of their own.
def work(number):
    with scope(number):
        for _ in range(5):
            torch.ones(100, device="cuda").add_(1)


threads = [threading.Thread(target=work, args=(600 + i,)) for i in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()

# Between devices, where there are two.
if torch.cuda.device_count() > 1:
    with scope(7):
        x = torch.ones(1 << 16, device="cuda:0")
        for _ in range(3):
            y = x.to("cuda:1")
            x = y.to("cuda:0")
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

torch.cuda.synchronize()
dump.gpufl_dump_flush()
print("torch", torch.__version__, "devices", torch.cuda.device_count(), "python", sys.version.split()[0])
