// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { id, interval, oneOf, parseSearch, spanId, stringifySearch, text, time } from "./search";

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
