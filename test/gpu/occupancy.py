#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the occupancy processor with CUDA itself, on a machine with an NVIDIA GPU. Needs the driver only.

    test/gpu/occupancy.py --collector bin/otelcol-gpuflight [--cases 10000] [--seed 1]

Kernels with many register counts and static shared memory sizes are compiled by the driver from PTX, and
cuOccupancyMaxActiveBlocksPerMultiprocessor is asked about each with random blocks and dynamic shared
memory. The same shapes go as spans through the collector (otlp, occupancy, file). The status is 1 when
any number of active blocks differs. Copies are timed on the device and sent likewise: their throughput
must be what was measured, and the link utilisation is printed. For clusters the script prints how many
blocks are resident at once, as the driver says and as a kernel that counts them sees, beside the bound
that the processor uses, which must not be lower.
"""
import argparse, collections, ctypes as C, json, os, platform, random, signal, socket, subprocess, sys, tempfile, time, urllib.request

CONFIG = """
receivers:
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}
processors:
  occupancy: {{}}
exporters:
  file: {{path: "{out}", flush_interval: 100ms}}
service:
  pipelines:
    traces: {{receivers: [otlp], processors: [occupancy], exporters: [file]}}
  telemetry: {{metrics: {{level: none}}}}
"""

NUM_REGS, STATIC_SHARED, MAX_DYNAMIC, NON_PORTABLE = 4, 1, 8, 14
OPT_IN, SMS, MAJOR, MINOR = 97, 16, 75, 76


def ptx(live, static, target):
    """The text of a kernel that reads `live` values, waits, and writes them: all are in registers at the barrier."""
    lines = [".version 7.8", ".target sm_" + target, ".address_size 64", ".visible .entry k(.param .u64 p) {",
             f".reg .f32 f<{live}>; .reg .u64 a<2>; .reg .u32 r<2>;", "ld.param.u64 a0, [p]; cvta.to.global.u64 a1, a0;"]
    if static:
        lines.append(f".shared .align 1 .b8 room[{static}]; mov.u32 r0, room; mov.u32 r1, 1; st.volatile.shared.u8 [r0], r1;")
    lines += [f"ld.volatile.global.f32 f{i}, [a1+{4 * i}];" for i in range(live)]
    lines.append("bar.sync 0;")
    lines += [f"st.volatile.global.f32 [a1+{4 * i}], f{i};" for i in range(live)]
    return "\n".join(lines + ["ret;", "}", ""])


# Counts how many blocks are there at once, each for 100 us: [0] now, [1] the most.
RESIDENT = """.version 7.8
.target sm_90
.address_size 64
.visible .entry resident(.param .u64 p) {
.reg .u64 a, b, t, u; .reg .u32 n, m; .reg .pred q;
ld.param.u64 a, [p]; cvta.to.global.u64 b, a;
mov.u32 m, %tid.x; setp.ne.u32 q, m, 0; @q bra REST;
atom.global.add.u32 n, [b], 1; add.u32 n, n, 1; red.global.max.u32 [b+4], n;
mov.u64 t, %globaltimer;
SPIN: mov.u64 u, %globaltimer; sub.u64 u, u, t; setp.lt.u64 q, u, 100000; @q bra SPIN;
red.global.add.u32 [b], 4294967295;
REST: bar.sync 0;
ret;
}
"""


class Driver:
    """The few calls of libcuda that are needed; each error is an exception."""

    def __init__(self):
        self.lib = C.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        dev, ctx = C.c_int(), C.c_void_p()
        self.call("cuDeviceGet", C.byref(dev), 0)
        self.call("cuDevicePrimaryCtxRetain", C.byref(ctx), dev)
        self.call("cuCtxSetCurrent", ctx)
        self.dev = dev
        name = C.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, dev)
        self.name = name.value.decode()
        self.opt_in, self.sms = self.device(OPT_IN), self.device(SMS)
        self.capability = "%d.%d" % (self.device(MAJOR), self.device(MINOR))

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            text = C.c_char_p()
            self.lib.cuGetErrorName(status, C.byref(text))
            raise RuntimeError("%s: %s" % (name, text.value.decode() if text.value else status))

    def device(self, attribute):
        n = C.c_int()
        self.call("cuDeviceGetAttribute", C.byref(n), attribute, self.dev)
        return n.value

    def attribute(self, function, attribute):
        n = C.c_int()
        self.call("cuFuncGetAttribute", C.byref(n), attribute, function)
        return n.value

    def kernel(self, live, static):
        """Compiles a kernel that keeps about `live` values in registers."""
        major, minor = self.capability.split(".")
        text = ptx(live, static, "90" if int(major) >= 9 else major + minor)
        module, function = C.c_void_p(), C.c_void_p()
        self.call("cuModuleLoadData", C.byref(module), text.encode())
        self.call("cuModuleGetFunction", C.byref(function), module, b"k")
        return function

    def active_blocks(self, function, threads, dynamic):
        n = C.c_int()
        self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", C.byref(n), function, threads, C.c_size_t(dynamic))
        return n.value


class LaunchAttribute(C.Structure):
    _fields_ = [("id", C.c_int), ("pad", C.c_char * 4), ("value", C.c_uint * 16)]


class LaunchConfig(C.Structure):
    _fields_ = [("grid", C.c_uint * 3), ("block", C.c_uint * 3), ("shared", C.c_uint), ("stream", C.c_void_p),
                ("attributes", C.POINTER(LaunchAttribute)), ("count", C.c_uint)]


def measure(cuda, cases, rng):
    """Asks CUDA about random shapes: rows of registers, static, dynamic, threads, active blocks."""
    functions = []
    for live in (1, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 250):
        for static in (0, 1, 256, 1000, 4096, 10000, 16384, 30001, 49152):
            f = cuda.kernel(live, static)
            regs, have = cuda.attribute(f, NUM_REGS), cuda.attribute(f, STATIC_SHARED)
            cuda.call("cuFuncSetAttribute", f, MAX_DYNAMIC, cuda.opt_in - have)
            functions.append((f, regs, have))
    rows = []
    for _ in range(cases):
        f, regs, static = rng.choice(functions)
        dynamic = rng.choice((0, 0, 1, 128, rng.randrange(8192), rng.randrange(65536), rng.randrange(cuda.opt_in + 1)))
        threads = rng.choice((1, 32, 33, rng.randrange(1, 1025), 32 * rng.randrange(1, 33), 1024))
        rows.append((regs, static, dynamic, threads, cuda.active_blocks(f, threads, dynamic)))
    print("cases %d, kernels %d, register counts %s" % (len(rows), len(functions), sorted({r for _, r, _ in functions})))
    print("active blocks seen:", dict(sorted(collections.Counter(r[4] for r in rows).items())))
    return rows


def cluster_config(size, threads, grid, shared=0):
    """A launch with the cluster dimension (size, 1, 1); size 0 leaves the attribute out."""
    a = LaunchAttribute(id=4)
    a.value[0], a.value[1], a.value[2] = size, 1, 1
    config = LaunchConfig(shared=shared, attributes=C.pointer(a), count=1 if size else 0)
    config.grid[:], config.block[:] = (grid, 1, 1), (threads, 1, 1)
    return config


def clusters(cuda):
    """Blocks that are resident at once with clusters: as the driver says, as the hardware does, and the processor's bound."""
    module, room, below = C.c_void_p(), C.c_uint64(), 0
    cuda.call("cuModuleLoadData", C.byref(module), RESIDENT.encode())
    cuda.call("cuMemAlloc_v2", C.byref(room), C.c_size_t(8))
    f = C.c_void_p()
    cuda.call("cuModuleGetFunction", C.byref(f), module, b"resident")
    cuda.call("cuFuncSetAttribute", f, NON_PORTABLE, 1)
    for threads in (1024, 512, 256, 224, 192, 128, 64, 32):
        blocks, text = cuda.active_blocks(f, threads, 0), []
        for size in (0, 1, 2, 4, 8, 16):
            config = cluster_config(size, threads, 16 * cuda.sms * 40)
            n = C.c_int(0)
            if size:
                cuda.call("cuOccupancyMaxActiveClusters", C.byref(n), f, C.byref(config))
            cuda.call("cuMemsetD8_v2", room, 0, C.c_size_t(8))
            params = (C.c_void_p * 1)(C.cast(C.pointer(room), C.c_void_p))
            cuda.call("cuLaunchKernelEx", C.byref(config), f, params, None)
            cuda.call("cuCtxSynchronize")
            seen = (C.c_uint32 * 2)()
            cuda.call("cuMemcpyDtoH_v2", seen, room, C.c_size_t(8))
            bound = blocks * cuda.sms // max(size, 1) * max(size, 1)
            below += seen[1] > bound
            text.append("%d: %s %d of %d" % (size, n.value * size if size else "-", seen[1], bound))
        print("%d threads, %d blocks a multiprocessor; cluster: driver, seen of bound: %s" % (threads, blocks, " | ".join(text)))
    return below


