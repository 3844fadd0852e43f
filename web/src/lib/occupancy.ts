// SPDX-License-Identifier: Apache-2.0

import { percent, plural, significant } from "./format";

/** Occupancy in words, from the attributes of a shape. */

type Attributes = Record<string, unknown>;

const resources: Record<string, string> = {
  warps: "the number of warps that a multiprocessor holds",
  registers: "registers",
  shared_memory: "shared memory",
  blocks: "the number of blocks that a multiprocessor holds",
  barriers: "barriers",
};

const number = (v: unknown): number | undefined => (typeof v === "number" ? v : undefined);

export interface Occupancy {
  theoretical: number | undefined;
  gridFill: number | undefined;
  waves: number | undefined;
  limiters: string[];
  sentences: string[];
}

/** occupancy reads what the occupancy processor computed. */
export function occupancy(a: Attributes): Occupancy {
  const theoretical = number(a["cuda.occupancy.theoretical"]);
  const gridFill = number(a["cuda.occupancy.grid_fill"]);
  const waves = number(a["cuda.occupancy.waves"]);
  const blocks = number(a["cuda.occupancy.active_blocks_per_sm"]);
  const warps = number(a["cuda.occupancy.active_warps_per_sm"]);
  const raw = a["cuda.occupancy.limiter"];
  const limiters = Array.isArray(raw) ? raw.map(String) : typeof raw === "string" ? [raw] : [];
  const sentences: string[] = [];
  if (theoretical !== undefined && limiters.length) {
    const names = limiters.map((l) => resources[l] ?? l.replaceAll("_", " "));
    const held =
      blocks !== undefined && warps !== undefined
        ? ` A multiprocessor holds ${plural(blocks, "block")}, which ${blocks === 1 ? "is" : "are"} ${plural(warps, "warp")}.`
        : "";
    sentences.push(
      theoretical >= 0.999
        ? `The occupancy is the largest possible.${held}`
        : `The limit is ${names.join(" and ")}.${held}`,
    );
  }
  if (waves !== undefined && waves < 1) {
    const held =
      blocks === undefined
        ? ""
        : waves * blocks < 1
          ? ": some multiprocessors have no block"
          : ": multiprocessors hold fewer blocks than they can";
    sentences.push(`The grid fills ${percent(waves).replace("<", "less than")} of a wave${held}.`);
  } else if (waves !== undefined && waves % 1 > 0 && waves % 1 < 0.5 && waves < 4) {
    sentences.push(`The grid needs ${significant(waves)} waves: the last one is mostly empty.`);
  }
  return { theoretical, gridFill, waves, limiters, sentences };
}
