// SPDX-License-Identifier: Apache-2.0

/** Interval is what a row of the timeline shows: a span or an operation. */
export interface Interval {
  start: number;
  end: number;
}

/**
 * stack assigns each interval the first free row, so that no two intervals of a row overlap. It
 * returns the rows and their number. Intervals must be sorted by start.
 */
export function stack(items: readonly Interval[]): { rows: Uint16Array; count: number } {
  const rows = new Uint16Array(items.length);
  const ends: number[] = [];
  items.forEach((it, i) => {
    let r = 0;
    while (r < ends.length && (ends[r] as number) > it.start) r++;
    ends[r] = Math.max(it.end, it.start + 1);
    rows[i] = r;
  });
  return { rows, count: Math.max(ends.length, 1) };
}

/** Nested is an interval with an id and the id of its parent. */
export interface Nested extends Interval {
  id: string;
  parent: string;
}

/**
 * nest places each span in a row below its parent's, and otherwise in the first free row. Spans
 * must be sorted by start, parents first where starts are equal.
 */
export function nest(items: readonly Nested[]): { rows: Uint16Array; count: number } {
  const rows = new Uint16Array(items.length);
  const byId = new Map<string, number>();
  const ends: number[] = [];
  items.forEach((it, i) => {
    const parent = byId.get(it.parent);
    let r = parent === undefined ? 0 : (rows[parent] as number) + 1;
    while (r < ends.length && (ends[r] as number) > it.start) r++;
    while (ends.length < r) ends.push(Number.NEGATIVE_INFINITY);
    ends[r] = Math.max(it.end, it.start + 1);
    rows[i] = r;
    byId.set(it.id, i);
  });
  return { rows, count: Math.max(ends.length, 1) };
}

/** sortSpans orders spans by start, the longest first where starts are equal, as nest needs. */
export const sortSpans = <T extends Interval>(items: readonly T[]): T[] =>
  [...items].sort((a, b) => a.start - b.start || b.end - a.end);

/** lowerBound returns the first index whose start is not below t. Items are sorted by start. */
export function lowerBound(items: readonly Interval[], t: number): number {
  let lo = 0;
  let hi = items.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if ((items[mid] as Interval).start < t) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}
