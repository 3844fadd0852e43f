// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import {
  ago,
  bytes,
  compact,
  count,
  dims,
  duration,
  exactDuration,
  offset,
  percent,
  plural,
  signedPercent,
} from "./format";

describe("duration", () => {
  it.each([
    [0, "0 ns"],
    [1, "1 ns"],
    [999, "999 ns"],
    [1234, "1.23 µs"],
    [12_345, "12.3 µs"],
    [123_456_789, "123 ms"],
    [1.5e9, "1.50 s"],
    [99e9, "99.0 s"],
    [125e9, "2 min 05 s"],
    [3_840e9, "1 h 04 min"],
    [7_199.9e9, "2 h 00 min"],
    [-1234, "−1.23 µs"],
  ])("%d is %s", (ns, text) => expect(duration(ns)).toBe(text));
});

describe("offset", () => {
  it.each([
    [1_500_000_000, 100_000_000, "1.5 s"],
    [1_234_567, 1, "1.234567 ms"],
    [250, 50, "250 ns"],
    [61e9, 60e9, "0:01:01"],
    [3_723.5e9, 0.5e9, "1:02:03.5"],
  ])("%d at step %d is %s", (ns, step, text) => expect(offset(ns, step)).toBe(text));
});

describe("numbers", () => {
  it("have units", () => {
    expect(count(1234567)).toBe("1,234,567");
    expect(count(2 ** 53 - 1)).toBe("9,007,199,254,740,991");
    expect(count(2 ** 64 - 1)).toBe("1.845e+19");
    expect(plural(1, "operation")).toBe("1 operation");
    expect(plural(1234, "operation")).toBe("1,234 operations");
    expect(plural(1, "launch")).toBe("1 launch");
    expect(plural(2, "launch")).toBe("2 launches");
    expect(plural(0, "copy")).toBe("0 copies");
    expect(compact(9_999)).toBe("9,999");
    expect(compact(12_345)).toBe("12.3k");
    expect(compact(100_000_000)).toBe("100M");
    expect(bytes(1023)).toBe("1,023 B");
    expect(bytes(150_754_820_096)).toBe("140 GiB");
    expect(exactDuration(1234567)).toBe("1,234,567 ns");
    expect(dims([32, 8, 1])).toBe("32 × 8 × 1");
    expect(dims(undefined)).toBe("unknown");
  });
  it("do not round a small share to zero", () => {
    expect(percent(0)).toBe("0 %");
    expect(percent(0.0004)).toBe("< 0.1 %");
    expect(percent(0.0345)).toBe("3.5 %");
    expect(percent(0.998)).toBe("100 %");
    expect(signedPercent(0.123)).toBe("+12 %");
    expect(signedPercent(-0.05)).toBe("−5.0 %");
    expect(signedPercent(Number.POSITIVE_INFINITY)).toBe("new");
  });
  it("state an age", () => {
    expect(ago("1000000000000", 1_000_000)).toBe("now");
    expect(ago("1000000000000", 1_300_000)).toBe("5 min ago");
  });
});
