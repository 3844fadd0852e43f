#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold what the Go SDK records against what its examples launched, on a machine with an NVIDIA GPU and CUPTI.

    go build -ldflags='-s -w' -o bin/ ./examples/vectoradd ./examples/httpserver
    test/gpu/sdk.py --bin bin

One line for each check, PASS or FAIL with figures; the status is 1 when one failed. With --keep DIR the recordings
stay there.
"""
import argparse, collections, glob, json, os, re, signal, subprocess, sys, tempfile, time

DEVICE_WORK = ("kernel", "memcpy", "memset", "graph")
failures = []


def check(good, what, *figures):
    line = " ".join(str(x) for x in ("PASS" if good else "FAIL", what, *figures))
    print(line[:1000], flush=True)
    if not good:
        failures.append(line[:1000])
    return good


def equal(got, want, what):
    return check(got == want, what, got if got == want else f"got {got}, want {want}")


def plain(value):
    kind, v = next(iter(value.items())) if value else ("stringValue", "")
    if kind == "intValue":
        return int(v)
    if kind == "arrayValue":
        return [plain(x) for x in v.get("values", [])]
    return v


class Span:
    __slots__ = ("trace", "id", "parent", "name", "kind", "start", "end", "attributes")

    def __init__(self, s):
        self.trace, self.id, self.parent = s["traceId"], s["spanId"], s.get("parentSpanId", "")
        self.name, self.kind = sys.intern(s["name"]), s.get("kind", 0)
        self.start, self.end = int(s["startTimeUnixNano"]), int(s["endTimeUnixNano"])
        self.attributes = {sys.intern(a["key"]): plain(a["value"]) for a in s.get("attributes", [])}

    @property
    def operation(self):
        return self.attributes.get("cuda.operation", "")


class Recording:
    """A file, the summary beside it, and what the program printed."""

    def __init__(self, work, name, command, **settings):
        self.folder = os.path.join(work, name)
        os.makedirs(self.folder)
        path = os.path.join(self.folder, "out.otlp.jsonl")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GPUFLIGHT_")) and k != "TRACEPARENT"}
        env |= {"GPUFLIGHT_CUPTI": os.environ.get("GPUFLIGHT_CUPTI", ""), "OTEL_SERVICE_NAME": name, "GPUFLIGHT_OUTPUT": path, "GPUFLIGHT_SUMMARY_DIR": self.folder}
        env |= settings
        self.begin = time.time_ns()
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.path, self.name = path, name

    def finish(self, timeout=300):
        out, self.errors = self.process.communicate(timeout=timeout)
        self.end = time.time_ns()
        self.code = self.process.returncode
        self.printed = json.loads(out) if out.strip() else {}
        summaries = glob.glob(os.path.join(self.folder, "*.json"))
        self.summary = json.load(open(summaries[0])) if len(summaries) == 1 else {}
        self.spans, self.resources, self.metrics, self.captures = [], set(), {}, []
        if os.path.exists(self.path):
            self.read()
        return self

    def read(self):
        for line in open(self.path):
            d = json.loads(line)
            for rs in d.get("resourceSpans", []):
                for a in rs["resource"]["attributes"]:
                    if a["key"] in ("service.name", "service.instance.id"):
                        self.resources.add((a["key"], plain(a["value"])))
                for ss in rs["scopeSpans"]:
                    self.spans += [Span(s) for s in ss["spans"]]
            for rm in d.get("resourceMetrics", []):
                for m in (m for sm in rm["scopeMetrics"] for m in sm["metrics"] if "sum" in m):
                    for p in m["sum"]["dataPoints"]:  # cumulative: the last of each series counts
                        key = (m["name"], tuple(sorted((a["key"], str(plain(a["value"]))) for a in p.get("attributes", []))))
                        self.metrics[key] = float(p.get("asInt", p.get("asDouble", 0)))
            for rl in d.get("resourceLogs", []):
                self.captures += [r for sl in rl["scopeLogs"] for r in sl["logRecords"] if r.get("eventName") == "cuda.capture"]

    def metric(self, name, **want):
        want = {k.replace("__", "."): v for k, v in want.items()}
        return sum(v for (n, attributes), v in self.metrics.items() if n == name and want.items() <= dict(attributes).items())

    def work(self):
        return [s for s in self.spans if s.operation in DEVICE_WORK]


def complete(r, code=0):
    """What holds for every recording."""
    equal(r.code, code, f"{r.name}: exit status")
    if r.errors:
        print("    ", r.errors.strip()[:500])
    if not check(bool(r.summary), f"{r.name}: a summary was written"):
        return False
    records, spans = r.summary["records"], r.summary["spans"]
    equal((r.summary.get("reason", ""), r.summary.get("failure", "")), ("", ""), f"{r.name}: recorded")
    equal((records["dropped"], records["rejected"], records.get("unread", 0)), (0, 0, 0), f"{r.name}: records dropped, rejected, unread of {records['collected']}")
    unsent = {d["signal"]: d["unsent"] for d in r.summary.get("delivery", []) if d.get("unsent")}
    equal(unsent, {}, f"{r.name}: nothing was left unsent")
    equal(len(r.work()), spans["emitted"], f"{r.name}: spans of device work in the file are those emitted")
    equal(len(r.captures), 1, f"{r.name}: cuda.capture logs")
    equal({k for k, _ in r.resources}, {"service.name", "service.instance.id"}, f"{r.name}: resource names service and instance")
    equal(len(r.resources), 2, f"{r.name}: the application's spans and the session's have one resource")
    outside = [s for s in r.work() if not r.begin <= s.start <= s.end <= r.end]
    check(not outside, f"{r.name}: device times lie within the run", f"{len(outside)} outside")
    parents = {s.id for s in r.spans}
    orphans = [s for s in r.work() if s.parent not in parents]
    check(not orphans, f"{r.name}: every span of device work has a parent", f"{len(orphans)} orphans")
    ids = [s.id for s in r.spans]
    equal(len(ids), len(set(ids)), f"{r.name}: span ids differ")
    return True


def million(work, binary, launches):
    r = Recording(work, "million", [binary, "-n", "1024", "-launches", "100", "-empty", str(launches), "-json"]).finish()
    if not complete(r):
        return
    p, spans = r.printed, r.summary["spans"]
    asked = sum(p["kernels"].values()) + sum(c["count"] for c in p["copies"].values())
    rows = {k["name"]: k["count"] for k in r.summary["kernels"]}
    equal(rows, p["kernels"], "million: kernels by name are those launched")
    equal(spans["emitted"] + spans["left_out"] + spans["unsampled"], asked, "million: spans and those left out are all work")
    equal(r.metric("gpu.cuda.kernel.launch.calls", cuda__kernel__name="nothing"), launches, "million: the metric counts all launches")
    equal(r.metric("gpuflight.spans.left_out"), spans["left_out"], "million: the metric says how many spans were left out")
    print(f"     {p['seconds']:.2f} s, {1e9 * p['seconds'] / launches:.0f} ns a launch, {spans['emitted']} spans, {spans['left_out']} left out,"
          f" CUPTI's own {r.summary['overhead_seconds']:.3f} s, ours {r.summary['own_seconds']:.3f} s")


def uuids():
    try:
        return set(re.findall(r"GPU-[0-9a-f-]{36}", subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout))
    except FileNotFoundError:
        return set()


def exact(work, binary, graph_nodes, graphs):
    name = "nodes" if graph_nodes else "exact"
    settings = {"GPUFLIGHT_MAX_SPANS_PER_SECOND": "1000000"} | ({"GPUFLIGHT_GRAPH_NODES": "true"} if graph_nodes else {})
    r = Recording(work, name, [binary, "-n", "65536", "-launches", "501", "-threads", "4", "-graph", str(graphs), "-json"], **settings).finish()
    if not complete(r):
        return
    p, by_id = r.printed, {s.id: s for s in r.spans}
    check(p["verified"], f"{name}: the program's results are right")
    equal(r.summary["spans"]["left_out"], 0, f"{name}: spans left out")
    kernels = [s for s in r.work() if s.operation == "kernel"]
    want = dict(p["kernels"])
    if graph_nodes:
        want["vector_add"] += p["graphs"] * p["graph_kernels"]
    equal(dict(collections.Counter(s.name for s in kernels)), want, f"{name}: kernels by name")
    launched = [s for s in r.spans if s.operation == "graph"]
    equal(len(launched), 0 if graph_nodes else p["graphs"], f"{name}: launches of graphs")
    equal({s.attributes.get("cuda.kernel.shared_memory.dynamic") for s in kernels if s.name == "vector_add"}, {p["dynamic_shared_bytes"]}, f"{name}: dynamic shared memory")
    for function, has in p["functions"].items():
        got = {(s.attributes.get("cuda.kernel.registers_per_thread"), s.attributes.get("cuda.kernel.shared_memory.static"),
                s.attributes.get("cuda.kernel.local_memory.per_thread")) for s in kernels if s.name == function}
        if function in want:
            # CUPTI gives registers as they are allotted, 8 at a time; the driver gives those that the code uses.
            equal(got, {(-(-has["registers_per_thread"] // 8) * 8, has["shared_bytes"], has["local_bytes"])}, f"{name}: registers, static shared and local memory of {function}")
    # Each worker has a grid of its own, its own scope and two streams.
    streams = collections.defaultdict(set)
    for w in p["workers"]:
        own = [s for s in r.work() if s.trace == w["trace_id"]]
        parents = {by_id[s.parent].name for s in own}
        equal(parents, {"compute"}, f"{name}: {w['scope']}: its work is in its scope compute")
        equal({by_id[by_id[s.parent].parent].id for s in own}, {w["span_id"]}, f"{name}: {w['scope']}: and that in its own")
        adds = [s for s in own if s.name == "vector_add"]
        equal({(tuple(s.attributes["cuda.kernel.grid"]), tuple(s.attributes["cuda.kernel.block"])) for s in adds}, {(tuple(w["grid"]), tuple(w["block"]))}, f"{name}: {w['scope']}: grid and block")
        per_stream = collections.Counter(s.attributes["cuda.stream.id"] for s in adds)
        nodes = graphs * p["graph_kernels"] if graph_nodes else 0
        if not graph_nodes:  # nodes of a graph run in streams of the driver's
            equal(sorted(per_stream.values()), sorted(n for n in w["launches"]), f"{name}: {w['scope']}: launches by stream")
        equal(len(adds), sum(w["launches"]) + nodes, f"{name}: {w['scope']}: launches")
        for s in own:
            if s.operation == "memcpy":
                streams[w["scope"]].add(s.attributes["cuda.stream.id"])
    every = [s for own in streams.values() for s in own]
    equal((len(every), len(set(every))), (2 * len(p["workers"]), 2 * len(p["workers"])), f"{name}: each worker has two streams of its own")
    copies = [s for s in r.work() if s.operation == "memcpy"]
    for kind, amount in p["copies"].items():
        sizes = [s.attributes["cuda.memcpy.size"] for s in copies if s.attributes["cuda.memcpy.kind"] == kind]
        equal((len(sizes), sum(sizes)), (amount["count"], amount["bytes"]), f"{name}: copies {kind} and their bytes")
    equal(len(copies), sum(c["count"] for c in p["copies"].values()), f"{name}: no other copies")
    known, seen = uuids(), {s.attributes.get("hw.id") for s in r.work()}
    check(len(seen) == 1 and (seen <= known or not known), f"{name}: the device is the machine's", seen)


def requests(work, binary, count):
    r = Recording(work, "requests", [binary, "-self-test", str(count), "-concurrency", "32", "-listen", "127.0.0.1:0"], GPUFLIGHT_MAX_SPANS_PER_SECOND="1000000").finish()
    if not complete(r):
        return
    by_id = {s.id: s for s in r.spans}
    want = {q["trace_id"]: (q["launched"], q["copies"]) for q in r.printed["requests"]}
    equal(len(want), count, "requests: each has a trace")
    got, wrong = collections.defaultdict(lambda: [0, 0]), 0
    for s in r.work():
        got[s.trace][s.operation == "memcpy"] += 1
        scope = by_id[s.parent]
        server = by_id.get(scope.parent)
        wrong += not (scope.name == "work" and server is not None and server.kind == 2 and server.trace == s.trace)
    equal({k: tuple(v) for k, v in got.items()} == want, True, f"requests: each of {count} traces has exactly its kernels and copies, {sum(a for a, _ in want.values())} kernels")
    equal(wrong, 0, "requests: kernels are under request and scope; others")
    print(f"     {count / r.printed['seconds']:.0f} requests a second")


def stopped(work, binary):
    """A signal ends the program as it would without us, and what was recorded arrives."""
    r = Recording(work, "stopped", [binary, "-n", "1024", "-launches", "2", "-empty", str(2**31 - 1), "-json"])
    time.sleep(3)
    asked = time.time_ns()
    r.process.send_signal(signal.SIGTERM)
    r.finish(60)
    check(r.end - asked < 6e9, "stopped: ends soon after SIGTERM", f"{(r.end - asked) / 1e9:.2f} s")
    equal(r.code, 1, "stopped: exit status is the program's")
    check(r.summary.get("kernel_count", 0) > 1000, "stopped: its kernels were recorded", r.summary.get("kernel_count"))


def unreachable(work, binary):
    command = [binary, "-n", "1024", "-launches", "1000", "-json"]
    r = Recording(work, "unreachable", command, GPUFLIGHT_OUTPUT="", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", GPUFLIGHT_LOG_LEVEL="off").finish()
    equal(r.code, 0, "unreachable: the program runs as ever")
    took = (r.end - r.begin) / 1e9 - r.printed["seconds"]
    check(took < 6, "unreachable: costs no more than 5 s at the end", f"{took:.2f} s around the work")
    unsent = {d["signal"]: sum(d.get("unsent", {}).values()) for d in r.summary.get("delivery", [])}
    check(unsent.get("traces", 0) > 0, "unreachable: what was not sent is counted", unsent)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="bin", help="folder of vectoradd and httpserver")
    parser.add_argument("--launches", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--graphs", type=int, default=25, help="graph launches in each thread; 0 where the driver has none")
    parser.add_argument("--keep", help="leave the recordings in this folder")
    a = parser.parse_args()
    vectoradd, httpserver = os.path.join(a.bin, "vectoradd"), os.path.join(a.bin, "httpserver")
    with tempfile.TemporaryDirectory() as temporary:
        work = a.keep or temporary
        os.makedirs(work, exist_ok=True)
        million(work, vectoradd, a.launches)
        exact(work, vectoradd, False, a.graphs)
        if a.graphs:
            exact(work, vectoradd, True, a.graphs)
        requests(work, httpserver, a.requests)
        stopped(work, vectoradd)
        unreachable(work, vectoradd)
    # Once more, for those who see only the end.
    print("\n".join([f"{len(failures)} checks failed:"] + failures) if failures else "all checks passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
