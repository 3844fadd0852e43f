// SPDX-License-Identifier: Apache-2.0
//
// Sessions with all that the recordings lack: losses, stall reasons, listings, queue times, stacks, threads and
// metrics of several devices. The tests send them, so each expected value is in this file.
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { api, close, eventually, open, send, serious, settled, visit } from "./browser.mjs";

const id = "33333333-2222-3333-4444-555555555555";
const session = `/sessions/${id}`;
const begin = (BigInt(Date.now()) - 7_200_000n) * 1_000_000n; // two hours ago, so it is not live
const us = 1000;
const nano = (ns) => String(begin + BigInt(ns));
const hex = (n, digits = 16) => n.toString(16).padStart(digits, "0");
const int = (key, n) => ({ key, value: { intValue: String(n) } });
const double = (key, doubleValue) => ({ key, value: { doubleValue } });
const text = (key, stringValue) => ({ key, value: { stringValue } });
const list = (key, values) => ({
  key,
  value: { arrayValue: { values: values.map((v) => (typeof v === "number" ? { intValue: v } : { stringValue: v })) } },
});
const resource = (instance, name) => ({
  attributes: [text("service.instance.id", instance), text("service.name", name), text("host.name", "node-1")],
});

const [request, step, forward, tiny] = [1, 2, 3, 4];
const [gemm, softmax1, softmax2, softmax3, relu, copy, sync] = [10, 11, 12, 13, 14, 15, 16];

/** span has times in µs. */
const span = (spanId, name, from, to, parent, attributes, kind = 1) => ({
  traceId: hex(9, 32),
  spanId: hex(spanId),
  ...(parent ? { parentSpanId: hex(parent) } : {}),
  name,
  kind,
  startTimeUnixNano: nano(from * us),
  endTimeUnixNano: nano(to * us),
  attributes,
});
const scope = (...a) => [text("cuda.operation", "scope"), ...a];
const thread = [int("thread.id", 11), text("thread.name", "worker")];
const on = (operation, device, stream, ...a) => [
  text("cuda.operation", operation),
  text("hw.id", `GPU-${device}`),
  int("cuda.device.index", device),
  ...(stream ? [int("cuda.stream.id", stream)] : []),
  ...a,
];

const spans = [
  span(99, "views demo", 0, 20_000, 0, [text("cuda.operation", "session")]),
  span(request, "POST /generate", 1000, 15_000, 0, [], 2),
  span(step, "step", 2000, 14_000, request, scope(...thread)),
  span(forward, "forward", 2500, 9000, step, scope(text("cuda.scope.source", "nvtx"))),
  span(tiny, "tiny", 9500, 9500.5, step, scope(...thread)),
  span(
    gemm,
    "gemm_kernel",
    3000,
    4000,
    forward,
    on(
      "kernel",
      0,
      7,
      text("cuda.kernel.name", "void gemm_kernel<float>(float*, int)"),
      list("cuda.kernel.grid", [128, 2, 1]),
      list("cuda.kernel.block", [256, 1, 1]),
      int("cuda.kernel.registers_per_thread", 40),
      int("cuda.kernel.shared_memory.static", 1024),
      int("cuda.kernel.shared_memory.dynamic", 2048),
      int("cuda.launch.start_time_unix_nano", nano(2960 * us)),
      int("cuda.launch.end_time_unix_nano", nano(2980 * us)),
      double("cuda.queue.duration", 0.00002),
      text("code.stacktrace", "step (train.py:42)\nmain (train.py:7)"),
    ),
  ),
  span(softmax1, "softmax_kernel", 5000, 5010, forward, on("kernel", 0, 7)),
  span(softmax2, "softmax_kernel", 6000, 6020, forward, on("kernel", 0, 7)),
  span(softmax3, "softmax_kernel", 7000, 7080, forward, on("kernel", 0, 7)),
  span(relu, "relu_kernel", 10_000, 11_000, step, on("kernel", 1, 9, text("cuda.timing", "estimated"))),
  span(copy, "memcpy HtoD", 4500, 4700, step, on("memcpy", 0, 7, int("cuda.memcpy.size", 2_097_152))),
  span(sync, "synchronize", 12_000, 13_000, step, on("synchronize", 0, 0)),
];

const source = ["__global__ void gemm_kernel(float *a, int n) {", "  int i = threadIdx.x;", "  a[i] = a[i] * 2;", "}"];
const ptx = [".visible .entry gemm_kernel(", ")", "{", "ld.global.f32 %f1, [%rd1];", "ret;", "}"];
const sass = ["0000  MOV R1, c[0x0][0x28] ;", "0010  LDG.E R2, [R4] ;", "0020  FMUL R2, R2, 2 ;", "0030  EXIT ;"];

