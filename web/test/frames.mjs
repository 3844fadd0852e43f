// SPDX-License-Identifier: Apache-2.0
//
// Measures the timeline of the largest session in headless Chromium, run by test/bench/ui: the time to
// the first page and of the frames of pans and zooms. GPUFLIGHT_URL is the server. It prints JSON.
import { chromium } from "playwright-core";

const base = process.env.GPUFLIGHT_URL;
const { sessions } = await (await fetch(`${base}/api/v1/sessions`)).json();
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

/** frames collects the work of each frame: from the event to the end of the paint, in ms. */
async function frames(move, n) {
  await page.evaluate(() => {
    window.frames_ = [];
    window.observer_?.disconnect();
    const c = document.querySelector("canvas");
    window.observer_ = new MutationObserver(() =>
      window.frames_.push([Number(c.dataset.frame), Number(c.dataset.work)]),
    );
    window.observer_.observe(c, { attributes: true, attributeFilter: ["data-work"] });
  });
  for (let i = 0; i < n; i++) {
    await move(i);
    await page.evaluate(() => new Promise((r) => requestAnimationFrame(() => setTimeout(r))));
  }
  await page.waitForTimeout(500);
  return page.evaluate(() => window.frames_);
}

const quantile = (list, p) => list.toSorted((a, b) => a - b)[Math.min(list.length - 1, Math.floor(list.length * p))];
const result = {};
const measure = async (name, move, n = 60) => {
  const list = await frames(move, n);
  const [paint, work] = [list.map((f) => f[0]), list.map((f) => f[1])];
  result[name] = {
    frames: list.length,
    paint_p50: quantile(paint, 0.5),
    paint_p95: quantile(paint, 0.95),
    frame_p50: quantile(work, 0.5),
    frame_p95: quantile(work, 0.95),
  };
};
await measure("zoom", (i) => page.mouse.wheel(0, i < 40 ? -120 : 120));
await measure("pan", () => page.mouse.wheel(90, 0));
await page.keyboard.press("0");
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
