// SPDX-License-Identifier: Apache-2.0
//
// Follows every number of every view to the rows that it is made of. They must add up to it. Num and
// row in src/ui/parts.tsx mark numbers and rows.
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { api, base, close, eventually, lines, open, send, serious, settled, visit } from "./browser.mjs";

let sessions;
const of = (service) => {
  const s = sessions.find((x) => x.service === service);
  assert.ok(s, `session of ${service}`);
  return `/sessions/${encodeURIComponent(s.id)}`;
};

const recordings = {
  pytorch: ["../examples/recordings/pytorch.otlp.jsonl.gz", 4859],
  balanced: ["../test/gpu/causes/recordings/balanced.otlp.jsonl.gz", 458],
  slow_layer: ["../test/gpu/causes/recordings/slow_layer.otlp.jsonl.gz", 464],
  tiny: ["../test/gpu/causes/recordings/tiny.otlp.jsonl.gz", 4519],
  // Two ranks of one run.
  "rank 0": ["../test/gpu/ranks/recordings/nccl-host-0.otlp.jsonl.gz", 2786],
  "rank 1": ["../test/gpu/ranks/recordings/nccl-host-1.otlp.jsonl.gz", 2786],
};

before(async () => {
  for (const [file] of Object.values(recordings)) for (const l of lines(file)) await send(l);
  const kernels = Object.values(recordings).map(([, n]) => n);
  sessions = await eventually("the recordings are stored", async () => {
    const page = await api("/sessions");
    const stored = page.sessions.map((s) => s.operations.kernel);
    return (
      kernels.every((n) => stored.filter((m) => m === n).length === kernels.filter((m) => m === n).length) &&
      page.sessions
    );
  });
});

const sum = (rows, key) => rows.reduce((n, r) => n + (r[key] ?? 0), 0);

/** percentile is the smallest value that at least p percent of the values do not exceed. */
const percentile = (values, p) => values.toSorted((a, b) => a - b)[Math.ceil((values.length * p) / 100) - 1];

/** union is the length of the union of intervals. */
function union(intervals) {
  let [sum, end] = [0, Number.NEGATIVE_INFINITY];
  for (const [a, b] of intervals.toSorted((x, y) => x[0] - y[0])) {
    sum += Math.max(0, b - Math.max(a, end));
    end = Math.max(end, b);
  }
  return sum;
}

/** part is the time of a class of work in the interval of an address. Copies count where nothing else runs. */
function part(number, rows) {
  const q = new URL(number.href, base).searchParams;
  const [from, to] = [Number(q.get("from")), Number(q.get("to"))];
  const of = (...classes) =>
    union(
      rows.filter((o) => classes.includes(o.class)).map((o) => [Math.max(o.start, from), Math.min(o.start + o.ns, to)]),
    );
  const compute = of("compute");
  const kernels = of("compute", "communication");
  const all = of("compute", "communication", "copy");
  return { compute, communication: kernels - compute, copy: all - kernels, idle: to - from - all }[number.of];
}

/** median is the bandwidth at or below which half of the bytes moved. */
function median(rows) {
  const sorted = rows.map((r) => r.values).sort((a, b) => a.bus - b.bus);
  const half = sorted.reduce((n, v) => n + v.bytes, 0) / 2;
  let bytes = 0;
  return sorted.find((v) => {
    bytes += v.bytes;
    return bytes >= half;
  }).bus;
}

