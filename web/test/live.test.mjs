// SPDX-License-Identifier: Apache-2.0
//
// A Collector without data: the first page, a session whose data arrives while pages are open, and
// the import of an exported session. The tests build on each other.
import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { api, base, close, eventually, open, send, serious } from "./browser.mjs";

const session = "11111111-2222-3333-4444-555555555555";
const begin = BigInt(Date.now()) * 1_000_000n;
const hex = (n, digits) => n.toString(16).padStart(digits, "0");
const text = (key, stringValue) => ({ key, value: { stringValue } });
const span = (id, name, from, to, parent, operation, more = []) => ({
  traceId: hex(7, 32),
  spanId: hex(id, 16),
  ...(parent ? { parentSpanId: hex(parent, 16) } : {}),
  name,
  kind: 1,
  startTimeUnixNano: String(begin + BigInt(from) * 1000n),
  endTimeUnixNano: String(begin + BigInt(to) * 1000n),
  attributes: [text("cuda.operation", operation), ...more],
});

/** step is one step of a program: a scope of 900 µs with two kernels of 100 µs each. */
function step(i) {
  const at = i * 1000;
  const kernel = (id, name, from) =>
    span(id, name, from, from + 100, i * 10 + 1, "kernel", [
      text("hw.id", "GPU-1"),
      { key: "cuda.stream.id", value: { intValue: "7" } },
    ]);
  return {
    resourceSpans: [
      {
        resource: { attributes: [text("service.instance.id", session), text("service.name", "live demo")] },
        scopeSpans: [
          {
            spans: [
              span(i * 10 + 1, "step", at, at + 900, 0, "scope"),
              kernel(i * 10 + 2, "gemm_kernel", at + 100),
              kernel(i * 10 + 3, "relu_kernel", at + 300),
            ],
          },
        ],
      },
    ],
  };
}

describe("live session", () => {
  test("the first page says how to get data, and shows the first session by itself", async () => {
    const page = await open("/");
    await page.getByRole("heading", { name: "There is no session yet" }).waitFor();
    assert.deepEqual(await serious(page), []);
    // Its default endpoint is the one of config/local.yaml for OTLP over HTTP.
    assert.equal(await page.locator("pre").first().innerText(), "gpuflight trace -- python train.py");
    await send(step(0));
    await page.getByRole("link", { name: "live demo" }).waitFor();
    await page.getByRole("row").filter({ hasText: "live demo" }).getByText("live", { exact: true }).waitFor();
    await close(page);
  });

  test("the timeline, kernels and scopes follow the data", async () => {
    const pages = await Promise.all([
      open(`/sessions/${session}/timeline`),
      open(`/sessions/${session}/kernels`),
      open(`/sessions/${session}/scopes`),
    ]);
    const [timeline, kernels, scopes] = pages;
    await timeline.getByText("2 operations, each drawn").waitFor();
    await kernels.getByText("2 launches, 200 µs in 2 groups").waitFor();
    await send(step(1));
    await send(step(2));
    await timeline.getByText("6 operations, each drawn").waitFor();
    await timeline.getByText("6 kernels").waitFor();
    await kernels.getByText("6 launches").waitFor();
    const row = scopes.getByRole("row").filter({ hasText: "step" });
    await eventually("three steps", async () => (await row.locator("td").nth(1).innerText()) === "3");
    assert.equal(await row.locator("td").nth(6).getAttribute("title"), "600,000 ns");
    for (const page of pages) await close(page);
  });

  test("an interval that the user chose stays", async () => {
    const page = await open(`/sessions/${session}/timeline?from=1000000&to=2000000`);
    await page.getByText("2 operations, each drawn").waitFor();
    await send(step(3));
    await page.getByText("8 kernels").waitFor();
    await page.getByText("2 operations, each drawn").waitFor();
    assert.match(page.url(), /from=1000000&to=2000000/);
    await close(page);
  });

  test("instances have the sums of the scopes below, and idle time", async () => {
    const { nodes } = await api(`/sessions/${session}/scopes`);
    const page = await open(`/sessions/${session}/scopes?path=${nodes.find((n) => n.name === "step").path}&sort=start`);
    const cells = page.getByRole("table", { name: "Instances" }).locator("tbody tr").nth(1).locator("td");
    assert.equal(await cells.nth(3).innerText(), "2");
    assert.equal(await cells.nth(4).innerText(), "200 µs");
    // Of 900 µs, 100 µs before the first kernel, 100 µs between both and 500 µs after the second one.
    assert.equal(await cells.nth(6).innerText(), "700 µs");
    await close(page);
  });
});

