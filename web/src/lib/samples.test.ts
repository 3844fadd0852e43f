// SPDX-License-Identifier: Apache-2.0
import { expect, test } from "vitest";
import { efficiency, stallReasons } from "./samples";

test("efficiency of divergent and uncoalesced code", () => {
  const facts = efficiency({
    smsp__sass_inst_executed: 100,
    smsp__sass_thread_inst_executed: 240,
    smsp__sass_sectors_mem_global: 90,
    smsp__sass_sectors_mem_global_ideal: 20,
  });
  expect(facts.map((f) => f.value)).toEqual(["2.4 of 32", "22 %"]);
  expect(facts[0]?.sentence).toContain("93 % of the lanes are off");
  expect(facts[1]?.sentence).toContain("4.5 times");
});

test("efficiency without counters", () => {
  expect(efficiency({ smsp__sass_inst_executed: 0 })).toEqual([]);
});

test("stall reasons without the part that was not issued", () => {
  expect(stallReasons({ wait: 3, long_scoreboard: 9, wait_not_issued: 2, math: 0 })).toEqual([
    ["long_scoreboard", 9],
    ["wait", 3],
  ]);
});
