// SPDX-License-Identifier: Apache-2.0
import { expect, test } from "vitest";
import { byKernelTime, scopeSearch } from "./scopes";

const node = (path: number, parent: number, kernel_ns: number) => ({ path, parent, total: { kernel_ns } });

test("children with the largest kernel time come first, with what is below them", () => {
  const tree = [node(0, 0, 60), node(1, 0, 10), node(2, 1, 3), node(3, 1, 7), node(4, 0, 50), node(5, 4, 50)];
  expect(byKernelTime(tree).map((n) => n.path)).toEqual([0, 4, 5, 1, 3, 2]);
});

test("equal kernel times keep their order, and no nodes give none", () => {
  expect(byKernelTime([node(0, 0, 4), node(2, 0, 2), node(1, 0, 2)]).map((n) => n.path)).toEqual([0, 2, 1]);
  expect(byKernelTime([])).toEqual([]);
});

test("a path of names without numbers finds its scope, several ones by name", () => {
  const named = (path: number, parent: number, name: string) => ({ path, parent, name });
  const tree = [
    named(0, 0, ""),
    named(1, 0, "step *"),
    named(2, 1, "layer 1"),
    named(3, 1, "layer 2"),
    named(4, 1, "forward"),
    named(5, 0, "forward"),
    named(6, 0, "block * of 3"),
    named(7, 0, "7"),
  ];
  expect(scopeSearch(tree, ["step"])).toEqual({ path: 1 });
  expect(scopeSearch(tree, ["step", "forward"])).toEqual({ path: 4 });
  expect(scopeSearch(tree, ["forward"])).toEqual({ path: 5 });
  expect(scopeSearch(tree, ["step", "layer"])).toEqual({ q: "layer" });
  expect(scopeSearch(tree, ["block 12 of"])).toEqual({ path: 6 });
  expect(scopeSearch(tree, ["7"])).toEqual({ path: 7 });
  expect(scopeSearch(tree, ["layer"])).toBeUndefined();
  expect(scopeSearch(tree, [])).toBeUndefined();
});
