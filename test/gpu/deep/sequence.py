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
With - for the sequence there is one on each line of standard input, and a line of answer to each.
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


class Sequence:
    """The training, and CUPTI beside it, a letter at a time."""

    def __init__(self, library, cupti, rounds):
        self.core, self.rounds = ctypes.CDLL(os.path.abspath(library)), rounds
        self.core.load(cupti.encode())
        self.training = self.bare = None

    def act(self, letter):
        result = self.core.act(ctypes.c_char(letter[0].encode()))
        sys.stdout.flush()
        print(f" {letter}={result}" if result else "", end="", flush=True)

    def compare(self):
        if self.bare is None:
            self.bare = deep.Training([sys.executable, deep.TRAINING])
            places.share(os.getpid(), self.bare.pid)
        ratios = []
        for i in range(STEPS * self.rounds):
            if i % 2:
                mine, other = self.training.single(), self.bare.ask("step")
            else:
                other, mine = self.bare.ask("step"), self.training.single()
            ratios.append(mine["step_ms"] / other["step_ms"])
        print(f" {statistics.median(ratios):.3f}({device_mib():.0f},{resident_mib():.0f})", end="", flush=True)

    def do(self, letters):
        for letter in re.findall(r".'?", letters):
            if letter == "I":
                self.training = Training()
                self.training.cycles(lambda n: n < 3)
            elif letter == "w":
                self.training.cycle()
            elif letter == "v":
                self.training.single()
            elif letter == "J":
                print(f" {{{free_pieces()}}}", end="", flush=True)
            elif letter == ".":
                self.compare()
            else:
                torch.cuda.is_initialized() and torch.cuda.synchronize()
                by_autograd(lambda letter=letter: self.act(letter)) if letter.endswith("'") else self.act(letter)


def main():
    library, cupti, rounds, letters = sys.argv[1:]
    sequence = Sequence(library, cupti, int(rounds))
    if letters == "-":
        for line in sys.stdin:
            sequence.do(line.strip())
            print(flush=True)
        os._exit(0)
    print(letters if len(letters) < 80 else letters[:40] + "..." + letters[-40:], ":", sep="", end="", flush=True)
    sequence.do(letters + "?")
    print(flush=True)
    os._exit(0)  # CUPTI is in no state to be left in order


if __name__ == "__main__":
    main()