describe("system", () => {
  test("charts name the device, axes are not cut, and an XID leads to the timeline", async () => {
    const resource = { attributes: [text("service.instance.id", session), text("service.name", "live demo")] };
    const nano = (us) => String(begin + BigInt(us) * 1000n);
    const device = (i) => [text("hw.id", `GPU-${i}`), { key: "cuda.device.index", value: { intValue: String(i) } }];
    const points = (attributes, values) =>
      values.map((asDouble, i) => ({ asDouble, attributes, timeUnixNano: nano(i * 1000), startTimeUnixNano: nano(0) }));
    const gauge = (name, unit, dataPoints) => ({ name, unit, gauge: { dataPoints } });
    const sum = (name, unit, dataPoints) => ({
      name,
      unit,
      sum: { aggregationTemporality: 2, isMonotonic: true, dataPoints },
    });
    await send({
      resourceMetrics: [
        {
          resource,
          scopeMetrics: [
            {
              metrics: [
                gauge("hw.power", "W", [...points(device(1), [310, 320]), ...points(device(0), [210, 220])]),
                gauge("hw.fan.speed_ratio", "1", [...points(device(1), [0.5, 0.6]), ...points(device(0), [0.3, 0.4])]),
                ...[11, 12].map((pid) =>
                  gauge(
                    "process.gpu.memory.usage",
                    "By",
                    points(
                      [
                        ...device(0),
                        text("process.executable.name", "python3"),
                        { key: "process.pid", value: { intValue: String(pid) } },
                      ],
                      [0, pid * 2 ** 20],
                    ),
                  ),
                ),
                gauge("hw.gpu.io.throughput", "By/s", [
                  ...points(device(0), [0, 4096]),
                  ...points([...device(0), text("network.io.direction", "receive")], [0, 1024]),
                ]),
                gauge(
                  "hw.gpu.utilization",
                  "1",
                  ["general", "encoder"].flatMap((task) =>
                    points([...device(0), text("hw.gpu.task", task)], [0.25, 0.5]),
                  ),
                ),
                sum("hw.gpu.interconnect.io", "By", points(device(0), [0, 1024, 3072])),
                sum("hw.errors", "{error}", points(device(0), [0, 0.0003, 0.0005])),
              ],
            },
          ],
        },
      ],
    });
    const logs = Array.from({ length: 101 }, (_, i) => ({
      timeUnixNano: nano(1500 + i),
      eventName: "gpu.xid",
      body: { stringValue: "XID 31: memory page fault" },
      attributes: [
        text("hw.id", "GPU-1"),
        { key: "gpu.xid.code", value: { intValue: "31" } },
        { key: "process.pid", value: { intValue: "4242" } },
      ],
    }));
    await send({ resourceLogs: [{ scopeLogs: [{ logRecords: logs }] }] });
    await eventually("the XIDs are stored", async () => {
      const page = await api(`/sessions/${session}/logs?source=system&event=gpu.xid&limit=200`);
      return page.logs.length === 101;
    });
    const page = await open(`/sessions/${session}/system`);
    const legend = (title) => page.getByRole("region", { name: title, exact: true }).locator("li").allInnerTexts();
    await page.getByRole("region", { name: "Errors" }).waitFor();
    assert.deepEqual(await legend("Power"), ["GPU 0 last 220 W", "GPU 1 last 320 W"]);
    assert.deepEqual(await legend("Fan"), ["GPU 0 last 40 %", "GPU 1 last 60 %"]);
    assert.deepEqual(await legend("GPU memory by process"), [
      "GPU 0 · python3 · pid 11 last 11.0 MiB",
      "GPU 0 · python3 · pid 12 last 12.0 MiB",
    ]);
    assert.deepEqual(await legend("PCIe throughput"), [
      "GPU 0 · both directions last 4.00 KiB/s",
      "GPU 0 · receive last 1.00 KiB/s",
    ]);
    assert.deepEqual(await legend("GPU utilisation"), [
      "GPU 0 · time with a kernel last 50 %",
      "GPU 0 · video encoder last 50 %",
    ]);
    assert.deepEqual(await legend("NVLink transfer"), ["GPU 0 last 1.95 MiB/s"]);
    assert.deepEqual(await legend("Errors"), ["GPU 0 last 0.200 error/s"]);
    // The axis is as wide as its labels.
    const [room, need] = await page.getByRole("region", { name: "Errors" }).evaluate((e) => {
      const c = document.createElement("canvas").getContext("2d");
      c.font = "11px system-ui, 'DejaVu Sans'";
      const room =
        e.querySelector(".u-over").getBoundingClientRect().left -
        e.querySelector(".u-wrap").getBoundingClientRect().left;
      return [room, c.measureText("0.300 error/s").width];
    });
    assert.ok(room > need + 10, `${need} px of text in ${room}`);
    await page.getByText("on GPU-1, process 4242: XID 31: memory page fault").first().waitFor();
    await page.getByText("Only the first 100 are listed.").waitFor();
    assert.deepEqual(await serious(page), []);
    await page.getByRole("link", { name: "2 ms", exact: true }).first().click();
    await page.waitForURL((u) => {
      const [from, to] = ["from", "to"].map((k) => Number(u.searchParams.get(k)));
      return u.pathname.endsWith("/timeline") && from < 1_500_000 && to > 1_500_000 && to - from < 100_000_000;
    });
    await page.getByText("GPU 1 power").waitFor();
    await close(page);
  });
});

