// SPDX-License-Identifier: Apache-2.0
import { expect, test } from "vitest";
import { byKernelTime } from "./scopes";

const node = (path: number, parent: number, kernel_ns: number) => ({ path, parent, total: { kernel_ns } });

test("children with the largest kernel time come first, with what is below them", () => {
  const tree = [node(0, 0, 60), node(1, 0, 10), node(2, 1, 3), node(3, 1, 7), node(4, 0, 50), node(5, 4, 50)];
  expect(byKernelTime(tree).map((n) => n.path)).toEqual([0, 4, 5, 1, 3, 2]);
});

test("equal kernel times keep their order, and no nodes give none", () => {
  expect(byKernelTime([node(0, 0, 4), node(2, 0, 2), node(1, 0, 2)]).map((n) => n.path)).toEqual([0, 2, 1]);
  expect(byKernelTime([])).toEqual([]);
});