let uids = 0;
const log = (eventName, body, attributes, parent) => ({
  timeUnixNano: nano(19_000 * us),
  severityNumber: 9,
  severityText: "INFO",
  eventName,
  body: { stringValue: body },
  attributes: [...attributes, text("log.record.uid", hex(++uids, 32))],
  traceId: hex(9, 32),
  spanId: hex(parent),
});
const sample = (reason, n, line, pc) =>
  log(
    "cuda.pc_sample",
    `${n} × ${reason} in gemm_kernel`,
    [
      text("cuda.kernel.name", "gemm_kernel"),
      text("code.function.name", "gemm_kernel"),
      text("code.file.path", "gemm.cu"),
      int("code.line.number", line),
      int("cuda.pc.offset", pc),
      text("cuda.stall.reason", reason),
      int("cuda.sample.count", n),
    ],
    step,
  );
const logs = [
  log(
    "cuda.capture",
    "7 operations.",
    [
      text("cuda.capture.status", "partial"),
      int("cuda.capture.records.dropped", 5),
      int("cuda.capture.records.rejected", 0),
      int("cuda.capture.spans.left_out", 3),
      list("cuda.capture.kinds.unavailable", ["memory"]),
      double("cuda.capture.recorded.ratio", 0.5),
    ],
    99,
  ),
  sample("long_scoreboard", 300, 3, 0x20),
  sample("wait", 75, 3, 0x10),
  sample("wait", 25, 2, 0x10),
  sample("wait_not_issued", 90, 2, 0x10),
  log("cuda.source", source.join("\n"), [text("code.file.path", "gemm.cu")], 99),
  ...[
    ["ptx", ptx],
    ["sass", sass],
  ].map(([kind, lines]) =>
    log(
      "cuda.sass_listing",
      lines.join("\n"),
      [
        text("cuda.listing.kind", kind),
        text("code.function.name", "gemm_kernel"),
        text("cuda.kernel.name", "gemm_kernel"),
        text("cuda.listing.architecture", "sm_90"),
      ],
      99,
    ),
  ),
];

/** Each series has a point every 5 ms. The last one is the value of the legend. */
const series = (values, ...attributes) => values.map((asDouble, i) => ({ asDouble, attributes, i }));
const gpu = (i, ...more) => [text("hw.id", `GPU-${i}`), int("cuda.device.index", i), ...more];
const metric = (name, unit, points, monotonic = false) => {
  const dataPoints = points.flat().map(({ i, ...p }) => ({
    ...p,
    timeUnixNano: nano((i + 1) * 5000 * us),
    startTimeUnixNano: nano(0),
  }));
  return {
    name,
    unit,
    ...(monotonic ? { sum: { aggregationTemporality: 2, isMonotonic: true, dataPoints } } : { gauge: { dataPoints } }),
  };
};
const each = (f) => [0, 1, 2].map(f);
const metrics = [
  metric(
    "hw.gpu.utilization",
    "1",
    each((i) => series([0.1, 0.5 + i / 10], ...gpu(i))),
  ),
  metric(
    "hw.power",
    "W",
    each((i) => series([100, 300 + i], ...gpu(i))),
  ),
  metric(
    "hw.gpu.memory.usage",
    "By",
    each((i) => series([0, 2 ** (30 + i)], ...gpu(i))),
  ),
  metric("hw.temperature", "Cel", [series([40, 61], ...gpu(0))]),
  metric("hw.gpu.speed", "Hz", [series([1e9, 1.98e9], ...gpu(0, text("hw.gpu.clock_domain", "sm")))]),
  metric("hw.fan.speed_ratio", "1", [series([0.3, 0.4], ...gpu(0))]),
  metric("hw.gpu.throttle.duration", "s", [series([0, 0.0025], ...gpu(0))], true),
  metric("hw.gpu.io", "By", [series([0, 5 * 1024], ...gpu(0, text("network.io.direction", "receive")))], true),
  metric("hw.gpu.interconnect.io", "By", [series([0, 10 * 1024], ...gpu(0))], true),
  metric("hw.errors", "{error}", [series([0, 1], ...gpu(0, text("error.type", "corrected")))], true),
];

before(async () => {
  const all = { resource: resource(id, "views demo") };
  await send({ resourceSpans: [{ ...all, scopeSpans: [{ spans }] }] });
  await send({ resourceLogs: [{ ...all, scopeLogs: [{ logRecords: logs }] }] });
  await send({ resourceMetrics: [{ ...all, scopeMetrics: [{ metrics }] }] });
  // A program that was killed, and one whose recording has everything.
  const other = (n) => ({ resource: resource(`4444444${n}-2222-3333-4444-555555555555`, `other ${n}`) });
  const kernel = span(7, "lone_kernel", 0, 10, 0, on("kernel", 0, 7));
  await send({ resourceSpans: [{ ...other(0), scopeSpans: [{ spans: [kernel] }] }] });
  await send({ resourceSpans: [{ ...other(1), scopeSpans: [{ spans: [kernel, spans[0]] }] }] });
  const lossless = log("cuda.capture", "1 operation.", [int("cuda.capture.records.dropped", 0)], 99);
  await send({ resourceLogs: [{ ...other(1), scopeLogs: [{ logRecords: [lossless] }] }] });
  await eventually("the sessions are stored", async () => (await api(`${session}/series`)).series?.length === 16);
});

const bar = (page) => page.locator("[class*=sessionBar]");

