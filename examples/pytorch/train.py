#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on made-up text.

Nothing in here knows of tracing: run it by itself or under `gpuflight trace`, the output is the same.
The NVTX ranges become spans, the kernels that are launched in them their children.
"""

import argparse
import contextlib
import os

import torch
from torch import nn
from torch.cuda import nvtx
from torch.utils.data import DataLoader, Dataset


class Text(Dataset):
    """Sequences in which each token follows from the two before it, so that there is something to learn."""

    def __init__(self, samples, length, vocabulary):
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        tokens = torch.empty(self.length + 1, dtype=torch.long)
        a, b = index % self.vocabulary, (7 * index + 3) % self.vocabulary
        for i in range(self.length + 1):
            tokens[i] = a
            a, b = b, (a + 3 * b + 1) % self.vocabulary
        return tokens[:-1], tokens[1:]


class Model(nn.Module):
    def __init__(self, vocabulary, length, width, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        return self.head(self.layers(self.tokens(x) + self.places, mask=self.mask, is_causal=True))


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--workers", type=int, default=2, help="processes that make the data")
    p.add_argument("--dtype", choices=["bf16", "fp16", "fp32"], default="bf16")
    p.add_argument("--compile", action="store_true", help="torch.compile, with kernels by Triton")
    p.add_argument("--graphs", action="store_true", help="forward and backward as CUDA graphs")
    p.add_argument("--quiet", action="store_true", help="print no losses, which may differ in their last digits")
    return p.parse_args()


def main():
    args = arguments()
    # As torchrun says which of several processes this is.
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.manual_seed(1 + rank)
    vocabulary = 97

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
    model = Model(vocabulary, args.length, args.width, 4, args.layers).to(device)
    if args.graphs:
        sample = torch.zeros(args.batch, args.length, dtype=torch.long, device=device)
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32, cache_enabled=False):
            model = torch.cuda.make_graphed_callables(model, (sample,))
    elif args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    data = DataLoader(Text(args.steps * args.batch, args.length, vocabulary), args.batch, num_workers=args.workers,
                      pin_memory=True, drop_last=True)

    for step, (x, y) in enumerate(data):
        with nvtx.range("step"):
            with nvtx.range("load"):
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            cast = torch.autocast("cuda", dtype, cache_enabled=False) if dtype != torch.float32 else contextlib.nullcontext()
            with nvtx.range("forward"), cast:
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
            with nvtx.range("backward"):
                scaler.scale(loss).backward()
            with nvtx.range("optimizer"):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=not args.graphs)
        if not args.quiet and step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
    torch.cuda.synchronize()
    print(f"rank {rank} trained {step + 1} steps", flush=True)


if __name__ == "__main__":
    main()
