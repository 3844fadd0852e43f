// SPDX-License-Identifier: Apache-2.0
import { keepPreviousData, useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { get, getBinary, type Schemas } from "../api/client";
import { decodeTimeline, spanText, type TimelineColumns } from "../api/columns";
import { type SessionState, useGet } from "../api/hooks";
import { oklch, pathColor, scopeColor, sliceColor } from "../lib/color";
import { bytes, count, duration, percent, plural, significant } from "../lib/format";
import { nest } from "../lib/layout";
import { deviceLabel } from "../lib/metrics";
import type { View } from "../lib/scale";
import { type Bins, firstBin, type Item, type Kind, type Track } from "./draw";

/**
 * fetchWindow returns the interval to request for a view. Its width is a power of two, two to four
 * times that of the view, and its start a multiple of a quarter of it. So small movements need no
 * request, and going back finds the cache.
 */
export function fetchWindow(v: View, extent: View): View {
  const unit = 2 ** Math.ceil(Math.log2(Math.max(v.to - v.from, 1)));
  const from = Math.floor(v.from / (unit / 2)) * (unit / 2) - unit / 2;
  return {
    from: Math.floor(Math.max(from, extent.from)),
    to: Math.ceil(Math.min(from + 2.5 * unit, extent.to + 1)),
  };
}

/**
 * binsOf returns the number of bins of a window: about one for a pixel of a view, which is what can be
 * seen, but no more than 50,000 in all lanes, so that an answer takes 0.1 s. It is the same for views of a similar width.
 */
export function binsOf(window: View, v: View, width: number, lanes: number): number {
  const span = Math.max(window.to - window.from, 1);
  const unit = 2 ** Math.ceil(Math.log2(Math.max(v.to - v.from, 1)));
  const views = v.to - v.from >= span ? 1 : Math.min(2.5, (2 * span) / unit);
  const most = Math.max(400, Math.floor(50_000 / Math.max(lanes, 1)));
  return Math.min(4000, Math.max(200, Math.min(most, Math.round((views * width) / 100) * 100)));
}

/** maxSlices is the largest number of single operations in a request. */
export const maxSlices = 8000;

const maxSpans = 2000;

export interface TimelineData {
  columns: TimelineColumns | undefined;
  spans: Schemas["Spans"] | undefined;
  gaps: Schemas["Gaps"] | undefined;
  minSpanNs: number; // the duration of the shortest scope that was asked for
  window: View;
  fetching: boolean;
  error: unknown;
}

/** useTimeline reads bins, slices, spans and gaps around a view. Width is that of the canvas in pixels. */
export function useTimeline(session: SessionState, view: View, extent: View, width: number): TimelineData {
  const w = fetchWindow(view, extent);
  const span = Math.max(w.to - w.from, 1);
  const bins = binsOf(w, view, width, session.overview.lanes.length);
  const pixel = Math.floor((view.to - view.from) / Math.max(width, 200));
  const minNs = pixel < 1 ? 0 : 2 ** Math.floor(Math.log2(pixel));
  // A scope that is shorter than a pixel is drawn as a tick, so that steps are seen from far.
  const minSpanNs = minNs < 16 ? 0 : minNs / 16;
  const params = { session: session.id };
  const common = { base: session.base, from: w.from, to: w.to };
  const columns = useQuery({
    queryKey: ["timeline", session.id, session.base, w.from, w.to, bins],
    queryFn: async ({ signal }) =>
      decodeTimeline(
        await getBinary(
          `/sessions/${encodeURIComponent(session.id)}/timeline`,
          { ...common, bins, slices: maxSlices },
          signal,
        ),
      ),
    placeholderData: keepPreviousData,
    refetchInterval: session.every,
    enabled: width > 0,
  });
  const spans = useGet(
    "/sessions/{session}/spans",
    params,
    { ...common, overlapping: true, min_ns: minSpanNs, sort: "duration", limit: maxSpans },
    { every: session.every, enabled: width > 0 },
  );
  const gaps = useGet(
    "/sessions/{session}/gaps",
    params,
    { ...common, overlapping: true, min_ns: Math.max(10_000, minNs * 2, Math.floor(span / 4000)), limit: 2000 },
    { every: session.every, enabled: width > 0 },
  );
  return {
    columns: columns.data,
    spans: spans.data,
    gaps: gaps.data,
    minSpanNs,
    window: w,
    fetching: columns.isFetching || spans.isFetching || gaps.isFetching,
    error: columns.error ?? spans.error ?? gaps.error,
  };
}

/** Metrics that the timeline shows below the lanes, in this order, each with its scale. */
const metrics: {
  metric: string;
  label: string;
  hue: number;
  max?: number;
  format: (v: number) => string;
  skip?: (a: Schemas["Attributes"]) => boolean;
}[] = [
  {
    metric: "hw.gpu.utilization",
    label: "utilisation",
    hue: 150,
    max: 1,
    format: percent,
    skip: (a) => a["hw.gpu.task"] !== undefined && a["hw.gpu.task"] !== "general",
  },
  { metric: "hw.power", label: "power", hue: 60, format: (v) => `${significant(v)} W` },
  { metric: "hw.gpu.memory.usage", label: "memory", hue: 250, format: bytes },
];

export interface MetricTrack {
  key: string;
  label: string;
  detail: string;
  metric: string;
  series: NonNullable<Track["series"]>[number];
}

const maxMetrics = 8;

/** chooseMetrics returns the series that the timeline draws, with their labels, and how many it leaves out. */
export function chooseMetrics<T extends Pick<Schemas["Series"], "metric" | "count" | "attributes">>(
  all: readonly T[],
): { drawn: { m: (typeof metrics)[number]; s: T; label: string }[]; left: number } {
  const found = metrics.flatMap((m) =>
    all
      .filter((s) => s.metric === m.metric && s.count > 0 && !m.skip?.(s.attributes))
      .map((s) => ({ m, s, device: deviceLabel(s.attributes) }))
      .sort((a, b) => a.device.localeCompare(b.device, "en", { numeric: true })),
  );
  const several = new Set(found.map((f) => f.device)).size > 1;
  return {
    drawn: found
      .slice(0, maxMetrics)
      .map(({ m, s, device }) => ({ m, s, label: `${(several && device) || "GPU"} ${m.label}` })),
    left: Math.max(0, found.length - maxMetrics),
  };
}

/** useMetrics reads the metrics of the session's devices. Left is the number of those that are not drawn. */
export function useMetrics(
  session: SessionState,
  extent: View,
  dark: boolean,
): { tracks: MetricTrack[]; left: number } {
  const params = { session: session.id };
  const own = useGet(
    "/sessions/{session}/series",
    params,
    { base: session.base, source: "session" },
    { every: session.every },
  );
  const system = useGet(
    "/sessions/{session}/series",
    params,
    { base: session.base, source: "system" },
    { every: session.every },
  );
  const { drawn: wanted, left } = useMemo(
    () =>
      chooseMetrics([
        ...(own.data?.series ?? []).map((s) => ({ ...s, source: "session" })),
        ...(system.data?.series ?? []).map((s) => ({ ...s, source: "system" })),
      ]),
    [own.data, system.data],
  );
  const points = useQueries({
    queries: wanted.map(({ s }) => ({
      queryKey: ["points", session.id, session.base, s.source, s.key],
      queryFn: ({ signal }: { signal: AbortSignal }) =>
        get(
          "/sessions/{session}/series/{key}",
          { session: session.id, key: s.key },
          { base: session.base, source: s.source, points: 4000, from: extent.from, to: extent.to + 1 },
          signal,
        ),
      placeholderData: keepPreviousData,
      refetchInterval: session.every,
    })),
  });
  const stamp = points.map((p) => p.dataUpdatedAt).join();
  // biome-ignore lint/correctness/useExhaustiveDependencies: stamp changes with the points
  const tracks = useMemo(
    () =>
      wanted.flatMap(({ m, s, label }, i) => {
        const data = points[i]?.data;
        if (!data) return [];
        const v = Float64Array.from(data.value, (x) => x ?? 0);
        const top = v.reduce((a, b) => Math.max(a, b), 0);
        return {
          key: `metric-${s.key}`,
          label,
          detail: `max ${m.format(top)}`,
          metric: m.metric,
          series: {
            t: Float64Array.from(data.time),
            v,
            max: m.max ?? (top * 1.1 || 1),
            rgb: oklch(dark ? 0.72 : 0.55, 0.12, m.hue),
            format: m.format,
          },
        };
      }),
    [wanted, stamp, dark],
  );
  return { tracks, left };
}

const deviceName = (device: string | undefined, index: number | undefined): string =>
  index !== undefined ? `GPU ${index}` : device ? device.slice(0, 12) : "unknown GPU";

/** place puts devices in the order of their indices, those without one after them, and the unknown one last. */
const place = (l: Schemas["Lane"]): number => l.device_index ?? (l.device ? 1e6 : 2e6);

const laneOrder = { compute: 0, copy: 1, host: 2 };

/** laneLabels names the lanes of a device. Lanes that differ in the context only have its number. */
function laneLabels(lanes: readonly Schemas["Lane"][]): string[] {
  const labels = lanes.map(laneLabel);
  return labels.map((l, i) => {
    const context = lanes[i]?.context;
    return labels.indexOf(l) === labels.lastIndexOf(l)
      ? l
      : `${l}, ${context === undefined ? "no context" : `context ${context}`}`;
  });
}

function laneLabel(lane: Schemas["Lane"]): string {
  const stream = lane.stream !== undefined ? `stream ${lane.stream}` : "";
  if (lane.class === "host") return stream ? `host, ${stream}` : "host";
  return `${stream || "stream unknown"}${lane.class === "copy" ? " copies" : ""}`;
}

/** Prepared is what tracks are made of. It depends on the data and the theme only, not on the view. */
export interface Prepared {
  spans: [label: string, items: Item[], rows: number][];
  gaps: Map<string, Item[]>;
  bins: Map<number, Bins>;
  /** Undefined if the answer has bins only. */
  slices: Map<number, Item[]> | undefined;
}

/** prepare makes items and bins of the data. It takes milliseconds, so frames reuse its result. */
export function prepare(data: Pick<TimelineData, "columns" | "spans" | "gaps">, dark: boolean): Prepared {
  const gaps = new Map<string, Item[]>();
  for (const g of data.gaps?.gaps ?? []) {
    const items = gaps.get(g.device) ?? [];
    items.push({
      id: `gap-${g.start}`,
      kind: "gap",
      start: g.start,
      end: g.start + g.duration_ns,
      row: 0,
      name: "no kernel",
      rgb: dark ? [196, 134, 62] : [190, 120, 30],
    });
    gaps.set(g.device, items);
  }
  for (const items of gaps.values()) items.sort((a, b) => a.start - b.start);
  return {
    spans: [...spanGroups(data.spans?.spans ?? [])].map(([label, spans]) => {
      const items = spanItems(spans, dark);
      return [label, items, items.reduce((n, i) => Math.max(n, i.row + 1), 1)];
    }),
    gaps,
    bins: splitBins(data.columns, dark),
    slices: data.columns?.slices && splitSlices(data.columns, dark),
  };
}

/** denseLanes returns the lanes that show bins: slices narrower than pixels would exaggerate the busy share. */
export function denseLanes(p: Prepared, view: View, width: number): string {
  const lanes: number[] = [];
  for (const [lane, slices] of p.slices ?? []) if (dense(slices, view, width)) lanes.push(lane);
  return lanes.join();
}

/** buildTracks lays out all tracks from the top: spans, then each device with its lanes, then metrics. */
export function buildTracks(
  overview: Schemas["Overview"],
  prepared: Prepared,
  metricTracks: readonly MetricTrack[],
  denseIds: string,
): Track[] {
  const denseOnes = new Set(denseIds.split(","));
  const tracks: Track[] = [];
  let top = 0;
  const add = (t: Omit<Track, "top">) => {
    tracks.push({ ...t, top });
    top += t.height;
  };
  for (const [label, items, rows] of prepared.spans) {
    add({ key: `spans-${label}`, kind: "spans", label, detail: "", rowHeight: 18, height: rows * 18 + 6, items });
  }
  const devices = new Map<string, Schemas["Lane"][]>();
  for (const lane of [...overview.lanes].sort(
    (a, b) => place(a) - place(b) || laneOrder[a.class] - laneOrder[b.class],
  )) {
    const key = `${lane.device ?? ""}|${lane.device_index ?? ""}`;
    devices.set(key, [...(devices.get(key) ?? []), lane]);
  }
  for (const [key, lanes] of devices) {
    const first = lanes[0] as Schemas["Lane"];
    add({
      key: `group-${key}`,
      kind: "group",
      label: deviceName(first.device, first.device_index),
      detail: first.device ?? "",
      rowHeight: 22,
      height: 22,
      items: [],
    });
    if (lanes.some((l) => l.class === "compute")) {
      const items = prepared.gaps.get(first.device ?? "") ?? [];
      add({
        key: `gaps-${key}`,
        kind: "gaps",
        label: "no kernel",
        detail: "between two kernels of this GPU; copies and sets can run in it",
        rowHeight: 16,
        height: 16,
        items,
      });
    }
    const labels = laneLabels(lanes);
    for (const [i, lane] of lanes.entries()) {
      const single = prepared.slices !== undefined && !denseOnes.has(String(lane.id));
      const items = (single && prepared.slices?.get(lane.id)) || [];
      const rows = items.reduce((n, i) => Math.max(n, i.row + 1), 1);
      const tall = lane.class === "compute" ? 30 : 22;
      const rowHeight = rows === 1 ? tall : Math.max(14, tall / 1.5);
      const bins = single ? undefined : prepared.bins.get(lane.id);
      add({
        key: `lane-${lane.id}`,
        kind: "lane",
        label: labels[i] ?? "",
        detail: plural(lane.count, "operation"),
        rowHeight,
        height: rows * rowHeight,
        items,
        ...(bins ? { bins } : {}),
      });
    }
  }
  if (metricTracks.length) {
    add({ key: "group-metrics", kind: "group", label: "Metrics", detail: "", rowHeight: 22, height: 22, items: [] });
  }
  for (const m of metricTracks) {
    add({
      key: m.key,
      kind: "metric",
      label: m.label,
      detail: m.detail,
      rowHeight: 44,
      height: 44,
      items: [],
      series: [m.series],
    });
  }
  return tracks;
}

/**
 * withPath adds a track with a critical path above all others, and marks the operations that are parts of it.
 * Parts in other sessions have no operation here.
 */
export function withPath(tracks: Track[], path: Schemas["CriticalPath"], session: string, dark: boolean): Track[] {
  const height = 26;
  const items: Item[] = path.parts.map((p) => ({
    id: p.spans[0]?.span ?? "",
    kind: "span",
    start: p.start,
    end: p.start + p.duration_ns,
    row: 0,
    name: p.name ? `${p.kind}: ${p.name}` : p.kind,
    rgb: pathColor(p.kind, dark),
    at: p.spans[0]?.start,
  }));
  const own = new Set(
    path.parts.flatMap((p) => (p.session === "" || p.session === session ? p.spans.map((s) => s.span) : [])),
  );
  const first: Track = {
    key: "critical-path",
    kind: "spans",
    label: "critical path",
    detail: "",
    top: 0,
    height,
    rowHeight: 20,
    items,
  };
  return [
    first,
    ...tracks.map((t) => ({
      ...t,
      top: t.top + height,
      items: t.kind === "lane" ? t.items.map((i) => (own.has(i.id) ? { ...i, marked: true } : i)) : t.items,
    })),
  ];
}

/** dense says whether a view has more than one slice for four pixels. */
export function dense(slices: readonly Item[], view: View, width: number): boolean {
  let n = 0;
  for (const s of slices) {
    if (s.start > view.to) break;
    if (s.end >= view.from && ++n > width / 4) return true;
  }
  return false;
}

/** spanGroups separates requests, NVTX ranges and scopes, and threads where they are known. */
function spanGroups(spans: readonly Schemas["Span"][]): Map<string, Schemas["Span"][]> {
  const groups = new Map<string, Schemas["Span"][]>();
  const order = ["Requests", "Scopes", "NVTX", "Windows"];
  for (const s of spans) {
    if (s.operation === "session") continue;
    const kind =
      s.operation === "deep_window"
        ? "Windows"
        : s.operation !== "scope" && s.kind !== "internal"
          ? "Requests"
          : s.source === "nvtx"
            ? "NVTX"
            : "Scopes";
    const key = s.thread ? `${kind} · ${s.thread}` : kind;
    groups.set(key, [...(groups.get(key) ?? []), s]);
  }
  const rank = (k: string) => order.findIndex((o) => k.startsWith(o));
  return new Map([...groups].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b)));
}