describe("usage", () => {
  test("the cost that gpu_usage measured, by request", async () => {
    const sum = (name, asDouble, attributes, service) => ({
      resource: { attributes: [text("service.name", service)] },
      scopeMetrics: [
        {
          metrics: [
            {
              name,
              sum: {
                aggregationTemporality: 2,
                isMonotonic: true,
                dataPoints: [
                  {
                    asDouble,
                    startTimeUnixNano: String(begin),
                    timeUnixNano: String(begin + 1_000_000_000n),
                    attributes,
                  },
                ],
              },
            },
          ],
        },
      ],
    });
    const request = text("cuda.request.operation", "POST /generate");
    const currency = text("cuda.cost.currency", "USD");
    // The worked example of docs/usage.md.
    await send({
      resourceMetrics: [
        sum("gpu.cuda.cost", 0.0045, [request, currency], "llm"),
        sum("gpu.cuda.time", 6, [request], "llm"),
        sum("gpu.cuda.cost", 0.002, [currency], "_idle"),
      ],
    });
    const page = await open("/usage?by=request");
    const row = page.getByRole("table", { name: "Cost" }).getByRole("row").filter({ hasText: "POST /generate" });
    assert.deepEqual((await row.locator("td").allInnerTexts()).slice(0, 3), ["POST /generate", "6.00 s", "$0.0045"]);
    await page.getByRole("link", { name: "Application" }).click();
    const idle = page.getByRole("table", { name: "Cost" }).getByRole("row").filter({ hasText: "idle devices" });
    await idle.getByText("$0.002", { exact: true }).waitFor();
    assert.deepEqual(await serious(page), []);
    await close(page);
  });
});

