#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs two processes as ranks, once with gloo and once with NCCL, and checks that `gpuflight ranks`
finds the rank that is slow, its delay and its cause. Each rank has a GPU of its own where there are two.

With NCCL, each all-reduce must have its size, and the bus bandwidth of 256 MiB must be what CUDA events in
the program measure.

    python3 test/gpu/ranks.py --bin bin [--backend gloo|nccl] [--keep FOLDER]

It needs PyTorch. Two ranks on one GPU need NCCL 2.30 or later, with NCCL_MULTI_RANK_GPU_ENABLE=1;
older ones reject a second rank, and the part is then skipped. Both ranks have one clock, so the true
offset is 0: the bounds must contain it. With --offset the clock of rank 1 is moved in its file, and
the bounds must contain that.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

DELAY_MS = 15
STEPS = 60
EVERY = 3
BIG, BIGS, WARMUPS = 256 << 20, 20, 3  # bytes and numbers of the large all-reduces

PROGRAM = f"""
import contextlib, os, sys, time
import torch, torch.distributed as dist
backend, cause = sys.argv[1:]
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group(backend)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)]).cuda()
x = torch.randn(256, 1024, device="cuda")
big = torch.randn(4096, 4096, device="cuda")
def reduce(t):
    if backend == "nccl":
        dist.all_reduce(t)
        return
    host = t.cpu()
    torch.cuda.nvtx.range_push("gloo:all_reduce")
    dist.all_reduce(host)
    torch.cuda.nvtx.range_pop()
    t.copy_(host)
def event():
    e = torch.cuda.Event(enable_timing=True)
    e.record()
    return e
delays = []
for step in range({STEPS}):
    torch.cuda.nvtx.range_push("step %d" % step)
    model.zero_grad()
    model(x).square().mean().backward()
    if rank == 1 and step % {EVERY} == {EVERY} - 1:
        if cause == "host":
            torch.cuda.synchronize()
            begin = time.perf_counter()
            time.sleep({DELAY_MS} / 1000)
            delays.append((time.perf_counter() - begin) * 1e3)
        else:
            begin = event()
            for _ in range(60):
                big = big @ big * 1e-3
            delays.append((begin, event()))
    for p in model.parameters():
        reduce(p.grad)
    torch.cuda.nvtx.range_pop()
torch.cuda.synchronize()
print("DELAYS", *(d if cause == "host" else d[0].elapsed_time(d[1]) for d in delays))
if backend == "nccl":
    t = torch.zeros({BIG} // 4, device="cuda")
    events = []
    for _ in range({WARMUPS + BIGS}):
        begin = event()
        dist.all_reduce(t)
        events.append((begin, event()))
    torch.cuda.synchronize()
    print("BIG", *(a.elapsed_time(b) for a, b in events[{WARMUPS}:]))
dist.destroy_process_group()
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def record(args, folder, backend, cause):
    """Records two ranks. Returns their files and their output, or None if NCCL rejects two ranks on one GPU."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    port, files, running = free_port(), [], []
    for rank in range(2):
        file = folder / f"{backend}-{cause}-{rank}.otlp.jsonl"
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   TORCHELASTIC_RUN_ID=f"{backend}-{cause}", NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_NVTX_DISABLE="0")
        command = [str(args.bin / "gpuflight"), "trace", "--kinds", "causes", "--output", str(file), "--", sys.executable, str(program), backend, cause]
        running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        files.append(file)
    out = []
    for p in running:
        try:
            out.append(p.communicate(timeout=240)[0])
        except subprocess.TimeoutExpired:
            p.kill()
            out.append(p.communicate()[0] + "\ntimed out")
    if any(p.returncode for p in running):
        text = "\n".join(out)
        if backend == "nccl" and ("Duplicate GPU" in text or "invalid usage" in text):
            print("SKIP nccl: this version rejects two ranks on one GPU")
            return None
        sys.exit(f"FAIL {backend} {cause}: a rank failed\n{text[-3000:]}")
    return files, out


def printed(text, what):
    """Returns the milliseconds that a program printed after a word."""
    return [float(ms) for line in text.splitlines() if line.startswith(what) for ms in line.split()[1:]]


