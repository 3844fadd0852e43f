// SPDX-License-Identifier: Apache-2.0

/**
 * Drawing of the timeline. All rectangles go to a pixel buffer, which is copied to the canvas once
 * per frame. Text and outlines follow on top. Filled paths of a canvas are 50 times slower at 64
 * lanes of 2,000 bins.
 */
import { css, ink } from "../lib/color";
import { duration, offset } from "../lib/format";
import { tickStep, ticks, toNs, toX, type View } from "../lib/scale";

/** Item is a slice of a track: an operation, a span or a gap. Row counts from the top of the track. */
export interface Item {
  id: string;
  kind: "op" | "span" | "gap";
  start: number;
  end: number;
  row: number;
  name: string;
  rgb: readonly number[];
  /** A slice whose times are not measured. */
  estimated?: boolean;
  /** A slice on the critical path. */
  marked?: boolean;
  /** Start of the span id, if it is not that of the slice. */
  at?: number;
}

/** Kind is what bins have in common: the name and the colour of the longest operation. */
export interface Kind {
  name: string;
  rgb: readonly number[];
}

/** Bins are equal parts of an interval. Kind has positions in kinds, which all lanes of an answer share. */
export interface Bins {
  from: number;
  width: number;
  index: Uint32Array;
  busy: Float64Array;
  kind: Uint32Array;
  kinds: readonly Kind[];
  /** Before has the number of operations before each bin, and after the last. */
  before: Float64Array;
}

/** Track is a horizontal band of the timeline. Top is its distance from the first track. */
export interface Track {
  key: string;
  kind: "group" | "spans" | "lane" | "gaps" | "metric";
  label: string;
  detail: string;
  top: number;
  height: number;
  rowHeight: number;
  items: readonly Item[];
  bins?: Bins;
  series?: { t: Float64Array; v: Float64Array; max: number; rgb: readonly number[]; format: (v: number) => string }[];
}

/** Scene is all that a frame depends on. Sizes are CSS pixels. */
export interface Scene {
  width: number;
  height: number;
  dpr: number;
  view: View;
  scroll: number;
  tracks: readonly Track[];
  dark: boolean;
  selected: string;
  hover: string;
  /** Lower-case text to highlight, "" for none. */
  match: string;
  /** The measured interval. */
  range: View | null;
  /** The vertical line under the pointer, in ns. */
  cursor: number | null;
  /** The launch of the selected operation on the host. */
  launch: { at: number; start: number; track: string; row: number } | null;
}

export const axisHeight = 30;
const pad = 2;

interface Palette {
  bg: number;
  band: number;
  grid: number;
  group: number;
  mark: number;
  text: string;
  muted: string;
  line: string;
  accent: string;
  range: string;
  axis: string;
}

const pack = (r: number, g: number, b: number): number => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

const palettes: Record<"light" | "dark", Palette> = {
  light: {
    bg: pack(255, 255, 255),
    band: pack(249, 250, 252),
    grid: pack(233, 236, 241),
    group: pack(238, 241, 245),
    mark: pack(21, 87, 192),
    text: "#131820",
    muted: "#555f6e",
    line: "#dde2e9",
    accent: "#1557c0",
    range: "rgba(21,87,192,0.12)",
    axis: "#ffffff",
  },
  dark: {
    bg: pack(19, 24, 34),
    band: pack(22, 28, 39),
    grid: pack(34, 42, 56),
    group: pack(28, 35, 48),
    mark: pack(125, 176, 255),
    text: "#e7ebf2",
    muted: "#9aa5b6",
    line: "#252d3b",
    accent: "#7db0ff",
    range: "rgba(125,176,255,0.16)",
    axis: "#131822",
  },
};

/** Columns are the pixel columns of a lane. First is the number of the first one, from the start of the bins. */
interface Columns {
  scale: number;
  height: number;
  palette: Uint32Array;
  first: number;
  /** Rows above each column, and its colour. A column without a bin has all rows above it. */
  tops: Int16Array;
  colors: Uint32Array;
}

/** Painter keeps the pixel buffer between frames. */
export class Painter {
  private image: ImageData | null = null;
  private pixels = new Uint32Array(0);
  private lanes = new WeakMap<Bins, Columns>();
  private w = 0;
  private h = 0;
  private textWidth = new Map<string, number>();
  private kinds: { of: readonly Kind[]; match: string; bg: number; packed: Uint32Array } | null = null;

