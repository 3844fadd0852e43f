#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a CUDA program at every resource limit, with and without the injection library.

    python3 test/gpu/limits.py --library bin/libgpuflight.so [--cuda /usr/local/cuda] [--jobs 8]

The program is test/gpu/overhead/launch.c. Each limit is set for the program only:

    threads        RLIMIT_NPROC from 1 to 64, each run as a user of its own (needs root)
    descriptors    RLIMIT_NOFILE from 1 to 64
    address space  RLIMIT_AS from 64 MiB to 2 GiB, and none

With the library, the exit status and the output must be those without it. The library may add one
line on standard error that says why it stayed out. The script prints one line for each kind of
limit, then each difference, and ends with status 1 if there was one.
"""
import argparse, collections, concurrent.futures, glob, itertools, json, os, re, resource, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
ADDRESS_SPACE = sorted({64 * MIB * n for n in range(1, 33)})
FIRST_USER = 20000  # No account of the machine has these ids, so that RLIMIT_NPROC counts one program.
RUN_LIMIT = 60  # seconds

Outcome = collections.namedtuple("Outcome", "status output error")


def run(program, limit, value, user, env):
    """Runs the program under one limit and returns what it did."""

    def prepare():
        if value is not None:
            resource.setrlimit(limit, (value, value))
        if user:
            os.setgid(user)
            os.setuid(user)

    # setuid inside the child would itself fail under RLIMIT_NOFILE: the descriptors of Popen's
    # pipes are open by then, so only what the program opens is limited.
    try:
        done = subprocess.run([program, "2000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              errors="replace", env=env, preexec_fn=prepare, timeout=RUN_LIMIT, cwd="/")
    except subprocess.TimeoutExpired:
        return Outcome("timeout", "", "")
    except (OSError, subprocess.SubprocessError) as failure:
        return Outcome("not started", "", str(failure))
    output = re.sub(r'("ns_per_launch"|"wait_ns"): [0-9.]+', r"\1: 0", done.stdout)
    return Outcome(done.returncode, output, done.stderr)


def own_lines(text):
    return [line for line in text.splitlines() if line.startswith("gpuflight")]


def judge(without, with_library):
    """Says what differs, or nothing."""
    if with_library.status != without.status:
        return f"status {with_library.status}, without the library {without.status}: {with_library.error[-300:]!r}"
    if with_library.output != without.output:
        return f"output {with_library.output!r}, without the library {without.output!r}"
    ours = own_lines(with_library.error)
    rest = [line for line in with_library.error.splitlines() if line not in ours]
    if len(ours) > 1 or rest != without.error.splitlines():
        return f"standard error {with_library.error[-400:]!r}, without the library {without.error[-200:]!r}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--cuda", default=os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    parser.add_argument("--jobs", type=int, default=8)
    args = parser.parse_args()

    folder = tempfile.mkdtemp(prefix="limits-", dir="/tmp")
    os.chmod(folder, 0o755)
    program = os.path.join(folder, "launch")
    subprocess.run(["gcc", "-O2", f"-I{args.cuda}/include", "-o", program, os.path.join(HERE, "overhead", "launch.c"),
                    f"-L{args.cuda}/lib64/stubs", "-lcuda"], check=True)
    # Every user of this test must be able to read the libraries, wherever they were built.
    for path in glob.glob(os.path.join(os.path.dirname(os.path.abspath(args.library)), "libgpuflight*.so")):
        subprocess.run(["install", "-m", "0755", path, folder], check=True)
    library = os.path.join(folder, os.path.basename(args.library))

    plain = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_INJECTION", "GPUFL"))}
    recordings = os.path.join(folder, "recordings")
    os.mkdir(recordings)
    os.chmod(recordings, 0o1777)
    traced = dict(plain, CUDA_INJECTION64_PATH=library)

    users = itertools.count(FIRST_USER)
    cases = [("threads", resource.RLIMIT_NPROC, n) for n in range(1, 65)] if os.geteuid() == 0 else []
    cases += [("descriptors", resource.RLIMIT_NOFILE, n) for n in range(1, 65)]
    cases += [("address space", resource.RLIMIT_AS, n) for n in ADDRESS_SPACE]
    cases += [("no limit", resource.RLIMIT_NOFILE, None)]

    def both(case):
        kind, limit, value = case
        user = lambda: next(users) if kind == "threads" else None
        without = run(program, limit, value, user(), plain)
        again = run(program, limit, value, user(), plain)
        name = f"{kind.replace(' ', '-')}-{value}.otlp.jsonl"
        env = dict(traced, GPUFLIGHT_OUTPUT=os.path.join(recordings, name))
        return case, without, run(program, limit, value, user(), env), again

    tally = collections.defaultdict(collections.Counter)
    differences = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for (kind, _, value), without, with_library, again in pool.map(both, cases):
            tally[kind]["limits"] += 1
            tally[kind]["the program works"] += without.status == 0
            tally[kind]["the library stayed out"] += bool(own_lines(with_library.error))
            difference = judge(without, with_library)
            if difference and judge(again, with_library) and without == again:
                tally[kind]["differences"] += 1
                differences.append(f"{kind} {value}: {difference}")
            elif difference:
                tally[kind]["the program alone varies"] += 1
    for kind, counts in tally.items():
        print(kind + ":", json.dumps(counts))
    for line in differences:
        print("FAIL", line)
    print("FAIL" if differences else "PASS")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