/** made computes a number from the rows of its target. */
function made(number, rows) {
  const column = (name) => rows.filter((r) => r.values && name in r.values).map((r) => r.values[name]);
  const descending = () => column(number.of).sort((a, b) => b - a);
  const metrics = (name) => rows.reduce((n, r) => n + (r.metrics?.[name] ?? 0), 0);
  switch (number.made) {
    case "rows":
      return rows.length;
    case "mean":
      return Math.round(sum(rows, "ns") / rows.length);
    case "max":
      return Math.max(...(number.of ? column(number.of) : rows.map((r) => r.ns)));
    case "p10":
    case "p50":
    case "p95":
    case "p99":
      return percentile(number.of ? column(number.of) : rows.map((r) => r.ns), Number(number.made.slice(1)));
    case "sum":
      return column(number.of).reduce((n, v) => n + v, 0);
    case "scaled": {
      const [, name, compute, kernels] = /^(.*) × (\d+) \/ (\d+)$/.exec(number.of);
      const lost = rows.reduce((n, r) => n + (r.values?.[name] ?? 0), 0);
      return Math.min(lost, Math.trunc((Number(compute) * lost) / Number(kernels)));
    }
    case "late":
      return descending()[0] - descending()[1];
    case "spread":
      return descending()[0] - descending().at(-1);
    case "median":
      return median(rows);
    case "part":
      return part(number, rows);
    case "excess": {
      const [steps, name] = number.of.split(" ");
      const values = rows.map((x) => x.values[name] ?? 0);
      const value = (step) => values[rows.findIndex((x) => x.values.number === Number(step))];
      return steps.split(",").reduce((n, step) => n + value(step) - percentile(values, 50), 0);
    }
    case "ratio": {
      const [a, b] = number.of.split(" / ");
      return metrics(a) / metrics(b);
    }
    case "cost":
      return rows.reduce((n, r) => n + (r.costs?.[number.of] ?? 0), 0);
    default:
      return sum(rows, number.made);
  }
}

/** shown reads the rows that a page of the UI shows. */
async function shown(page, href) {
  await visit(page, href);
  return page.evaluate(() => [...document.querySelectorAll("[data-row]")].map((e) => JSON.parse(e.dataset.row)));
}

/** launchOf has the values of a launch that count for the launch rate: of calls up to 1 ms, at most 100 µs apart. */
function launchOf(o, before, next) {
  if (o.launch_start === undefined) return {};
  next(o.launch_start);
  const [call, interval] = [o.launch_end - o.launch_start, o.launch_start - before];
  return {
    values: {
      ...(call <= 1_000_000 ? { call } : {}),
      ...(interval > 0 && interval <= 100_000 ? { interval } : {}),
    },
  };
}

/** operations reads all rows that the page of operations has in parts. Its parameters are those of the API. */
async function operations(href) {
  const url = new URL(href.replace("/launches", "/operations"), `${base}/api/v1/`);
  url.pathname = `/api/v1${url.pathname}`;
  url.searchParams.set("limit", "20000");
  const calls = url.searchParams.has("calls");
  url.searchParams.delete("calls");
  const { operations } = await (await fetch(url)).json();
  let before;
  return operations.map((o) => ({
    ...(calls && launchOf(o, before, (start) => (before = start))),
    ns: o.duration_ns,
    queue: o.queue_ns ?? 0,
    bytes: o.bytes ?? 0,
    kernels: o.operation === "kernel" ? 1 : 0,
    start: o.start,
    class: o.operation.startsWith("mem") ? "copy" : o.name.startsWith("nccl") ? "communication" : "compute",
  }));
}

/** owned reads all rows that the page of operations with their time has in parts. */
async function owned(href) {
  const url = new URL(href.replace("/owned", "/analysis/operations"), `${base}/api/v1/`);
  url.pathname = `/api/v1${url.pathname}`;
  url.searchParams.set("limit", "10000");
  const { operations, count } = await (await fetch(url)).json();
  assert.equal(operations.length, count, href);
  return operations.map((o) => ({
    values: {
      wall: o.wall_ns,
      idle: o.idle_ns,
      late: o.late ? 1 : 0,
      ...(o.queue_ns === undefined ? {} : { queue: o.queue_ns }),
      ...o.idle_by_cause_ns,
    },
  }));
}

/** asShown has the values of a row of the page of operations. */
const asShown = ({ start: _, class: __, ...row }) => row;

/** jsonOf reads an answer of the API that a number links to. */
async function jsonOf(number) {
  const body = await (await fetch(base + number.href)).json();
  if (number.made === "value") return { points: body.value };
  if (number.made === "rate")
    return {
      points: body.value.slice(1).map((v, i) => ((v - body.value[i]) / (body.time[i + 1] - body.time[i])) * 1e9),
    };
  const [, place, at, what] = /^(pc|line) (\d+) ?(.*)$/.exec(number.of) ?? [];
  return body.samples
    .filter((s) =>
      place === undefined
        ? s.what === number.of
        : s[place] === Number(at) &&
          (what
            ? s.what === what
            : s.kind === "stall"
              ? !s.what.endsWith("_not_issued")
              : s.what === "smsp__sass_inst_executed"),
    )
    .map((s) => ({ samples: s.value }));
}

