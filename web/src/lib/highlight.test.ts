// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { sassOffset, tokens } from "./highlight";

const kinds = (line: string, kind: "sass" | "source") =>
  tokens(line, kind)
    .filter((t) => t.kind !== "text")
    .map((t) => [t.kind, t.text]);

describe("tokens", () => {
  it("keep the whole line", () => {
    for (const line of [
      '  x = "a\\"b"; // c',
      "/*0010*/  @P0 IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;",
      "",
      "\t#include <a>",
      "ü ≤ '",
    ]) {
      for (const k of ["sass", "ptx", "source"] as const)
        expect(
          tokens(line, k)
            .map((t) => t.text)
            .join(""),
        ).toBe(line);
    }
  });
  it("of CUDA C++", () => {
    expect(kinds("const float x = 1.5f; // half", "source")).toEqual([
      ["keyword", "const"],
      ["keyword", "float"],
      ["number", "1.5f"],
      ["comment", "// half"],
    ]);
  });
  it("of SASS", () => {
    expect(kinds("/*0010*/ IMAD.MOV.U32 R1, RZ", "sass")).toEqual([
      ["comment", "/*0010*/"],
      ["keyword", "IMAD.MOV.U32"],
      ["register", "R1"],
      ["register", "RZ"],
    ]);
  });
});

describe("sassOffset", () => {
  it("reads both forms", () => {
    expect(sassOffset("        /*01a0*/   EXIT ;")).toBe(0x1a0);
    expect(sassOffset("0x0030 IADD3 R1")).toBe(0x30);
    expect(sassOffset(".L_x_1:")).toBeUndefined();
  });
});
