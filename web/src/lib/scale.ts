// SPDX-License-Identifier: Apache-2.0

/** View is the visible interval of the timeline, in ns from the session's start. */
export interface View {
  from: number;
  to: number;
}

/** minSpan is the narrowest view, in ns. */
export const minSpan = 20;

/** toX maps a time to a horizontal position. */
export const toX = (v: View, width: number, ns: number): number => ((ns - v.from) / (v.to - v.from)) * width;

/** toNs maps a horizontal position to a time. */
export const toNs = (v: View, width: number, x: number): number => v.from + (x / width) * (v.to - v.from);

/** clamp keeps a view inside the extent of the session. It preserves the width where it can. */
export function clamp(v: View, extent: View): View {
  const whole = Math.max(extent.to - extent.from, minSpan);
  const span = Math.min(Math.max(v.to - v.from, minSpan), whole);
  const from = Math.min(Math.max(v.from, extent.from), extent.from + whole - span);
  return { from, to: from + span };
}

/** zoom scales a view around an anchor, which keeps its place. A factor below 1 zooms in. */
export function zoom(v: View, factor: number, anchor: number, extent: View): View {
  const whole = Math.max(extent.to - extent.from, minSpan);
  const span = Math.min(Math.max((v.to - v.from) * factor, minSpan), whole);
  const share = (anchor - v.from) / (v.to - v.from);
  const from = anchor - share * span;
  return clamp({ from, to: from + span }, extent);
}

/** pan moves a view by a time. */
export const pan = (v: View, ns: number, extent: View): View => clamp({ from: v.from + ns, to: v.to + ns }, extent);

/** around returns a view in which an interval takes a share of the width. */
export function around(start: number, end: number, extent: View, share = 0.4): View {
  const span = Math.max((end - start) / share, minSpan);
  const middle = (start + end) / 2;
  return clamp({ from: middle - span / 2, to: middle + span / 2 }, extent);
}

/** rounded returns a view with integer bounds, as the API and the URL need. */
export const rounded = (v: View): View => ({ from: Math.floor(v.from), to: Math.ceil(v.to) });

/** tickStep returns the distance of ticks, so that at most `count` fit: 1, 2 or 5 times a power of ten, or minutes. */
export function tickStep(span: number, count: number): number {
  const raw = span / Math.max(count, 1);
  if (raw > 30e9) {
    for (const s of [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400]) {
      if (s * 1e9 >= raw) return s * 1e9;
    }
    return Math.ceil(raw / 86400e9) * 86400e9;
  }
  if (raw > 10e9) return raw > 20e9 ? 30e9 : 20e9;
  const power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
  for (const m of [1, 2, 5, 10]) {
    if (m * power >= raw) return m * power;
  }
  return 10 * power;
}

/** ticks returns the times of the ticks in a view. */
export function ticks(v: View, step: number): number[] {
  const result: number[] = [];
  for (let i = Math.ceil(v.from / step); i * step <= v.to; i++) result.push(i * step);
  return result;
}
