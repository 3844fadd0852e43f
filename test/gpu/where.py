# SPDX-License-Identifier: Apache-2.0
"""Where the processor time of a process goes, by kind of thread, file and function: deep/where.c, read.

It tells what a step that got longer is longer by, when the machine has neither perf nor processor counters; and where the threads
of a process wait that hangs, when it has no debugger.
"""
import bisect
import collections
import os
import platform
import struct
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


def called(memory, address):
    """Whether the code before an address of a process can be a call, so that it may be one that is returned to. Of x86-64; else True."""
    if platform.machine() != "x86_64":
        return True
    try:
        code = os.pread(memory, 7, address - 7)
    except (OSError, OverflowError):
        return False
    return len(code) == 7 and (code[2] == 0xE8 or any(code[-n] == 0xFF and code[-n + 1] >> 3 & 7 == 2 for n in range(2, 8)))


def stacks(pid, words=4096):
    """Of each thread of a process that waits in the kernel its role, the number of the system call, and (file, offset) of what it may return to,
    the innermost first: all words on its stack that look like it, so more than are true, and in the right order."""
    maps = []
    with open(f"/proc/{pid}/maps") as f:
        for line in f:
            fields = line.split(None, 5)
            if "x" in fields[1] and len(fields) == 6:
                begin, end = (int(x, 16) for x in fields[0].split("-"))
                maps.append((begin, end, int(fields[2], 16), fields[5].strip()))
    maps.sort()
    starts = [m[0] for m in maps]
    found = []
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for thread, name in places.threads(pid):
            try:
                with open(f"/proc/{pid}/task/{thread}/syscall") as f:
                    fields = f.read().split()
            except OSError as e:
                fields = [f"({e.strerror})"]
            frames = []
            if len(fields) >= 3:
                stack, at = int(fields[-2], 16), int(fields[-1], 16)
                data = b""
                for length in (8 * words, 4096 - stack % 4096):  # the stack may end before
                    try:
                        data = os.pread(memory, length, stack)
                        break
                    except OSError:
                        pass
                data = data[:len(data) // 8 * 8]
                for i, address in enumerate([at, *(x for x, in struct.iter_unpack("<Q", data))]):
                    m = bisect.bisect_right(starts, address) - 1
                    if m >= 0 and address < maps[m][1] and (i == 0 or called(memory, address)):
                        frames.append((maps[m][3], address - maps[m][0] + maps[m][2]))
            found.append((f"{places.role(pid, thread, name)} {thread - pid}", fields[0], frames))
    finally:
        os.close(memory)
    return found


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