const views = {
  sessions: () => "/",
  kernels: () => `${of("pytorch")}/kernels`,
  "kernels by shape": () => `${of("minigpt")}/kernels?group=shape`,
  "kernels by scope": () => `${of("pytorch")}/kernels?group=path`,
  "kernels by stream": () => `${of("pytorch")}/kernels?group=lane`,
  "kernels of an interval": () => `${of("pytorch")}/kernels?from=3750000000&to=3760000000`,
  "kernels of a scope": async () => `${of("pytorch")}/kernels?path=${await pathOf("pytorch", "backward")}`,
  scopes: async () => `${of("pytorch")}/scopes?path=${await pathOf("pytorch", "step")}`,
  "scopes with samples": async () =>
    `${of("heldout_sassmetrics")}/scopes?path=${await pathOf("heldout_sassmetrics", "branchy")}`,
  "scopes with queues": async () =>
    `${of("heldout_rangeprofiler")}/scopes?sort=queue&path=${(await api(`${of("heldout_rangeprofiler")}/scopes`)).nodes[1].path}`,
  code: () => `${of("heldout_sassmetrics")}/code`,
  "code of a scope": async () =>
    `${of("heldout_sassmetrics")}/code?path=${await pathOf("heldout_sassmetrics", "strided")}`,
  "instruction of a listing": () => `${of("heldout_sassmetrics")}/code?what=sass+256`,
  "flame graph": () => `${of("minigpt")}/code?view=flame`,
  "frame of the flame graph": () => `${of("minigpt")}/code?view=flame&zoom=0.0.0`,
  "host function of the flame graph": () => `${of("minigpt")}/code?view=flame&zoom=0`,
  "host stack of the flame graph": async () => {
    const { stacks } = await api(`${of("minigpt")}/stacks`);
    assert.ok(
      stacks.some((s) => s.stack.length),
      "the session has host stacks",
    );
    return `${of("minigpt")}/code?view=flame&zoom=0.0.0.0.0`;
  },
  "scopes of the flame graph": () => `${of("pytorch")}/code?view=flame&zoom=0`,
  findings: () => `${of("slow_layer")}/findings`,
  "findings of a rank": () => `${of("unknown_service:python3.12")}/findings`,
  "findings without steps by scope": () => `${of("minigpt")}/findings`,
  "findings of a launch-bound program": () => `${of("tiny")}/findings`,
  "findings with small kernels": () => `${of("pytorch")}/findings`,
  "findings of an interval": () => `${of("pytorch")}/findings?from=2800000000&to=3760000000`,
  steps: () => `${of("pytorch")}/findings?list=steps`,
  "gaps of a cause": async () => {
    const [{ id }] = (await api(`${of("minigpt")}/analysis`)).devices;
    return `${of("minigpt")}/gaps?cause=host&device=${id}`;
  },
  "operations of a scope": () => ownedOf("slow_layer", "scope=%0Astep"),
  "operations outside scopes": () => ownedOf("minigpt", "scope=%0A"),
  "kernels to fuse": () => ownedOf("tiny", "finding=fusion"),
  "critical path": async () => {
    const step = (await api(`${of("slow_layer")}/analysis`)).steps.typical;
    return `${of("slow_layer")}/timeline?path=1&m0=${step.start}&m1=${step.start + step.wall_ns}`;
  },
  ranks: () => "/ranks?run=nccl-host",
  "collectives of a rank": () => "/ranks?run=nccl-host&rank=1",
  system: () => `${of("minigpt")}/system`,
  compare: () => `/compare?a=${of("minigpt").slice(10)}&b=${of("pytorch").slice(10)}`,
  "compare steps": () => `/compare?a=${of("balanced").slice(10)}&b=${of("slow_layer").slice(10)}`,
  "compare shapes": () => `/compare?a=${of("minigpt").slice(10)}&b=${of("pytorch").slice(10)}&by=shape&q=softmax`,
  "compare scopes": () => `/compare?a=${of("minigpt").slice(10)}&b=${of("pytorch").slice(10)}&by=scope`,
  "usage by application": () => "/usage",
  "usage by namespace": () => "/usage?by=namespace",
  "usage by host": () => "/usage?by=host",
  "usage by run": () => "/usage?by=run",
  "usage by session": () => "/usage?by=session",
  "usage by scope": () => "/usage?by=scope",
  "usage by request": () => "/usage?by=request",
  "sessions of a scope": () => "/usage?by=scope&of=%3Dstep",
  "sessions without a run": () => "/usage?by=run&of=%3D",
  "sessions outside scopes": () => "/usage?by=scope&of=%3D",
  launch: async () => {
    const { operations } = await api(`${of("pytorch")}/operations?operation=kernel&sort=duration&limit=1`);
    const [op] = operations;
    return `${of("pytorch")}/timeline?from=${op.start - 50_000}&to=${op.start + 100_000}&sel=${op.span}&at=${op.start}`;
  },
  "scope in the timeline": async () => {
    const { spans } = await api(`${of("pytorch")}/spans?name=step&limit=3`);
    return `${of("pytorch")}/timeline?sel=${spans[2].span}&at=${spans[2].start}`;
  },
  "measured interval": () => `${of("pytorch")}/timeline?m0=2800000000&m1=3760000000`,
};