def copies(cuda):
    """Times copies on the device: kind, bytes, seconds."""
    size, out = 1 << 28, []
    a, b, host = C.c_uint64(), C.c_uint64(), C.c_void_p()
    cuda.call("cuMemAlloc_v2", C.byref(a), C.c_size_t(size))
    cuda.call("cuMemAlloc_v2", C.byref(b), C.c_size_t(size))
    cuda.call("cuMemHostAlloc", C.byref(host), C.c_size_t(size), 0)
    begin, end = C.c_void_p(), C.c_void_p()
    cuda.call("cuEventCreate", C.byref(begin), 0)
    cuda.call("cuEventCreate", C.byref(end), 0)
    for kind, name, args in (("HtoD", "cuMemcpyHtoDAsync_v2", (a, host)), ("DtoH", "cuMemcpyDtoHAsync_v2", (host, a)),
                             ("DtoD", "cuMemcpyDtoDAsync_v2", (b, a))):
        for _ in range(6):
            cuda.call("cuEventRecord", begin, None)
            cuda.call(name, *args, C.c_size_t(size), None)
            cuda.call("cuEventRecord", end, None)
            cuda.call("cuEventSynchronize", end)
            ms = C.c_float()
            cuda.call("cuEventElapsedTime_v2" if hasattr(cuda.lib, "cuEventElapsedTime_v2") else "cuEventElapsedTime", C.byref(ms), begin, end)
        out.append((kind, size, round(ms.value * 1e6)))
    return out


