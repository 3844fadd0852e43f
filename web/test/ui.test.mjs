// SPDX-License-Identifier: Apache-2.0
//
// Tests of the UI in a browser, run by test/ui. The numbers on the pages must be those of the raw
// records, which this file reads itself. GPUFLIGHT_URL is the server, GPUFLIGHT_LOGS the recordings.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { gunzipSync } from "node:zlib";
import { chromium } from "playwright-core";

const base = process.env.GPUFLIGHT_URL;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** raw reads the records of a session from its log files. */
function raw(dir) {
  const records = readdirSync(dir)
    .filter((f) => f.endsWith(".log.gz"))
    .flatMap((f) =>
      gunzipSync(readFileSync(join(dir, f)))
        .toString()
        .split("\n"),
    )
    .filter(Boolean)
    .map((l) => JSON.parse(l));
  const rows = (type) =>
    records
      .filter((r) => r.type === type)
      .flatMap((r) => r.rows.map((x) => Object.fromEntries(r.columns.map((c, i) => [c, x[i]]))));
  return { kernels: rows("kernel_event_batch"), copies: rows("memcpy_event_batch") };
}

const logs = process.env.GPUFLIGHT_LOGS;
const minigpt = readdirSync(join(logs, "c3-h200-minigpt"))[0];
const expected = raw(join(logs, "c3-h200-minigpt", minigpt));
const kernelNs = expected.kernels.reduce((n, k) => n + k.duration_ns, 0);
const grouped = (n) => n.toLocaleString("en-US");

let browser;
before(async () => {
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
});
after(() => browser?.close());

/** open opens a page and fails on errors of scripts, on requests to other hosts and on failed ones. */
async function open(path, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, ...options });
  page.problems = [];
  page.on("pageerror", (e) => page.problems.push(String(e)));
  page.on("console", (m) => m.type() === "error" && page.problems.push(m.text()));
  page.on("request", (r) => !r.url().startsWith(base) && page.problems.push(`request to ${r.url()}`));
  await page.goto(base + path);
  await page.waitForLoadState("networkidle");
  return page;
}

async function close(page) {
  assert.deepEqual(page.problems, []);
  await page.close();
}

const session = `/sessions/${minigpt}`;
const api = async (path) => (await fetch(`${base}/api/v1${path}`)).json();

describe("numbers equal the raw records", () => {
  test("sessions", async () => {
    const page = await open("/");
    const row = page.getByRole("row").filter({ hasText: "minigpt" });
    await row.getByText(grouped(expected.kernels.length), { exact: true }).waitFor();
    assert.equal(await row.locator("td").nth(5).innerText(), String(expected.copies.length));
    assert.match(await row.locator("td").nth(4).getAttribute("title"), new RegExp(`^${grouped(kernelNs)} ns`));
    await close(page);
  });

  test("kernels: the sum of the rows, and each number opens the launches that it is made of", async () => {
    const page = await open(`${session}/kernels`);
    await page.getByText(`${grouped(expected.kernels.length)} launches`).waitFor();
    const table = page.getByRole("table", { name: "Kernels" });
    const counts = await table.locator("tbody tr td:nth-child(4)").allInnerTexts();
    assert.equal(
      counts.reduce((n, c) => n + Number(c.replaceAll(",", "")), 0),
      expected.kernels.length,
    );
    const sums = await table.locator("tbody tr td:nth-child(2) a").evaluateAll((all) => all.map((a) => a.title));
    assert.equal(
      sums.reduce((n, s) => n + Number(s.replaceAll(/[^\d]/g, "")), 0),
      kernelNs,
    );
    for (let i = 0; i < Math.min(counts.length, 5); i++) {
      await table.locator("tbody tr").nth(i).locator("td:nth-child(2) a").click();
      await page.getByRole("heading", { name: "Operations" }).waitFor();
      // The button reads "Loading" during a request, and disappears after the last page.
      for (;;) {
        await page.waitForLoadState("networkidle");
        if (!(await page.getByRole("button", { name: /More|Loading/ }).count())) break;
        await page
          .getByRole("button", { name: "More" })
          .click({ timeout: 2000 })
          .catch(() => {});
      }
      assert.equal(await page.getByTestId("rows").innerText(), counts[i]);
      assert.equal(await page.getByTestId("sum").getAttribute("title"), sums[i]);
      await page.goBack();
      await table.waitFor();
    }
    await close(page);
  });

  test("scopes: the kernels of the whole session", async () => {
    const page = await open(`${session}/scopes`);
    const root = page.getByRole("table", { name: "Scopes" }).locator("tbody tr").first();
    assert.equal(await root.locator("td").nth(5).innerText(), grouped(expected.kernels.length));
    assert.equal(await root.locator("td").nth(6).getAttribute("title"), `${grouped(kernelNs)} ns`);
    await close(page);
  });
});

