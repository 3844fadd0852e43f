# SPDX-License-Identifier: Apache-2.0
"""A service as users write it."""

import asyncio

import gpuflight
from fastapi import FastAPI
from gpu import GPU
from opentelemetry import trace

app = FastAPI()
gpu = GPU()
tracer = trace.get_tracer("service")


@app.get("/sync/{n}")
@gpuflight.scope("predict")
def in_thread_pool(n: int):
    for _ in range(3):
        gpu.launch(f"sync_{n}")
    return n


@gpuflight.scope("predict")
def in_another_thread(n):
    gpu.launch(f"async_{n}")


@app.get("/async/{n}")
@gpuflight.scope("predict")
async def in_event_loop(n: int):
    for _ in range(3):
        gpu.launch(f"async_{n}")
        await asyncio.sleep(0.002)
    await asyncio.gather(*(asyncio.to_thread(in_another_thread, n) for _ in range(2)))
    return n


@app.get("/span/{n}")
def with_a_span(n: int):
    """Code with OpenTelemetry, which does not know of gpuflight."""
    with tracer.start_as_current_span("predict"):
        for _ in range(4):
            gpu.launch(f"span_{n}")
    return n
