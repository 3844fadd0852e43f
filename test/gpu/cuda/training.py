#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training of test/gpu/overhead/train.py, some steps at a time, so that one process is measured while probes come
and go. A line on standard input is a number of steps; the answer is a line of JSON with their wall time."""
import json
import os
import sys
import time

import torch
from torch.nn import functional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "overhead"))
from train import GPT, TOKENS, text  # noqa: E402


def main():
    torch.manual_seed(42)
    batches = text(20).cuda()
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

    def step(batch):
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.reshape(-1, TOKENS).float(), batch[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    def run(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for i in range(steps):
            step(batches[i % len(batches)])
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3

    run(40)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        steps = int(line)
        print(json.dumps({"steps": steps, "wall_ms": run(steps)}), flush=True)


if __name__ == "__main__":
    main()