def shift(file, ns):
    """Moves all times of a file, as a clock that is ahead would, and gives it another host."""
    def walk(x):
        if isinstance(x, list):
            for y in x:
                walk(y)
        elif isinstance(x, dict):
            for key in list(x):
                if key.lower().endswith("timeunixnano"):
                    x[key] = str(int(x[key]) + ns)
            name, value = x.get("key"), x.get("value")
            if isinstance(name, str) and isinstance(value, dict):
                if name.endswith("time_unix_nano") and "intValue" in value:
                    value["intValue"] = str(int(value["intValue"]) + ns)
                if name in ("host.id", "host.name"):
                    value["stringValue"] = "other"
            for y in x.values():
                walk(y)
    lines = [json.loads(line) for line in file.read_text().splitlines() if line]
    walk(lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def check_sizes(result, times):
    """Checks the sizes and the bus bandwidth of NCCL's all-reduces. Of two ranks it is size / time."""
    problems, busses, sizes = [], {}, {4 * 1024 * 1024: 6 * STEPS, 4 * 1024: 6 * STEPS, BIG: WARMUPS + BIGS}
    for c in result["collectives"]:
        busses.setdefault(c.get("bytes"), []).append(c.get("bus_bytes_per_second", 0) / 1e9)
    found = {size: len(list) for size, list in busses.items()}
    if found != sizes:
        return [f"the numbers by size are {found}, not {sizes}"]
    # The rank that enters last measures the time without the wait for the other one.
    events = [BIG / min(ms) / 1e6 for ms in zip(*times)]
    if len(events) != BIGS:
        return [f"the program measured {len(events)} large all-reduces"]
    ours, theirs = statistics.median(busses[BIG][-BIGS:]), statistics.median(events)
    if not 0.9 * theirs <= ours <= 1.1 * theirs:
        problems.append(f"the bus bandwidth of {BIG >> 20} MiB is {ours:.1f} GB/s, by CUDA events {theirs:.1f} GB/s")
    group = result["groups"][0]
    print(f"   bus bandwidth in GB/s: median {statistics.median(busses[4 * 1024 * 1024]):.1f} of 4 MiB, {ours:.1f} of {BIG >> 20} MiB, "
          f"{theirs:.1f} by CUDA events; peak {group.get('peak_bytes_per_second', 0) / 1e9:.0f}; {group.get('bandwidths')} {group.get('findings', [])}")
    return problems


def check(args, name, files, output, offset, cause):
    out = subprocess.run([str(args.bin / "gpuflight"), "ranks", "--json", "--top", "10000", *map(str, files)], capture_output=True, text=True, check=True)
    result = json.loads(out.stdout)
    ranks, problems = result["ranks"], []
    delays, times = printed(output[1], "DELAYS"), [printed(text, "BIG") for text in output]
    if len(delays) != STEPS // EVERY:
        problems.append(f"the program measured {len(delays)} delays")
    if not result["findings"] or ranks[result["findings"][0]["rank"]]["rank"] != 1:
        problems.append("rank 1 is not the first finding")
    clock = ranks[1].get("offset") or {}
    if "min_ns" not in clock or not clock["min_ns"] <= offset <= clock["max_ns"]:
        problems.append(f"the offset {offset} is not in {clock}")
    delay, least, late = sum(delays), ranks[1]["late_at_least_ns"] / 1e6, ranks[1]["late_ns"] / 1e6
    # The rank is also late in steps without a delay, up to 1.38 times in all: it empties its queue, so its device waits
    # for launches. The factor of 2 is for slower hosts.
    if not 0.95 * delay <= least <= late <= 2 * delay:
        problems.append(f"late by {late:.1f} ms, of it certain {least:.1f} ms, the delays are {delay:.1f} ms")
    found = (ranks[1].get("cause") or {}).get("kind", "none")
    # A rank with gloo waits with a copy to the host, so more kernels can appear as a wait.
    if found not in {"host": ("host", "nothing_queued"), "kernels": ("more_kernels", "slower_kernels", "sync")}[cause]:
        problems.append(f"the cause is {found}")
    if any(times):
        problems += check_sizes(result, times)
    print(f"{'FAIL' if problems else 'PASS'} {name}: {result['collectives_total']} collectives, rank 1 last {ranks[1]['last']} times "
          f"({ranks[1]['last_proven']} certain), late {late:.1f} ms, at least {least:.1f}, by the program {delay:.1f}, cause {found}, clock {clock}")
    for p in problems + result["problems"]:
        print("  ", p)
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("bin"))
    parser.add_argument("--backend", choices=["gloo", "nccl"], action="append")
    parser.add_argument("--offset", type=int, default=1_234_567_890, help="nanoseconds")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the recordings")
    args = parser.parse_args()
    args.bin = args.bin.resolve()
    ok = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for backend in args.backend or ["gloo", "nccl"]:
            for cause in ("host", "kernels"):
                recorded = record(args, folder, backend, cause)
                if recorded is None:
                    break
                files, output = recorded
                ok &= check(args, f"{backend} {cause}", files, output, 0, cause)
                shift(files[1], args.offset)
                ok &= check(args, f"{backend} {cause}, other clock", files, output, args.offset, cause)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
