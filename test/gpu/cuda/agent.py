# SPDX-License-Identifier: Apache-2.0
"""Runs otelcol-gpuflight with the cuda receiver and reads what it sends, for the scripts of test/gpu and examples."""
import collections
import json
import os
import signal
import subprocess
import time
import urllib.request

CONFIG = """
receivers:
  cuda: {{collection_interval: {interval}, initial_delay: 0s{settings}}}
{more_receivers}
exporters:
  file: {{path: "{out}", flush_interval: 50ms}}
service:
  pipelines:
    metrics: {{receivers: [{receivers}], exporters: [file]}}
  telemetry:
    metrics: {{readers: [{{pull: {{exporter: {{prometheus: {{host: 127.0.0.1, port: {port}}}}}}}}}]}}
"""


class Agent:
    """A running collector; use it in a with statement. settings are those of the cuda receiver."""

    def __init__(self, binary, folder, interval="500ms", port=18888, nvml=None, **settings):
        os.makedirs(folder, exist_ok=True)
        self.out, self.log, self.port = os.path.join(folder, "metrics.jsonl"), os.path.join(folder, "agent.log"), port
        for path in (self.out, self.log):
            if os.path.exists(path):
                os.remove(path)
        config = os.path.join(folder, "agent.yaml")
        with open(config, "w") as f:
            f.write(CONFIG.format(interval=interval, out=self.out, port=port, receivers="cuda, nvml" if nvml else "cuda",
                                  settings="".join(f", {k}: {v}" for k, v in settings.items()),
                                  more_receivers=f"  nvml: {{collection_interval: {nvml}, timeout: {nvml}, initial_delay: 0s, groups: {{samples: {{interval: {nvml}}}}}}}" if nvml else ""))
        self.command = [binary, "--config", config]
        self.position, self.rest, self.points = 0, b"", {}
        self.latest = collections.defaultdict(int)  # by process id, nanoseconds since 1970
        self.history = []  # (time, metric, attributes, value) of nvml

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        try:
            self.wait_until(self.observes, 20, "it does not observe the driver")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def observes(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the collector ended with {self.process.returncode}:\n{self.said()}")
        return "observing the CUDA driver" in self.said()

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def wait_until(self, true, seconds, otherwise):
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise RuntimeError(f"{otherwise}; the collector says:\n{self.said()[-3000:]}")
            time.sleep(0.02)

    def stop(self):
        """Ends the collector; what was not sent yet is sent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.read()

    def read(self):
        """Takes what has been written since."""
        if not os.path.exists(self.out):
            return
        with open(self.out, "rb") as f:
            f.seek(self.position)
            text = self.rest + f.read()
            self.position = f.tell()
        *lines, self.rest = text.split(b"\n")
        for line in lines:
            for rm in json.loads(line or b"{}").get("resourceMetrics", []):
                resource = attributes(rm["resource"])
                for sm in rm["scopeMetrics"]:
                    for m in sm["metrics"]:
                        self.take(resource, m)

    def take(self, resource, metric):
        kind = next(k for k in ("sum", "gauge", "histogram", "exponentialHistogram") if k in metric)
        for p in metric[kind].get("dataPoints", []):
            a = attributes(p)
            if "process.pid" not in resource:
                if kind in ("sum", "gauge"):
                    self.history.append((int(p["timeUnixNano"]), metric["name"], a, number(p)))
                continue
            pid = int(resource["process.pid"])
            self.latest[pid] = max(self.latest[pid], int(p["timeUnixNano"]))
            key = (pid, metric["name"], tuple(sorted(a.items())))
            if kind == "histogram":
                value = {"count": int(p["count"]), "sum": p["sum"], "buckets": [int(n) for n in p["bucketCounts"]],
                         "bounds": p["explicitBounds"]}
            else:
                value = number(p)
            self.points[key] = value

    def collected(self, pid, after=None, seconds=10):
        """Waits for values of a process that were taken after a time (nanoseconds since 1970), by default now,
        and returns them: {(metric, attributes): value}."""
        # Values are taken a moment before the time that they bear.
        after = (after or time.time_ns()) + 20_000_000

        def there():
            self.read()
            return self.latest[pid] > after

        self.wait_until(there, seconds, f"no values of process {pid}")
        return self.values(pid)

    def values(self, pid):
        return {(name, a): v for (p, name, a), v in self.points.items() if p == pid}

    def own(self):
        """What the receiver says of itself: {name{labels}: value}, without receiver_cuda_ and its prefix."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as r:
            lines = r.read().decode().splitlines()
        out = {}
        for line in lines:
            if not line.startswith("#") and "receiver_cuda_" in line:
                name, value = line.rsplit(" ", 1)
                out[name.split("receiver_cuda_", 1)[1]] = float(value)
        return out

    def lost(self):
        """What was lost, by name; empty where all is well."""
        return {k: v for k, v in self.own().items() if v and k.split("{")[0].removesuffix("_total") in
                ("calls_lost", "events_lost", "names_evicted", "returns_missed", "attach_failed", "attach_slow", "snapshot_failed")}

    def cpu(self):
        """Processor time of the collector until now, user and system, in seconds."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        """Resident memory in bytes."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))


def number(point):
    return int(point["asInt"]) if "asInt" in point else point.get("asDouble", 0.0)


def attributes(of):
    out = {}
    for a in of.get("attributes", []):
        v = a["value"]
        out[a["key"]] = next(iter(v.values())) if v else None
    return out


def change(before, after):
    """What was added between two sets of values; what did not change is left out."""
    out = {}
    for key, v in after.items():
        b = before.get(key)
        if isinstance(v, dict):
            old = b or {"count": 0, "sum": 0.0, "buckets": [0] * len(v["buckets"])}
            if v["count"] != old["count"]:
                out[key] = {"count": v["count"] - old["count"], "sum": v["sum"] - old["sum"], "bounds": v["bounds"],
                            "buckets": [x - y for x, y in zip(v["buckets"], old["buckets"])]}
        elif v != (b or 0):
            out[key] = v - (b or 0)
    return out