const pathOf = async (service, name) => (await api(`${of(service)}/scopes`)).nodes.find((n) => n.name === name)?.path;

const ownedOf = async (service, query) => {
  const { device } = await api(`${of(service)}/analysis/scopes`);
  return `${of(service)}/owned?device=${device}&${query}`;
};

// Pages without numbers: they have the rows of numbers.
const none = new Set([
  "collectives of a rank",
  "operations of a scope",
  "operations outside scopes",
  "kernels to fuse",
]);

// Cells of tables with a digit and without a link, by table and column: why they need none.
const unlinked = new Map(
  Object.entries({
    "it is a name or a listing": [
      "Bus bandwidth: Ranks",
      "Cost: Application",
      "Cost: Scope",
      "Differences: Kernel",
      "Idle time by cause: Cause of idle time",
      "Kernels of the frame: Kernels of all frames",
      "Kernels of the frame: Kernels of the frame",
      "Largest delays: Last",
      "Listing: line",
      "Sessions of the group: Session",
      "Usage: Application",
      "Usage: Scope",
      "Usage: Session",
    ],
    "it is a fact of one record, which the link of its row opens": [
      "All steps: A graph saves",
      "All steps: Number",
      "All steps: Start",
      "Gaps of a cause: With this cause",
      "Instances: Wall",
      "Kernels: Grid, block",
      "Kernels: Occupancy",
      "Operations with their time: Device time",
      "Operations with their time: Idle before",
      "Operations with their time: Operation", // the number of those that are not listed
      "Operations with their time: Queued",
      "Parts of collectives: Exposed",
      "Parts of collectives: Late",
      "Parts of collectives: Left",
      "Parts of collectives: Overlapped",
      "Parts of collectives: Rank", // the sum of those that are not listed
      "Parts of collectives: Waited",
      "Sessions: Duration",
      "Sessions: Size on disk",
      "Sessions: Started",
      "Slow steps: Number",
      "Slow steps: Start",
      "Small kernels: Grid, block",
      "Small kernels: Grid fill",
      "Small kernels: Occupancy",
      "Small kernels: Waves",
    ],
    "it is a sum of those that are not listed": [
      "Small kernels: Kernel too small for the device of the rest",
      "Small kernels: Launches of the rest",
      "Small kernels: Lost of the rest",
      "Small kernels: Total of the rest",
    ],
    "it is the difference or the ratio of numbers that its row or table links": [
      "Critical path by kind: Share",
      "Differences: Change",
      "Differences: Difference",
      "Differences: Per launch",
      "Idle time by cause: Of active",
      "Kernels: Share",
      "Limits of scopes: Share",
      "Scopes: Share",
      "Small kernels: Lost",
      "Usage: Share",
    ],
    "it is the result of a test or of the alignment of clocks, of which its title or its head has the formula": [
      "Differences: Result",
      "Largest delays: Bounds",
      "Ranks: Clock ahead",
      "Steps: At 95 %",
      "Steps: Change",
      "Steps: Effect",
    ],
  }).flatMap(([reason, list]) => list.map((cell) => [cell, reason])),
);

