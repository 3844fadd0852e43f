// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import {
  date,
  id,
  interval,
  lastBefore,
  midnight,
  oneOf,
  parseSearch,
  spanId,
  stringifySearch,
  text,
  time,
} from "./search";

describe("search parameters", () => {
  it("survive a round trip", () => {
    const state = { from: 12, to: 9007199254740991, q: "a b&c=ü%", sel: "0123456789012345" };
    const back = parseSearch(stringifySearch(state));
    expect(interval(back.from, back.to)).toEqual({ from: 12, to: 9007199254740991 });
    expect(text(back.q)).toBe("a b&c=ü%");
    expect(spanId(back.sel)).toBe("0123456789012345");
  });
  it("leave out what is absent", () => {
    expect(stringifySearch({ a: undefined, b: "", c: null })).toBe("");
  });
  it("reject invalid values", () => {
    for (const v of ["", "-1", "1.5", "1e3", "99999999999999999", "x", null, {}, "9007199254740993"]) {
      expect(time(v)).toBeUndefined();
    }
    expect(id("4294967296")).toBeUndefined();
    expect(spanId("0123")).toBeUndefined();
    expect(spanId("0123456789ABCDEF")).toBeUndefined();
    expect(interval("5", "5")).toEqual({});
    expect(interval("5", undefined)).toEqual({});
    expect(text("x".repeat(501))).toBeUndefined();
    expect(oneOf("z", ["a", "b"])).toBeUndefined();
  });
});

describe("lastBefore", () => {
  // Two bursts of 1,000 rows, 1 µs apart, and a row at the start.
  const starts = [0, ...[3e9, 7e9].flatMap((t) => Array.from({ length: 1000 }, (_, i) => t + i * 1000))];
  let requests = 0;
  const find = async (from: number, to: number) => {
    requests++;
    const all = starts.filter((s) => s >= from && s < to);
    return { rows: all.slice(0, 100), more: all.length > 100 };
  };
  it.each([
    [10e9, 7e9 + 999_000],
    [7e9 + 500_000, 7e9 + 499_000],
    [7e9, 3e9 + 999_000],
    [3e9, 0],
    [0, undefined],
  ])("of %d is %d", async (to, last) => {
    requests = 0;
    expect(await lastBefore(find, 0, to)).toBe(last);
    expect(requests).toBeLessThan(40);
  });
});

describe("days", () => {
  it("start and end at midnight in local time", () => {
    expect(midnight(date("2026-11-27"))).toBe(`${new Date(2026, 10, 27).getTime()}000000`);
    expect(midnight(date("2026-12-31"), 1)).toBe(`${new Date(2027, 0, 1).getTime()}000000`);
    for (const v of ["", "2026-13-01", "27.11.2026", 5, undefined]) expect(midnight(date(v))).toBeUndefined();
  });
});
