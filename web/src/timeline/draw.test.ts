// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { type Bins, firstBin, Painter, type Scene, type Track } from "./draw";

/** Canvas keeps the pixels of the last frame. All its other methods do nothing. */
function canvas() {
  const state = { pixels: new Uint32Array(0), width: 0 };
  const ctx = new Proxy(
    {
      createImageData: (width: number, height: number) => ({ data: new Uint8ClampedArray(width * height * 4), width }),
      putImageData: (image: { data: Uint8ClampedArray; width: number }) => {
        state.pixels = new Uint32Array(image.data.buffer.slice(0) as ArrayBuffer);
        state.width = image.width;
      },
      measureText: (text: string) => ({ width: text.length * 6 }),
    } as Record<string, unknown>,
    { get: (target, key) => target[key as string] ?? (() => undefined), set: () => true },
  );
  return { ctx: ctx as unknown as CanvasRenderingContext2D, state };
}

const red = { name: "red", rgb: [255, 0, 0] };
const blue = { name: "blue", rgb: [0, 0, 255] };

/** lane has 1,000 bins of 10 ns: red ones that are half busy, and every tenth blue and busy. */
function lane(): { track: Track; bins: Bins } {
  const n = 1000;
  const bins: Bins = {
    from: 0,
    width: 10,
    index: Uint32Array.from({ length: n }, (_, i) => i),
    busy: Float64Array.from({ length: n }, (_, i) => (i % 10 ? 5 : 10)),
    kind: Uint32Array.from({ length: n }, (_, i) => (i % 10 ? 0 : 1)),
    kinds: [red, blue],
    before: Float64Array.from({ length: n + 1 }, (_, i) => i),
  };
  const track: Track = {
    key: "lane-1",
    kind: "lane",
    label: "",
    detail: "",
    top: 0,
    height: 30,
    rowHeight: 30,
    items: [],
    bins,
  };
  return { track, bins };
}

const scene = (track: Track, from: number, to: number): Scene => ({
  width: 100,
  height: 80,
  dpr: 1,
  view: { from, to },
  scroll: 0,
  tracks: [track],
  dark: false,
  selected: "",
  hover: "",
  match: "",
  range: null,
  cursor: null,
  launch: null,
});

/** row returns the red and the blue columns of a row below the axis. */
function row(state: { pixels: Uint32Array; width: number }, y: number): string {
  return Array.from(state.pixels.subarray((30 + y) * state.width, (31 + y) * state.width), (p) =>
    p === 0xff0000ff ? "r" : p === 0xffff0000 ? "b" : ".",
  ).join("");
}

describe("Painter", () => {
  it("draws the share of bins as their height", () => {
    const { ctx, state } = canvas();
    new Painter().paint(ctx, scene(lane().track, 0, 1000));
    expect(row(state, 5)).toBe("b.........".repeat(10));
    expect(row(state, 25)).toBe("brrrrrrrrr".repeat(10));
  });

  it("moves columns by whole pixels, as a new painter draws them", () => {
    const { ctx, state } = canvas();
    const painter = new Painter();
    const { track } = lane();
    painter.paint(ctx, scene(track, 0, 1000));
    for (const from of [10, 30, 1000, 2050, 8999.5, 9500, 4000, -500]) {
      painter.paint(ctx, scene(track, from, from + 1000));
      const fresh = canvas();
      new Painter().paint(fresh.ctx, scene(track, from, from + 1000));
      expect(row(state, 25), `from ${from}`).toBe(row(fresh.state, 25));
      expect(row(state, 5), `from ${from}`).toBe(row(fresh.state, 5));
    }
  });

  it("follows zooms and searches", () => {
    const { ctx, state } = canvas();
    const painter = new Painter();
    const { track } = lane();
    painter.paint(ctx, scene(track, 0, 1000));
    painter.paint(ctx, scene(track, 0, 500));
    expect(row(state, 5)).toBe(`bb${".".repeat(18)}`.repeat(5));
    painter.paint(ctx, { ...scene(track, 0, 500), match: "red" });
    expect(row(state, 5)).not.toContain("b");
    expect(row(state, 25)).toContain("r");
  });
});

describe("firstBin", () => {
  it("finds the first bin that ends after a time", () => {
    const { bins } = lane();
    expect([-5, 0, 9, 10, 9999, 10_000].map((t) => firstBin(bins, t))).toEqual([0, 0, 0, 1, 999, 1000]);
  });
});