describe("badges", () => {
  test("say what was dropped, left out and recorded in part", async () => {
    const page = await open(`${session}/kernels`);
    const badge = bar(page).locator("summary", { hasText: "⚠" });
    assert.equal(await badge.innerText(), "⚠ kinds unavailable: memory and 3 more");
    await badge.click();
    assert.deepEqual(await bar(page).locator("details[open] li").allInnerTexts(), [
      "kinds unavailable: memory",
      "recorded 50 % of the session",
      "records dropped: 5",
      "spans left out: 3",
    ]);
    assert.deepEqual(await serious(page), []);
    await close(page);
  });

  test("say that nothing is known to be lost, or that nothing is known", async () => {
    const page = await open("/sessions/44444440-2222-3333-4444-555555555555/kernels");
    await bar(page).getByText("no end recorded").waitFor();
    await bar(page).getByText("losses unknown").waitFor();
    await page.goto(page.url().replace("44444440", "44444441"));
    await bar(page).getByText("nothing dropped").waitFor();
    assert.equal(await bar(page).getByText("no end recorded").count(), 0);
    await close(page);
  });

  test("say that sums only are left", async () => {
    const page = await open(`${session}/kernels`);
    assert.equal(await bar(page).getByText("sums only").count(), 0);
    // Retention removes operations once a minute, which is too long to wait for.
    await page.route(
      (u) => u.pathname === `/api/v1${session}`,
      async (route) => {
        const response = await route.fetch();
        const json = await response.json();
        json.session.rows_dropped = true;
        await route.fulfill({ response, json });
      },
    );
    await page.reload();
    await bar(page).getByText("sums only").waitFor();
    await close(page);
  });

  test("say which times are estimated", async () => {
    const page = await open(`${session}/launches?operation=kernel&sort=start`);
    const rows = page.getByRole("row").filter({ hasText: "estimated" });
    await rows.first().waitFor();
    assert.equal(await rows.count(), 1);
    await rows.getByRole("link").first().click();
    const inspector = page.getByLabel("Inspector");
    await inspector.getByRole("heading", { name: "relu_kernel" }).waitFor();
    await inspector.getByText("estimated", { exact: true }).waitFor();
    await close(page);
  });
});

describe("inspector", () => {
  const facts = (inspector) =>
    inspector
      .locator("dl")
      .first()
      .evaluate((dl) => {
        const texts = (tag) => [...dl.querySelectorAll(tag)].map((e) => e.innerText);
        const values = texts("dd");
        return Object.fromEntries(texts("dt").map((k, i) => [k, values[i]]));
      });

  test("has the launch, its queue time, its stack, its scopes and its neighbours", async () => {
    const page = await open(`${session}/timeline?sel=${hex(gemm)}&at=${3000 * us}`);
    const inspector = page.getByLabel("Inspector");
    await inspector.getByRole("heading", { name: "gemm_kernel" }).waitFor();
    const { grid, block, registers, start, lane, ...more } = await facts(inspector);
    assert.deepEqual(
      { grid, block, registers, start, lane, shared: more["shared memory"] },
      {
        grid: "128 × 2 × 1",
        block: "256 × 1 × 1",
        registers: "40 per thread",
        start: "3.000000 ms",
        lane: "GPU 0, stream 7, compute",
        shared: "3.00 KiB per block (2.00 KiB dynamic)",
      },
    );
    const queued = inspector.getByTitle("From the end of the launch to the start on the device: 20,000 ns");
    assert.equal(await queued.innerText(), "20.0 µs\nqueued");
    const stack = inspector.getByRole("region", { name: "Host stack of the launch" });
    assert.deepEqual(await stack.locator("li").allInnerTexts(), ["step (train.py:42)", "main (train.py:7)"]);
    const section = (name) => inspector.locator("section").filter({ has: page.getByRole("heading", { name }) });
    assert.deepEqual(await section("Scopes").locator("li a").allInnerTexts(), ["POST /generate", "step", "forward"]);
    const neighbours = section("In the same lane").locator("li");
    assert.deepEqual(await neighbours.allInnerTexts(), ["after: softmax_kernel\ngap 1.00 ms"]);
    await neighbours.getByRole("link").click();
    await inspector.getByRole("heading", { name: "softmax_kernel" }).waitFor();
    assert.deepEqual(await neighbours.allInnerTexts(), [
      "before: gemm_kernel\ngap 1.00 ms",
      "after: softmax_kernel\ngap 990 µs",
    ]);
    await close(page);
  });

  test("has the longest kernels that a scope launched, wherever they start", async () => {
    const page = await open(`${session}/timeline?sel=${hex(tiny)}&at=${9500 * us}`);
    const inspector = page.getByLabel("Inspector");
    await inspector.getByRole("heading", { name: "tiny" }).waitFor();
    const launched = inspector
      .locator("section")
      .filter({ has: page.getByRole("heading", { name: "Longest kernels launched in it" }) });
    assert.equal(await launched.count(), 0);
    await visit(page, `${session}/timeline?sel=${hex(step)}&at=${2000 * us}`);
    assert.deepEqual(await launched.locator("li").allInnerTexts(), [
      "gemm_kernel\n1.00 ms",
      "relu_kernel\n1.00 ms",
      "softmax_kernel\n80.0 µs",
      "softmax_kernel\n20.0 µs",
      "softmax_kernel\n10.0 µs",
    ]);
    await launched.getByRole("link", { name: "relu_kernel" }).click();
    await inspector.getByRole("heading", { name: "relu_kernel" }).waitFor();
    await close(page);
  });

  test("marks the launch in the distribution of its kernel", async () => {
    for (const [sel, at, ns] of [
      [softmax1, 5000, 10_000],
      [softmax2, 6000, 20_000],
      [softmax3, 7000, 80_000],
    ]) {
      const page = await open(`${session}/timeline?sel=${hex(sel)}&at=${at * us}`);
      const { groups } = await api(`${session}/kernels?group=name&name=softmax_kernel&buckets=true`);
      const bucket = groups[0].buckets.findIndex((b) => b.count > 0 && b.from_ns <= ns && ns <= b.to_ns);
      assert.ok(bucket >= 0);
      const svg = page.getByLabel("Inspector").getByRole("img", { name: "Distribution of 3 durations" });
      assert.match(await svg.getAttribute("aria-label"), /to 80\.0 µs, this one is/);
      assert.equal(await svg.locator("text").last().textContent(), "80.0 µs");
      const [bars, mark] = await svg.evaluate((e) => {
        const box = (r) => ({ from: r.x.baseVal.value, to: r.x.baseVal.value + r.width.baseVal.value });
        const rects = [...e.querySelectorAll("rect")];
        return [
          rects.filter((r) => r.querySelector("title")).map(box),
          rects.filter((r) => !r.children.length).map(box),
        ];
      });
      assert.equal(mark.length, 1);
      const { from, to } = bars[bucket];
      const middle = (mark[0].from + mark[0].to) / 2;
      assert.ok(from - 2 <= middle && middle <= to + 2, `${ns} ns: ${middle} in ${from} to ${to}`);
      // The axis ends with the longest launch, and so does the last bar.
      assert.ok(bars.at(-1).to > 339 && bars.at(-1).to <= 340, `the last bar ends at ${bars.at(-1).to}`);
      if (ns === 80_000) assert.equal(mark[0].to, 340);
      await close(page);
    }
  });
});

