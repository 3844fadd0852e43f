// SPDX-License-Identifier: Apache-2.0
//
// Tests of the UI in a browser, run by test/ui. The numbers on the pages must be those of the raw
// records, which this file reads itself. GPUFLIGHT_URL is the server, GPUFLIGHT_LOGS the recordings.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { gunzipSync } from "node:zlib";
import { api, close, grouped, open, serious, settled, visit } from "./browser.mjs";

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
  const names = Object.assign({}, ...records.map((r) => r.kernel_dict));
  const kernels = rows("kernel_event_batch").map((k) => ({ ...k, name: names[k.kernel_id] }));
  return { kernels, copies: rows("memcpy_event_batch") };
}

const logs = process.env.GPUFLIGHT_LOGS;
const minigpt = readdirSync(join(logs, "c3-h200-minigpt"))[0];
const expected = raw(join(logs, "c3-h200-minigpt", minigpt));
const kernelNs = expected.kernels.reduce((n, k) => n + k.duration_ns, 0);

const session = `/sessions/${minigpt}`;

describe("numbers equal the raw records", () => {
  test("sessions", async () => {
    const page = await open("/");
    const row = page.getByRole("row").filter({ hasText: "minigpt" });
    await row.getByText(grouped(expected.kernels.length), { exact: true }).waitFor();
    assert.equal(await row.locator("td").nth(5).innerText(), String(expected.copies.length));
    assert.match(await row.locator("td").nth(4).getAttribute("title"), new RegExp(`^${grouped(kernelNs)} ns`));
    await close(page);
  });

  test("kernels: the sums of the rows", async () => {
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

  test("the key M measures from the centre of one view to that of another", async () => {
    const page = await open(`${session}/timeline?from=1000000&to=3000000`);
    await page.keyboard.press("m");
    await page.getByText("Measuring from 2.000000 ms").waitFor();
    await page.keyboard.press("d");
    await page.waitForURL((u) => u.searchParams.get("from") === "1300000");
    await page.keyboard.press("m");
    await page.waitForURL((u) => u.searchParams.get("m0") === "2000000" && u.searchParams.get("m1") === "2300000");
    await page.getByLabel("Measured interval").waitFor();
    await page.keyboard.press("m");
    await page.keyboard.press("Escape");
    await page.getByText("Measuring from").waitFor({ state: "detached" });
    await close(page);
  });

  test("a search highlights and jumps", async () => {
    const page = await open(`${session}/timeline`);
    await page.keyboard.press("/");
    await page.keyboard.type("softmax");
    await page.waitForURL(/q=softmax/);
    await page.getByRole("status").getByText("launches").waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL(/sel=/);
    await page.getByLabel("Inspector").getByRole("heading", { name: "softmax" }).waitFor();
    await close(page);
  });

  test("a search in bins visits the launches of all kernels that match, forward and back", async () => {
    const { groups } = await api(`${session}/kernels?group=shape&q=kernel&limit=1000`);
    assert.ok(new Set(groups.map((g) => g.name)).size > 1);
    const { operations } = await api(
      `${session}/operations?operation=kernel&limit=6&shape=${groups.map((g) => g.id).join()}`,
    );
    const page = await open(`${session}/timeline?q=kernel`);
    await page.getByText(/bins of/).waitFor();
    const starts = [...new Set(operations.map((o) => o.start))].slice(0, 4);
    const at = (start) => page.waitForURL((u) => u.searchParams.get("at") === String(start));
    for (const start of starts) {
      await page.keyboard.press("n");
      await at(start);
      await settled(page);
    }
    for (const start of starts.slice(0, -1).reverse()) {
      await page.getByRole("button", { name: "Previous match" }).click();
      await at(start);
      await settled(page);
    }
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
  code: `${session}/code?view=functions`,
  flame: `${session}/code`,
  findings: `${session}/findings`,
  gaps: `${session}/gaps`,
  usage: "/usage?by=session&rate=2",
  requests: "/usage?by=request",
  compare: `/compare?a=${minigpt}&b=${minigpt}`,
};

describe("findings", () => {
  test("the critical path of the typical step is on the timeline and sums to its duration", async () => {
    const { steps } = await api(`${session}/analysis`);
    const page = await open(`${session}/findings`);
    await page.getByRole("link", { name: "critical path of the typical step" }).click();
    const kinds = page.getByRole("table", { name: "Critical path by kind" });
    await kinds.waitFor();
    const sums = await kinds.locator("td:nth-child(2)").evaluateAll((all) => all.map((a) => a.title));
    assert.equal(
      sums.reduce((n, s) => n + Number(s.replaceAll(/[^\d]/g, "")), 0),
      steps.typical.wall_ns,
    );
    await page.locator("[data-kind=spans]", { hasText: "critical path" }).waitFor();
    const part = page.getByRole("list", { name: "Parts of the critical path" }).getByRole("link").first();
    await part.click();
    await page.getByRole("complementary", { name: "Inspector" }).waitFor();
    await close(page);
  });

  test("shows the causes of the API, and a gap opens in the timeline", async () => {
    const page = await open(`${session}/findings`);
    const table = page.getByRole("table", { name: "Idle time by cause" }).first();
    await table.waitFor();
    const answer = await page.evaluate((s) => fetch(`/api/v1${s}/analysis`).then((r) => r.json()), session);
    const device = answer.devices[0].active;
    const causes = Object.values(device.idle_by_cause_ns);
    assert.equal(
      causes.reduce((a, b) => a + b, 0),
      device.idle_ns,
    );
    assert.equal(device.compute_ns + device.communication_ns + device.copy_ns + device.idle_ns, device.wall_ns);
    assert.equal(await table.locator("tbody tr").count(), causes.length);
    await table.locator("td:last-child").getByRole("link").first().click();
    await page.waitForURL(/timeline\?.*m0=/);
    await close(page);
  });
});

describe("compare", () => {
  test("shows the verdict, the step and its parts as the API gives them", async () => {
    const page = await open(`/compare?a=${minigpt}&b=${minigpt}`);
    const verdict = page.getByRole("region", { name: "Verdict" });
    await verdict.waitFor();
    const answer = await page.evaluate((s) => fetch(`/api/v1/compare?a=${s}&b=${s}`).then((r) => r.json()), minigpt);
    assert.equal(answer.verdict, answer.a.steps < 6 ? "untested" : "same");
    await verdict.getByText(answer.text).waitFor();
    for (const w of answer.warnings) await verdict.getByText(w).waitFor();
    const steps = verdict.getByRole("table", { name: "Steps" });
    assert.equal(await steps.locator("tbody tr").count(), answer.step ? 1 + answer.parts.length : 0);
    const kernels = page.getByRole("table", { name: "Differences" });
    const shown = await kernels.locator("tbody tr td:last-child").allInnerTexts();
    const statuses = new Set(answer.kernels.map((k) => k.status));
    const known = (s) =>
      s === "" ||
      s
        .replace(/^\d+ kernels: /, "")
        .split(", ")
        .every((x) => statuses.has(x));
    assert.ok(shown.length > 0 && shown.every(known), String(shown));
    const effects = await steps.locator("tbody tr").evaluateAll((rows) => rows.map((r) => r.cells[3].title));
    const effect = (r) => (r.duration ? `${grouped(r.effect_ns)} ns` : "");
    assert.deepEqual(effects, answer.step ? [answer.step, ...answer.parts].map(effect) : []);
    await verdict.getByRole("link", { name: /steps/ }).first().click();
    await page.waitForURL(/findings/);
    await close(page);
  });
});

describe("code", () => {
  test("the selected row of a listing has its reasons and counters below, also after a reload", async () => {
    const { sessions } = await api("/sessions");
    const path = `/sessions/${sessions.find((s) => s.service === "heldout_sassmetrics").id}`;
    const [f] = (await api(`${path}/functions`)).functions;
    const query = new URLSearchParams({ function: f.function, kernel: f.kernel, by: "line,pc", limit: "50000" });
    const { samples } = await api(`${path}/samples?${query}`);
    const page = await open(`${path}/code`);
    const listing = page.getByRole("region", { name: "sass", exact: true });
    await listing.getByText("Select a row with a number").waitFor();
    await listing.locator("tr[tabindex]").nth(1).focus();
    await page.waitForURL(/what=sass/);
    const pc = Number(new URL(page.url()).searchParams.get("what").split(" ")[1]);
    const sums = new Map();
    for (const s of samples.filter((s) => s.pc === pc)) sums.set(s.what, (sums.get(s.what) ?? 0) + s.value);
    const parts = [...sums].sort(([, a], [, b]) => b - a).map(([k, v]) => `${k}: ${grouped(v)}`);
    assert.ok(parts.length > 0);
    const expectedText = `Offset 0x${pc.toString(16).padStart(4, "0")}\n${parts.join("\n")}`;
    await listing.getByRole("status").getByText(parts[0]).waitFor();
    assert.equal(await listing.getByRole("status").innerText(), expectedText);
    assert.deepEqual(await serious(page), []);
    await page.reload();
    await listing.getByRole("status").getByText(parts[0]).waitFor();
    assert.equal(await listing.getByRole("status").innerText(), expectedText);
    await close(page);
  });
});

describe("sessions", () => {
  test("are filtered by day and application, and two are chosen to compare", async () => {
    const { sessions } = await api("/sessions");
    const day = (s, later = 0) => {
      const d = new Date(Number(BigInt(s.start) / 1_000_000n));
      d.setDate(d.getDate() + later);
      return `${d.getFullYear()}-${String(d.getMonth() + 1).padStart(2, "0")}-${String(d.getDate()).padStart(2, "0")}`;
    };
    const mini = sessions.find((s) => s.id === minigpt);
    const expect = (keep) => sessions.filter(keep).map((s) => s.id.slice(0, 13));
    const page = await open("/");
    const ids = async () => {
      await settled(page);
      const rows = page.getByRole("table", { name: "Sessions" }).locator("tbody tr");
      return (await rows.evaluateAll((all) => all.map((r) => r.dataset.session))).map((s) => s.slice(0, 13));
    };
    const some = expect((s) => day(s) === day(mini));
    await page.getByLabel("from", { exact: true }).fill(day(mini));
    await page.getByLabel("to", { exact: true }).fill(day(mini));
    await page.waitForURL(/until=/);
    assert.deepEqual(await ids(), some);
    await page.getByLabel("from", { exact: true }).fill("");
    await page.getByLabel("to", { exact: true }).fill(day(sessions.at(-1), -1));
    await page.getByText("No session matches the filter.").waitFor();
    await visit(page, "/");
    await page.getByTitle(`Only sessions of ${mini.service}`).first().click();
    await page.waitForURL(/service=/);
    assert.deepEqual(
      await ids(),
      expect((s) => s.service === mini.service),
    );
    await visit(page, "/");
    const link = (id) => page.locator(`tr[data-session="${id}"]`).getByRole("link", { name: "Compare", exact: true });
    await link(minigpt).click();
    await page.getByText(`choose the session to compare with ${minigpt.slice(0, 8)}`).waitFor();
    const other = sessions.find((s) => s.id !== minigpt);
    await link(other.id).click();
    await page.waitForURL((u) => u.searchParams.get("a") === minigpt && u.searchParams.get("b") === other.id);
    await page.close();
  });
});

describe("accessibility", () => {
  for (const [name, path] of Object.entries(pages)) {
    test(`${name}: axe in both themes, no cut table, and no horizontal scrolling on a phone`, async () => {
      const page = await open(path, { colorScheme: "light" });
      assert.deepEqual(await serious(page), []);
      await page.emulateMedia({ colorScheme: "dark" });
      assert.deepEqual(await serious(page), []);
      const cut = await page
        .locator("[class*=tableScroll]")
        .evaluateAll((all) =>
          all
            .filter((e) => e.scrollWidth > e.clientWidth)
            .map((e) => [e.innerText.slice(0, 40), e.scrollWidth, e.clientWidth]),
        );
      assert.deepEqual(cut, [], "tables that are cut at 1,280 px");
      await page.setViewportSize({ width: 390, height: 800 });
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
      await close(page);
    });
  }

  test("the table of shapes has the occupancy", async () => {
    const page = await open(pages.shapes);
    const table = page.getByRole("table", { name: "Kernels" });
    const column = await table
      .locator("th")
      .allInnerTexts()
      .then((all) => all.indexOf("Occupancy"));
    const cells = await table.locator("tbody tr").evaluateAll((all, c) => all.map((r) => r.cells[c].innerText), column);
    assert.ok(
      cells.some((x) => /^\d+ %/.test(x)),
      String(cells.slice(0, 5)),
    );
    await close(page);
  });

  test("on a phone, the bar of views shows the current one", async () => {
    const page = await open(pages.code, { viewport: { width: 390, height: 800 } });
    const box = await page.getByRole("navigation", { name: "Views" }).getByRole("link", { name: "Code" }).boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 390, JSON.stringify(box));
    await close(page);
  });

  test("the keyboard alone reaches a launch from the first page", async () => {
    const page = await open("/");
    const focused = () =>
      page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent);
    const tabTo = async (name) => {
      for (let i = 0; i < 80; i++) {
        await page.keyboard.press("Tab");
        if ((await focused())?.includes(name)) return;
      }
      assert.fail(`the focus does not reach ${name}`);
    };
    await page.keyboard.press("Tab");
    assert.match(await focused(), /Skip/);
    await tabTo("minigpt");
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/timeline/);
    await settled(page);
    await tabTo("Timeline from");
    await page.keyboard.press("Enter");
    await page.waitForURL(/sel=/);
    await page.getByLabel("Inspector").getByRole("heading", { level: 2 }).waitFor();
    const first = page.url();
    await page.keyboard.press("ArrowRight");
    await page.waitForURL((u) => u.href !== first);
    await page.keyboard.press("f");
    await page.waitForURL(/from=/);
    await page.keyboard.press("?");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "hidden" });
    await close(page);
  });
});