def attribute(key, value):
    if isinstance(value, (list, tuple)):
        return {"key": key, "value": {"arrayValue": {"values": [{"intValue": str(v)} for v in value]}}}
    return {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}


def send(port, resource, spans):
    for i in range(0, len(spans), 1000):
        body = json.dumps({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"spans": spans[i:i + 1000]}]}]})
        urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:%d/v1/traces" % port, body.encode(), {"Content-Type": "application/json"})).read()


def span(number, name, nanos, **attributes):
    start = 1_700_000_000_000_000_000 + number * 1_000_000
    return {"traceId": "%032x" % 1, "spanId": "%016x" % (number + 1), "name": name, "kind": 1, "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + nanos), "attributes": [attribute(k.replace("__", "."), v) for k, v in attributes.items()]}


def received(path):
    out = {}
    with open(path) as f:
        for line in f:
            for rs in json.loads(line)["resourceSpans"]:
                for ss in rs["scopeSpans"]:
                    for s in ss["spans"]:
                        out[int(s["spanId"], 16) - 1] = {a["key"]: next(iter(a["value"].values())) for a in s["attributes"]}
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--collector", required=True)
    p.add_argument("--cases", type=int, default=10000)
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    cuda = Driver()
    print(time.strftime("%F"), cuda.name, "capability", cuda.capability, "multiprocessors", cuda.sms, "| Linux", platform.release())
    rows, failures = measure(cuda, o.cases, random.Random(o.seed)), 0
    failures += clusters(cuda) if int(cuda.capability.split(".")[0]) >= 9 else 0
    timed = copies(cuda)

    with tempfile.TemporaryDirectory() as work:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        out, config = work + "/out.json", work + "/config.yaml"
        with open(config, "w") as f:
            f.write(CONFIG.format(port=port, out=out))
        with open(work + "/log", "w") as log:
            collector = subprocess.Popen([os.path.abspath(o.collector), "--config", config], stdout=log, stderr=log)
        try:
            for _ in range(100):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            spans = [span(i, "k", 1000, cuda__operation="kernel", cuda__kernel__grid=(1000, 1, 1), cuda__kernel__block=(threads, 1, 1),
                          cuda__kernel__registers_per_thread=regs, **{"cuda.kernel.shared_memory.static": static, "cuda.kernel.shared_memory.dynamic": dynamic})
                     for i, (regs, static, dynamic, threads, _) in enumerate(rows)]
            spans += [span(len(rows) + i, "memcpy " + kind, nanos, cuda__operation="memcpy", cuda__memcpy__kind=kind, cuda__memcpy__size=size)
                      for i, (kind, size, nanos) in enumerate(timed)]
            send(port, [attribute("service.name", "occupancy"), attribute("hw.name", cuda.name),
                        attribute("cuda.device.compute_capability", cuda.capability), attribute("cuda.device.sm_count", cuda.sms)], spans)
        finally:
            collector.send_signal(signal.SIGTERM)
            if collector.wait(30):
                print(open(work + "/log").read()[-3000:])
                return 1
        got = received(out)

    wrong = 0
    for i, row in enumerate(rows):
        have = got.get(i, {}).get("cuda.occupancy.active_blocks_per_sm")
        if have is None or int(have) != row[4]:
            wrong += 1
            if wrong <= 20:
                print("registers %d static %d dynamic %d threads %d: CUDA %d, collector %s" % (*row, have))
    print("occupancy: %d of %d cases alike" % (len(rows) - wrong, len(rows)))
    failures += wrong
    for i, (kind, size, nanos) in enumerate(timed):
        a = got.get(len(rows) + i, {})
        rate, use = a.get("cuda.memcpy.throughput"), a.get("cuda.memcpy.link_utilization")
        print("copy %s: %.1f GB/s, link utilisation %s" % (kind, size / nanos, use and "%.3f" % use))
        failures += rate is None or abs(rate - size / nanos * 1e9) > 1e-6 * rate or use is None or not 0 < use <= 1
    print("FAILED" if failures else "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
