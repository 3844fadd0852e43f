// SPDX-License-Identifier: Apache-2.0
//
// Tests of the demo and of exports in a browser, run by test/ui against a Collector with an empty
// store. GPUFLIGHT_URL is the UI.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";

const base = process.env.GPUFLIGHT_URL;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const api = async (path) => (await fetch(`${base}/api/v1${path}`)).json();

let browser;
before(async () => {
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
});
after(() => browser?.close());

async function open(path, context) {
  const page = await (context ?? browser).newPage({ viewport: { width: 1280, height: 800 } });
  page.problems = [];
  page.on("pageerror", (e) => page.problems.push(String(e)));
  page.on("console", (m) => m.type() === "error" && page.problems.push(m.text()));
  page.on("request", (r) => !r.url().startsWith(base) && page.problems.push(`request to ${r.url()}`));
  await page.goto(base + path);
  await page.waitForLoadState("networkidle");
  return page;
}

async function accessible(page) {
  await page.evaluate(axe);
  for (const width of [390, 1280]) {
    await page.setViewportSize({ width, height: 800 });
    const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    const serious = found.violations.filter((v) => v.impact === "serious" || v.impact === "critical");
    assert.deepEqual(
      serious.map((v) => [width, v.id, v.nodes[0].html]),
      [],
    );
  }
}

describe("an empty store", () => {
  test("the first page loads the demo", async () => {
    assert.equal((await api("/sessions")).sessions.length, 0);
    const page = await open("/");
    await page.getByRole("heading", { name: "There is no session yet" }).waitFor();
    await accessible(page);
    await page.getByRole("button", { name: "Load the demo" }).click();
    await page.waitForURL(/\/sessions\/[^/]+\/timeline/);
    await page.getByText("4.86k kernels").or(page.getByText("4,859 kernels")).first().waitFor();
    const list = (await api("/sessions")).sessions;
    assert.deepEqual(list.map((s) => s.service).sort(), ["httpserver", "pytorch", "vectoradd"]);
    assert.deepEqual(page.problems, []);
    await page.close();
  });
});

describe("baselines", () => {
  test("a session becomes a baseline, and ceases to be one", async () => {
    const list = (await api("/sessions")).sessions;
    const [first, second] = ["pytorch", "vectoradd"].map((name) => list.find((s) => s.service === name).id);
    const page = await open(`/sessions/${first}/kernels`);
    await page.locator("summary", { hasText: "Baseline" }).click();
    await accessible(page);
    await page.getByRole("button", { name: "Make baseline" }).click();
    await page.locator("summary", { hasText: "Baseline pytorch" }).waitFor();
    assert.deepEqual((await api("/baselines")).baselines, [{ name: "pytorch", session: first }]);
    await page.goto(`${base}/sessions/${second}/kernels`);
    await page.locator("summary", { hasText: "Baseline" }).click();
    await page.getByRole("textbox", { name: "Name of the baseline" }).fill("pytorch");
    await page.getByText(`The name moves here from session ${first.slice(0, 8)}.`).waitFor();
    await page.getByRole("button", { name: "Make baseline" }).click();
    await page.getByRole("button", { name: "Remove pytorch" }).click();
    await page.locator("summary", { hasText: /^Baseline$/ }).waitFor();
    assert.deepEqual((await api("/baselines")).baselines, []);
    assert.deepEqual(page.problems, []);
    await page.close();
  });
});

describe("exports", () => {
  let session;
  before(async () => {
    session = (await api("/sessions?service=pytorch")).sessions[0];
  });

  test("the menu opens with the keyboard, and its links have all formats", async () => {
    const page = await open(`/sessions/${session.id}/kernels`);
    const summary = page.locator("summary", { hasText: "Export" });
    await summary.focus();
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Open in Perfetto" }).waitFor();
    await accessible(page);
    for (const name of ["Perfetto trace", "Chrome trace", "pprof profile", "Parquet table", "Session file"]) {
      const address = await page.getByRole("link", { name }).getAttribute("href");
      const r = await fetch(base + address, { method: "HEAD" });
      assert.equal(r.status, 200, name);
    }
    await page.keyboard.press("Escape");
    assert.equal(await page.getByRole("button", { name: "Open in Perfetto" }).isVisible(), false);
    assert.deepEqual(page.problems, []);
    await page.close();
  });

  test("the downloaded trace has the kernels of the interval", async () => {
    const operations = (await api(`/sessions/${session.id}/operations?operation=kernel&limit=1000`)).operations;
    const from = operations[100].start;
    const to = operations[200].start;
    const within = operations.filter((o) => o.start < to && (o.start >= from || o.start + o.duration > from)).length;
    const page = await open(`/sessions/${session.id}/timeline?from=${from}&to=${to}`);
    await page.locator("summary", { hasText: "Export" }).click();
    const kernels = async () => {
      const [download] = await Promise.all([
        page.waitForEvent("download"),
        page.getByRole("link", { name: "Chrome trace" }).click(),
      ]);
      assert.equal(download.suggestedFilename(), `${session.id}.trace.json`);
      const trace = JSON.parse(readFileSync(await download.path(), "utf8"));
      return trace.traceEvents.filter((e) => e.cat === "kernel").length;
    };
    assert.equal(await kernels(), within);
    await page.getByRole("checkbox", { name: /only the interval/ }).uncheck();
    assert.equal(await kernels(), session.operations.kernel);
    assert.deepEqual(page.problems, []);
    await page.close();
  });

  test("Perfetto gets the trace after a click, and nothing loads it before", async () => {
    const context = await browser.newContext();
    // A page that answers as Perfetto's does.
    await context.route("https://ui.perfetto.dev/**", (route) =>
      route.fulfill({
        contentType: "text/html",
        body: `<script>addEventListener("message", (e) => {
          if (e.data === "PING") e.source.postMessage("PONG", e.origin);
          else if (e.data.perfetto) document.title = e.data.perfetto.title + " " + e.data.perfetto.buffer.byteLength;
        })</script>`,
      }),
    );
    const page = await open(`/sessions/${session.id}/kernels`, context);
    await page.locator("summary", { hasText: "Export" }).click();
    assert.deepEqual(page.problems, []);
    const [tab] = await Promise.all([
      context.waitForEvent("page"),
      page.getByRole("button", { name: "Open in Perfetto" }).click(),
    ]);
    const bytes = (await (await fetch(`${base}/api/v1/sessions/${session.id}/export?format=perfetto`)).arrayBuffer())
      .byteLength;
    await tab.waitForFunction((title) => document.title === title, `pytorch ${bytes}`);
    assert.equal(new URL(tab.url()).origin, "https://ui.perfetto.dev");
    await page.getByRole("button", { name: "Open in Perfetto" }).waitFor();
    assert.deepEqual(page.problems, []);
    await context.close();
  });
});
