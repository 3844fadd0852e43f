# SPDX-License-Identifier: Apache-2.0
"""Scopes around the first use of the GPU, in tasks, threads and at the end of the interpreter."""

import asyncio
import sys
import threading

import gpuflight
from gpu import GPU


@gpuflight.scope("task")
async def task(gpu, n):
    with gpuflight.scope(f"part {n}"):
        for _ in range(5):
            gpu.launch(f"k{n}")
            await asyncio.sleep(0.001)
            await asyncio.to_thread(gpu.launch, f"k{n}")


async def tasks(gpu):
    await asyncio.gather(*(task(gpu, n) for n in range(20)))


def plain():
    with gpuflight.scope("outer"):
        gpu = GPU()  # here the driver loads the recorder
        gpu.launch("in_outer", 2)
        with gpuflight.scope("inner"):
            gpu.launch("in_inner", 3)
        gpu.launch("in_outer", 1)
        thread = threading.Thread(target=gpu.launch, args=("in_thread",))
        thread.start()
        thread.join()
    gpu.launch("outside", 4)
    asyncio.run(tasks(gpu))


def daemons():
    """Threads still launch kernels while the interpreter ends."""
    gpu = GPU()

    def work():
        with gpuflight.scope("daemon"):
            while True:
                gpu.launch("endless", 100)

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    with gpuflight.scope("main"):
        gpu.launch("main", 100)


{"plain": plain, "daemons": daemons}[sys.argv[1]]()