describe("every number is made of the rows that it links to", () => {
  const [known, pages] = [new Map(), new Map()];
  for (const [name, address] of Object.entries(views)) {
    test(name, async () => {
      const page = await open(await address());
      const numbers = await page.evaluate(() =>
        [...document.querySelectorAll("a[class*='num']")].map((e) => ({
          href: e.getAttribute("href"),
          made: e.dataset.made,
          value: Number(e.dataset.value),
          of: e.dataset.of,
          text: e.textContent,
        })),
      );
      const cells = await page.evaluate(() =>
        [...document.querySelectorAll("td")]
          .filter((e) => e.checkVisibility() && !e.querySelector("a") && /\d/.test(e.textContent))
          .map((e) => {
            const table = e.closest("table");
            const head = table.querySelectorAll("thead th")[e.cellIndex];
            const name = table.getAttribute("aria-label") ?? "Listing";
            const rest = e.closest("tr[data-rest]") ? " of the rest" : "";
            return [`${name}: ${head ? head.textContent : "line"}${rest}`, e.textContent];
          }),
      );
      const without = new Map(cells.filter(([cell]) => !unlinked.has(cell)));
      assert.deepEqual([...without], [], "cells with a number that is no link to its rows");
      const opened = new Set(); // One number of each kind is opened in the page of operations.
      assert.ok(numbers.length > 0 || none.has(name), "the view has numbers");
      for (const n of numbers) {
        assert.ok(n.made, `"${n.text}" says how it is made`);
        if (n.href.startsWith("/api/")) {
          const rows = await jsonOf(n);
          if (rows.points) assert.ok(rows.points.includes(n.value), `${n.text}: ${n.value} is a point`);
          else assert.equal(sum(rows, "samples"), n.value, `${n.text}: ${n.href}`);
          continue;
        }
        let rows = known.get(n.href);
        const launches = n.href.includes("/launches");
        if (!rows) {
          rows = launches
            ? await operations(n.href)
            : n.href.includes("/owned")
              ? await owned(n.href)
              : await shown(page, n.href);
          known.set(n.href, rows);
        }
        if (launches && !opened.has(n.made)) {
          opened.add(n.made);
          const first = await shown(page, n.href);
          assert.deepEqual(first, rows.slice(0, first.length).map(asShown), n.href);
          assert.ok(first.length === rows.length || first.length === 500, n.href);
        }
        const got = made(n, rows);
        // Sums of fractions depend on their order.
        const fraction = ["ratio", "seconds", "cost"].includes(n.made);
        if (n.href.includes("/owned") && n.made === "sum") {
          // The page has the first rows, and one for the others.
          if (!pages.has(n.href)) pages.set(n.href, await shown(page, n.href));
          assert.equal(made(n, pages.get(n.href)), n.value, `${n.text}: the rows of ${n.href}`);
        }
        // The store keeps a histogram of durations, of times in the queue and of launches. Shares of launches without a host stack are estimates.
        const estimate = !Number.isInteger(n.value) && ["ns", "kernels"].includes(n.made);
        const slack =
          /^p\d/.test(n.made) && (!n.of || ["queue", "call", "interval"].includes(n.of))
            ? 0.033 * n.value
            : fraction
              ? 1e-9
              : estimate
                ? 1e-6 * n.value
                : 0;
        assert.ok(Math.abs(got - n.value) <= slack, `${n.text}: ${n.made} of ${n.href} is ${got}, not ${n.value}`);
      }
      console.log(`${name}: ${numbers.length} numbers`);
      await close(page);
    });
  }
});

