#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a GPT so small that launching its kernels takes longer than running them.

    train.py [--profiler torch] [--ranges] [--steps 60] [--warm-up 10]

Mixed precision in fp16, one fixed seed, made-up text of which the next token follows from the last two.
Prints one line of JSON: begin (Unix time in ns) and wall milliseconds of the timed steps, the loss at their end, which must not depend
on who looks on, and with --profiler torch the device's kernels that torch.profiler (CUDA activities only)
had and the milliseconds that it needed after the steps to hand them over. Whoever traces does so from
before the first kernel, so that all count the same kernels.
"""
import argparse, json, time
import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, LENGTH, BATCH, TOKENS = 6, 256, 4, 128, 8, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, past):
        # Attention is written out: more kernels, and none whose backward pass adds in another order each time.
        q, k, v = (t.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        weights = scores.masked_fill(past, float("-inf")).softmax(-1)
        x = x + self.out((weights.to(v.dtype) @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)
        self.register_buffer("places", torch.arange(LENGTH))
        self.register_buffer("past", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, tokens):
        x = self.token(tokens) + self.place(self.places)
        for block in self.blocks:
            x = block(x, self.past)
        return self.head(self.last(x))


def text(steps):
    """Batches on the host, pinned: each token is the sum of the two before it, now and then another."""
    batches = torch.randint(0, TOKENS, (steps, BATCH, LENGTH + 1))
    other = torch.rand(steps, BATCH, LENGTH + 1) < 0.1
    for i in range(2, LENGTH + 1):
        following = (batches[..., i - 1] + batches[..., i - 2]) % TOKENS
        batches[..., i] = torch.where(other[..., i], batches[..., i], following)
    return batches.pin_memory()


def kernels(profiler):
    """How many kernels torch.profiler had. Copies, sets and annotations have names that no kernel has."""
    return sum(1 for e in profiler.profiler.kineto_results.events()
               if e.device_type() == torch.autograd.DeviceType.CUDA
               and not e.name().startswith(("Memcpy ", "Memset ", "Optimizer.")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiler", choices=["none", "torch"], default="none")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--ranges", action="store_true", help="an NVTX range named step around each step")
    parser.add_argument("--times", action="store_true", help="also print the end of each step")
    a = parser.parse_args()
    if a.steps < 1 or a.warm_up < 0:
        parser.error("--steps is at least 1, --warm-up at least 0")

    torch.manual_seed(42)
    torch.cuda.init()
    profiler = None
    if a.profiler == "torch":
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        profiler.start()

    batches = text(a.warm_up + a.steps)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
    # A modest scale: no step overflows and is left out, so that all runs launch the same kernels.
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

    def step(batch):
        if not a.ranges:
            return train(batch)
        with torch.cuda.nvtx.range("step"):
            return train(batch)

    def train(batch):
        batch = batch.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.reshape(-1, TOKENS).float(), batch[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    for i in range(a.warm_up):
        step(batches[i])
    torch.cuda.synchronize()
    begin, begin_ns = time.perf_counter(), time.time_ns()
    ends_ns = []
    for i in range(a.steps):
        loss = step(batches[a.warm_up + i])
        ends_ns.append(time.time_ns())
    torch.cuda.synchronize()
    end = time.perf_counter()

    result = {"steps": a.steps, "warm_up": a.warm_up, "begin_ns": begin_ns, "wall_ms": (end - begin) * 1e3, "loss": loss.item()}
    if a.times:
        result["ends_ns"] = ends_ns
    if profiler:
        begin = time.perf_counter()
        profiler.stop()
        result["stop_ms"] = (time.perf_counter() - begin) * 1e3
        result["kernels"] = kernels(profiler)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
