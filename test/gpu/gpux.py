#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpux on an NVIDIA GPU: each request's trace has exactly its own kernels and copies.

    test/gpu/gpux.py --gpux bin/gpux --ort-lib FOLDER/libonnxruntime.so.1.27.0 [--requests 1000]

The library is that of onnxruntime-gpu 1.27.0. CUDA's libraries come from PyTorch's wheels. PASS or FAIL for each of:

  * a server of examples/gpux/digits on CUDA answers 1,000 requests at once, each with the right digit;
  * all of them were in the server at one time, by the spans of the server;
  * each request has one session.run in its trace, or a link to a batch that has one and a link back;
  * each session.run has kernels and copies, in its time, on one stream and the same as others with its rows; no kernel is
    outside of one;
  * without the CUDA provider's file the server runs on the processor, says why, and warns that the GPU is not used.

All but the last run twice, with batches of up to 16 requests and with none. It also prints requests/s and latencies with
and without recording.
"""
import argparse, collections, glob, http.client, itertools, json, os, re, resource, shutil, signal, statistics, subprocess, sys, tempfile, threading, time

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
    def __init__(self, args, folder, extra, provider=(), model=DIGITS):
        self.log = folder + "/serve.log"
        environment = os.environ | {"GPUX_ORT_LIB": args.ort_lib} | extra
        environment["LD_LIBRARY_PATH"] = libraries() + ":" + environment.get("LD_LIBRARY_PATH", "")
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([args.gpux, "serve", model, "--port", "0", *provider], env=environment, stdout=out, stderr=out)
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

    def ask_at_once(self, bodies):
        """Sends the bodies but for the last byte of each, then the last bytes; returns the answers."""
        connections = []
        for i, body in enumerate(bodies):
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            c.putrequest("POST", "/predict")
            c.putheader("Content-Length", len(body))
            c.putheader("traceparent", f"00-{i + 1:032x}-{i + 1:016x}-01")
            c.endheaders(body[:-1].encode())
            connections.append(c)
        time.sleep(1)  # the last request is in the server too
        for c, body in zip(connections, bodies):
            c.send(body[-1:].encode())
        answers = []
        for c in connections:
            response = c.getresponse()
            answers.append((response.status, json.loads(response.read())))
            c.close()
        return answers

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


def most_at_once(spans):
    changes = [(int(s["startTimeUnixNano"]), 1) for s in spans] + [(int(s["endTimeUnixNano"]), -1) for s in spans]
    return max(itertools.accumulate((change for _, change in sorted(changes)), initial=0))


def check_traces(name, path, requests, size):
    by_id, children, work, outside = {s["spanId"]: s for s in spans(path)}, collections.defaultdict(list), collections.defaultdict(list), 0
    for s in by_id.values():
        children[s.get("parentSpanId", "")].append(s)
        op = attribute(s, "cuda.operation")
        if op in ("kernel", "memcpy"):
            parent = by_id.get(s.get("parentSpanId", ""))
            if parent is not None and parent["name"] == "session.run" and parent["traceId"] == s["traceId"]:
                work[parent["spanId"]].append(s)
            else:
                outside += op == "kernel"

    served, queued, rows = [], [], {}  # rows: of each session.run that answers requests
    alone = together = wrong = 0
    for i in range(requests):
        mine = children[f"{i + 1:016x}"]  # the client chose the parent
        if len(mine) != 1:
            wrong += 1
            continue
        served += mine
        own = [c for c in children[mine[0]["spanId"]] if c["name"] == "session.run"]
        waits = [c for c in children[mine[0]["spanId"]] if c["name"] == "queue"]
        queued += waits
        links = [l["spanId"] for w in waits for l in w.get("links", [])]
        batch = [c for l in links for c in children[l] if c["name"] == "session.run"]
        shared = by_id.get(links[0], {}).get("links", []) if links else []
        if len(own) == 1 and not links:
            alone += 1
            rows[own[0]["spanId"]] = 1
        elif not own and len(links) == len(batch) == 1 and mine[0]["spanId"] in [l["spanId"] for l in shared]:
            together += 1
            rows[batch[0]["spanId"]] = len(shared)
        else:
            wrong += 1
    at_once = most_at_once(served)
    check(f"{name} at once", at_once == requests, f"{at_once} requests in the server at one time, {most_at_once(queued)} of them in its queue")
    check(f"{name} requests", wrong == 0 and alone + together == requests and (size > 1 or together == 0), f"{alone} ran alone, {together} in batches with links both ways, {wrong} otherwise")

    runs = [s for s in by_id.values() if s["name"] == "session.run"]
    kernels = without = foreign = 0
    counts, kinds = collections.defaultdict(collections.Counter), collections.defaultdict(set)  # by rows; 0 is the warm-up
    for r in runs:
        mine, n = work[r["spanId"]], rows.get(r["spanId"], 0)
        ops = collections.Counter(attribute(s, "cuda.operation") for s in mine)
        kernels += ops["kernel"]
        counts[n][ops["kernel"], ops["memcpy"]] += 1
        without += not ops["kernel"] or not ops["memcpy"]
        # Runs at one time have different streams, and a run ends after its last copy.
        foreign += len({attribute(s, "cuda.stream.id") for s in mine}) > 1 or any(
            int(s["startTimeUnixNano"]) < int(r["startTimeUnixNano"]) or int(s["endTimeUnixNano"]) > int(r["endTimeUnixNano"]) for s in mine)
        # ONNX Runtime fills a vector of ones in the first run of a worker, and in the first one that needs more of them.
        kinds[n].add(tuple(sorted(collections.Counter(s["name"] for s in mine if s["name"] != "_Fill").items())))
    check(f"{name} kernels", outside == without == foreign == 0 and all(len(k) == 1 for n, k in kinds.items() if n),
          f"{kernels} kernels in {len(runs)} runs, {most_at_once(runs)} runs at one time; {outside} kernels outside; {without} runs without kernels or copies, {foreign} with those of another")
    for n in sorted(counts):
        print(f"     {f'rows {n}' if n else 'warm-up'}: runs by (kernels, copies) {dict(counts[n])}; {len(kinds[n])} sets of names", flush=True)


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
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # each request has a connection
    with open(DIGITS + "/gpux.yml") as f:
        config = f.read()
    check("gpux.yml", config.count("batch_size: 16") == 1, "its batch_size is replaced below")
    for size, name in ((16, "batches of 16:"), (1, "no batches:")):
        model, file = f"{folder}/size{size}", f"{folder}/size{size}.otlp.jsonl"
        shutil.copytree(DIGITS, model)
        with open(model + "/gpux.yml", "w") as f:
            f.write(config.replace("batch_size: 16", f"batch_size: {size}\n  queue: {args.requests}\n  timeout: 60"))
        s = Server(args, folder, quiet | {"GPUFLIGHT_OUTPUT": file}, ["--provider", "cuda"], model)
        answers = s.ask_at_once(bodies)
        code = s.stop()
        right = sum(a[0] == 200 and a[1]["logits"][0].index(max(a[1]["logits"][0])) == l.index(max(l)) for a, l in zip(answers, logits))
        worst = max((abs(x - y) for a, l in zip(answers, logits) if a[0] == 200 for x, y in zip(a[1]["logits"][0], l)), default=0)
        check(f"{name} answers", right == args.requests and code == 0, f"{right} of {args.requests} have the right digit; the largest difference of a logit is {worst:.2e}; exit {code}")
        check_traces(name, file, args.requests, size)

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
