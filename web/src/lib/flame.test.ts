// SPDX-License-Identifier: Apache-2.0
import { expect, test } from "vitest";
import { boxes, find, flameTree, kernelsOf, sampledStacks, stackFilter } from "./flame";

const stacks = [
  { stack: ["main", "train"], scope: ["step"], path: 3, name: "gemm", count: 2, sum_ns: 60 },
  { stack: ["main"], scope: [], path: 0, name: "fill", count: 1, sum_ns: 30 },
  { stack: ["main", "train"], scope: ["step"], path: 3, name: "relu", count: 4, sum_ns: 10 },
];
const lines = [
  { path: 3, name: "gemm", file: "/src/a.cu", line: 7, samples: 3 },
  { path: 3, name: "gemm", file: "/src/a.cu", line: 9, samples: 1 },
  { path: 0, name: "gemm", file: "/src/a.cu", line: 9, samples: 5 },
];

test("a tree from the host to lines", () => {
  const root = flameTree(stacks, lines);
  expect([root.ns, root.count]).toEqual([100, 7]);
  const chain = find(root, "0.0.0.0.0");
  expect(chain.map((f) => f.name)).toEqual(["all kernels", "main", "train", "step", "gemm", "a.cu:7"]);
  expect(chain.map((f) => f.ns)).toEqual([100, 100, 70, 70, 60, 45]);
  expect(chain[4]?.path).toBe(3);
  expect(find(root, "0.1").map((f) => f.name)).toEqual(["all kernels", "main", "fill"]);
});

test("the kernels of a frame by scope sum to it", () => {
  const root = flameTree(
    [...stacks, { ...stacks[0], stack: ["other"], count: 3, sum_ns: 5 } as (typeof stacks)[0]],
    lines,
  );
  expect(kernelsOf(root).map((k) => [k.name, k.path, k.scope, k.ns, k.count])).toEqual([
    ["gemm", 3, ["step"], 65, 5],
    ["fill", 0, [], 30, 1],
    ["relu", 3, ["step"], 10, 4],
  ]);
  expect(kernelsOf(find(root, "0.0").at(-1) as typeof root).map((k) => [k.name, k.ns])).toEqual([
    ["gemm", 60],
    ["relu", 10],
  ]);
});

test("launches without a stack are shared among those with one", () => {
  const list = [
    { stack: ["main", "a"], scope: ["step"], path: 3, name: "gemm", count: 3, sum_ns: 3 },
    { stack: ["main", "b"], scope: ["step"], path: 3, name: "gemm", count: 1, sum_ns: 1 },
    { stack: [], scope: ["step"], path: 3, name: "gemm", count: 96, sum_ns: 196 },
    { stack: [], scope: [], path: 0, name: "gemm", count: 2, sum_ns: 5 },
  ];
  const root = flameTree(list, []);
  expect([root.ns, root.count]).toEqual([205, 102]);
  expect(find(root, "0.0").map((f) => [f.name, f.ns, f.count])).toEqual([
    ["all kernels", 205, 102],
    ["main", 200, 100],
    ["a", 150, 75],
  ]);
  expect(find(root, "0.0").map((f) => [f.own.ns, f.own.count])).toEqual([
    [9, 6],
    [4, 4],
    [3, 3],
  ]);
  expect(kernelsOf(find(root, "0.0").at(-1) as typeof root).map((k) => k.own)).toEqual([{ ns: 3, count: 3 }]);
  expect(find(root, "1").map((f) => [f.kind, f.name, f.ns])).toEqual([
    ["all", "all kernels", 205],
    ["kernel", "gemm", 5],
  ]);
  expect(sampledStacks(list)).toBe(4);
  expect(sampledStacks(stacks)).toBe(0);
});

test("the launches of a frame by host stack", () => {
  const root = flameTree(stacks, lines);
  expect(find(root, "0.0.0.0").map(stackFilter)).toEqual([
    {},
    { stack: "main" },
    { stack: "main\ntrain" },
    { stack: "main\ntrain", stack_exact: "true" },
    { stack: "main\ntrain", stack_exact: "true" },
  ]);
});

test("boxes below a focus fill the width", () => {
  const root = flameTree(stacks, lines);
  const { boxes: list, hidden } = boxes(root, "0.0", 0.2);
  expect(list.map((b) => [b.frame.name, b.id, b.x, b.width])).toEqual([
    ["all kernels", "", 0, 1],
    ["main", "0", 0, 1],
    ["train", "0.0", 0, 1],
    ["step", "0.0.0", 0, 1],
    ["gemm", "0.0.0.0", 0, 60 / 70],
    ["a.cu:7", "0.0.0.0.0", 0, 45 / 70],
    ["a.cu:9", "0.0.0.0.1", 45 / 70, 15 / 70],
  ]);
  expect(hidden).toBe(1);
});

test("an unknown focus shows everything", () => {
  const root = flameTree(stacks, []);
  expect(boxes(root, "7.1", 0).boxes[0]?.id).toBe("");
  expect(boxes(flameTree([], []), "", 0).boxes).toHaveLength(1);
});
