#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpux on an NVIDIA GPU: each request's trace has exactly its own kernels and copies.

    test/gpu/gpux.py --gpux bin/gpux --ort-lib FOLDER/libonnxruntime.so.1.27.0 [--requests 1000]

The library is that of onnxruntime-gpu 1.27.0. CUDA's libraries come from PyTorch's wheels. PASS or FAIL for each of:

  * a server of examples/gpux/digits on CUDA answers 1,000 requests, 64 at a time, each with the right digit;
  * each request has one session.run in its trace, or a link to a batch that has one and a link back;
  * each session.run has kernels and copies, and no kernel is outside of one;
  * without the CUDA provider's file the server runs on the processor, says why, and warns that the GPU is not used.

It also prints requests/s and latencies with and without recording.
"""
import argparse, collections, glob, http.client, json, os, re, shutil, signal, statistics, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DIGITS = ROOT + "/examples/gpux/digits"
failed = False


def check(name, ok, detail):
    global failed
    failed |= not ok
    print("PASS" if ok else "FAIL", name, detail, flush=True)


def libraries():
    import torch
    site = os.path.dirname(os.path.dirname(torch.__file__))
    return ":".join(glob.glob(site + "/nvidia/*/lib"))


class Server:
    def __init__(self, args, folder, extra, provider=()):
        self.log = folder + "/serve.log"
        environment = os.environ | {"GPUX_ORT_LIB": args.ort_lib} | extra
        environment["LD_LIBRARY_PATH"] = libraries() + ":" + environment.get("LD_LIBRARY_PATH", "")
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([args.gpux, "serve", DIGITS, "--port", "0", *provider], env=environment, stdout=out, stderr=out)
        for _ in range(600):
            m = re.search(r"http://127\.0\.0\.1:(\d+)", self.text())
            if m:
                self.port = int(m[1])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit("the server does not start: " + self.text())

    def text(self):
        with open(self.log) as f:
            return f.read()

    def ask(self, bodies, concurrency):
        """Sends the bodies; returns answers, seconds of each, and seconds of all."""
        answers, seconds, at = [None] * len(bodies), [0.0] * len(bodies), iter(range(len(bodies)))
        lock = threading.Lock()

        def client():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            while True:
                with lock:
                    i = next(at, None)
                if i is None:
                    return connection.close()
                began = time.perf_counter()
                connection.request("POST", "/predict", bodies[i], {"traceparent": f"00-{i + 1:032x}-{i + 1:016x}-01"})
                response = connection.getresponse()
                answers[i] = (response.status, json.loads(response.read()))
                seconds[i] = time.perf_counter() - began

        began = time.perf_counter()
        threads = [threading.Thread(target=client) for _ in range(concurrency)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return answers, seconds, time.perf_counter() - began

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def attribute(span, key):
    for a in span.get("attributes", []):
        if a["key"] == key:
            return next(iter(a["value"].values()))


def spans(path):
    with open(path) as f:
        for line in f:
            for r in json.loads(line).get("resourceSpans", []):
                for s in r.get("scopeSpans", []):
                    yield from s["spans"]


def traces(path, requests):
    children, by_id, runs, work = collections.defaultdict(list), {}, [], collections.defaultdict(collections.Counter)
    for s in spans(path):
        by_id[s["spanId"]] = s
        children[s.get("parentSpanId", "")].append(s)
    outside = 0
    for s in by_id.values():
        op = attribute(s, "cuda.operation")
        if op in ("kernel", "memcpy"):
            parent = by_id.get(s.get("parentSpanId", ""))
            if parent is not None and parent["name"] == "session.run" and parent["traceId"] == s["traceId"]:
                work[parent["spanId"]][op] += 1
            else:
                outside += op == "kernel"
        if s["name"] == "session.run":
            runs.append(s)
    alone = together = wrong = 0
    for i in range(requests):
        mine = children.get(f"{i + 1:016x}", [])  # the client chose the parent
        if len(mine) != 1:
            wrong += 1
            continue
        own = [c for c in children[mine[0]["spanId"]] if c["name"] == "session.run"]
        waits = [c for c in children[mine[0]["spanId"]] if c["name"] == "queue"]
        links = [l["spanId"] for w in waits for l in w.get("links", [])]
        if len(own) == 1 and not links:
            alone += 1
        elif not own and len(links) == 1 and mine[0]["spanId"] in [l["spanId"] for l in by_id[links[0]].get("links", [])] \
                and sum(c["name"] == "session.run" for c in children[links[0]]) == 1:
            together += 1
        else:
            wrong += 1
    counts = collections.Counter((work[r["spanId"]]["kernel"], work[r["spanId"]]["memcpy"]) for r in runs)
    return alone, together, wrong, outside, counts, sum(w["kernel"] for w in work.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpux", required=True)
    parser.add_argument("--ort-lib", required=True)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison with and without recording; a start on CUDA takes seconds")
    args = parser.parse_args()
    with open(DIGITS + "/expected.json") as f:
        expected = json.load(f)
    images = [json.dumps({"image": image}) for image in expected["image"]]
    bodies = [images[i % len(images)] for i in range(args.requests)]
    logits = [expected["logits"][i % len(images)] for i in range(args.requests)]
    folder = tempfile.mkdtemp()
    quiet = {"GPUFLIGHT_LOG_LEVEL": "error", "GPUFLIGHT_MAX_SPANS_PER_SECOND": "1000000"}
    file = folder + "/out.otlp.jsonl"
    s = Server(args, folder, quiet | {"GPUFLIGHT_OUTPUT": file}, ["--provider", "cuda"])
    answers, seconds, _ = s.ask(bodies, 64)
    code = s.stop()
    right = sum(a[0] == 200 and a[1]["logits"][0].index(max(a[1]["logits"][0])) == l.index(max(l)) for a, l in zip(answers, logits))
    worst = max(abs(x - y) for a, l in zip(answers, logits) if a[0] == 200 for x, y in zip(a[1]["logits"][0], l))
    check("answers", right == args.requests and code == 0, f"{right} of {args.requests} have the right digit; the largest difference of a logit is {worst:.2e}; exit {code}")
    alone, together, wrong, outside, counts, kernels = traces(file, args.requests)
    check("requests", wrong == 0 and alone + together == args.requests, f"{alone} ran alone, {together} in batches with links both ways, {wrong} otherwise")
    check("kernels", outside == 0 and kernels > 0 and all(k > 0 and c > 0 for k, c in counts), f"{kernels} kernels in runs, {outside} outside; (kernels, copies) of a run: {dict(counts)}")

    # The machine may find CUDA's libraries by itself: hide the provider that needs them.
    hidden = folder + "/ort"
    os.mkdir(hidden)
    for path in glob.glob(os.path.dirname(os.path.abspath(args.ort_lib)) + "/*"):
        if "providers_cuda" not in path:
            shutil.copy(path, hidden)
    s = Server(args, folder, quiet | {"GPUFLIGHT_OUTPUT": folder + "/cpu.jsonl", "GPUX_ORT_LIB": hidden + "/" + os.path.basename(args.ort_lib)})
    answers, _, _ = s.ask(bodies[:5], 1)
    s.stop()
    reasons = [line.strip() for line in s.text().splitlines() if line.strip().startswith("not cuda")]
    warned = "this machine has an NVIDIA GPU, but the provider cuda does not work" in s.text()
    check("fallback", "Provider  cpu" in s.text() and warned and bool(reasons) and all(a[0] == 200 for a in answers), (reasons or [s.text()])[0][:200])

    table = {}
    for round in range(args.rounds):
        for name, extra in (("not recorded", {"OTEL_SDK_DISABLED": "true"}), ("recorded", {"GPUFLIGHT_OUTPUT": f"{folder}/{round}.jsonl"})):
            s = Server(args, folder, quiet | extra, ["--provider", "cuda"])
            s.ask(bodies[:100], 16)
            for concurrency in (1, 16):
                n = 500 if concurrency == 1 else 3000
                _, seconds, wall = s.ask([images[i % 20] for i in range(n)], concurrency)
                seconds.sort()
                table.setdefault((name, concurrency), []).append((n / wall, seconds[n // 2] * 1e3, seconds[n * 99 // 100] * 1e3))
            s.stop()
    for (name, concurrency), rows in sorted(table.items()):
        r = [statistics.median(x) for x in zip(*rows)]
        print(f"{name:13} {concurrency:3} clients: {r[0]:7.0f} requests/s, p50 {r[1]:.3f} ms, p99 {r[2]:.3f} ms", flush=True)
    sys.exit(failed)


main()
