// SPDX-License-Identifier: Apache-2.0
//
// Follows every number of every view to the rows that it is made of. They must add up to it. Num and
// row in src/ui/parts.tsx mark numbers and rows.
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import { api, base, close, eventually, lines, open, send, visit } from "./browser.mjs";

let sessions;
const of = (service) => {
  const s = sessions.find((x) => x.service === service);
  assert.ok(s, `session of ${service}`);
  return `/sessions/${encodeURIComponent(s.id)}`;
};

before(async () => {
  for (const l of lines("../examples/recordings/pytorch.otlp.jsonl.gz")) await send(l);
  sessions = await eventually("the recording is stored", async () => {
    const page = await api("/sessions");
    return page.sessions.some((s) => s.service === "pytorch" && s.operations.kernel === 4859) && page.sessions;
  });
});

const sum = (rows, key) => rows.reduce((n, r) => n + (r[key] ?? 0), 0);

/** percentile is the smallest value that at least p percent of the rows do not exceed. */
function percentile(rows, p) {
  const sorted = rows.map((r) => r.ns).sort((a, b) => a - b);
  return sorted[Math.ceil((sorted.length * p) / 100) - 1];
}

/** made computes a number from the rows of its target. */
function made(number, rows) {
  const metrics = (name) => rows.reduce((n, r) => n + (r.metrics?.[name] ?? 0), 0);
  switch (number.made) {
    case "rows":
      return rows.length;
    case "mean":
      return Math.round(sum(rows, "ns") / rows.length);
    case "max":
      return Math.max(...rows.map((r) => r.ns));
    case "p50":
    case "p99":
      return percentile(rows, Number(number.made.slice(1)));
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

/** operations reads all rows that the page of operations has in parts. Its parameters are those of the API. */
async function operations(href) {
  const url = new URL(href.replace("/launches", "/operations"), `${base}/api/v1/`);
  url.pathname = `/api/v1${url.pathname}`;
  url.searchParams.set("limit", "20000");
  const { operations } = await (await fetch(url)).json();
  return operations.map((o) => ({
    ns: o.duration_ns,
    queue: o.queue_ns ?? 0,
    bytes: o.bytes ?? 0,
    kernels: o.operation === "kernel" ? 1 : 0,
  }));
}

/** jsonOf reads an answer of the API that a number links to. */
async function jsonOf(number) {
  const body = await (await fetch(base + number.href)).json();
  if (number.made === "value") return { points: body.value };
  if (number.made === "rate")
    return {
      points: body.value.slice(1).map((v, i) => ((v - body.value[i]) / (body.time[i + 1] - body.time[i])) * 1e9),
    };
  const pc = /^pc (\d+)$/.exec(number.of)?.[1];
  return body.samples
    .filter((s) =>
      pc === undefined
        ? s.what === number.of
        : s.pc === Number(pc) &&
          (s.kind === "stall" ? !s.what.endsWith("_not_issued") : s.what === "smsp__sass_inst_executed"),
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
  system: () => `${of("minigpt")}/system`,
  compare: () => `/compare?a=${of("minigpt").slice(10)}&b=${of("pytorch").slice(10)}`,
  "compare shapes": () => `/compare?a=${of("minigpt").slice(10)}&b=${of("pytorch").slice(10)}&by=shape&q=softmax`,
  "compare scopes": () => `/compare?a=${of("minigpt").slice(10)}&b=${of("pytorch").slice(10)}&by=scope`,
  "usage by application": () => "/usage",
  "usage by host": () => "/usage?by=host",
  "usage by run": () => "/usage?by=run",
  "usage by session": () => "/usage?by=session",
  "usage by scope": () => "/usage?by=scope",
  "usage by request": () => "/usage?by=request",
  "sessions of a scope": () => "/usage?by=scope&of=%3Dstep",
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

// Numbers without rows, because the recordings have none.
const none = new Set(["usage by run"]);

describe("every number is made of the rows that it links to", () => {
  const known = new Map();
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
          rows = launches ? await operations(n.href) : await shown(page, n.href);
          known.set(n.href, rows);
        }
        if (launches && !opened.has(n.made)) {
          opened.add(n.made);
          const first = await shown(page, n.href);
          assert.deepEqual(first, rows.slice(0, first.length), n.href);
          assert.ok(first.length === rows.length || first.length === 500, n.href);
        }
        const got = made(n, rows);
        // Sums of fractions depend on their order.
        const fraction = ["ratio", "seconds", "cost"].includes(n.made);
        const slack = /^p\d/.test(n.made) ? 0.033 * n.value : fraction ? 1e-9 : 0;
        assert.ok(Math.abs(got - n.value) <= slack, `${n.text}: ${n.made} of ${n.href} is ${got}, not ${n.value}`);
      }
      console.log(`${name}: ${numbers.length} numbers`);
      await close(page);
    });
  }
});
