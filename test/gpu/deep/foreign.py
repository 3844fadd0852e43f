#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does bare CUPTI sample the kernels of other processes?

    test/gpu/build bin
    python3 test/gpu/deep/foreign.py bin/sequence.so /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13 [CASE...]

Of two processes with a training each, one samples and launches nothing, the other makes steps meanwhile. What the other did before is the
case. The letters are those of sequence.py; a line is printed for each case, with the samples that the first one got: those of the other.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = "vvvvv"

# Who does what, in turn; what the last one prints counts.
# AB are both at the same time.
MEANWHILE, AT_A_TIME = ["A G", f"B {STEPS}", "A g?"], ["A G", f"AB {STEPS}", "A g?"]
CASES = {
    "never sampled": MEANWHILE,
    "sampled before": ["B Gvvg", *MEANWHILE],
    "sampled before, with the longest period at last": ["B GvvgpGg", *MEANWHILE],
    "armed before, not started": ["B u", *MEANWHILE],
    "refused before": ["A G", "B G", "A g?", *MEANWHILE],
    "sampled before, and left CUPTI": ["B GvvgZ", *MEANWHILE],
    "never sampled, at a time": AT_A_TIME,
    "sampled before, at a time": ["B Gvvg", *AT_A_TIME],
    "sampled before, at a time; a kernel at a time": ["B Gvvg", "A O", *AT_A_TIME],
    "sampled before, at a time; without start and stop": ["B Gvvg", "A i", *AT_A_TIME],
    "sampled before, in turn; a kernel at a time": ["B Gvvg", "A OGv", f"B {STEPS}", "A vg?"],
    "sampled before, in turn; without start and stop": ["B Gvvg", "A iGv", f"B {STEPS}", "A vg?"],
}


class Process:
    def __init__(self, library, cupti):
        command = [sys.executable, os.path.join(HERE, "sequence.py"), library, cupti, "1", "-"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.send("SCPYBKI")

    def send(self, letters):
        self.process.stdin.write(letters + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        return line.strip() if line else f"ended with {self.process.wait()}"


def main():
    library, cupti, *wanted = sys.argv[1:]
    cases = {name: steps for name, steps in CASES.items() if not wanted or name in wanted}
    ready = {name: {who: Process(library, cupti) for who in "AB"} for name in cases}
    for pair in ready.values():
        for process in pair.values():
            process.answer()
    for name, steps in cases.items():
        said = []
        for step in steps:
            who, letters = step.split()
            try:
                for one in who:
                    ready[name][one].send(letters)
                said.append(f"{who} {letters}: " + " ".join(ready[name][one].answer() for one in who))
            except BrokenPipeError:
                said.append(f"{who} {letters}: it is gone")
        print(f"{name}: " + "; ".join(s.replace("{0 records, 0 ns, 0 without, 0 patched, ", "{") for s in said), flush=True)
        for process in ready[name].values():
            process.process.kill()


if __name__ == "__main__":
    main()