describe("scopes", () => {
  test("have the stall reasons of their samples", async () => {
    const { nodes } = await api(`${session}/scopes`);
    const path = nodes.find((n) => n.name === "step").path;
    const page = await open(`${session}/scopes?path=${path}`);
    const samples = page.getByRole("region", { name: "Samples", exact: true });
    await samples.getByRole("heading", { name: "Samples in step" }).waitFor();
    assert.equal(await samples.getByRole("link", { name: "400" }).count(), 1);
    assert.deepEqual(await samples.locator("dt").allInnerTexts(), ["long scoreboard", "wait"]);
    assert.deepEqual(await samples.locator("dd[title]").allInnerTexts(), ["75 %", "25 %"]);
    const bars = await samples.locator("dd i").evaluateAll((all) => all.map((e) => Number.parseFloat(e.style.width)));
    assert.deepEqual(bars.map(Math.round), [100, 33]);
    assert.deepEqual(await serious(page), []);
    // A closed scope stays closed after a reload.
    const names = page.getByRole("table", { name: "Scopes" }).locator("tbody tr td:first-child");
    assert.ok((await names.allInnerTexts()).includes("forward"));
    await page.getByRole("button", { name: "Close step" }).click();
    await page.waitForURL((u) => u.searchParams.get("closed") === String(path));
    await page.reload();
    await page.getByRole("button", { name: "Open step" }).waitFor();
    assert.ok(!(await names.allInnerTexts()).includes("forward"));
    await page.getByRole("button", { name: "Open step" }).click();
    await page.waitForURL((u) => !u.searchParams.has("closed"));
    await close(page);
  });
});

describe("code", () => {
  test("shows source, PTX and SASS side by side, with samples and reasons by line", async () => {
    const page = await open(`${session}/code?view=functions`, { viewport: { width: 1920, height: 1000 } });
    const pane = (kind) => page.getByRole("region", { name: kind, exact: true });
    const rows = (kind) =>
      pane(kind)
        .locator("tr")
        .evaluateAll((all) => all.map((r) => [...r.cells].map((c) => c.innerText)));
    await pane("sass").getByText("EXIT").waitFor();
    assert.deepEqual(
      await rows("source"),
      source.map((l, i) => [["", "25", "375", ""][i], String(i + 1), l]),
    );
    assert.deepEqual(
      await rows("ptx"),
      ptx.map((l, i) => ["", String(i + 1), l]),
    );
    assert.deepEqual(
      await rows("sass"),
      sass.map((l, i) => [["", "100", "300", ""][i], String(i + 1), l]),
    );
    const note = "Samples belong to source lines and instructions, not to PTX lines.";
    assert.equal(await pane("ptx").locator("p").innerText(), note);
    assert.equal(await page.getByText("Select a row with a number").count(), 2);
    const boxes = await Promise.all(["source", "ptx", "sass"].map((k) => pane(k).boundingBox()));
    assert.ok(boxes[0].x + boxes[0].width <= boxes[1].x && boxes[1].x + boxes[1].width <= boxes[2].x);
    assert.ok(boxes.every((b) => b.y === boxes[0].y));
    await pane("source").locator("tr").nth(2).click();
    const reasons = async (kind) => (await pane(kind).getByRole("status").innerText()).split("\n");
    assert.deepEqual(await reasons("source"), ["Line 3", "long_scoreboard: 300", "wait: 75"]);
    await page.waitForURL(/what=source/);
    await pane("sass").locator("tr").nth(1).click();
    assert.deepEqual(await reasons("sass"), ["Offset 0x0010", "wait: 100", "wait_not_issued: 90"]);
    await close(page);
  });
});

