// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { lowerBound, nest, sortSpans, stack } from "./layout";

describe("stack", () => {
  it("puts overlapping operations in different rows and reuses free ones", () => {
    const { rows, count } = stack([
      { start: 0, end: 10 },
      { start: 5, end: 15 },
      { start: 10, end: 20 },
      { start: 12, end: 13 },
    ]);
    expect([...rows]).toEqual([0, 1, 0, 2]);
    expect(count).toBe(3);
  });
  it("needs one row for nothing", () => expect(stack([]).count).toBe(1));
  it("separates operations without duration at the same time", () => {
    expect([
      ...stack([
        { start: 5, end: 5 },
        { start: 5, end: 5 },
      ]).rows,
    ]).toEqual([0, 1]);
  });
});

describe("nest", () => {
  it("places a child below its parent, also when it ends later", () => {
    const spans = sortSpans(
      [
        { id: "b", parent: "a", start: 0, end: 120 },
        { id: "a", parent: "", start: 0, end: 100 },
        { id: "c", parent: "b", start: 10, end: 20 },
        { id: "d", parent: "", start: 130, end: 140 },
      ].map((s) => ({ ...s })),
    );
    // The longer span comes first, so a parent that is shorter than its child has a row of its own.
    const { rows } = nest(spans);
    const row = Object.fromEntries(spans.map((s, i) => [s.id, rows[i]]));
    expect(row.c).toBeGreaterThan(row.b as number);
    expect(row.d).toBe(0);
    for (let i = 0; i < spans.length; i++) {
      for (let j = 0; j < i; j++) {
        const [x, y] = [spans[i], spans[j]];
        if (x && y && rows[i] === rows[j]) expect(x.start >= y.end || y.start >= x.end).toBe(true);
      }
    }
  });
});

describe("lowerBound", () => {
  it("finds the first start that is not below a time", () => {
    const items = [1, 3, 3, 7].map((start) => ({ start, end: start }));
    expect(lowerBound(items, 0)).toBe(0);
    expect(lowerBound(items, 3)).toBe(1);
    expect(lowerBound(items, 4)).toBe(3);
    expect(lowerBound(items, 8)).toBe(4);
  });
});
