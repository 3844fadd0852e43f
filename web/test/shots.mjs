// SPDX-License-Identifier: Apache-2.0
//
// Takes screenshots of every view: node test/shots.mjs [address] [folder]. It needs Debian's chromium.
import { chromium } from "playwright-core";

const base = process.argv[2] ?? "http://127.0.0.1:8686";
const folder = process.argv[3] ?? "../docs/images";
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const api = async (path) => (await fetch(`${base}/api/v1${path}`)).json();
const { sessions } = await api("/sessions");
const largest = sessions.toSorted((a, b) => (b.operations.kernel ?? 0) - (a.operations.kernel ?? 0))[0];
const sampled = sessions.toSorted((a, b) => b.counts.samples - a.counts.samples)[0];
const s = `/sessions/${encodeURIComponent(largest.id)}`;
const { operations } = await api(`${s}/operations?operation=kernel&sort=duration&limit=20`);
const op = operations[0];
const at = Math.max(0, op.start - 3 * op.duration_ns);
const other = sessions.find((x) => x.id !== largest.id && x.operations.kernel) ?? largest;
const { nodes } = await api(`${s}/scopes`);
const scope = nodes.filter((n) => n.instances > 1).toSorted((a, b) => b.total.kernel_ns - a.total.kernel_ns)[0];

// Of the recordings, minigpt has host stacks and metrics.
const stacked = sessions.find((x) => x.service === "minigpt");

const pages = {
  sessions: "/",
  timeline: `${s}/timeline`,
  launch: `${s}/timeline?from=${at}&to=${op.start + 5 * op.duration_ns}&sel=${op.span}&at=${op.start}`,
  kernels: `${s}/kernels`,
  shapes: `${s}/kernels?group=shape`,
  scopes: `${s}/scopes?path=${scope?.path ?? ""}`,
  operations: `${s}/launches?operation=kernel&sort=duration`,
  system: `/sessions/${encodeURIComponent(stacked?.id ?? largest.id)}/system`,
  code: `/sessions/${encodeURIComponent(sampled.id)}/code?view=functions`,
  flame: `/sessions/${encodeURIComponent(stacked?.id ?? largest.id)}/code?view=flame`,
  findings: `${s}/findings`,
  idle: `${s}/gaps`,
  usage: "/usage",
  compare: `/compare?a=${other.id}&b=${largest.id}`,
};
const only = process.argv[4]?.split(",");
for (const [name, path] of Object.entries(pages)) {
  if (only && !only.includes(name)) continue;
  for (const theme of ["dark", "light"]) {
    if (theme === "light" && !["timeline", "launch", "sessions"].includes(name) && !process.env.BOTH) continue;
    const page = await browser.newPage({ viewport: { width: 1280, height: 760 }, colorScheme: theme });
    const errors = [];
    page.on("console", (m) => m.type() === "error" && errors.push(m.text()));
    page.on("pageerror", (e) => errors.push(String(e)));
    await page.goto(base + path);
    await page.waitForLoadState("networkidle");
    await page.waitForTimeout(300);
    await page.screenshot({ path: `${folder}/ui-${name}${theme === "light" ? "-light" : ""}.png` });
    if (errors.length) console.log(name, theme, errors.slice(0, 3).join("\n"));
    await page.close();
  }
}
await browser.close();
