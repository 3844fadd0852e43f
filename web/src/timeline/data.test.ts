// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/client";
import { binsOf, buildTracks, chooseMetrics, fetchWindow, withPath } from "./data";
import type { Track } from "./draw";

describe("binsOf", () => {
  const extent = { from: 0, to: 60e9 };
  const bins = (view: { from: number; to: number }, lanes: number) =>
    binsOf(fetchWindow(view, extent), view, 1100, lanes);

  it("has a bin for each pixel of the whole session", () => {
    expect(bins({ from: -6e8, to: 60.6e9 }, 4)).toBe(1100);
  });
  it("has a bin for one or two pixels of a part", () => {
    const view = { from: 30e9, to: 30.1e9 };
    const window = fetchWindow(view, extent);
    const inView = (bins(view, 4) * 1e8) / (window.to - window.from);
    expect(inView).toBeGreaterThan(500);
    expect(inView).toBeLessThanOrEqual(1200);
  });
  it("has at most 50,000 bins in all lanes, but 400 in each", () => {
    expect(bins({ from: 30e9, to: 30.1e9 }, 64)).toBe(781);
    expect(bins({ from: 30e9, to: 30.1e9 }, 1000)).toBe(400);
  });
});

describe("withPath", () => {
  const item = (id: string) => ({ id, kind: "op" as const, start: 0, end: 1, row: 0, name: id, rgb: [0, 0, 0] });
  const lane: Track = {
    key: "lane-1",
    kind: "lane",
    label: "",
    detail: "",
    top: 0,
    height: 30,
    rowHeight: 30,
    items: [item("a"), item("b"), item("c")],
  };
  const part = (span: string, session: string): Schemas["PathPart"] => ({
    start: 5,
    duration_ns: 7,
    kind: "compute",
    name: "gemm",
    spans: [{ span, start: 4, name: "gemm" }],
    session,
    device: "",
    assumed: false,
  });
  const path = {
    base: "0",
    from: 5,
    to: 12,
    kinds: [],
    parts: [part("a", ""), part("b", "s"), part("c", "other")],
    more_parts: 0,
    more_ns: 0,
  };

  it("adds a track above the others and marks operations of this session", () => {
    const [first, second] = withPath([lane], path, "s", false) as [Track, Track];
    expect(first.items.map((i) => [i.id, i.start, i.end, i.at, i.name])).toEqual([
      ["a", 5, 12, 4, "compute: gemm"],
      ["b", 5, 12, 4, "compute: gemm"],
      ["c", 5, 12, 4, "compute: gemm"],
    ]);
    expect(second.top).toBe(first.height);
    expect(second.items.map((i) => i.marked === true)).toEqual([true, true, false]);
  });
});

describe("chooseMetrics", () => {
  const series = (metric: string, index: number) => ({
    metric,
    count: 2,
    attributes: { "cuda.device.index": index, "hw.id": `GPU-${index}` },
  });
  it("names the device where there are several, in their order, and counts what is left out", () => {
    const all = [10, 2, 1].flatMap((i) =>
      ["hw.power", "hw.gpu.utilization", "hw.gpu.memory.usage"].map((m) => series(m, i)),
    );
    const { drawn, left } = chooseMetrics(all);
    expect(drawn.map((d) => d.label)).toEqual([
      "GPU 1 utilisation",
      "GPU 2 utilisation",
      "GPU 10 utilisation",
      "GPU 1 power",
      "GPU 2 power",
      "GPU 10 power",
      "GPU 1 memory",
      "GPU 2 memory",
    ]);
    expect(left).toBe(1);
  });
  it("leaves out the index of an only device", () => {
    const { drawn, left } = chooseMetrics([series("hw.power", 3)]);
    expect(drawn.map((d) => d.label)).toEqual(["GPU power"]);
    expect(left).toBe(0);
  });
});

describe("buildTracks", () => {
  it("has devices in the order of their indices, the unknown one last", () => {
    const lane = (id: number, device?: string, device_index?: number) =>
      ({ id, class: "compute", count: 1, device, device_index, stream: "7" }) as unknown as Schemas["Lane"];
    const overview = { lanes: [lane(1, "GPU-b", 1), lane(2), lane(3, "GPU-a", 0)] } as unknown as Schemas["Overview"];
    const prepared = { spans: [], gaps: new Map(), bins: new Map(), slices: undefined };
    const tracks = buildTracks(overview, prepared, [], "");
    expect(tracks.filter((t) => t.kind === "group").map((t) => t.label)).toEqual(["GPU 0", "GPU 1", "unknown GPU"]);
    expect(tracks.find((t) => t.kind === "lane")?.detail).toBe("1 operation");
  });
});
