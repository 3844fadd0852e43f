# SPDX-License-Identifier: Apache-2.0
"""Where the processor time of a process goes, by kind of thread, file and function: deep/where.c, read.

It tells what a step that got longer is longer by, when the machine has neither perf nor processor counters.
"""
import bisect
import collections
import os
import subprocess

import places

HERTZ = 2000


class Watch:
    """While it is entered, the threads that a process had when it was. spent then has milliseconds by (role, file, offset)."""

    def __init__(self, program, pid, hertz=HERTZ):
        self.program, self.pid, self.hertz, self.spent = program, pid, hertz, collections.Counter()

    def __enter__(self):
        self.roles = {thread: places.role(self.pid, thread, name) for thread, name in places.threads(self.pid)}
        self.process = subprocess.Popen([self.program, str(self.pid), str(self.hertz)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()  # it watches, or has ended
        return self

    def __exit__(self, *_):
        out, _ = self.process.communicate("")
        for line in out.splitlines():
            thread, count, offset, file = line.split(" ", 3)
            self.spent[self.roles.get(int(thread), "new"), file, int(offset, 16)] += int(count) * 1e3 / self.hertz


class Symbols:
    """Function names of files, as far as nm knows them; those of the kernel as far as it tells."""

    def __init__(self):
        self.tables = {}

    def table(self, file):
        """Addresses in order, and their names. Offsets in files are taken for addresses, moved by what the program headers say."""
        if file not in self.tables:
            found = {}
            if file == "[kernel]":
                with open("/proc/kallsyms") as f:
                    lines = f.read().splitlines()
            else:
                lines = []
                for option in ([], ["-D"]):
                    p = subprocess.run(["nm", *option, "--defined-only", file], capture_output=True, text=True, errors="replace")
                    lines += p.stdout.splitlines()
            for line in lines:
                fields = line.split()
                if len(fields) >= 3 and fields[1] in "tTwWiI":
                    found[int(fields[0], 16)] = fields[2]
            self.tables[file] = sorted(found), found, self.segments(file)
        return self.tables[file]

    @staticmethod
    def segments(file):
        """(offset, size, address) of what is loaded of a file."""
        if not os.path.isfile(file):
            return []
        p = subprocess.run(["readelf", "-lW", file], capture_output=True, text=True, errors="replace")
        rows = [line.split() for line in p.stdout.splitlines() if line.strip().startswith("LOAD")]
        return [(int(r[1], 16), int(r[4], 16), int(r[2], 16)) for r in rows]

    def name(self, file, offset):
        addresses, names, segments = self.table(file)
        for begin, size, address in segments:
            if begin <= offset < begin + size:
                offset += address - begin
                break
        i = bisect.bisect_right(addresses, offset) - 1
        return names[addresses[i]] if i >= 0 and offset - addresses[i] < 1 << 20 else f"+{offset >> 12:x}000"


def by_file(spent):
    total = collections.Counter()
    for (who, file, _), ms in spent.items():
        total[who, os.path.basename(file)] += ms
    return total


def by_function(spent, symbols):
    total = collections.Counter()
    for (who, file, offset), ms in spent.items():
        total[who, os.path.basename(file), symbols.name(file, offset)] += ms
    return total


def differences(before, after, steps, least=0.02):
    """Lines for what changed by so many ms a step and more, the largest first."""
    changes = sorted(((after[k] - before[k], k) for k in before.keys() | after.keys()), key=lambda x: -abs(x[0]))
    return [f"{rise / steps:+.3f} of {before[k] / steps:.3f} ms a step: {' '.join(k)}" for rise, k in changes if abs(rise) / steps >= least]