describe("timeline", () => {
  test("a deep link shows the launch, and the keyboard moves to its neighbour", async () => {
    const longest = expected.kernels.reduce((a, b) => (b.duration_ns > a.duration_ns ? b : a));
    const { operations } = await api(`${session}/operations?operation=kernel&sort=duration&limit=1`);
    const op = operations[0];
    assert.equal(op.duration_ns, longest.duration_ns);
    const page = await open(
      `${session}/timeline?from=${Math.max(0, op.start - 50_000)}&to=${op.start + 100_000}&sel=${op.span}&at=${op.start}`,
    );
    const inspector = page.getByLabel("Inspector");
    await inspector
      .getByTitle(`${grouped(longest.duration_ns)} ns`, { exact: true })
      .first()
      .waitFor();
    await inspector.getByText(`${longest.num_regs} per thread`).waitFor();
    await inspector.getByText("This is the longest launch").waitFor();
    const before = page.url();
    await page.keyboard.press("ArrowLeft");
    await page.waitForURL((u) => u.searchParams.get("sel") !== op.span);
    await page.keyboard.press("ArrowRight");
    await page.waitForURL((u) => u.searchParams.get("sel") === op.span);
    await page.keyboard.press("Escape");
    await inspector.waitFor({ state: "detached" });
    assert.notEqual(page.url(), before);
    await close(page);
  });

  test("wheel and keys zoom from the whole session to nanoseconds and back, and the URL follows", async () => {
    const page = await open(`${session}/timeline`);
    const canvas = page.locator("canvas");
    const box = await canvas.boundingBox();
    await page.mouse.move(box.x + box.width * 0.6, box.y + 120);
    const width = () =>
      page.evaluate(
        () =>
          Number(new URL(location.href).searchParams.get("to")) -
          Number(new URL(location.href).searchParams.get("from")),
      );
    for (let i = 0; i < 60; i++) await page.mouse.wheel(0, -200);
    await page.waitForURL(/from=/);
    await page.waitForTimeout(400);
    assert.ok((await width()) <= 30, `the view is ${await width()} ns wide`);
    await page.keyboard.press("s");
    await page.waitForTimeout(400);
    assert.ok((await width()) > 25);
    await page.keyboard.press("0");
    await page.waitForURL((u) => !u.searchParams.has("from"));
    await close(page);
  });

  test("a measured interval has the kernels that start in it", async () => {
    const { session: info } = await api(session);
    const half = Math.floor(info.duration_ns * 0.85);
    const page = await open(`${session}/timeline?m0=0&m1=${half}`);
    const { total } = await api(`${session}/kernels?from=0&to=${half}`);
    assert.ok(total.count > 0 && total.count < expected.kernels.length);
    await page
      .getByLabel("Measured interval")
      .getByTitle(`${grouped(total.sum_ns)} ns`, { exact: true })
      .waitFor();
    await close(page);
  });

  test("a search highlights and jumps", async () => {
    const page = await open(`${session}/timeline`);
    await page.keyboard.press("/");
    await page.keyboard.type("gemm");
    await page.waitForURL(/q=gemm/);
    await page.getByRole("status").getByText("in view").waitFor();
    await close(page);
  });

  test("a frame takes less than 16 ms", { skip: !process.env.GPUFLIGHT_SOAK && "a measurement" }, async () => {
    const page = await open(`${session}/timeline`);
    const frames = [];
    for (let i = 0; i < 20; i++) {
      await page.keyboard.press(i < 10 ? "w" : "d");
      frames.push(Number(await page.locator("canvas").getAttribute("data-frame")));
    }
    console.log("frames in ms:", frames.join(" "));
    assert.ok(frames.sort((a, b) => a - b)[10] < 16);
    await close(page);
  });
});

const pages = {
  sessions: "/",
  timeline: `${session}/timeline`,
  kernels: `${session}/kernels`,
  shapes: `${session}/kernels?group=shape`,
  operations: `${session}/launches?operation=memcpy`,
  scopes: `${session}/scopes?path=1`,
  system: `${session}/system`,
  code: `${session}/code`,
  usage: "/usage?by=session&rate=2",
  compare: `/compare?a=${minigpt}&b=${minigpt}`,
};

describe("accessibility", () => {
  for (const [name, path] of Object.entries(pages)) {
    for (const colorScheme of ["light", "dark"]) {
      test(`${name}, ${colorScheme}`, async () => {
        const page = await open(path, { colorScheme });
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => window.axe.run());
        const serious = violations.filter((v) => v.impact === "serious" || v.impact === "critical");
        assert.deepEqual(
          serious.map(
            (v) =>
              `${v.id}: ${v.nodes
                .map((n) => n.target)
                .slice(0, 3)
                .join(" | ")}`,
          ),
          [],
        );
        await close(page);
      });
    }
  }

  test("a phone needs no horizontal scrolling of the page", async () => {
    for (const path of Object.values(pages)) {
      const page = await open(path, { viewport: { width: 390, height: 800 } });
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390, path);
      await close(page);
    }
  });
});

describe("errors", () => {
  test("an unknown session has a sentence", async () => {
    const page = await browser.newPage();
    await page.goto(`${base}/sessions/none/timeline`);
    await page.getByRole("alert").waitFor();
    await page.close();
  });

  test("the theme survives a reload", async () => {
    const page = await open("/", { colorScheme: "light" });
    await page.getByRole("button", { name: /Theme/ }).click();
    await page.getByRole("button", { name: /Theme/ }).click();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    await page.reload();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    await close(page);
  });
});
