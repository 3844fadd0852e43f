# SPDX-License-Identifier: Apache-2.0
"""Scopes around the first use of the GPU, in tasks and in threads."""

import asyncio
import sys
import threading

import gpuflight
from gpu import GPU


def part(gpu, where, n):
    with gpuflight.scope(f"{where} {n}"):
        gpu.launch(f"k{n}")


@gpuflight.scope("task")
async def task(gpu, n):
    for _ in range(5):
        part(gpu, "part", n)
        gpu.launch(f"t{n}")
        await asyncio.sleep(0.001)
        await asyncio.to_thread(part, gpu, "thread", n)


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


def early():
    """A thread is in a scope when another one loads the recorder."""
    entered, loaded = threading.Event(), threading.Event()

    def work():
        with gpuflight.scope("waits"):
            entered.set()
            loaded.wait()
            with gpuflight.scope("works"):
                gpu.launch("in_works")
            gpu.launch("in_waits")

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    gpu = GPU()
    loaded.set()
    thread.join()
    gpu.launch("outside")


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


{"plain": plain, "early": early, "daemons": daemons}[sys.argv[1]]()