function spanItems(spans: readonly Schemas["Span"][], dark: boolean): Item[] {
  const depth = new Map(spans.map((s) => [s.span, s]));
  const level = (s: Schemas["Span"]): number => {
    let n = 0;
    for (
      let p = s.parent ? depth.get(s.parent) : undefined;
      p && n < 64;
      p = p.parent ? depth.get(p.parent) : undefined
    )
      n++;
    return n;
  };
  const sorted = spans
    .map((s) => ({
      s,
      start: s.start,
      end: s.start + s.duration_ns,
      id: s.span,
      parent: s.parent ?? "",
      level: level(s),
    }))
    .sort((a, b) => a.start - b.start || a.level - b.level || b.end - a.end);
  const { rows } = nest(sorted);
  return sorted.map((x, i) => ({
    id: x.id,
    kind: "span",
    start: x.start,
    end: x.end,
    row: rows[i] as number,
    name: x.s.name,
    rgb: scopeColor(x.s.name, dark),
  }));
}

function splitBins(c: TimelineColumns | undefined, dark: boolean): Map<number, Bins> {
  const result = new Map<number, Bins>();
  if (!c) return result;
  const { lane, index, count: n, busy_ns, top_shape } = c.bins;
  // Many shapes have the same name, so kinds are names. The first is that of an unknown shape.
  const kinds: Kind[] = [{ name: "", rgb: sliceColor("", dark) }];
  const byName = new Map([["", 0]]);
  const byShape = new Map<number, number>();
  for (const [id, { name }] of c.shapes) {
    let k = byName.get(name);
    if (k === undefined) {
      k = kinds.push({ name, rgb: sliceColor(name, dark) }) - 1;
      byName.set(name, k);
    }
    byShape.set(id, k);
  }
  for (let i = 0; i < lane.length; ) {
    let end = i;
    while (end < lane.length && lane[end] === lane[i]) end++;
    const kind = new Uint32Array(end - i);
    const before = new Float64Array(end - i + 1);
    for (let k = 0; k < kind.length; k++) {
      kind[k] = byShape.get(top_shape[i + k] as number) ?? 0;
      // A bin in which no operation starts continues the one before it.
      if (k > 0 && kind[k] === 0 && n[i + k] === 0) kind[k] = kind[k - 1] as number;
      before[k + 1] = (before[k] as number) + (n[i + k] as number);
    }
    result.set(lane[i] as number, {
      from: c.from,
      width: c.width,
      index: index.subarray(i, end),
      busy: busy_ns.subarray(i, end),
      kind,
      kinds,
      before,
    });
    i = end;
  }
  return result;
}