describe("system", () => {
  test("has a chart for each metric, and buttons that move all of them", async () => {
    const page = await open(`${session}/system`);
    const charts = page.locator("section[aria-label]");
    await charts.nth(9).waitFor();
    const shown = await charts.evaluateAll((all) =>
      all.map((e) => [e.querySelector("h2").innerText, [...e.querySelectorAll("li")].map((l) => l.innerText.trim())]),
    );
    assert.deepEqual(shown, [
      ["GPU utilisation", ["GPU 0 last 50 %", "GPU 1 last 60 %", "GPU 2 last 70 %"]],
      ["Power", ["GPU 0 last 300 W", "GPU 1 last 301 W", "GPU 2 last 302 W"]],
      ["GPU memory in use", ["GPU 0 last 1.00 GiB", "GPU 1 last 2.00 GiB", "GPU 2 last 4.00 GiB"]],
      ["Temperature", ["GPU 0 last 61.0 °C"]],
      ["Clocks", ["GPU 0 · sm last 1.98 GHz"]],
      ["Throttling, per second", ["GPU 0 last 50 %"]],
      ["PCIe transfer, per second", ["GPU 0 · receive last 1,000 KiB/s"]],
      ["NVLink transfer, per second", ["GPU 0 last 1.95 MiB/s"]],
      ["Errors, per second", ["GPU 0 · corrected last 200 error/s"]],
      ["Fan", ["GPU 0 last 40 %"]],
    ]);
    const interval = (from, to) =>
      page.waitForURL((u) => u.searchParams.get("from") === String(from) && u.searchParams.get("to") === String(to));
    const press = async (name) => {
      await page.getByRole("link", { name, exact: true }).focus();
      await page.keyboard.press("Enter");
    };
    await press("Zoom in");
    await interval(5_000_000, 15_000_000);
    await press("Earlier");
    await interval(2_500_000, 12_500_000);
    await press("Later");
    await interval(5_000_000, 15_000_000);
    await press("Zoom out");
    await interval(0, 20_000_000);
    await close(page);
  });
});

