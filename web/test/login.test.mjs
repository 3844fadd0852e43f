// SPDX-License-Identifier: Apache-2.0
//
// Tests of the login in a browser, run by test/ui against a Collector with the settings of
// docs/keys.md. GPUFLIGHT_URL is the UI, GPUFLIGHT_OTLP the OTLP receiver, GPUFLIGHT_CLI the command
// line and GPUFLIGHT_KEYS the key file.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";

const base = process.env.GPUFLIGHT_URL;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const key = (...args) =>
  execFileSync(process.env.GPUFLIGHT_CLI, ["key", "--file", process.env.GPUFLIGHT_KEYS, ...args], {
    encoding: "utf8",
  }).trim();
const span = (session) => ({
  resourceSpans: [
    {
      resource: {
        attributes: Object.entries({ "service.name": session, "service.instance.id": session }).map(([k, v]) => ({
          key: k,
          value: { stringValue: v },
        })),
      },
      scopeSpans: [
        {
          spans: [
            {
              traceId: "01".repeat(16),
              spanId: "01".repeat(8),
              name: "step",
              startTimeUnixNano: "1710000000000000000",
              endTimeUnixNano: "1710000001000000000",
            },
          ],
        },
      ],
    },
  ],
});

/** deliver sends a span of a session over OTLP. */
async function deliver(session, secret) {
  const r = await fetch(`${process.env.GPUFLIGHT_OTLP}/v1/traces`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${secret}` },
    body: JSON.stringify(span(session)),
  });
  assert.equal(r.status, 200, await r.text());
}

const reader = key("create", "reader", "--scope", "read");
const admin = key("create", "admin", "--scope", "admin");
const other = key("create", "other", "--scope", "read", "--project", "team-b");

let browser;
before(async () => {
  await deliver("session-a", key("create", "ingest", "--scope", "ingest"));
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
});
after(() => browser?.close());

/** open opens a page in a new profile, and records errors and requests that return data. */
async function open(path, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.answers = [];
  page.on("pageerror", (e) => page.problems.push(String(e)));
  page.on("console", (m) => m.type() === "error" && !m.text().includes("status of 40") && page.problems.push(m.text()));
  page.on("request", (r) => !r.url().startsWith(base) && page.problems.push(`request to ${r.url()}`));
  page.on(
    "response",
    (r) => r.url().includes("/api/") && page.answers.push(`${r.status()} ${new URL(r.url()).pathname}`),
  );
  await page.goto(base + path);
  await page.waitForLoadState("networkidle");
  return page;
}

async function login(page, secret) {
  await page.getByLabel("Key", { exact: true }).fill(secret);
  await page.keyboard.press("Enter");
}

async function close(page) {
  assert.deepEqual(page.problems, []);
  await page.context().close();
}

describe("login", () => {
  for (const colorScheme of ["light", "dark"])
    test(`the page asks for a key and is accessible, ${colorScheme}`, async () => {
      const page = await open("/", { colorScheme });
      await page.getByRole("heading", { name: "Log in" }).waitFor();
      assert.deepEqual(page.answers, ["200 /api/v1/login"], "no other request without a key");
      await page.evaluate(axe);
      for (const width of [1280, 390]) {
        await page.setViewportSize({ width, height: 800 });
        const { violations } = await page.evaluate(() => window.axe.run());
        assert.deepEqual(
          violations.map((v) => `${width} px, ${v.id}: ${v.nodes.map((n) => n.target)}`),
          [],
        );
      }
      await close(page);
    });

  test("a wrong key gets a sentence", async () => {
    const page = await open("/");
    await login(page, "gpfl_wrong");
    await page.getByRole("alert").filter({ hasText: "the key is not valid" }).waitFor();
    assert.deepEqual(await page.context().cookies(), []);
    await close(page);
  });

  test("a deep link opens after the login, and the cookie is out of reach of scripts", async () => {
    const page = await open("/sessions/session-a/scopes");
    await login(page, reader);
    await page.getByRole("heading", { name: "session-a" }).waitFor();
    assert.equal(new URL(page.url()).pathname, "/sessions/session-a/scopes");
    assert.equal(await page.evaluate(() => document.cookie), "");
    assert.equal(
      await page
        .evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }))
        .then((s) => s.includes("gpfl_")),
      false,
    );
    const [cookie] = await page.context().cookies();
    assert.equal(cookie.httpOnly, true);
    assert.equal(cookie.sameSite, "Strict");
    await page.reload();
    await page.getByRole("heading", { name: "session-a" }).waitFor();
    await page.getByText("reader", { exact: true }).waitFor();
    await close(page);
  });

  test("a reader cannot pin, an admin can", async () => {
    const page = await open("/");
    await login(page, reader);
    const pin = page.getByRole("button", { name: "Pin session-a" });
    await pin.waitFor();
    assert.equal(await pin.isDisabled(), true);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("heading", { name: "Log in" }).waitFor();
    assert.equal(await page.getByText("session-a").count(), 0);
    await login(page, admin);
    await pin.click();
    await page.locator('button[aria-label="Pin session-a"][aria-pressed="true"]').waitFor();
    await close(page);
  });

  test("another project has no session", async () => {
    const page = await open("/");
    await login(page, other);
    await page.getByRole("heading", { name: "There is no session yet" }).waitFor();
    assert.equal(await page.getByLabel("File of an exported session").isDisabled(), true);
    await page.goto(`${base}/sessions/session-a/timeline`);
    await page.getByRole("alert").waitFor();
    await close(page);
  });

  test("a revoked key ends the login of an open page", async () => {
    const short = key("create", "short", "--scope", "read");
    const page = await open("/");
    await login(page, short);
    await page.getByRole("link", { name: "session-a" }).first().waitFor();
    key("revoke", short.slice(5, 13));
    await page.getByRole("heading", { name: "Log in" }).waitFor(); // The list polls.
    await close(page);
  });
});

describe("pages of other origins", () => {
  let evil;
  before(async () => {
    // A browser sends the cookie to all ports of a host.
    evil = createServer((_, w) => {
      w.setHeader("Content-Type", "text/html");
      w.end(
        `<form method="post" enctype="text/plain" action="${base}/api/v1/import"><input name="a" value="b"><button>Go</button></form>`,
      );
    });
    await new Promise((done) => evil.listen(0, "127.0.0.1", done));
  });
  after(() => evil.close());

  test("cannot read or change with the cookie of the user", async () => {
    const page = await open("/");
    await login(page, admin);
    await page.getByRole("link", { name: "session-a" }).first().waitFor();
    await page.goto(`http://127.0.0.1:${evil.address().port}/`);
    page.answers = [];
    for (const [method, path, mode] of [
      ["GET", "/api/v1/sessions", "no-cors"],
      ["POST", "/api/v1/import", "no-cors"],
      ["GET", "/api/v1/sessions", "cors"],
      ["DELETE", "/api/v1/sessions/session-a", "cors"],
      ["POST", "/api/v1/login", "no-cors"],
    ])
      await page.evaluate(
        ([url, method, mode]) => fetch(url, { method, mode, credentials: "include" }).then((r) => r.type, String),
        [base + path, method, mode],
      );
    await page.getByRole("button", { name: "Go" }).click();
    await page.getByText("the request comes from another origin").waitFor();
    assert.deepEqual(
      page.answers.filter((a) => !a.startsWith("403")),
      [],
    );
    assert.ok(page.answers.length >= 4, page.answers.join());
    await page.context().close();
    const check = await open("/");
    await login(check, reader);
    await check.getByRole("link", { name: "session-a" }).first().waitFor();
    await close(check);
  });
});