function splitSlices(c: TimelineColumns | undefined, dark: boolean): Map<number, Item[]> {
  const result = new Map<number, Item[]>();
  const s = c?.slices;
  if (!c || !s) return result;
  for (let i = 0; i < s.lane.length; i++) {
    const name = c.shapes.get(s.shape[i] as number)?.name ?? "unknown";
    const item: Item = {
      id: spanText(s.span[i] as bigint),
      kind: "op",
      start: s.start[i] as number,
      end: (s.start[i] as number) + (s.duration_ns[i] as number),
      row: s.row[i] as number,
      name,
      rgb: sliceColor(name, dark),
    };
    if (s.estimated[i]) item.estimated = true;
    const list = result.get(s.lane[i] as number);
    if (list) list.push(item);
    else result.set(s.lane[i] as number, [item]);
  }
  return result;
}

/**
 * shown says what the view contains and what it leaves out, in one sentence each. Scopes is their number in the
 * session, metricsLeft that of metric tracks that are not drawn.
 */
export function shown(
  data: TimelineData,
  prepared: Prepared,
  view: View,
  tracks: readonly Track[],
  scopes: number,
  metricsLeft: number,
): string[] {
  const c = data.columns;
  if (!c) return [];
  const result: string[] = [];
  let n = 0;
  let inside = 0;
  const binned = tracks.filter((t) => t.bins).length;
  if (c.slices) {
    for (let i = 0; i < c.slices.start.length; i++) {
      const start = c.slices.start[i] as number;
      if (start < view.to && start + (c.slices.duration_ns[i] as number) >= view.from) n++;
    }
    const operations = plural(n, "operation");
    result.push(
      binned
        ? `${operations}; dense lanes show bins of ${duration(c.width)}: height is the busy share, colour the longest operation`
        : `${operations}, each drawn`,
    );
  } else {
    for (const b of prepared.bins.values()) {
      const first = firstBin(b, view.from);
      let end = firstBin(b, view.to);
      if (end < b.index.length && b.from + (b.index[end] as number) * b.width < view.to) end++;
      n += (b.before[end] as number) - (b.before[first] as number);
      inside += end - first;
    }
    result.push(
      `${plural(n, "operation")} in ${plural(inside, "bin")} of ${duration(c.width)}: height is the busy share, colour the longest operation. Zoom in for single ones`,
    );
  }
  if (data.spans?.truncated) result.push(`only the ${count(data.spans.spans.length)} longest scopes`);
  else if (data.spans && data.minSpanNs > 0 && data.spans.spans.length < scopes)
    result.push(`no scopes shorter than ${duration(data.minSpanNs)}`);
  if (data.gaps && data.gaps.count > data.gaps.gaps.length) {
    // The gaps are those of the loaded interval, which is wider than the view.
    const drawn = data.gaps.gaps.length;
    result.push(
      drawn === 0
        ? "no gap without a kernel is long enough to draw"
        : `the longest ${count(drawn)} of ${count(data.gaps.count)} gaps without a kernel in and around the view`,
    );
  }
  if (metricsLeft) result.push(`${plural(metricsLeft, "metric track")} not drawn`);
  return result;
}
