// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { compare, results } from "./compare";

describe("compare", () => {
  it("pairs groups, adds equal keys and sorts by the difference", () => {
    const rows = compare(
      [
        { key: "gemm", count: 10, sum_ns: 1000 },
        { key: "gemm", count: 5, sum_ns: 500 },
        { key: "old", count: 1, sum_ns: 30 },
      ],
      [
        { key: "gemm", count: 15, sum_ns: 900 },
        { key: "new", count: 2, sum_ns: 700 },
      ],
    );
    expect(rows.map((r) => [r.key, r.delta])).toEqual([
      ["new", 700],
      ["gemm", -600],
      ["old", -30],
    ]);
    expect(rows[1]?.a?.count).toBe(15);
    expect(rows[0]?.a).toBeUndefined();
    expect(rows[2]?.b).toBeUndefined();
  });
});

describe("results", () => {
  it("joins kernels with the same short name, and has each status once", () => {
    const rows = [
      { name: "elementwise", status: "new" },
      { name: "gemm", status: "same" },
      { name: "elementwise", status: "same" },
      { name: "elementwise", status: "new" },
    ];
    expect([...results(rows, (r) => r.name)]).toEqual([
      ["elementwise", { kernels: 3, statuses: ["new", "same"] }],
      ["gemm", { kernels: 1, statuses: ["same"] }],
    ]);
  });
});
