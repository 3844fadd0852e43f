// SPDX-License-Identifier: Apache-2.0
//
// Measures the timeline of the largest session in headless Chromium, run by test/bench/ui: the time to
// the first page and of the frames of pans and zooms. GPUFLIGHT_URL is the server. It prints JSON.
import { chromium } from "playwright-core";

const base = process.env.GPUFLIGHT_URL;
const { sessions } = await (await fetch(`${base}/api/v1/sessions?limit=1000`)).json();
const session = sessions.toSorted((a, b) => (b.operations.kernel ?? 0) - (a.operations.kernel ?? 0))[0];
const address = `/sessions/${encodeURIComponent(session.id)}`;
const { lanes } = await (await fetch(`${base}/api/v1${address}`)).json();
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
// All lanes are in the window, so each frame draws them all.
const height = 300 + lanes.length * 32;

/** load opens a page with an empty cache and returns the ms until its content is there. */
async function load(path, ready) {
  const context = await browser.newContext({ viewport: { width: 1280, height } });
  const page = await context.newPage();
  const begin = performance.now();
  await page.goto(base + path);
  await ready(page);
  return { page, ms: performance.now() - begin };
}

const settled = (page) =>
  page.waitForFunction(() => !document.querySelector("[aria-busy='true']") && document.querySelector("canvas"));
const first = await load("/", (page) => page.locator("tbody tr").first().waitFor());
await first.page.context().close();
const { page, ms } = await load(`${address}/timeline`, settled);
const canvas = page.locator("canvas");
const box = await canvas.boundingBox();
await page.mouse.move(box.x + box.width * 0.5, box.y + 200);

const devtools = await page.context().newCDPSession(page);
// Processor time, so that other programs of the machine do not count.
await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
const busy = async () => {
  const { metrics } = await devtools.send("Performance.getMetrics");
  return metrics.find((m) => m.name === "TaskDuration").value * 1000;
};

/**
 * frames moves n times and collects, in ms: the time of each paint, and the processor time of the main
 * thread for each move. That is all work: events, React, new data, layout and paint.
 */
async function frames(move, n) {
  await page.evaluate(() => {
    window.paints_ = [];
    window.observer_?.disconnect();
    const c = document.querySelector("canvas");
    window.observer_ = new MutationObserver(() => window.paints_.push(Number(c.dataset.frame)));
    window.observer_.observe(c, { attributes: true, attributeFilter: ["data-frame"] });
  });
  const work = [];
  let before = await busy();
  for (let i = 0; i < n; i++) {
    await move(i);
    await page.evaluate(() => new Promise((r) => requestAnimationFrame(() => setTimeout(r))));
    const now = await busy();
    work.push(now - before);
    before = now;
  }
  await page.waitForTimeout(500);
  return { paint: await page.evaluate(() => window.paints_), work };
}

const quantile = (list, p) => list.toSorted((a, b) => a - b)[Math.min(list.length - 1, Math.floor(list.length * p))];
const result = {};
const measure = async (name, move, n = 60) => {
  const { paint, work } = await frames(move, n);
  result[name] = {
    frames: paint.length,
    paint_p50: quantile(paint, 0.5),
    paint_p95: quantile(paint, 0.95),
    frame_p50: quantile(work, 0.5),
    frame_p95: quantile(work, 0.95),
  };
};
await measure("zoom", (i) => page.mouse.wheel(0, i < 40 ? -120 : 120));
await measure("pan", () => page.mouse.wheel(90, 0));
// Nearly the whole session: the whole one does not move.
await page.keyboard.press("0");
await page.mouse.wheel(0, -60);
await page.waitForTimeout(1500);
await measure("pan whole", (i) => page.mouse.wheel(i % 2 ? 60 : -60, 0));
await browser.close();
console.log(
  JSON.stringify({
    kernels: session.operations.kernel,
    lanes: lanes.length,
    first_page_ms: Math.round(first.ms),
    timeline_ms: Math.round(ms),
    ...result,
  }),
);
