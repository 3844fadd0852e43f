// SPDX-License-Identifier: Apache-2.0
//
// Takes screenshots of every view: node test/shots.mjs [address] [folder] [view,view…]. It needs Debian's
// chromium. BOTH=1 takes all in the light theme too, PHONE=1 at the width of a phone.
import { chromium } from "playwright-core";

const base = process.argv[2] ?? "http://127.0.0.1:8686";
const folder = process.argv[3] ?? "../docs/images";
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const api = async (path) => (await fetch(`${base}/api/v1${path}`)).json();
const { sessions } = await api("/sessions");
const largest = sessions.toSorted((a, b) => (b.operations.kernel ?? 0) - (a.operations.kernel ?? 0))[0];
// Every recording has points of the recorder. Only some have metrics of the device.
const series = await Promise.all(
  sessions.map((x) => api(`/sessions/${encodeURIComponent(x.id)}/series?source=session`)),
);
const measured =
  sessions[
    series
      .map((x) => x.series.filter((y) => y.metric.startsWith("hw.")).length)
      .reduce((m, n, i, all) => (n > all[m] ? i : m), 0)
  ];
const sampled = sessions.toSorted((a, b) => b.counts.samples - a.counts.samples)[0];
const s = `/sessions/${encodeURIComponent(largest.id)}`;
const { operations } = await api(`${s}/operations?operation=kernel&sort=duration&limit=20`);
const op = operations[0];
const at = Math.max(0, op.start - 3 * op.duration_ns);
const { nodes } = await api(`${s}/scopes`);
const scope = nodes.filter((n) => n.instances > 1).toSorted((a, b) => b.total.kernel_ns - a.total.kernel_ns)[0];

// Of the recordings, minigpt has host stacks.
const stacked = sessions.find((x) => x.service === "minigpt");

// Its launch times are recorded, so its idle time has causes.
const explained = sessions.find((x) => x.service === "slow_layer") ?? largest;
// Of test/gpu/ranks/recordings.
const ranked = sessions.find((x) => x.run === "nccl-host");
// Two sessions of one program.
const [b, a] = sessions.filter((x) => x.run === ranked?.run);

const pages = {
  sessions: "/",
  timeline: `${s}/timeline`,
  launch: `${s}/timeline?from=${at}&to=${op.start + 5 * op.duration_ns}&sel=${op.span}&at=${op.start}`,
  kernels: `${s}/kernels`,
  shapes: `${s}/kernels?group=shape`,
  scopes: `${s}/scopes?path=${scope?.path ?? ""}`,
  operations: `${s}/launches?operation=kernel&sort=duration`,
  system: `/sessions/${encodeURIComponent(measured.id)}/system`,
  code: `/sessions/${encodeURIComponent(sampled.id)}/code?view=functions`,
  flame: `/sessions/${encodeURIComponent(stacked?.id ?? largest.id)}/code?view=flame`,
  findings: `/sessions/${encodeURIComponent(explained.id)}/findings`,
  idle: `${s}/gaps`,
  usage: "/usage",
  ranks: `/ranks?run=${encodeURIComponent(ranked?.run ?? "")}`,
  export: `${s}/timeline`,
  first: "/",
  login: "/",
  compare: `/compare?a=${a?.id}&b=${b?.id}`,
};
/** What a page needs before its screenshot. */
const prepare = {
  export: (page) => page.locator("summary", { hasText: "Export" }).click(),
  first: (page) => page.route("**/api/v1/sessions?*", (r) => r.fulfill({ json: { sessions: [] } })),
  // As a Collector with keys answers a browser without one.
  login: (page) =>
    page.route("**/api/v1/login", (r) => r.fulfill({ json: { required: true, authenticated: false, scopes: [] } })),
};
const size = process.env.PHONE ? { width: 390, height: 844 } : { width: 1280, height: 760 };
const only = process.argv[4]?.split(",");
for (const [name, path] of Object.entries(pages)) {
  if (only && !only.includes(name)) continue;
  for (const theme of ["dark", "light"]) {
    if (theme === "light" && name !== "launch" && !process.env.BOTH) continue;
    const page = await browser.newPage({ viewport: size, colorScheme: theme });
    const errors = [];
    page.on("console", (m) => m.type() === "error" && errors.push(m.text()));
    page.on("pageerror", (e) => errors.push(String(e)));
    if (name === "login" || name === "first") await prepare[name](page);
    await page.goto(base + path);
    await page.waitForLoadState("networkidle");
    if (name === "export") await prepare.export(page);
    await page.waitForTimeout(1500);
    // A timeline says so while it loads.
    await page.waitForFunction(
      () => !document.querySelector("[aria-busy='true']") && !document.body.innerText.includes("loading…"),
    );
    const suffix = (theme === "light" ? "-light" : "") + (process.env.PHONE ? "-phone" : "");
    await page.screenshot({ path: `${folder}/ui-${name}${suffix}.png` });
    if (errors.length) console.log(name, theme, errors.slice(0, 3).join("\n"));
    await page.close();
  }
}
await browser.close();