describe("what limits scopes and launches", () => {
  const cells = (table) =>
    table.locator("tbody tr").evaluateAll((rows) => rows.map((r) => [...r.cells].map((c) => c.innerText.trim())));

  test("of a launch-bound program", async () => {
    const page = await open(`${of("tiny")}/findings`);
    assert.deepEqual(await cells(page.getByRole("table", { name: "Limits of scopes" })), [
      ["step", "launch", "44.3 ms", "100 %", "", "91 %", "launch 74 %, latency 17 %", "100 %", "2.11 µs"],
    ]);
    assert.equal(
      await page.getByTestId("launches").innerText(),
      "Launches: one every 10.5 µs (median). A call takes 5.76 µs, and at the 10th percentile 4.22 µs, with recording.",
    );
    // Each number of the text of an advice that has rows is a link to them.
    const linked = await page
      .getByRole("region", { name: "Advice" })
      .locator("li")
      .evaluateAll((all) => all.map((li) => [...li.querySelectorAll("p:first-child a")].map((a) => a.textContent)));
    assert.deepEqual(linked, [
      ["32.7 ms"],
      ["7.52 ms"],
      ["1.49 ms", "2.52 ms", "1.09 ms"],
      ["3.76 ms", "4.97 ms"],
      ["39.5 ms"],
      ["37.8 ms"],
    ]);
    assert.deepEqual(await cells(page.getByRole("table", { name: "Small kernels" })), [
      [
        "vectorized_elementwise_kernel",
        "1 × 1 × 1 128 × 1 × 1",
        "4,500",
        "4.97 ms",
        "4.96 ms",
        "< 0.1 %",
        "< 0.001",
        "100 % warps, registers",
      ],
      ["1 other kernel", "", "2", "1.86 µs", "1.85 µs", "", "", ""],
    ]);
    const late = page.getByRole("table", { name: "Limits of scopes" }).getByTitle("3,750 of 3,750 launches");
    assert.equal(await late.count(), 1);
    await close(page);
  });

  test("of a program that the device limits: few launches are late, and no kernel is too small", async () => {
    const page = await open(`${of("slow_layer")}/findings`);
    const table = page.getByRole("table", { name: "Limits of scopes" });
    assert.deepEqual(await cells(table), [
      ["step", "device", "84.7 ms", "100 %", "", "1.6 %", "latency 1.6 %", "0.2 %", "29.9 ms"],
    ]);
    assert.equal(await table.getByTitle("2 of 804 launches").count(), 1);
    assert.equal(await page.getByRole("table", { name: "Small kernels" }).count(), 0);
    await close(page);
  });

  test("all operations of a device, without a scope", async () => {
    const page = await open(await ownedOf("slow_layer", ""));
    await page.getByRole("heading", { name: "Device time", exact: true }).waitFor();
    await close(page);
  });

  test("operations of a scope of too many", async () => {
    const page = await open(await ownedOf("slow_layer", "scope=%0Astep"));
    await page.getByRole("heading", { name: "Device time of scope step" }).waitFor();
    // More than 200,000 scopes would take too long to send.
    await page.route("**/analysis/operations?*", async (route) => {
      const response = await route.fetch();
      await route.fulfill({
        response,
        json: { ...(await response.json()), operations: [], count: 0, many_scopes: true },
      });
    });
    await page.reload();
    await page.getByText("There are more than 200,000 scopes").waitFor();
    assert.equal(await page.getByText(/^(No operation|0 operations)/).count(), 0);
    await close(page);
  });

  test("scopes sum to the active time, and each opens its instances", async () => {
    const { devices } = await api(`${of("pytorch")}/analysis`);
    const { scopes } = await api(`${of("pytorch")}/analysis/scopes`);
    const active = devices[0].active;
    const top = scopes.filter((x) => x.path.length < 2);
    assert.equal(sum(top, "wall_ns"), active.wall_ns - (active.idle_by_cause_ns.nothing_queued ?? 0));
    const page = await open(`${of("pytorch")}/findings`);
    const table = page.getByRole("table", { name: "Limits of scopes" });
    const names = (await cells(table)).map(([name]) => name);
    assert.deepEqual(names, ["step", "forward", "backward", "optimizer"]);
    await page.getByText(`${scopes.length - names.length} scopes with less time`).waitFor();
    await table.getByRole("link", { name: "backward" }).click();
    await page.getByRole("region", { name: "Instances" }).getByRole("heading", { name: "step › backward" }).waitFor();
    await close(page);
  });
});