describe("timeline", () => {
  const width = 20_000 * us;
  /** at is the place of a time in µs in a track, in a page that shows from and to. */
  async function at(page, label, time, [from, to] = [0, width]) {
    const canvas = await page.locator("canvas").boundingBox();
    const track = await page.locator("[data-kind]", { hasText: label }).first().boundingBox();
    return [canvas.x + ((time * us - from) / (to - from)) * canvas.width, track.y + track.height / 2];
  }
  const whole = `${session}/timeline?from=0&to=${width}`;
  const wait = (page, from, to, slack = width / 500) =>
    page.waitForURL((u) => {
      const [a, b] = [Number(u.searchParams.get("from")), Number(u.searchParams.get("to"))];
      return Math.abs(a - from) < slack && Math.abs(b - to) < slack;
    });

  test("has a lane for each device, stream and thread, and says what it does not show", async () => {
    const page = await open(whole);
    await page.getByText("7 operations, each drawn").waitFor();
    const labels = page.locator("[data-kind]");
    const texts = await labels.evaluateAll((all) =>
      all.map((e) => `${e.dataset.kind}: ${e.querySelector("span").innerText}`),
    );
    assert.deepEqual(texts, [
      "spans: Requests",
      "spans: Scopes · 11 worker",
      "spans: NVTX",
      "group: GPU 0",
      "gaps: no kernel",
      "lane: stream 7",
      "lane: stream 7 copies",
      "lane: host",
      "group: GPU 1",
      "gaps: no kernel",
      "lane: stream 9",
      "group: Metrics",
      ...each((i) => `metric: GPU ${i} utilisation`),
      ...each((i) => `metric: GPU ${i} power`),
      ...[0, 1].map((i) => `metric: GPU ${i} memory`),
    ]);
    await page.getByText("1 metric track not drawn").waitFor();
    await page.getByText(/no scopes shorter than 1\.02 µs/).waitFor();
    const tip = page.locator("[class*=_tip]");
    for (const [label, time, want] of [
      ["Requests", 1500, "POST /generate\n14.0 ms · at 1.000000 ms"],
      ["Scopes · 11 worker", 12_500, "step\n12.0 ms · at 2.000000 ms"],
      ["NVTX", 8500, "forward\n6.50 ms · at 2.500000 ms"],
      ["stream 7", 3500, "gemm_kernel\n1.00 ms · at 3.000000 ms"],
      ["stream 7 copies", 4600, "memcpy HtoD\n200 µs · at 4.500000 ms"],
      ["host", 12_500, "synchronize\n1.00 ms · at 12.000000 ms"],
      ["stream 9", 10_500, "relu_kernel\n1.00 ms · at 10.000000 ms\nThe times are estimated."],
      ["no kernel", 6500, "No kernel on the GPU\n980 µs · at 6.020000 ms"],
      ["GPU 1 power", 15_000, "GPU 1 power: 301 W\nmeasured at 10 ms"],
    ]) {
      const [x, y] = await at(page, label, time);
      await page.mouse.move(x, y);
      assert.equal(await tip.innerText(), want);
    }
    await close(page);
  });

  test("a search makes all pale that does not match", async () => {
    const page = await open(whole);
    const color = async (label, time) => {
      const box = await page.locator("canvas").boundingBox();
      const [x, y] = await at(page, label, time);
      return page
        .locator("canvas")
        .evaluate(
          (c, [x, y]) => [...c.getContext("2d").getImageData(x, y, 1, 1).data],
          [Math.round(x - box.x), Math.round(y - box.y) + 8],
        );
    };
    const before = [await color("stream 7", 3900), await color("stream 9", 10_900)];
    await page.getByRole("searchbox").fill("relu");
    await page.getByText("1 drawn in view, 1 launch").waitFor();
    const after = [await color("stream 7", 3900), await color("stream 9", 10_900)];
    assert.deepEqual(after[1], before[1]);
    const light = (c) => c[0] + c[1] + c[2];
    assert.ok(light(after[0]) > light(before[0]) + 60, `${before[0]} to ${after[0]}`);
    await close(page);
  });

  test("moves with a drag and with keys", async () => {
    const [from, to] = [4_000_000, 8_000_000];
    const page = await open(`${session}/timeline?from=${from}&to=${to}`);
    const box = await page.locator("canvas").boundingBox();
    await page.mouse.move(box.x + box.width * 0.75, box.y + 100);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 100, { steps: 4 });
    await page.mouse.up();
    await wait(page, from + 1_000_000, to + 1_000_000);
    for (const [key, by] of [
      ["a", -600_000],
      ["ArrowLeft", -600_000],
      ["d", 600_000],
      ["ArrowRight", 600_000],
    ]) {
      const start = Number(new URL(page.url()).searchParams.get("from"));
      await page.keyboard.press(key);
      await wait(page, start + by, start + by + to - from);
    }
    await close(page);
  });

  test("measures with Shift and a drag, and with a drag after the button", async () => {
    const page = await open(whole);
    const drag = async (a, b) => {
      await page.mouse.move(...(await at(page, "stream 7", a)));
      await page.mouse.down();
      await page.mouse.move(...(await at(page, "stream 7", b)), { steps: 4 });
      await page.mouse.up();
    };
    const measured = (a, b) =>
      page.waitForURL((u) => {
        const [m0, m1] = [Number(u.searchParams.get("m0")), Number(u.searchParams.get("m1"))];
        return Math.abs(m0 - a * us) < 30_000 && Math.abs(m1 - b * us) < 30_000;
      });
    const panel = page.getByLabel("Measured interval");
    await page.keyboard.down("Shift");
    await drag(2900, 6500);
    await page.keyboard.up("Shift");
    await measured(2900, 6500);
    await panel.getByText("3 kernels started inside").waitFor();
    assert.equal(
      await panel.getByTitle("1,030,000 ns", { exact: true }).first().innerText(),
      "1.03 ms\n3 kernels started inside",
    );
    await page.keyboard.press("Escape");
    await panel.waitFor({ state: "detached" });
    const button = page.getByRole("button", { name: "Measure", exact: true });
    await button.click();
    assert.equal(await button.getAttribute("aria-pressed"), "true");
    await drag(9000, 12_000);
    await measured(9000, 12_000);
    await panel.getByText("1 kernel started inside").waitFor();
    assert.equal(await button.getAttribute("aria-pressed"), "false");
    assert.match(page.url(), /from=0&to=20000000/);
    await close(page);
  });

  test("one finger moves and measures, two zoom", async () => {
    const page = await open(whole, { hasTouch: true, viewport: { width: 390, height: 800 } });
    const cdp = await page.context().newCDPSession(page);
    const canvas = await page.locator("canvas").boundingBox();
    const touch = (type, ...shares) =>
      cdp.send("Input.dispatchTouchEvent", {
        type,
        touchPoints: shares.map((s, id) => ({ x: canvas.x + canvas.width * s, y: canvas.y + 100, id })),
      });
    const slack = width / 50; // the browser keeps the first pixels of a touch
    await touch("touchStart", 0.4, 0.6);
    for (const d of [0.05, 0.1]) await touch("touchMove", 0.4 - d, 0.6 + d);
    await touch("touchEnd");
    await wait(page, 5_000_000, 15_000_000, slack);
    await touch("touchStart", 0.6);
    for (const s of [0.55, 0.5, 0.4]) await touch("touchMove", s);
    await touch("touchEnd");
    await wait(page, 7_000_000, 17_000_000, slack);
    await page.getByRole("button", { name: "Measure", exact: true }).click();
    await page.getByText("Drag over the interval").waitFor();
    await touch("touchStart", 0.2);
    for (const s of [0.3, 0.5]) await touch("touchMove", s);
    await touch("touchEnd");
    await page.waitForURL((u) => Math.abs(Number(u.searchParams.get("m1")) - 12_000_000) < slack);
    const panel = await page.getByLabel("Measured interval").boundingBox();
    assert.ok(panel.y > canvas.y + 100 && panel.y + panel.height <= 800, JSON.stringify(panel));
    await page.getByText("1 metric track not drawn").click({ trial: true });
    await close(page);
  });

  test("keeps its vertical position after a reload", async () => {
    const page = await open(whole, { viewport: { width: 1280, height: 400 } });
    const scroller = page.locator("[class*=scroller]");
    const room = await scroller.evaluate((e) => e.scrollHeight - e.clientHeight);
    assert.ok(room > 60, `${room} px`);
    await scroller.evaluate((e) => e.scrollTo(0, 57));
    await page.waitForURL((u) => u.searchParams.get("y") === "57");
    await page.reload();
    await settled(page);
    assert.equal(await scroller.evaluate((e) => e.scrollTop), 57);
    assert.match(page.url(), /y=57/);
    await close(page);
  });

  test("scrolls back with the browser's back button, and keeps the place where one scrolls", async () => {
    const page = await open(whole, { viewport: { width: 1280, height: 400 } });
    const scroller = page.locator("[class*=scroller]");
    const top = () => scroller.evaluate((e) => e.scrollTop);
    const y = (want) => page.waitForURL((u) => u.searchParams.get("y") === want);
    await scroller.evaluate((e) => e.scrollTo(0, 57));
    await y("57");
    await page.evaluate(() => history.pushState(null, "", location.href));
    await scroller.evaluate((e) => e.scrollTo(0, 21));
    await y("21");
    await page.goBack();
    await y("57");
    await settled(page);
    assert.equal(await top(), 57);
    await page.goForward();
    await y("21");
    await settled(page);
    assert.equal(await top(), 21);
    await scroller.evaluate((e) => e.scrollTo(0, 33));
    await y("33");
    await settled(page);
    assert.equal(await top(), 33);
    await close(page);
  });

  test("says that it draws only the longest scopes, and no short gaps", async () => {
    const dense = "66666666-2222-3333-4444-555555555555";
    const n = 2001;
    // Each scope has 3 µs, a kernel of 2 µs is in each, and the gaps of the device have 2 µs.
    const spans = Array.from({ length: n }, (_, i) => [
      span(2 * i + 1, "layer", 4 * i, 4 * i + 3, 0, scope(...thread)),
      span(2 * i + 2, "relu_kernel", 4 * i + 0.5, 4 * i + 2.5, 2 * i + 1, on("kernel", 0, 7)),
    ]).flat();
    await send({ resourceSpans: [{ resource: resource(dense, "dense"), scopeSpans: [{ spans }] }] });
    await eventually(
      "the session is stored",
      async () => (await api(`/sessions/${dense}`)).session?.operations.kernel === n,
    );
    const page = await open(`/sessions/${dense}/timeline`);
    await page.getByText(/only the 2,000 longest scopes/).waitFor();
    await page.getByText(/no gap without a kernel is long enough to draw/).waitFor();
    // All scopes of a shorter interval are drawn.
    await visit(page, `/sessions/${dense}/timeline?from=0&to=2000000`);
    await page.getByText(/only the 2,000 longest scopes/).waitFor({ state: "hidden" });
    await close(page);
  });
});

