// SPDX-License-Identifier: Apache-2.0
import { percent } from "./format";

/** Fact is one ratio of SASS metrics in words. */
export interface Fact {
  name: string;
  value: string;
  ratio: number;
  formula: string;
  sentence: string;
}

/** efficiency says how well warps and memory accesses are used, from the sums of SASS metrics that are present. */
export function efficiency(m: Readonly<Record<string, number>>): Fact[] {
  const facts: Fact[] = [];
  const executed = m.smsp__sass_inst_executed;
  const threads = m.smsp__sass_thread_inst_executed;
  if (executed && threads !== undefined) {
    const active = threads / executed;
    facts.push({
      name: "threads of a warp active",
      ratio: active,
      value: `${active.toFixed(1)} of 32`,
      formula: "smsp__sass_thread_inst_executed / smsp__sass_inst_executed",
      sentence:
        active < 24
          ? `${percent(1 - active / 32)} of the lanes are off: branches diverge, or the block size is no multiple of 32.`
          : "Warps diverge little.",
    });
  }
  const sectors = m.smsp__sass_sectors_mem_global;
  const ideal = m.smsp__sass_sectors_mem_global_ideal;
  if (sectors && ideal !== undefined) {
    const ratio = ideal / sectors;
    facts.push({
      name: "coalesced",
      ratio,
      value: percent(ratio),
      formula: "smsp__sass_sectors_mem_global_ideal / smsp__sass_sectors_mem_global",
      sentence:
        ratio < 0.9
          ? `Accesses to global memory read ${(sectors / Math.max(ideal, 1)).toFixed(1)} times the sectors that they need.`
          : "Accesses to global memory are coalesced.",
    });
  }
  return facts;
}

/** stallReasons lists the reasons that count all samples, the largest first. */
export function stallReasons(stalls: Readonly<Record<string, number>>): [string, number][] {
  return Object.entries(stalls)
    .filter(([k, n]) => n > 0 && !k.endsWith("_not_issued"))
    .sort(([a, x], [b, y]) => y - x || a.localeCompare(b));
}