  /** paint draws a frame. */
  paint(ctx: CanvasRenderingContext2D, s: Scene): void {
    const p = palettes[s.dark ? "dark" : "light"];
    this.resize(ctx, s);
    const step = tickStep(s.view.to - s.view.from, s.width / 110);
    const visible = s.tracks.filter((t) => t.top + t.height > s.scroll && t.top < s.scroll + s.height - axisHeight);
    // Tracks follow one another from top to bottom, so each row gets its background once.
    let below = 0;
    for (const t of visible) {
      const y = this.y(s, t.top);
      const color = t.kind === "group" ? p.group : t.kind === "lane" ? p.band : p.bg;
      this.rect(0, this.w, below, y, p.bg);
      this.rect(0, this.w, y, y + t.height * s.dpr, color);
      below = Math.round(y + t.height * s.dpr);
    }
    this.rect(0, this.w, below, this.h, p.bg);
    for (const t of ticks(s.view, step)) {
      const x = Math.round(toX(s.view, s.width, t) * s.dpr);
      this.rect(x, x + 1, axisHeight * s.dpr, this.h, p.grid);
    }
    for (const t of visible) {
      if (t.bins) this.bins(s, t, t.bins, p);
      this.items(s, t, p);
      if (t.series) this.metric(s, t);
    }
    if (this.image) ctx.putImageData(this.image, 0, 0);
    ctx.setTransform(s.dpr, 0, 0, s.dpr, 0, 0);
    ctx.textBaseline = "middle";
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, axisHeight, s.width, s.height - axisHeight);
    ctx.clip();
    ctx.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    for (const t of visible) this.labels(ctx, s, t, p);
    ctx.restore();
    if (s.launch) this.launch(ctx, s, s.launch, p);
    this.axis(ctx, s, step, p);
    this.range(ctx, s, p);
  }

  private resize(ctx: CanvasRenderingContext2D, s: Scene) {
    const w = Math.max(1, Math.round(s.width * s.dpr));
    const h = Math.max(1, Math.round(s.height * s.dpr));
    if (w === this.w && h === this.h && this.image) return;
    this.w = w;
    this.h = h;
    this.image = ctx.createImageData(w, h);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  private y(s: Scene, top: number): number {
    return Math.round((top - s.scroll + axisHeight) * s.dpr);
  }

  private rect(x0: number, x1: number, y0: number, y1: number, color: number) {
    const a = Math.max(0, Math.round(x0));
    const b = Math.min(this.w, Math.round(x1));
    const top = Math.max(0, Math.round(y0));
    const bottom = Math.min(this.h, Math.round(y1));
    if (b <= a || bottom <= top) return;
    if (b - a === this.w) {
      this.pixels.fill(color, top * this.w, bottom * this.w);
      return;
    }
    // A call of fill costs more than a few stores.
    if (b - a > 16) {
      for (let y = top; y < bottom; y++) this.pixels.fill(color, y * this.w + a, y * this.w + b);
      return;
    }
    for (let y = top; y < bottom; y++) {
      const row = y * this.w;
      for (let x = a; x < b; x++) this.pixels[row + x] = color;
    }
  }

  /** packed returns the colours of kinds. Those that do not match the search are pale. */
  private packed(kinds: readonly Kind[], s: Scene, p: Palette): Uint32Array {
    const known = this.kinds;
    if (known?.of === kinds && known.match === s.match && known.bg === p.bg) return known.packed;
    const packed = Uint32Array.from(kinds, ({ name, rgb }) =>
      s.match !== "" && !name.toLowerCase().includes(s.match)
        ? mix(rgb, p.bg, 0.22)
        : pack(rgb[0] as number, rgb[1] as number, rgb[2] as number),
    );
    this.kinds = { of: kinds, match: s.match, bg: p.bg, packed };
    return packed;
  }

  /**
   * columns returns the columns of a lane around a view. A pan shifts them by whole pixels, so its frames
   * find them. A zoom changes their width, so it has no use for those outside the view.
   */
  private columns(s: Scene, b: Bins, height: number, colors: Uint32Array): Columns {
    let scale = (s.width * s.dpr) / (s.view.to - s.view.from);
    const known = this.lanes.get(b);
    // The width of a view that moves changes by rounding.
    const still = known !== undefined && Math.abs(known.scale / scale - 1) < 1e-6;
    if (still) scale = known.scale;
    const first = Math.round((s.view.from - b.from) * scale);
    const same = still && known.height === height && known.palette === colors;
    if (same && first >= known.first && first + this.w <= known.first + known.tops.length) return known;
    const margin = same || known === undefined ? this.w : 0;
    const length = this.w + 2 * margin;
    const reused = known?.tops.length === length ? known : undefined;
    const c: Columns = {
      scale,
      height,
      palette: colors,
      first: first - margin,
      tops: (reused?.tops ?? new Int16Array(length)).fill(height),
      colors: reused?.colors.fill(0) ?? new Uint32Array(length),
    };
    const least = 2 / height;
    const width = b.width * scale;
    for (let i = firstBin(b, b.from + c.first / scale); i < b.index.length; i++) {
      const x = (b.index[i] as number) * width;
      const x0 = Math.floor(x) - c.first;
      if (x0 >= c.tops.length) break;
      const z = Math.min(c.tops.length, Math.max(x0 + 1, Math.floor(x + width) - c.first));
      const share = Math.min(1, Math.max((b.busy[i] as number) / b.width, least));
      const top = Math.min(Math.round(height * (1 - share)), height - 1);
      for (let x = Math.max(0, x0); x < z; x++) {
        if (top >= (c.tops[x] as number)) continue;
        c.tops[x] = top;
        c.colors[x] = colors[b.kind[i] as number] as number;
      }
    }
    this.lanes.set(b, c);
    return c;
  }

  /**
   * bins draws one column per bin: the height is the busy share, the colour the longest operation. Where
   * bins share a column, the tallest one counts. It writes row by row, which is faster than by columns.
   */
  private bins(s: Scene, t: Track, b: Bins, p: Palette) {
    const y0 = this.y(s, t.top) + Math.round(pad * s.dpr);
    const height = Math.max(2, Math.round((t.height - 2 * pad) * s.dpr));
    const c = this.columns(s, b, height, this.packed(b.kinds, s, p));
    const from = Math.round((s.view.from - b.from) * c.scale) - c.first;
    const tops = c.tops.subarray(from, from + this.w);
    const colors = c.colors.subarray(from, from + this.w);
    let [highest, lowest] = [height, 0];
    for (let x = 0; x < tops.length; x++) {
      const top = tops[x] as number;
      if (top < highest) highest = top;
      if (top > lowest) lowest = top;
    }
    for (let y = Math.max(highest, -y0); y < height && y0 + y < this.h; y++) {
      const row = (y0 + y) * this.w;
      // Below all tops, a row is a copy of the colours.
      if (y >= lowest) {
        this.pixels.set(colors, row);
        continue;
      }
      for (let x = 0; x < tops.length; x++) {
        if (y >= (tops[x] as number)) this.pixels[row + x] = colors[x] as number;
      }
    }
  }

  private items(s: Scene, t: Track, p: Palette) {
    const scale = (s.width * s.dpr) / (s.view.to - s.view.from);
    for (const it of t.items) {
      if (it.start > s.view.to) break;
      if (it.end < s.view.from) continue;
      const x0 = Math.floor((it.start - s.view.from) * scale);
      let x1 = Math.max(x0 + 1, Math.floor((it.end - s.view.from) * scale));
      if (x1 - x0 > 3 * s.dpr) x1 -= Math.round(s.dpr);
      const y = this.y(s, t.top + it.row * t.rowHeight);
      const dim = s.match !== "" && !it.name.toLowerCase().includes(s.match);
      const color = dim ? mix(it.rgb, p.bg, 0.22) : pack(it.rgb[0] as number, it.rgb[1] as number, it.rgb[2] as number);
      const y1 = y + t.rowHeight * s.dpr;
      if (it.kind === "gap") this.rect(x0, x1, (y + y1) / 2 - s.dpr, (y + y1) / 2 + s.dpr, color);
      else
        this.rect(x0, x1, y + (t.kind === "lane" ? pad : 1) * s.dpr, y1 - (t.kind === "lane" ? pad : 1) * s.dpr, color);
      if (it.marked) this.rect(x0, x1, y1 - 5 * s.dpr, y1 - pad * s.dpr, p.mark);
    }
  }

  private metric(s: Scene, t: Track) {
    for (const series of t.series ?? []) {
      const scale = (s.width * s.dpr) / (s.view.to - s.view.from);
      const base = this.y(s, t.top + t.height - 3);
      const full = (t.height - 8) * s.dpr;
      const [r, g, b] = series.rgb as [number, number, number];
      const fill = mix(series.rgb, palettes[s.dark ? "dark" : "light"].bg, 0.3);
      for (let i = 0; i < series.t.length; i++) {
        const from = series.t[i] as number;
        const to = i + 1 < series.t.length ? (series.t[i + 1] as number) : from;
        const x0 = (from - s.view.from) * scale;
        const x1 = Math.max((to - s.view.from) * scale, x0 + 2 * s.dpr);
        if (x1 < 0 || x0 > this.w) continue;
        const y = base - (full * (series.v[i] as number)) / (series.max || 1);
        this.rect(x0, x1, y, base, fill);
        this.rect(x0, x1, y, y + Math.ceil(1.5 * s.dpr), pack(r, g, b));
      }
    }
  }

  private labels(ctx: CanvasRenderingContext2D, s: Scene, t: Track, p: Palette) {
    const scale = s.width / (s.view.to - s.view.from);
    for (const it of t.items) {
      if (it.start > s.view.to) break;
      if (it.end < s.view.from) continue;
      const x0 = (it.start - s.view.from) * scale;
      const x1 = (it.end - s.view.from) * scale;
      const y = t.top - s.scroll + axisHeight + it.row * t.rowHeight;
      const chosen = it.id === s.selected;
      const matched = s.match !== "" && it.name.toLowerCase().includes(s.match);
      if (chosen || it.id === s.hover || (matched && x1 - x0 > 2)) {
        ctx.lineWidth = chosen ? 2.5 : 1.5;
        ctx.strokeStyle = chosen ? p.accent : p.text;
        ctx.strokeRect(x0 - 0.5, y + 0.5, Math.max(x1 - x0, 3), t.rowHeight - 1);
      }
      const left = Math.max(x0, 0) + 4;
      const room = Math.min(x1, s.width) - left - 4;
      if (room < 18 || y + t.rowHeight < axisHeight) continue;
      const dim = s.match !== "" && !matched;
      if (it.kind === "gap") {
        const text = `no kernel ${duration(it.end - it.start)}`;
        const width = this.measure(ctx, text);
        if (room < width + 12) continue;
        const x = left + (room - width) / 2;
        ctx.fillStyle = unpack(p.bg);
        ctx.fillRect(x - 4, y + 1, width + 8, t.rowHeight - 2);
        ctx.fillStyle = p.muted;
        ctx.fillText(text, x, y + t.rowHeight / 2 + 0.5);
        continue;
      }
      ctx.fillStyle = dim ? p.muted : css(ink);
      const name = it.estimated ? `~ ${it.name}` : it.name;
      const text = this.fit(ctx, name, room);
      if (!text) continue;
      ctx.fillText(text, left, y + t.rowHeight / 2 + 0.5);
      const used = this.measure(ctx, text);
      const length = duration(it.end - it.start);
      if (room - used > this.measure(ctx, length) + 14) {
        ctx.globalAlpha = 0.75;
        ctx.fillText(length, left + used + 8, y + t.rowHeight / 2 + 0.5);
        ctx.globalAlpha = 1;
      }
    }
  }

  private launch(ctx: CanvasRenderingContext2D, s: Scene, l: NonNullable<Scene["launch"]>, p: Palette) {
    const t = s.tracks.find((x) => x.key === l.track);
    if (!t) return;
    const y = t.top - s.scroll + axisHeight + l.row * t.rowHeight + t.rowHeight - 2;
    const x0 = toX(s.view, s.width, l.at);
    const x1 = toX(s.view, s.width, l.start);
    ctx.save();
    ctx.strokeStyle = p.accent;
    ctx.fillStyle = p.accent;
    ctx.lineWidth = 1.5;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.moveTo(x0, y);
    ctx.lineTo(x1, y);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.arc(x0, y, 3, 0, 2 * Math.PI);
    ctx.fill();
    ctx.restore();
  }

  private axis(ctx: CanvasRenderingContext2D, s: Scene, step: number, p: Palette) {
    ctx.fillStyle = p.axis;
    ctx.fillRect(0, 0, s.width, axisHeight);
    ctx.fillStyle = p.line;
    ctx.fillRect(0, axisHeight - 1, s.width, 1);
    ctx.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    for (const t of ticks(s.view, step)) {
      const x = toX(s.view, s.width, t);
      ctx.fillStyle = p.line;
      ctx.fillRect(x, axisHeight - 7, 1, 6);
      const text = offset(t, step);
      if (x + this.measure(ctx, text) + 4 > s.width) continue;
      ctx.fillStyle = p.muted;
      ctx.fillText(text, x + 4, axisHeight / 2);
    }
    if (s.cursor !== null && s.cursor >= s.view.from && s.cursor <= s.view.to) {
      const x = toX(s.view, s.width, s.cursor);
      ctx.fillStyle = p.muted;
      ctx.globalAlpha = 0.5;
      ctx.fillRect(x, axisHeight, 1, s.height);
      ctx.globalAlpha = 1;
      const text = offset(s.cursor, (s.view.to - s.view.from) / s.width);
      const width = this.measure(ctx, text) + 10;
      const left = Math.min(Math.max(x - width / 2, 0), s.width - width);
      ctx.fillStyle = p.text;
      ctx.fillRect(left, 5, width, axisHeight - 11);
      ctx.fillStyle = p.axis;
      ctx.fillText(text, left + 5, axisHeight / 2);
    }
  }

  private range(ctx: CanvasRenderingContext2D, s: Scene, p: Palette) {
    if (!s.range) return;
    const x0 = toX(s.view, s.width, s.range.from);
    const x1 = toX(s.view, s.width, s.range.to);
    ctx.fillStyle = p.range;
    ctx.fillRect(x0, axisHeight, x1 - x0, s.height);
    ctx.fillStyle = p.accent;
    ctx.fillRect(x0, 0, 1.5, s.height);
    ctx.fillRect(x1 - 1.5, 0, 1.5, s.height);
    const text = duration(s.range.to - s.range.from);
    ctx.font = "600 12px system-ui, 'DejaVu Sans', sans-serif";
    const width = this.measure(ctx, text) + 14;
    const x = Math.min(Math.max((x0 + x1) / 2 - width / 2, 2), s.width - width - 2);
    ctx.fillStyle = p.accent;
    ctx.fillRect(x, 4, width, axisHeight - 9);
    ctx.fillStyle = p.axis;
    ctx.fillText(text, x + 7, axisHeight / 2);
  }

  private measure(ctx: CanvasRenderingContext2D, text: string): number {
    const key = ctx.font + text;
    let w = this.textWidth.get(key);
    if (w === undefined) {
      if (this.textWidth.size > 20_000) this.textWidth.clear();
      w = ctx.measureText(text).width;
      this.textWidth.set(key, w);
    }
    return w;
  }

  /** fit shortens a text to a width. It returns "" if less than three characters remain. */
  private fit(ctx: CanvasRenderingContext2D, text: string, width: number): string {
    const full = this.measure(ctx, text);
    if (full <= width) return text;
    const n = Math.floor((text.length * (width - this.measure(ctx, "…"))) / full);
    return n < 3 ? "" : `${text.slice(0, n)}…`;
  }
}