describe("import", () => {
  test("an exported session opens in an empty store", async () => {
    const file = join(mkdtempSync(join(tmpdir(), "gpuflight-ui-")), "session.duckdb");
    const exported = await fetch(`${base}/api/v1/sessions/${session}/export`);
    assert.equal(exported.status, 200);
    writeFileSync(file, Buffer.from(await exported.arrayBuffer()));
    const deleted = await fetch(`${base}/api/v1/sessions/${session}`, { method: "DELETE", headers: { Origin: base } });
    assert.equal(deleted.status, 204);
    const page = await open("/");
    await page.getByRole("heading", { name: "There is no session yet" }).waitFor();
    await page.getByLabel("File of an exported session").setInputFiles(file);
    await page.waitForURL(/\/timeline/);
    await page.getByText("8 operations, each drawn").waitFor();
    await close(page);
  });

  test("a file that is no session gives a sentence", async () => {
    assert.equal((await fetch(`${base}/api/v1/sessions/${session}`, { method: "DELETE" })).status, 204);
    const page = await open("/");
    await page
      .getByLabel("File of an exported session")
      .setInputFiles({ name: "x.duckdb", mimeType: "application/octet-stream", buffer: Buffer.from("no session") });
    const alert = page.getByRole("alert");
    await alert.waitFor();
    assert.match(await alert.innerText(), /^[^{]{10,}$/);
    await page.close();
  });
});

/** rank is the session of one of two ranks, of which the second is 3 ms late in each third collective. */
function rank(r) {
  const int = (key, n) => ({ key, value: { intValue: String(n) } });
  const kernel = (id, name, stream, from, to) =>
    span(r * 1000 + id, name, from, to, 0, "kernel", [text("hw.id", `GPU-${r}`), int("cuda.stream.id", stream)]);
  const spans = [];
  for (let i = 1, at = 0; i <= 12; i++) {
    const jitter = ((i * 37) % 11) * 20;
    const late = i % 3 === 0 ? 3000 : 0;
    const ready = at + 500 + jitter;
    const enter = ready + (r === 1 ? late : 0) + 5 * r;
    const leave = ready + late + 100;
    spans.push(kernel(2 * i, "gemm", 7, at + 10, ready - 10));
    spans.push(kernel(2 * i + 1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, enter, leave));
    at = leave;
  }
  const attributes = [
    text("service.instance.id", `2222222${r}-2222-3333-4444-555555555555`),
    text("service.name", "two ranks"),
    text("cuda.run.id", "run 7"),
    int("cuda.run.rank", r),
    int("cuda.run.size", 2),
  ];
  return { resourceSpans: [{ resource: { attributes }, scopeSpans: [{ spans }] }] };
}

describe("ranks", () => {
  test("the list of sessions leads to the rank that is late, and from there to its spans", async () => {
    await send(rank(0));
    await send(rank(1));
    const page = await open("/?run=run+7");
    await page.getByRole("link", { name: "rank 0", exact: true }).first().click();
    const table = page.getByRole("table", { name: "Ranks" });
    await table.waitFor();
    const row = table.getByRole("row").filter({ hasText: "rank 1" });
    const answer = await api("/ranks?run=run+7");
    assert.equal(answer.collectives_total, 12);
    const late = `${answer.ranks[1].late_ns.toLocaleString("en-US")} ns`;
    assert.equal(await row.locator("td").nth(3).getAttribute("title"), late);
    assert.ok(Math.abs(answer.ranks[1].late_ns - 12_000_000) < 200_000, late);
    await page.getByText("Rank 1 came last in").waitFor();
    assert.deepEqual(await serious(page), []);
    await page.getByText("What the columns mean").first().click();
    await page.getByText("Inside collectives before the last rank entered", { exact: true }).waitFor();
    await page.setViewportSize({ width: 390, height: 800 });
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    const delays = page.getByRole("table", { name: "Largest delays" });
    await delays.getByRole("link").first().click();
    await page.waitForURL(/ranks\?.*from=/);
    await delays.getByRole("link", { name: "rank 1", exact: true }).first().click();
    await page.waitForURL(/sessions\/22222221.*sel=/);
    await page.waitForFunction(() => document.title === "Timeline · two ranks · gpuflight");
    await close(page);
  });
});