describe("the URL has the state of each view", () => {
  const states = {
    "/": "q=other",
    [`${session}/timeline`]: "from=2000000&to=9000000&q=softmax&m0=3000000&m1=6000000",
    [`${session}/timeline?sel`]: `sel=${hex(softmax2)}`,
    [`${session}/findings`]: "from=2000000&to=9000000",
    [`${session}/kernels`]: "from=2000000&to=12000000&group=shape&sort=count&dir=asc&q=softmax",
    [`${session}/launches`]: "lane=1&operation=kernel&sort=duration&name=softmax_kernel",
    [`${session}/gaps`]: "from=2000000&to=6000000",
    [`${session}/scopes`]: "path=STEP&sort=start&q=step",
    [`${session}/scopes?closed`]: "path=STEP&closed=STEP",
    [`${session}/system`]: "from=5000000&to=9000000",
    [`${session}/code`]: "view=functions&what=source+3",
    "/compare": `a=${id}&b=44444441-2222-3333-4444-555555555555&by=shape&q=softmax`,
    "/usage": "by=session&service=views+demo",
  };
  for (const [path, query] of Object.entries(states)) {
    test(path.replace(session, ""), async () => {
      const { nodes } = await api(`${session}/scopes`);
      const search = `?${query}`.replaceAll("STEP", nodes.find((n) => n.name === "step").path);
      const address = path.split("?")[0];
      const page = await open(address + search);
      const read = () =>
        page.evaluate(() => {
          const current = [...document.querySelectorAll("main [aria-current=true]")].map((e) => e.innerText);
          return [document.querySelector("main").innerText, ...current].join("\n");
        });
      const state = await read();
      assert.equal(new URL(page.url()).search, search);
      await page.reload();
      await settled(page);
      assert.equal(await read(), state);
      assert.equal(new URL(page.url()).search, search);
      // Each parameter counts: the page without it is another one.
      for (const k of new URLSearchParams(search).keys()) {
        const rest = new URLSearchParams(search);
        rest.delete(k);
        await visit(page, `${address}?${rest}`);
        assert.notEqual(await read(), state, `without ${k}`);
      }
      await close(page);
    });
  }

  test("pages of sessions, and what an export has", async () => {
    const page = await open("/?q=other");
    // Pages of 100 sessions become pages of one.
    await page.route("**/api/v1/sessions?*", (r) =>
      r.continue({ url: r.request().url().replace("limit=100", "limit=1") }),
    );
    await page.reload();
    const ids = async () => {
      await settled(page);
      return page.locator("tr[data-session]").evaluateAll((all) => all.map((e) => e.dataset.session));
    };
    const first = await ids();
    assert.equal(first.length, 1);
    await page.getByRole("link", { name: "Older" }).click();
    await page.waitForURL(/cursor=/);
    const second = await ids();
    assert.deepEqual([...first, ...second].map((s) => s.slice(0, 8)).sort(), ["44444440", "44444441"]);
    await page.reload();
    assert.deepEqual(await ids(), second);
    await page.getByRole("link", { name: "Newest" }).click();
    await page.waitForURL((u) => u.search === "?q=other");
    assert.deepEqual(await ids(), first);
    await page.goBack();
    await page.getByRole("searchbox").fill("views");
    await page.waitForURL((u) => u.search === "?q=views");
    assert.deepEqual(await ids(), [id]);

    await page.goto(`${new URL(page.url()).origin}${session}/kernels?from=2000000&to=9000000`);
    const perfetto = page.getByRole("link", { name: "Perfetto trace" });
    const interval = page.getByRole("checkbox", { name: "only the interval of the view, 7.00 ms" });
    await page.locator("summary", { hasText: "Export" }).click();
    assert.match(await perfetto.getAttribute("href"), /from=2000000&to=9000000/);
    await interval.uncheck();
    await page.waitForURL(/whole=1/);
    assert.doesNotMatch(await perfetto.getAttribute("href"), /from=/);
    await page.reload();
    await page.locator("summary", { hasText: "Export" }).click();
    assert.equal(await interval.isChecked(), false);
    await close(page);
  });
});