/** firstBin returns the first bin that ends after a time. */
export function firstBin(b: Bins, at: number): number {
  let [low, high] = [0, b.index.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (b.from + ((b.index[middle] as number) + 1) * b.width <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function mix(rgb: readonly number[], bg: number, share: number): number {
  const f = (c: number, shift: number) => Math.round(c * share + ((bg >>> shift) & 255) * (1 - share));
  return pack(f(rgb[0] as number, 0), f(rgb[1] as number, 8), f(rgb[2] as number, 16));
}

const unpack = (c: number): string => `rgb(${c & 255},${(c >>> 8) & 255},${(c >>> 16) & 255})`;

/** hit returns the slice or the bin at a position, or null. X and y are relative to the canvas. */
export function hit(s: Scene, x: number, y: number): { track: Track; item?: Item; bin?: number } | null {
  const top = y - axisHeight + s.scroll;
  if (y < axisHeight) return null;
  const track = s.tracks.find((t) => top >= t.top && top < t.top + t.height);
  if (!track) return null;
  const slack = ((s.view.to - s.view.from) / s.width) * 2;
  const at = toNs(s.view, s.width, x);
  const row = Math.floor((top - track.top) / track.rowHeight);
  let best: Item | undefined;
  let distance = Number.POSITIVE_INFINITY;
  for (const it of track.items) {
    if (it.start > at + slack) break;
    if (it.row !== row || it.end < at - slack) continue;
    const d = at < it.start ? it.start - at : at > it.end ? at - it.end : 0;
    if (d <= distance) {
      distance = d;
      best = it;
    }
  }
  if (best) return { track, item: best };
  if (track.bins) {
    const b = track.bins;
    const i = firstBin(b, at);
    if (b.index[i] === Math.floor((at - b.from) / b.width)) return { track, bin: i };
  }
  return { track };
}
