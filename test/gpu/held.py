#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does a refused start of PC sampling leave of CUPTI? Nsight Compute has the GPU's counters, and one program after the other that launches
all the time asks bare CUPTI for samples:

    test/gpu/build bin
    python3 test/gpu/held.py --cupti LIBCUPTI [--bin bin] [--seconds 100] ['p 1 n' 'p 5 n' ...]

Each way is what bin/switches takes besides the library and the number of threads and phases (test/gpu/budget/switches.c): WHAT GATE [HEAL].
The ways come in turn until the time is over. With --alone nothing has the counters, which is how the program itself is tested.
It prints what each process said, and at the end for each way how many processes were refused and what became of them.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WAYS = ("A 5 n", "A 1 n", "a 1 n", "p 1 n", "p 5 n", "p 6 n", "p 7 n", "p 8 n", "p 1 f", "p 5 f")


def in_the_middle(text):
    """Whether the last that ncu has said is that it has begun with a kernel of the long kind, and not that it is done."""
    last = (text.rstrip().splitlines() or [""])[-1]
    return last.startswith('==PROF== Profiling "chase"') and "0%" in last and "100%" not in last


class Holder:
    """ncu at work on kernels that take a second each of its forty passes; anew each time that it gives up."""

    def __init__(self, program):
        self.command = [shutil.which("ncu") or "ncu", "--set", "full", program, "chase", "600", "1000000"]
        self.over, self.process, self.text = False, None, ""
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over:
            self.text = ""
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for piece in iter(lambda: os.read(self.process.stdout.fileno(), 4096), b""):
                self.text += piece.decode(errors="replace")
            self.process.wait()

    def holds(self):
        """Whether it is in the middle of a kernel."""
        return in_the_middle(self.text)

    def wait(self, until):
        while not self.holds():
            if time.monotonic() > until:
                raise TimeoutError(f"ncu has not got to work: {self.text[-500:]}")
            time.sleep(0.2)
        time.sleep(0.3)

    def end(self):
        self.over = True
        if self.process:
            self.process.kill()
        self.thread.join(10)


def unharmed(said):
    """Whether each launch that counts was told of and recorded."""
    return bool(re.search("] first ", said)) and not re.search("] first (?!-1, without record 0, not told 0 of)", said)


def became(code, said):
    """What became of a process."""
    if code == -9:
        return "hung"
    if code < 0:
        return "crashed"
    if code > 0:
        return "failed"
    if re.search("(availability|counters) refused", said) and "start refused" not in said:
        return "asked first, as before" if unharmed(said) else "asked first, and harmed"
    if "start refused" not in said:
        return "not refused"
    if "told of/recorded of" not in said:
        return "as before" if unharmed(said) else "harmed"
    counts = re.search(r"told of/recorded of 100:((?: \d+/\d+)+)", said)
    told, recorded = (sum(int(x.split("/")[i]) for x in counts.group(1).split()) for i in (0, 1))
    return "unresponsive" if told == 0 else "without records" if recorded == 0 else "healed"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", default=os.path.join(ROOT, "bin"), help="folder with switches, and slow unless --alone")
    p.add_argument("--cupti", required=True)
    p.add_argument("--seconds", type=float, default=100)
    p.add_argument("--threads", default="4")
    p.add_argument("--phases", default="3")
    p.add_argument("--alone", action="store_true", help="nothing has the counters")
    p.add_argument("ways", nargs="*", default=WAYS)
    a = p.parse_args()
    table, began = {}, time.monotonic()
    holder = None if a.alone else Holder(os.path.join(a.bin, "slow"))
    try:
        while time.monotonic() - began < a.seconds:
            for way in a.ways:
                what, gate, *heal = way.split()
                if holder:
                    holder.wait(time.monotonic() + 60)
                with tempfile.TemporaryFile() as out:
                    process = subprocess.Popen([os.path.join(a.bin, "switches"), a.cupti, what, gate, a.threads, a.phases, *heal], stdout=out, stderr=out)
                    try:
                        code = process.wait(15)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        code = process.wait()
                    out.seek(0)
                    said = out.read().decode(errors="replace").strip()
                outcome = became(code, said)
                print(f"{way}: {outcome} ({code}): {' '.join(said.split())[:600]}", flush=True)
                row = table.setdefault(way, {})
                row[outcome] = row.get(outcome, 0) + 1
                if time.monotonic() - began >= a.seconds:
                    break
    finally:
        if holder:
            holder.end()
    for way, row in table.items():
        print(f"{way}: {sum(row.values())} processes: " + ", ".join(f"{n} {what}" for what, n in sorted(row.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
