// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { binsOf, fetchWindow } from "./data";

describe("binsOf", () => {
  const extent = { from: 0, to: 60e9 };
  const bins = (view: { from: number; to: number }, lanes: number) =>
    binsOf(fetchWindow(view, extent), view, 1100, lanes);

  it("has a bin for each pixel of the whole session", () => {
    expect(bins({ from: -6e8, to: 60.6e9 }, 4)).toBe(1100);
  });
  it("has a bin for one or two pixels of a part", () => {
    const view = { from: 30e9, to: 30.1e9 };
    const window = fetchWindow(view, extent);
    const inView = (bins(view, 4) * 1e8) / (window.to - window.from);
    expect(inView).toBeGreaterThan(500);
    expect(inView).toBeLessThanOrEqual(1200);
  });
  it("has at most 50,000 bins in all lanes, but 400 in each", () => {
    expect(bins({ from: 30e9, to: 30.1e9 }, 64)).toBe(781);
    expect(bins({ from: 30e9, to: 30.1e9 }, 1000)).toBe(400);
  });
});