describe("deep links", () => {
  test("each view has its whole state in the URL", async () => {
    const page = await open(`${session}/kernels?group=shape&sort=count&q=softmax`);
    const rows = await page.getByRole("table", { name: "Kernels" }).locator("tbody tr").allInnerTexts();
    const matching = expected.kernels.filter((k) => k.name.includes("softmax"));
    const names = await page.getByRole("table", { name: "Kernels" }).locator("tbody td:first-child").allInnerTexts();
    assert.deepEqual(
      [...new Set(names)].sort(),
      [...new Set(matching.map((k) => /softmax\w+/.exec(k.name)[0]))].sort(),
    );
    await page.getByText(`${matching.length} launches`).waitFor();
    await page.reload();
    await page.getByRole("table", { name: "Kernels" }).locator("tbody tr").first().waitFor();
    assert.deepEqual(await page.getByRole("table", { name: "Kernels" }).locator("tbody tr").allInnerTexts(), rows);
    await visit(page, `${session}/code?view=flame&zoom=0.0&q=at`);
    const frames = await page.getByLabel("Flame graph").locator("a").count();
    assert.ok(frames > 10, `${frames} frames`);
    await page.goBack();
    await page.getByRole("table", { name: "Kernels" }).waitFor();
    await close(page);
  });

  test("the flame graph has the time of all kernels", async () => {
    const page = await open(`${session}/code?view=flame`);
    await page
      .getByLabel("Flame graph")
      .getByTitle(`${grouped(kernelNs)} ns`)
      .waitFor();
    await close(page);
  });

  test("invalid parameters count as absent", async () => {
    const page = await open(`${session}/timeline?from=x&to=-1&sel=zz&m0=9&m1=1`);
    await page
      .getByText(`${grouped(expected.kernels.length)} kernels`)
      .first()
      .waitFor();
    await close(page);
  });
});

describe("errors", () => {
  test("an unknown session has a sentence", async () => {
    const page = await open("/sessions/none/timeline");
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
