// SPDX-License-Identifier: Apache-2.0

/** perfettoOrigin is where Perfetto's UI is. Nothing loads it before a click. */
export const perfettoOrigin = "https://ui.perfetto.dev";

/** What openPerfetto needs of the browser, for tests. */
export interface Opener {
  open(address: string): Window | null;
  addEventListener(kind: "message", f: (e: MessageEvent) => void): void;
  removeEventListener(kind: "message", f: (e: MessageEvent) => void): void;
}

/** The longest time to wait for Perfetto's UI in ms, and the interval of the pings. */
const patience = 60_000;
const interval = 50;

/**
 * openPerfetto opens Perfetto's UI in a new tab and hands it a trace, as
 * https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui describes: it sends PING until the
 * page answers PONG, then the trace. The trace stays in the browser. Call it in the handler of a
 * click, or the browser blocks the tab.
 */
export async function openPerfetto(
  load: () => Promise<ArrayBuffer>,
  title: string,
  opener: Opener = {
    open: (a) => window.open(a),
    addEventListener: (k, f) => window.addEventListener(k, f),
    removeEventListener: (k, f) => window.removeEventListener(k, f),
  },
): Promise<void> {
  const tab = opener.open(perfettoOrigin);
  if (!tab) throw new Error("The browser blocked the new tab. Allow pop-ups for this page.");
  let buffer: ArrayBuffer;
  try {
    buffer = await load();
  } catch (e) {
    tab.close();
    throw e;
  }
  await new Promise<void>((resolve, reject) => {
    const began = Date.now();
    const done = () => {
      clearInterval(timer);
      opener.removeEventListener("message", answer);
    };
    const answer = (e: MessageEvent) => {
      if (e.source !== tab || e.origin !== perfettoOrigin || e.data !== "PONG") return;
      done();
      resolve();
    };
    opener.addEventListener("message", answer);
    const timer = setInterval(() => {
      if (tab.closed || Date.now() - began > patience) {
        done();
        reject(new Error(tab.closed ? "The tab of Perfetto was closed." : "Perfetto's UI does not answer."));
        return;
      }
      tab.postMessage("PING", perfettoOrigin);
    }, interval);
  });
  tab.postMessage({ perfetto: { buffer, title } }, perfettoOrigin);
}
