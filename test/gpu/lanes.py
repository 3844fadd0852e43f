#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several of these scripts at a time, each on GPUs and processors of its own.

    test/gpu/lanes.py --limit 400 --out lanes \\
        '0   planned  python3 test/gpu/deep.py --bin bin --only windows --planned' \\
        '1   sass     while python3 test/gpu/deep.py --bin bin --only windows --rounds 2 --engines sass; do :; done' \\
        '2 budget   python3 test/gpu/budget.py --bin bin'

Each argument is a lane: its GPUs with commas, a name, and a command for bash. The processors that we may use are divided among the GPUs that
there are, so many for each, and a lane gets those of its GPUs. What a lane prints is in NAME.txt. At the end, or after --limit seconds, when all
that still runs is ended, the lines that judge are printed, lane by lane. The status is 1 if one of them says FAIL, or a lane has
none.

Lanes of one host are not alone: they share its memory and what its processors share. What is compared has to be compared within
a lane.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

import places

TOLD = re.compile(r"(PASS|FAIL|Note:|all \d+ checks|\d+ of \d+ checks)")


def lane(text):
    parts = text.split(None, 2)
    if len(parts) != 3 or not re.fullmatch(r"\d+(,\d+)*", parts[0]) or not re.fullmatch(r"[\w.-]+", parts[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not GPUS NAME COMMAND, such as '0,1 budget python3 budget.py'")
    return [int(x) for x in parts[0].split(",")], parts[1], parts[2]


def gpus():
    """How many GPUs there are."""
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in said.splitlines())


def begin(one, out, parts):
    """Starts a lane, with those parts of the processors that belong to its GPUs."""
    wanted, name, command = one
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, wanted))}
    on = [p for g in wanted for p in parts[g]]
    with open(os.path.join(out, name + ".txt"), "w") as f:
        return subprocess.Popen(["taskset", "-c", ",".join(map(str, on)), "bash", "-c", command], stdin=subprocess.DEVNULL, stdout=f,
                                stderr=subprocess.STDOUT, env=env, start_new_session=True)


def end(process):
    """Ends a lane with all that it has begun."""
    for by, patience in (signal.SIGTERM, 5), (signal.SIGKILL, 5):
        try:
            os.killpg(process.pid, by)
            process.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def verdict(path, width=400):
    """Prints what judges in a lane's output, and says whether there is any and it is good."""
    with open(path, errors="replace") as f:
        told = [line.rstrip()[:width] for line in f if TOLD.match(line)]
    print("\n".join(told))
    judged = [line for line in told if line.startswith(("PASS", "FAIL"))]
    return bool(judged) and not any(line.startswith("FAIL") for line in judged)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lanes", nargs="+", type=lane, metavar="LANE", help="GPUS NAME COMMAND")
    p.add_argument("--out", default="lanes", help="folder for what they print")
    p.add_argument("--limit", type=float, default=540, help="seconds")
    p.add_argument("--gpus", type=int, help="how many there are (default: as nvidia-smi says)")
    a = p.parse_args()
    here = a.gpus or gpus()
    names = [name for _, name, _ in a.lanes]
    used = [g for wanted, _, _ in a.lanes for g in wanted]
    if len(set(names)) < len(names) or len(set(used)) < len(used):
        p.error("a name or a GPU is in two lanes")
    parts = places.parts(here) if here else []
    if max(used) >= here or not parts[0]:
        p.error(f"there are {here} GPUs and {len(os.sched_getaffinity(0))} processors")
    os.makedirs(a.out, exist_ok=True)
    began = time.monotonic()
    running = [begin(one, a.out, parts) for one in a.lanes]
    took = {}
    while len(took) < len(running) and time.monotonic() - began < a.limit:
        for name, process in zip(names, running):
            if name not in took and process.poll() is not None:
                took[name] = time.monotonic() - began
        time.sleep(0.2)
    for process in running:
        end(process)
    good = True
    for name, process in zip(names, running):
        print(f"== {name}: " + (f"status {process.returncode} after {took[name]:.0f} s" if name in took else f"ended after {a.limit:.0f} s"))
        good &= verdict(os.path.join(a.out, name + ".txt"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
