# SPDX-License-Identifier: Apache-2.0
"""A service as users write it. It does not know that it is recorded."""

import asyncio

from fastapi import FastAPI
from gpu import GPU

app = FastAPI()
gpu = GPU()


@app.get("/sync/{n}")
def in_thread_pool(n: int):
    for _ in range(3):
        gpu.launch(f"sync_{n}")
    return n


@app.get("/async/{n}")
async def in_event_loop(n: int):
    for _ in range(3):
        gpu.launch(f"async_{n}")
        await asyncio.sleep(0.002)
    await asyncio.gather(*(asyncio.to_thread(gpu.launch, f"async_{n}") for _ in range(2)))
    return n
