#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of the training takes after a sequence of CUPTI's calls, and what these leave on the device:

    test/gpu/build bin
    python3 test/gpu/deep/sequence.py bin/sequence.so /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 ROUNDS SEQUENCE

The letters are those of test/gpu/budget/sequence.c, and

    I   the training is made            .   its step against that of a training without CUPTI, in turn
    w   a cycle                         v   a step

Nothing is launched while a letter is done. A dot prints the median of the ratios in ROUNDS cycles, and the MiB in use
of the device, by both trainings, and resident of the one.
"""
import ctypes
import os
import statistics
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import deep  # noqa: E402
import places  # noqa: E402
from training import STEPS, Training, device_mib, resident_mib  # noqa: E402


def main():
    library, cupti, rounds, letters = sys.argv[1:]
    rounds = int(rounds)
    core = ctypes.CDLL(os.path.abspath(library))
    core.load(cupti.encode())
    bare, training = deep.Training([sys.executable, deep.TRAINING]), None
    print(letters + ":", end="", flush=True)
    for letter in letters:
        if letter == "I":
            training = Training()
            training.cycles(lambda n: n < 3)
            places.share(os.getpid(), bare.pid)
        elif letter == "w":
            training.cycle()
        elif letter == "v":
            training.single()
        elif letter == ".":
            ratios = []
            for i in range(STEPS * rounds):
                if i % 2:
                    mine, other = training.single(), bare.ask("step")
                else:
                    other, mine = bare.ask("step"), training.single()
                ratios.append(mine["step_ms"] / other["step_ms"])
            print(f" {statistics.median(ratios):.3f}({device_mib():.0f},{resident_mib():.0f})", end="", flush=True)
        else:
            torch.cuda.is_initialized() and torch.cuda.synchronize()
            result = core.act(ctypes.c_char(letter.encode()))
            sys.stdout.flush()
            if result:
                print(f" {letter}={result}", end="", flush=True)
    core.act(ctypes.c_char(b"?"))
    print(flush=True)
    os._exit(0)  # CUPTI is in no state to be left in order


if __name__ == "__main__":
    main()
