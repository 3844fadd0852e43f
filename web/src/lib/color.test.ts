// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { contrast, family, ink, oklch, scopeColor, sliceColor } from "./color";

const names = Array.from({ length: 500 }, (_, i) => `kernel_${i}`).concat([
  "sm90_xmma_gemm_bf16",
  "flash_fwd_kernel",
  "ncclDevKernel_AllReduce",
  "vectorized_elementwise_kernel",
  "memcpy HtoD",
  "memset",
  "layer_norm_kernel",
]);

describe("colours", () => {
  it("have a contrast of at least 4.5 to the text on them", () => {
    for (const name of names) {
      for (const dark of [true, false]) {
        expect(contrast(sliceColor(name, dark), ink)).toBeGreaterThan(4.5);
        expect(contrast(scopeColor(name, dark), ink)).toBeGreaterThan(4.5);
      }
    }
  });
  it("convert white and black", () => {
    expect(oklch(1, 0, 0)).toEqual([255, 255, 255]);
    expect(oklch(0, 0, 0)).toEqual([0, 0, 0]);
  });
});

describe("family", () => {
  it.each([
    ["sm90_xmma_gemm_bf16bf16_bf16f32", "matmul"],
    ["void flash_fwd_kernel", "attention"],
    ["softmax_warp_forward", "attention"],
    ["ncclDevKernel_AllReduce_Sum_f32_RING", "collective"],
    ["vectorized_elementwise_kernel", "elementwise"],
    ["layer_norm_kernel", "normalise"],
    ["memcpy HtoD", "copy"],
    ["cudaStreamSynchronize", "memory"],
    ["my_kernel", "other"],
  ])("of %s is %s", (name, f) => expect(family(name)).toBe(f));
});
