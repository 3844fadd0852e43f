// SPDX-License-Identifier: Apache-2.0
//
// What the browser tests share. GPUFLIGHT_URL is the server.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before } from "node:test";
import { gunzipSync } from "node:zlib";
import { chromium } from "playwright-core";

export const base = process.env.GPUFLIGHT_URL;
export const api = async (path) => (await fetch(`${base}/api/v1${path}`)).json();
export const grouped = (n) => n.toLocaleString("en-US");

let browser;
before(async () => {
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
});
after(() => browser?.close());

/** open opens a page. close fails on errors of scripts, on requests to other hosts and on failed ones. */
export async function open(path, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, ...options });
  page.problems = [];
  page.on("pageerror", (e) => page.problems.push(String(e)));
  page.on("console", (m) => m.type() === "error" && page.problems.push(m.text()));
  page.on("request", (r) => !r.url().startsWith(base) && page.problems.push(`request to ${r.url()}`));
  await page.goto(base + path);
  await settled(page);
  return page;
}

export async function close(page) {
  assert.deepEqual(page.problems, []);
  await page.close();
}

/** settled waits until a page has all its data: nothing is busy for 60 ms. */
export const settled = (page) =>
  page.evaluate(async () => {
    for (let calm = 0; calm < 4; ) {
      await new Promise((r) => setTimeout(r, 15));
      const main = document.querySelector("main[aria-busy]");
      calm = main && !document.querySelector("[aria-busy='true']") ? calm + 1 : 0;
    }
  });

/** visit changes the page as a link does, without a reload. */
export async function visit(page, href) {
  await page.evaluate(async (h) => {
    history.pushState(null, "", h);
    window.dispatchEvent(new PopStateEvent("popstate"));
    await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
  }, href);
  await settled(page);
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** serious returns axe-core's serious and critical findings at the width of the page and at that of a phone. */
export async function serious(page) {
  await page.evaluate(axe);
  const size = page.viewportSize();
  const found = [];
  for (const width of new Set([size.width, 390])) {
    await page.setViewportSize({ ...size, width });
    const { violations } = await page.evaluate(() => window.axe.run());
    for (const v of violations.filter((v) => v.impact === "serious" || v.impact === "critical"))
      found.push(`${width} px, ${v.id}: ${v.nodes.map((n) => `${n.target} ${n.failureSummary}`).slice(0, 3)}`);
  }
  await page.setViewportSize(size);
  return found;
}

/** lines reads a recording of OTLP as JSON lines. */
export const lines = (path) =>
  gunzipSync(readFileSync(path))
    .toString()
    .split("\n")
    .filter(Boolean)
    .map((l) => JSON.parse(l));

/** send posts OTLP to the Collector. */
export async function send(request) {
  const signal = request.resourceSpans ? "traces" : request.resourceLogs ? "logs" : "metrics";
  const r = await fetch(`${process.env.GPUFLIGHT_OTLP}/v1/${signal}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
  });
  assert.equal(r.status, 200, await r.text());
}

/** eventually waits until a function returns a true value, and returns it. */
export async function eventually(what, f) {
  const end = Date.now() + 20_000;
  for (;;) {
    const value = await f();
    if (value) return value;
    assert.ok(Date.now() < end, what);
    await new Promise((r) => setTimeout(r, 100));
  }
}