describe("what is said in words", () => {
  test("how certain a comparison is that steps are the same", async () => {
    const page = await open(`/compare?a=${of("balanced").slice(10)}&b=${of("slow_layer").slice(10)}`);
    const verdict = page.getByRole("region", { name: "Verdict" });
    await verdict.getByText("no significant difference", { exact: true }).waitFor();
    assert.equal(
      await verdict.getByTestId("confidence").innerText(),
      "With 95 % confidence, the step time changed by −20 % to +17 % (not corrected). If nothing had changed, a difference this large or larger would have a probability of 100 % (corrected for the number of tests). A change is reported if this probability is at most 5 %.",
    );
    await close(page);
  });

  test("which rank each timeline of a collective is of", async () => {
    const page = await open("/ranks?run=nccl-host");
    const row = page.getByRole("table", { name: "Largest delays" }).locator("tbody tr").first();
    assert.equal(await row.locator("td").last().innerText(), "rank 0 · rank 1");
    await close(page);
  });

  test("the advice about communication leads to the ranks", async () => {
    const waits = sessions.find((s) => s.run === "nccl-host" && s.rank === "0");
    const page = await open(`/sessions/${waits.id}/findings`);
    await page.getByRole("region", { name: "Advice" }).getByRole("link", { name: "view Ranks" }).click();
    await page.waitForURL(/ranks\?run=nccl-host$/);
    await page.getByRole("table", { name: "Ranks" }).waitFor();
    await close(page);
  });

  test("the full name of a kernel", async () => {
    const { operations, shapes } = await api(`${of("pytorch")}/operations?operation=kernel&sort=duration&limit=1`);
    const page = await open(await views.launch());
    const name = page.getByLabel("Inspector").getByText(shapes[0].full_name, { exact: true });
    assert.ok(shapes[0].full_name.length > operations[0].name.length);
    const [hidden, cut] = await name.evaluate((e) => [e.scrollHeight - e.clientHeight, e.scrollWidth - e.clientWidth]);
    assert.deepEqual([hidden, cut], [0, 0]);
    await close(page);
  });

  test("what advice can save", async () => {
    const page = await open(`${of("slow_layer")}/findings`);
    await page
      .getByText("This can save at most 10.8 ms of the 84.7 ms of active time, so at least 73.9 ms remain.")
      .waitFor();
    await close(page);
  });
});

test("skip buttons lead from the link to Findings to the kernel of the slow step in 7 Tabs", async () => {
  const page = await open(`${of("slow_layer")}/timeline`);
  await page.getByRole("link", { name: "Findings", exact: true }).focus();
  await page.keyboard.press("Enter");
  await page.waitForURL(/findings/);
  await settled(page);
  const kernel = (await api(`${of("slow_layer")}/analysis`)).steps.outliers[0].kernel;
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  const seen = [];
  for (let i = 0; i < 7; i++) {
    await page.keyboard.press("Tab");
    seen.push(await focused());
    if (seen.at(-1) === "Skip to the table: Slow steps") await page.keyboard.press("Enter");
  }
  assert.equal(seen.indexOf(kernel), 6, String(seen));
  await page.keyboard.press("Enter");
  await page.waitForURL(/launches.*name=/);
  await settled(page);
  const rows = await page
    .getByRole("table", { name: "Operations" })
    .locator("tbody tr td:nth-child(3)")
    .allInnerTexts();
  assert.deepEqual(rows, ["2.67 ms", "2.67 ms", "2.67 ms", "2.67 ms"]);
  await close(page);
});

test("after a click on a row or a link, the keys of the page scroll it", async () => {
  const page = await open("/", { viewport: { width: 1280, height: 400 } });
  const scrolls = async (key) => {
    await settled(page);
    assert.equal(await page.locator("main").evaluate((m) => m.scrollTop), 0);
    await page.keyboard.press(key);
    await page.waitForFunction(() => document.querySelector("main").scrollTop > 0);
  };
  await page
    .locator(`tr[data-session="${of("slow_layer").slice(10)}"] a`)
    .first()
    .click();
  await page.waitForURL(/timeline/);
  await page.getByRole("link", { name: "Findings", exact: true }).click();
  await page.waitForURL(/findings/);
  await scrolls("PageDown");
  await page.locator("main a[href*='list=steps']").first().click();
  await page.waitForURL(/list=steps/);
  await scrolls("Space");
  await page.locator("main a[href*='/launches']").first().click();
  await page.waitForURL(/launches/);
  await scrolls("ArrowDown");
  await close(page);
});

test("a page with several devices has a skip button for each table", async () => {
  const page = await open("/");
  await page.route(/\/analysis\?/, async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    body.devices.push({ ...body.devices[0], id: "second", index: 1 });
    await route.fulfill({ response, json: body });
  });
  await page.goto(`${base}${of("tiny")}/findings`);
  await settled(page);
  const skips = page.getByRole("navigation", { name: "Skip" }).getByRole("button");
  assert.deepEqual(await skips.allInnerTexts(), [
    "Skip to the table: Idle time by cause 1",
    "Skip to the table: Small kernels 1",
    "Skip to the table: Idle time by cause 2",
    "Skip to the table: Small kernels 2",
    "Skip to the table: Steps",
    "Skip to the table: Slow steps",
    "Skip to the table: Limits of scopes",
  ]);
  await skips.nth(2).focus();
  await page.keyboard.press("Enter");
  const tables = page.getByRole("table", { name: "Idle time by cause" });
  const focused = await tables.evaluateAll((all) => all.map((t) => t.contains(document.activeElement)));
  assert.deepEqual(focused, [false, true]);
  await close(page);
});

