#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of the training takes after a sequence of CUPTI's calls, and what these leave on the device:

    test/gpu/build bin
    python3 test/gpu/deep/sequence.py bin/sequence.so /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 ROUNDS SEQUENCE

The letters are those of test/gpu/budget/sequence.c, and

    I   the training is made            .   its step against that of a training without CUPTI, in turn
    w   a cycle                         v   a step
    J   what is free in malloc's arenas, in pieces of up to 1 KiB

A letter with ' after it is done by autograd's thread.
Nothing is launched while a letter is done. A dot prints the median of the ratios in ROUNDS cycles, and the MiB in use
of the device, by both trainings, and resident of the one.
"""
import ctypes
import os
import re
import statistics
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import deep  # noqa: E402
import places  # noqa: E402
from training import STEPS, Training, by_autograd, device_mib, free_pieces, resident_mib  # noqa: E402


def main():
    library, cupti, rounds, letters = sys.argv[1:]
    rounds = int(rounds)
    core = ctypes.CDLL(os.path.abspath(library))
    core.load(cupti.encode())
    bare, training = deep.Training([sys.executable, deep.TRAINING]), None
    print(letters if len(letters) < 80 else letters[:40] + "..." + letters[-40:], ":", sep="", end="", flush=True)
    for letter in re.findall(r".'?", letters):
        if letter == "I":
            training = Training()
            training.cycles(lambda n: n < 3)
            places.share(os.getpid(), bare.pid)
        elif letter == "w":
            training.cycle()
        elif letter == "v":
            training.single()
        elif letter == "J":
            print(f" {{{free_pieces()}}}", end="", flush=True)
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

            def act(letter=letter):
                result = core.act(ctypes.c_char(letter[0].encode()))
                sys.stdout.flush()
                print(f" {letter}={result}" if result else "", end="", flush=True)

            by_autograd(act) if letter.endswith("'") else act()
    core.act(ctypes.c_char(b"?"))
    print(flush=True)
    os._exit(0)  # CUPTI is in no state to be left in order


if __name__ == "__main__":
    main()
