#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether `gpuflight report` names the cause of programs with a known one, on a real GPU with PyTorch.

    python3 test/gpu/causes/run.py --bin bin --out FOLDER [--only NAME,...] [--steps 50]
    python3 test/gpu/causes/run.py --bin bin --variants 5 [--first 1] [--only NAME,...]

Records each program of program.py and its fix, and leaves NAME.otlp.jsonl.zst in the folder. Prints a
table: the first finding and the expected ones, the gain that the report gives at most and the gain that
the fix has. Both programs are recorded, so both pay for recording. The status is 1 if a first finding
is not expected, if the two gains differ by over 10 % of the wall time, or if a recording has 300 kB or
more.

With --variants it records programs with other sizes instead, without fixes, and prints how often which
first finding came.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# The kinds of the first finding that are right. "" means none.
EXPECTED = {
    "balanced": {""},
    "data_loader": {"host"},
    "item": {"sync"},
    "pageable": {"pageable_copy", "copy_call"},
    "no_overlap": {"exposed_copy"},
    "tiny": {"launch"},
    "allocator": {"allocator"},
    "slow_layer": {"slow_steps"},
}
# The kinds whose gain a fix has.
FIXED = {"tiny": {"cuda_graph"}}
STEPS = {"tiny": 25}  # 150 kernels each
LARGEST = 300_000


def record(a, cause, fixed, path, seed=0):
    command = [os.path.join(a.bin, "gpuflight"), "trace", "--quiet", "--service", cause, "--kinds", "causes",
               "--output", path, "--force", "--", sys.executable, "program.py", cause, "--steps", str(STEPS.get(cause, a.steps)), "--seed", str(seed)]
    if fixed:
        command.append("--fixed")
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, timeout=120)
    if done.returncode:
        raise SystemExit("%s: status %d" % (" ".join(command), done.returncode))
    return json.loads(done.stdout.splitlines()[-1])["wall_ms"]


def clean(path):
    """Returns a recording without names of this machine."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    for i, uuid in enumerate(sorted(set(re.findall(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)))):
        text = text.replace(uuid, "GPU-00000000-0000-4000-8000-%012x" % (i + 1))
    text = text.replace(json.dumps(socket.gethostname()), '"gpu-host"').replace(HERE, "/causes")
    text = text.replace(os.path.dirname(os.path.dirname(sys.executable)), "/venv") if sys.prefix != sys.base_prefix else text
    return text


def report(a, path):
    text = subprocess.run([os.path.join(a.bin, "gpuflight"), "report", "--json", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    analysis = json.loads(text)["analyses"][0]
    findings = [f for f in analysis["findings"] if f["kind"] != "no_launch_times"]
    return analysis, findings, findings[0]["kind"] if findings else ""


def variants(a, names):
    """Prints a row for each program with the number of each first finding, and returns the status."""
    wrong, begin = 0, time.time()
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            counts = {}
            for seed in range(a.first, a.first + a.variants):
                path = os.path.join(work, "variant.otlp.jsonl")
                record(a, name, False, path, seed)
                _, findings, first = report(a, path)
                counts[first or "none"] = counts.get(first or "none", 0) + 1
                if first not in EXPECTED[name]:
                    wrong += 1
                    print("%s, seed %d: %s" % (name, seed, json.dumps([{k: f[k] for k in ("kind", "gain_share", "text")} for f in findings[:3]], ensure_ascii=False)))
            print("%-12s %s" % (name, ", ".join("%s %d" % c for c in sorted(counts.items(), key=lambda c: -c[1]))), flush=True)
    print("%d of %d wrong, %.0f s" % (wrong, len(names) * a.variants, time.time() - begin))
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="bin")
    parser.add_argument("--out")
    parser.add_argument("--variants", type=int, default=0)
    parser.add_argument("--first", type=int, default=1, help="the seed of the first variant")
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=50)
    a = parser.parse_args()
    a.bin = os.path.abspath(a.bin)
    names = [n for n in a.only.split(",") if n] or list(EXPECTED)
    if a.variants:
        sys.exit(variants(a, names))
    if not a.out:
        parser.error("--out is missing")
    os.makedirs(a.out, exist_ok=True)
    wrong, rows = 0, []
    begin = time.time()
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            path = os.path.join(work, name + ".otlp.jsonl")
            slow = record(a, name, False, path)
            fixed = record(a, name, True, os.path.join(work, "fixed.otlp.jsonl")) if name != "balanced" else slow
            plain = os.path.join(a.out, name + ".otlp.jsonl")
            with open(plain, "w", encoding="utf-8") as f:
                f.write(clean(path))
            # Python has no zstd before 3.14.
            packed = plain + ".zst"
            try:
                subprocess.run(["zstd", "-q", "-f", "-19", "--rm", plain, "-o", packed], check=True)
            except FileNotFoundError:
                subprocess.run(["gzip", "-9", "-n", "-f", plain], check=True)
                packed = plain + ".gz"
            analysis, findings, first = report(a, packed)
            gain = sum(f["gain_at_most_ns"] for f in findings if f["kind"] in FIXED.get(name, EXPECTED[name])) / 1e6
            measured = slow - fixed
            problems = []
            if first not in EXPECTED[name]:
                problems.append("first finding")
            # A bound can be a little too small: the call of .item() itself also takes time.
            if abs(measured - gain) > 0.1 * slow:
                problems.append("gain")
            if os.path.getsize(packed) >= LARGEST:
                problems.append("%d bytes" % os.path.getsize(packed))
            wrong += bool(problems)
            rows.append((name, first or "none", "/".join(sorted(EXPECTED[name])) or "none", "%.1f" % slow, "%.1f" % gain, "%.1f" % measured,
                         str(analysis["devices"][0]["bound"]), "%d kB" % (os.path.getsize(packed) // 1000), "FAIL: " + ", ".join(problems) if problems else "PASS"))
            print("%s: %s" % (name, json.dumps([{k: f[k] for k in ("kind", "gain_at_most_ns", "text")} for f in findings[:3]], ensure_ascii=False)), flush=True)
    header = ("program", "first", "expected", "wall ms", "gain at most ms", "gain of the fix ms", "bound", "size", "")
    rows.insert(0, header)
    widths = [max(len(r[i]) for r in rows) for i in range(len(header))]
    for r in rows:
        print("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip())
    print("%d of %d wrong, %.0f s" % (wrong, len(names), time.time() - begin))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
