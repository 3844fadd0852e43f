#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training of test/gpu/overhead/train.py in cycles, each of which begins with the same weights and must end with
the same loss, whoever looks on. It does what it is told, a line on standard input, and answers with a line of JSON:

    cycles N      N cycles
    step          one more step of a cycle
    until         cycles until the next line, whatever it says
    profile       the same under torch.profiler, after a line that says that it is on
    capture S     holds the capture of a CUDA graph open for S seconds, then replays the graph

The first line that it prints says that it is ready, with its process id and the steps of a cycle.
"""
import json
import os
import resource
import select
import statistics
import sys
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
        elif command == "capture":
            answer = capture(float(argument))
        else:
            sys.exit(f"no command {command!r}")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
