#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Record the three examples on a machine with an NVIDIA GPU, CUPTI and PyTorch, and leave
# pytorch.otlp.jsonl.gz, vectoradd.otlp.jsonl.gz and httpserver.otlp.jsonl.gz in a folder: what
# `make demo` replays from examples/recordings.
#
#     make build && go build -ldflags='-s -w' -o bin/ ./examples/vectoradd ./examples/httpserver
#     test/gpu/record.sh FOLDER [ARGUMENT of examples/pytorch/train.py ...]
#
# The machine's name, its devices' UUIDs and the folder of Python's environment are replaced: they are
# nobody's business. Each recording
# is checked: whole, less than 3 MB, every kernel with a parent in its trace, nothing dropped. The
# status is 1 when one is not as it should be.
set -euo pipefail

if [ $# -lt 1 ]; then
	sed -n '4,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p'
	exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- --steps 15 # more would not fit in 3 MB
root=$(cd "$(dirname "$0")/../.." && pwd)
for file in bin/gpuflight bin/libgpuflight.so bin/vectoradd bin/httpserver examples/pytorch/train.py; do
	if [ ! -e "$root/$file" ]; then
		echo "record: $file is missing" >&2
		exit 2
	fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# By name and from their own folders, so that no path of this machine is in a command line.
export PATH="$root/bin:$PATH"
unset TRACEPARENT
for name in $(compgen -e | grep -E '^(OTEL|GPUFL)_' | grep -vx GPUFLIGHT_CUPTI || true); do unset "$name"; done

echo "== pytorch: gpuflight trace -- python3 train.py $*"
(cd "$root/examples/pytorch" && gpuflight trace --service pytorch --output "$work/pytorch.otlp.jsonl" -- python3 train.py "$@")
cd "$work"
echo "== vectoradd"
GPUFLIGHT_OUTPUT=vectoradd.otlp.jsonl OTEL_SERVICE_NAME=vectoradd vectoradd -threads 2 -graph 5
echo "== httpserver"
GPUFLIGHT_OUTPUT=httpserver.otlp.jsonl OTEL_SERVICE_NAME=httpserver httpserver -listen 127.0.0.1:0 -self-test 100 -concurrency 8 >/dev/null

echo "== check"
python3 - "$work" "$out" <<'PYTHON'
import collections, glob, gzip, json, os, re, socket, sys

work, out = sys.argv[1:]
wrong = 0


def plain(value):
    return next(iter(value.values()), None)


def attributes(x):
    return {a["key"]: plain(a["value"]) for a in x.get("attributes", [])}


for path in sorted(glob.glob(work + "/*.otlp.jsonl")):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    name = os.path.basename(path)
    problems = [] if text.endswith("\n") else ["its last line is torn"]
    for i, uuid in enumerate(sorted(set(re.findall(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)))):
        text = text.replace(uuid, "GPU-00000000-0000-4000-8000-%012x" % (i + 1))
    text = text.replace(json.dumps(socket.gethostname()), '"gpu-host"')
    if sys.prefix != sys.base_prefix:  # where PyTorch's own libcupti lies
        text = text.replace(sys.prefix, "/venv")
    for private in {socket.gethostname(), os.getcwd(), work, out}:
        if private.strip("/") and private in text:
            problems.append("it names " + private)

    spans, dropped, operations = {}, 0, collections.Counter()
    for line in text.splitlines():
        request = json.loads(line)
        for rs in request.get("resourceSpans", []):
            for ss in rs["scopeSpans"]:
                for s in ss["spans"]:
                    spans[s["traceId"], s["spanId"]] = s
        for rl in request.get("resourceLogs", []):
            for sl in rl["scopeLogs"]:
                for record in sl["logRecords"]:
                    if record.get("eventName") == "cuda.capture":
                        operations["capture logs"] += 1
                        dropped += int(attributes(record).get("cuda.capture.records.dropped", 0))
                        dropped += int(attributes(record).get("cuda.capture.records.rejected", 0))
    for s in spans.values():
        operation = attributes(s).get("cuda.operation", "other spans")
        operations[operation] += 1
        if operation == "kernel" and (s["traceId"], s.get("parentSpanId")) not in spans:
            problems.append("kernel %s has no parent" % s["name"][:80])
    if not operations["kernel"]:
        problems.append("it has no kernels")
    if not operations["capture logs"]:
        problems.append("it has no capture log")
    if dropped:
        problems.append("%d records were dropped or rejected" % dropped)
    # One stream, without a time: the same recording is the same file.
    packed = gzip.compress(text.encode(), 9, mtime=0)
    if len(packed) >= 3 << 20:
        problems.append("give it less to do")
    with open(os.path.join(out, name + ".gz"), "wb") as f:
        f.write(packed)
    print("%s.gz: %d bytes, %s" % (name, len(packed), ", ".join("%d %s" % (n, k) for k, n in sorted(operations.items()))))
    for p in problems[:5]:
        print("  WRONG:", p)
    wrong += bool(problems)
sys.exit(1 if wrong else 0)
PYTHON
for file in "$out"/*.otlp.jsonl.gz; do
	echo "== gpuflight report $(basename "$file")"
	gpuflight report "$file"
done