test("numbers of an analysis that ended early link to what it has read", async () => {
  const page = await open("/");
  const { devices, to: end } = await api(`${of("tiny")}/analysis`);
  const { start } = devices[0];
  const early = start + 10_000_000;
  await page.route(/\/analysis\?/, async (route) => {
    const response = await route.fetch();
    const json = { ...(await response.json()), complete: false, to: early };
    await route.fulfill({ response, json });
  });
  for (const [query, from] of [
    ["", "0"],
    [`?from=${start}&to=${end}`, String(start)],
  ]) {
    await page.goto(`${base}${of("tiny")}/findings${query}`);
    await settled(page);
    const links = await page.locator("main a[class*='num']").evaluateAll((all) => all.map((a) => a.href));
    const to = (end) => links.map((l) => new URL(l)).filter((l) => l.pathname.endsWith(end));
    const rate = to("/launches").filter((l) => l.searchParams.has("calls"));
    const small = to("/launches").filter((l) => l.searchParams.has("shape"));
    const [gaps, scopes] = [to("/gaps"), to("/owned")];
    for (const l of [...rate, ...small, ...gaps, ...scopes])
      assert.deepEqual([l.searchParams.get("from"), l.searchParams.get("to")], [from, String(early)], String(l));
    assert.ok(rate.length && small.length && gaps.length && scopes.length, String(links));
    // The launch rate does not count launches of kernels that began before the interval.
    assert.ok(!rate.some((l) => l.searchParams.has("overlapping")));
  }
  await close(page);
});

test("values that the launch rate does not count are in parentheses", async () => {
  const page = await open(`${of("tiny")}/findings`);
  await page.getByTestId("launches").getByRole("link").first().click();
  await page.waitForURL(/calls=1/);
  await settled(page);
  const rows = await page
    .getByRole("table", { name: "Operations" })
    .locator("tbody tr")
    .evaluateAll((all) =>
      all.map((r) => [
        JSON.parse(r.dataset.row).values,
        [...r.cells].slice(2, 4).map((c) => ({ text: c.innerText, title: c.title })),
      ]),
    );
  const other = /^(\(.*\)|–|unknown)$/;
  for (const [values, [call, interval]] of rows)
    for (const [cell, counts] of [
      [call, values?.call !== undefined],
      [interval, values?.interval !== undefined],
    ]) {
      assert.equal(other.test(cell.text), !counts, cell.text);
      assert.equal(cell.title, counts ? "" : "The launch rate does not count it");
    }
  assert.ok(rows.some(([, [, interval]]) => /^\(.*\)$/.test(interval.text)));
  await close(page);
});

describe("axe-core finds nothing serious at 1,280 px and at 390 px", () => {
  for (const name of [
    "findings of a rank",
    "findings of a launch-bound program",
    "steps",
    "gaps of a cause",
    "kernels to fuse",
    "critical path",
    "launch",
    "measured interval",
    "ranks",
    "collectives of a rank",
    "compare steps",
    "usage by application",
    "usage by scope",
  ])
    test(name, async () => {
      const page = await open(await views[name]());
      assert.deepEqual(await serious(page), []);
      await close(page);
    });
});

test("keys lead to the first row of a table and from row to row", async () => {
  const page = await open("/");
  const focused = () => page.evaluate(() => document.activeElement.closest("tr")?.dataset.session);
  const shown = await page.locator("tr[data-session]").evaluateAll((rows) => rows.map((r) => r.dataset.session));
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the table");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), shown[0]);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), shown[2]);
  await page.keyboard.press("ArrowUp");
  assert.equal(await focused(), shown[1]);
  await page.keyboard.press("Enter");
  await page.waitForURL(new RegExp(`/sessions/${shown[1]}/timeline`));
  await close(page);
});
