// SPDX-License-Identifier: Apache-2.0

/** Decoding of the timeline's binary answer: JSON with a list of columns, then the columns. */
import type { Schemas } from "./client";

interface Column {
  table: string;
  name: string;
  type: "u8" | "u32" | "u64" | "f64";
  offset: number;
  length: number;
}

export interface TimelineColumns {
  base: string;
  from: number;
  width: number;
  shapes: Map<number, Schemas["ShapeName"]>;
  bins: {
    lane: Uint32Array;
    index: Uint32Array;
    count: Uint32Array;
    busy_ns: Float64Array;
    top_ns: Float64Array;
    top_shape: Uint32Array;
    top_start: Float64Array;
  };
  slices?: {
    lane: Uint32Array;
    row: Uint32Array;
    shape: Uint32Array;
    start: Float64Array;
    duration_ns: Float64Array;
    queue_ns: Float64Array;
    launch_start: Float64Array;
    span: BigUint64Array;
    estimated: Uint8Array;
  };
}

const sizes = { u8: 1, u32: 4, u64: 8, f64: 8 };

/** decodeTimeline views the columns of an answer without copying them. */
export function decodeTimeline(buffer: ArrayBuffer): TimelineColumns {
  if (buffer.byteLength < 4) throw new Error("The timeline's answer is truncated.");
  const n = new DataView(buffer).getUint32(0, true);
  if (4 + n > buffer.byteLength) throw new Error("The timeline's answer is truncated.");
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, n))) as {
    base: string;
    from: number;
    width_ns: number;
    shapes: Schemas["ShapeName"][];
    columns: Column[];
  };
  const tables: Record<string, Record<string, unknown>> = {};
  for (const c of head.columns) {
    if (!(c.type in sizes) || c.offset + c.length * sizes[c.type] > buffer.byteLength) {
      throw new Error(`The timeline's column ${c.name} is invalid.`);
    }
    tables[c.table] ??= {};
    (tables[c.table] as Record<string, unknown>)[c.name] = view(buffer, c);
  }
  const empty = (type: Column["type"]) => view(new ArrayBuffer(0), { table: "", name: "", type, offset: 0, length: 0 });
  const bins = {
    lane: empty("u32"),
    index: empty("u32"),
    count: empty("u32"),
    busy_ns: empty("f64"),
    top_ns: empty("f64"),
    top_shape: empty("u32"),
    top_start: empty("f64"),
    ...tables.bins,
  } as TimelineColumns["bins"];
  const result: TimelineColumns = {
    base: head.base,
    from: head.from,
    width: head.width_ns,
    shapes: new Map(head.shapes.map((s) => [s.id, s])),
    bins,
  };
  if (tables.slices) result.slices = tables.slices as unknown as NonNullable<TimelineColumns["slices"]>;
  return result;
}

function view(buffer: ArrayBuffer, c: Column) {
  switch (c.type) {
    case "u8":
      return new Uint8Array(buffer, c.offset, c.length);
    case "u32":
      return new Uint32Array(buffer, c.offset, c.length);
    case "u64":
      return new BigUint64Array(buffer, c.offset, c.length);
    case "f64":
      return new Float64Array(buffer, c.offset, c.length);
  }
}

/** spanText formats a span id as the API writes it. */
export const spanText = (id: bigint): string => id.toString(16).padStart(16, "0");
