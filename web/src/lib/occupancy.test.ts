// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { occupancy } from "./occupancy";

describe("occupancy", () => {
  it("names the limiter", () => {
    const o = occupancy({
      "cuda.occupancy.theoretical": 0.5,
      "cuda.occupancy.limiter": ["registers", "shared_memory"],
      "cuda.occupancy.active_blocks_per_sm": 4,
      "cuda.occupancy.active_warps_per_sm": 32,
      "cuda.occupancy.waves": 0.25,
    });
    expect(o.sentences).toEqual([
      "The limit is registers and shared memory. A multiprocessor holds 4 blocks, which are 32 warps.",
      "The grid fills 25 % of a wave: multiprocessors hold fewer blocks than they can.",
    ]);
  });
  it("counts one block", () => {
    const o = occupancy({
      "cuda.occupancy.theoretical": 0.27,
      "cuda.occupancy.limiter": ["registers"],
      "cuda.occupancy.active_blocks_per_sm": 1,
      "cuda.occupancy.active_warps_per_sm": 17,
    });
    expect(o.sentences).toEqual(["The limit is registers. A multiprocessor holds 1 block, which is 17 warps."]);
  });
  it("says that multiprocessors have no block if the grid has fewer blocks than the device multiprocessors", () => {
    const grid = { "cuda.occupancy.active_blocks_per_sm": 8, "cuda.occupancy.waves": 1 / (132 * 8) };
    expect(occupancy(grid).sentences).toEqual([
      "The grid fills less than 0.1 % of a wave: some multiprocessors have no block.",
    ]);
  });
  it("is silent without data", () => {
    expect(occupancy({})).toEqual({
      theoretical: undefined,
      gridFill: undefined,
      waves: undefined,
      limiters: [],
      sentences: [],
    });
  });
});