describe("flame graph of a session with host stacks of a part of the launches", () => {
  test("has the launches behind an estimate", async () => {
    const sampled = "55555555-2222-3333-4444-555555555555";
    const kernel = (n, from, to, ...a) => span(n, "gemm_kernel", from, to, 0, on("kernel", 0, 7, ...a));
    const spans = [
      kernel(1, 0, 100, text("code.stacktrace", "step\nmain")),
      kernel(2, 200, 260, text("code.stacktrace", "eval\nmain")),
      kernel(3, 300, 340),
      kernel(4, 400, 440),
      kernel(5, 500, 505, text("code.stacktrace", "main")),
    ];
    await send({ resourceSpans: [{ resource: resource(sampled, "sampled"), scopeSpans: [{ spans }] }] });
    await eventually(
      "the session is stored",
      async () => (await api(`/sessions/${sampled}/stacks`)).stacks?.length === 4,
    );
    // The 80 µs without a stack are shared by launches: a third each.
    const page = await open(`/sessions/${sampled}/code?view=flame&zoom=0`);
    const row = page.getByRole("table", { name: "Kernels of the frame" }).getByRole("row").last();
    const texts = async () => (await row.locator("td").allInnerTexts()).slice(2);
    assert.deepEqual(await texts(), ["245 µs", "5", "165 µs", "245 µs"]);
    const rows = async (link) => {
      await link.click();
      const found = ["rows", "sum"].map((x) => page.getByTestId(x).innerText());
      const [count, sum] = await Promise.all(found);
      const filters = await page.getByTitle("Remove this filter").allInnerTexts();
      await page.goBack();
      await settled(page);
      return [count, sum, filters.find((x) => /called|directly in main|directly in step/.test(x))];
    };
    assert.deepEqual(await rows(row.getByRole("link").first()), ["3", "165 µs", "called from main ✕"]);
    assert.deepEqual(await rows(row.getByRole("link").last()), ["5", "245 µs", undefined]);
    // The kernel launched by main itself, and the function step.
    await visit(page, `/sessions/${sampled}/code?view=flame&zoom=0.2`);
    assert.deepEqual(await rows(row.getByRole("link").first()), ["1", "5.00 µs", "launched directly in main ✕"]);
    await visit(page, `/sessions/${sampled}/code?view=flame&zoom=0.0`);
    assert.deepEqual(await rows(row.getByRole("link").first()), ["1", "100 µs", "called from step ✕"]);
    await close(page);
  });
});
