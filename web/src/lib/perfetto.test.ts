// SPDX-License-Identifier: Apache-2.0
import { expect, test, vi } from "vitest";
import { type Opener, openPerfetto, perfettoOrigin } from "./perfetto";

function fake() {
  const messages: unknown[] = [];
  const listeners = new Set<(e: MessageEvent) => void>();
  const tab = {
    closed: false,
    close: vi.fn(),
    postMessage: (m: unknown, origin: string) => {
      expect(origin).toBe(perfettoOrigin);
      messages.push(m);
    },
  };
  const opener: Opener = {
    open: (a) => {
      expect(a).toBe(perfettoOrigin);
      return tab as unknown as Window;
    },
    addEventListener: (_, f) => listeners.add(f),
    removeEventListener: (_, f) => listeners.delete(f),
  };
  const say = (data: unknown, origin = perfettoOrigin, source: unknown = tab) => {
    for (const f of [...listeners]) f({ data, origin, source } as MessageEvent);
  };
  return { tab, opener, messages, say, listeners };
}

test("the trace goes to the tab after its answer, and not before", async () => {
  const { opener, messages, say, listeners } = fake();
  const buffer = new ArrayBuffer(3);
  const opened = openPerfetto(async () => buffer, "pytorch", opener);
  await vi.waitFor(() => expect(messages).toContain("PING"));
  say("PONG", "https://evil.example");
  say("PONG", perfettoOrigin, {});
  say("other");
  expect(messages.every((m) => m === "PING")).toBe(true);
  say("PONG");
  await opened;
  expect(messages.at(-1)).toEqual({ perfetto: { buffer, title: "pytorch" } });
  expect(listeners.size).toBe(0);
});

test("a failed export closes the tab", async () => {
  const { opener, tab, messages } = fake();
  await expect(
    openPerfetto(() => Promise.reject(new Error("too many exports are in progress")), "x", opener),
  ).rejects.toThrow("too many exports are in progress");
  expect(tab.close).toHaveBeenCalled();
  expect(messages).toEqual([]);
});

test("a closed tab and a blocked one", async () => {
  const { opener, tab } = fake();
  tab.closed = true;
  await expect(openPerfetto(async () => new ArrayBuffer(1), "x", opener)).rejects.toThrow("closed");
  await expect(openPerfetto(async () => new ArrayBuffer(1), "x", { ...opener, open: () => null })).rejects.toThrow(
    "blocked",
  );
});
