// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { around, clamp, minSpan, pan, tickStep, ticks, toNs, toX, zoom } from "./scale";

const extent = { from: 0, to: 3_600e9 };

describe("scale", () => {
  it("maps a time to a position and back", () => {
    const v = { from: 1000, to: 3000 };
    expect(toX(v, 500, 2000)).toBe(250);
    expect(toNs(v, 500, 250)).toBe(2000);
  });
  it("keeps the anchor in place while it zooms from an hour to the narrowest view", () => {
    let v = extent;
    const anchor = 1_234_567_890;
    while (v.to - v.from > minSpan) {
      const before = toX(v, 1000, anchor);
      v = zoom(v, 0.5, anchor, extent);
      if (v.from > 0 && v.to < extent.to) expect(toX(v, 1000, anchor)).toBeCloseTo(before, 3);
    }
    expect(v.to - v.from).toBe(minSpan);
  });
  it("stays inside the extent", () => {
    expect(clamp({ from: -50, to: 50 }, { from: 0, to: 200 })).toEqual({ from: 0, to: 100 });
    expect(clamp({ from: 150, to: 250 }, { from: 0, to: 200 })).toEqual({ from: 100, to: 200 });
    expect(clamp({ from: -1e9, to: 1e9 }, { from: 0, to: 200 })).toEqual({ from: 0, to: 200 });
    expect(pan({ from: 50, to: 80 }, -100, { from: 0, to: 200 })).toEqual({ from: 0, to: 30 });
  });
  it("survives a session without duration", () => {
    const v = clamp({ from: 0, to: 0 }, { from: 0, to: 0 });
    expect(v.to - v.from).toBe(minSpan);
  });
  it("shows an interval with a margin", () => {
    const v = around(1000, 1400, extent);
    expect(v.to - v.from).toBe(1000);
    expect(v.from).toBe(700);
  });
});

describe("ticks", () => {
  it.each([
    [1000, 10, 100],
    [900, 10, 100],
    [2.4e6, 10, 500_000],
    [3600e9, 10, 600e9],
    [150e9, 10, 20e9],
    [50, 10, 5],
  ])("a span of %d with %d ticks has steps of %d", (span, n, step) => expect(tickStep(span, n)).toBe(step));
  it("are multiples of the step", () => {
    expect(ticks({ from: 101, to: 405 }, 100)).toEqual([200, 300, 400]);
  });
});
