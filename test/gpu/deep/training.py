#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training of test/gpu/overhead/train.py in cycles, each of which begins with the same weights and must end with
the same loss, whoever looks on. It does what it is told, a line on standard input, and answers with a line of JSON:

    cycles N      N cycles
    step          one more step of a cycle
    until         cycles until the next line, whatever it says
    profile       the same under torch.profiler, after a line that says that it is on
    pieces        what is free of malloc in small pieces
    take LIBRARY  holds those of the threads that launch
    capture S     holds the capture of a CUDA graph open for S seconds, then replays the graph

The first line that it prints says that it is ready, with its process id and the steps of a cycle.
"""
import ctypes
import json
import os
import re
import resource
import select
import statistics
import sys
import tempfile
import time

import torch
from torch.nn import functional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "overhead"))
from train import GPT, TOKENS, kernels, text  # noqa: E402

STEPS = 20  # of a cycle


def resident_mib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def device_mib():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


class Training:
    def __init__(self):
        torch.manual_seed(42)
        self.batches = text(STEPS).cuda()
        self.model = GPT().cuda()
        self.initial = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.loss = None  # of the first cycle
        self.done = 0  # steps of a cycle that goes on

    def begin(self):
        """Begins a cycle: what each call of the function that it returns does is a step, of which it returns the loss."""
        self.model.load_state_dict(self.initial)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, foreach=False)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        batches = iter(self.batches)

        def step():
            batch = next(batches)
            with torch.autocast("cuda", dtype=torch.float16):
                logits = self.model(batch[:, :-1])
                loss = functional.cross_entropy(logits.reshape(-1, TOKENS).float(), batch[:, 1:].reshape(-1))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        torch.cuda.synchronize()
        return step

    def cycle(self):
        """Returns milliseconds a step, those of the longest step's launches, and the loss at the end."""
        step = self.begin()
        began = before = time.perf_counter()
        longest = 0
        for _ in range(STEPS):
            loss = step()
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        return took * 1e3 / STEPS, longest * 1e3, loss.item()

    def single(self):
        """The next step alone: its milliseconds, and whether it ended a cycle with another loss than the first."""
        if self.done == 0:
            self.step = self.begin()
        began = time.perf_counter()
        loss = self.step()
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        self.done = (self.done + 1) % STEPS
        return {"step_ms": took * 1e3, "wrong": self.done == 0 and loss.item() != self.loss, "loss": self.loss}

    def cycles(self, more):
        """Runs cycles while more(number) says so."""
        steps, longest, wrong = [], 0, 0
        began = time.perf_counter()
        while more(len(steps)):
            step, long, loss = self.cycle()
            if self.loss is None:
                self.loss = loss
            wrong += loss != self.loss
            steps.append(step)
            longest = max(longest, long)
        return {
            "cycles": len(steps), "steps": STEPS * len(steps), "seconds": time.perf_counter() - began,
            "step_ms": statistics.median(steps) if steps else None, "longest_ms": longest,
            "loss": self.loss, "wrong": wrong, "resident_mib": resident_mib(), "device_mib": device_mib(),
        }


class Backwards(torch.autograd.Function):
    """Calls what it is given when it is differentiated, in the thread that does that."""

    @staticmethod
    def forward(context, x, call):
        context.call = call
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        context.call()
        return gradient, None


def by_autograd(call):
    Backwards.apply(torch.ones(1, device="cuda", requires_grad=True), call).backward()


def pieces_of(sizes):
    return f"{sum(count for count, _, _ in sizes)} of {sum(total for _, total, _ in sizes) >> 10} KiB"


def free_pieces():
    """Of each arena with more than a thousand free small pieces how many there are, their KiB, and the sizes with most."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as f:
        stream = ctypes.c_void_p(libc.fopen(f.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        text = f.read().decode()
    said = []
    for number, arena in re.findall(r'<heap nr="(\d+)">(.*?)</heap>', text, re.DOTALL):
        sizes = [(int(count), int(total), int(to)) for to, total, count in re.findall(r'<size from="\d+" to="(\d+)" total="(\d+)" count="(\d+)"', arena)]
        small, larger = ([one for one in sizes if (one[2] <= 1024) == is_small] for is_small in (True, False))
        if sum(count for count, _, _ in small) > 1000:
            most = " ".join(f"{count}x{size}" for count, _, size in sorted(small, reverse=True)[:4])
            said.append(f"{number}: {pieces_of(small)}, {most} and {pieces_of(larger)} larger")
    return "; ".join(said)


def take(path):
    """Has bin/sequence.so hold the free small pieces of the launching threads' arenas of malloc."""
    core = ctypes.CDLL(path)

    def in_this_thread():
        core.act(ctypes.c_char(b"H"))

    in_this_thread()
    by_autograd(in_this_thread)


def capture(seconds):
    """A graph of 8 multiplications by 2, captured with a pause in the middle; 3 replays make 2 to the power of 24."""
    x = torch.ones(1024, device="cuda", dtype=torch.float64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            x.mul_(2)
        time.sleep(seconds)
        for _ in range(4):
            x.mul_(2)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return {"right": bool((x == 2.0**24).all().item())}


def line_is_there(_):
    return not select.select([sys.stdin], [], [], 0)[0]


def main():
    training = Training()
    training.cycles(lambda n: n < 3)  # warm-up: allocations, cuBLAS's choices
    print(json.dumps({"ready": True, "pid": os.getpid(), "steps": STEPS}), flush=True)
    # Not "for line in sys.stdin", which reads ahead: select would not see what is in its buffer.
    while line := os.read(0, 4096).decode().strip():
        command, _, argument = line.partition(" ")
        if command == "cycles":
            answer = training.cycles(lambda n: n < int(argument))
        elif command == "step":
            answer = training.single()
        elif command == "until":
            answer = training.cycles(line_is_there)
            os.read(0, 4096)
        elif command == "profile":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                print(json.dumps({"profiling": True}), flush=True)
                answer = training.cycles(line_is_there)
                os.read(0, 4096)
            answer["kernels"] = kernels(profiler)
        elif command == "pieces":
            answer = {"free": free_pieces()}
        elif command == "take":
            take(argument)
            answer = {"free": free_pieces()}
        elif command == "capture":
            answer = capture(float(argument))
        else:
            sys.exit(f"no command {command!r}")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
