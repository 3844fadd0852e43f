// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { decodeTimeline, spanText } from "./columns";

function encode(tables: Record<string, Record<string, Uint8Array | Uint32Array | Float64Array | BigUint64Array>>) {
  const types = { Uint8Array: "u8", Uint32Array: "u32", Float64Array: "f64", BigUint64Array: "u64" } as const;
  const all = Object.entries(tables).flatMap(([table, cols]) =>
    Object.entries(cols).map(([name, data]) => ({ table, name, data })),
  );
  const head = (base: number) => {
    let at = base;
    const columns = all.map(({ table, name, data }) => {
      const offset = at;
      at += Math.ceil(data.byteLength / 8) * 8;
      return { table, name, type: types[data.constructor.name as keyof typeof types], offset, length: data.length };
    });
    const text = JSON.stringify({
      base: "1700000000000000000",
      from: -5,
      width_ns: 1000,
      shapes: [{ id: 7, operation: "kernel", name: "gemm_ü" }],
      columns,
    });
    return { text, columns, end: at };
  };
  let size = 8192;
  let json = new TextEncoder().encode(head(size).text);
  size = Math.ceil((4 + json.length) / 8) * 8 + 64;
  const h = head(size);
  json = new TextEncoder().encode(h.text);
  const buffer = new ArrayBuffer(h.end);
  const bytes = new Uint8Array(buffer).fill(32, 4, size);
  new DataView(buffer).setUint32(0, size - 4, true);
  bytes.set(json, 4);
  all.forEach(({ data }, i) => {
    bytes.set(new Uint8Array(data.buffer), h.columns[i]?.offset);
  });
  return buffer;
}

describe("decodeTimeline", () => {
  it("reads bins and slices", () => {
    const t = decodeTimeline(
      encode({
        bins: {
          lane: new Uint32Array([1, 1]),
          index: new Uint32Array([0, 9]),
          busy_ns: new Float64Array([1000, 12.5]),
        },
        slices: {
          lane: new Uint32Array([3]),
          span: new BigUint64Array([0xfedcba9876543210n]),
          queue_ns: new Float64Array([Number.NaN]),
          estimated: new Uint8Array([1]),
        },
      }),
    );
    expect(t.from).toBe(-5);
    expect(t.width).toBe(1000);
    expect(t.shapes.get(7)?.name).toBe("gemm_ü");
    expect([...t.bins.index]).toEqual([0, 9]);
    expect([...t.bins.busy_ns]).toEqual([1000, 12.5]);
    expect(t.bins.count).toHaveLength(0);
    expect(spanText(t.slices?.span[0] as bigint)).toBe("fedcba9876543210");
    expect(t.slices?.queue_ns[0]).toBeNaN();
    expect(t.slices?.estimated[0]).toBe(1);
  });
  it("rejects what is truncated", () => {
    const whole = encode({ bins: { lane: new Uint32Array(100) } });
    expect(() => decodeTimeline(whole.slice(0, 3))).toThrow("truncated");
    expect(() => decodeTimeline(whole.slice(0, 100))).toThrow("truncated");
    expect(() => decodeTimeline(whole.slice(0, whole.byteLength - 8))).toThrow("lane is invalid");
  });
});

describe("spanText", () => {
  it("keeps leading zeros", () => expect(spanText(255n)).toBe("00000000000000ff"));
});
