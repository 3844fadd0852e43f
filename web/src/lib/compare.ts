// SPDX-License-Identifier: Apache-2.0

/** Comparison of the groups of two sessions. */

export interface Sums {
  key: string;
  count: number;
  sum_ns: number;
  /** The ids of the groups. */
  ids?: number[];
}

/** Result is the status of a row that sums kernels: that of all of them, or each if they differ. */
export interface Result<S extends string> {
  kernels: number;
  statuses: readonly S[];
}

/** results joins rows by a key that several can have, such as instances of a template, which share a short name. */
export function results<R extends { status: string }>(
  rows: readonly R[],
  key: (r: R) => string,
): Map<string, Result<R["status"]>> {
  const result = new Map<string, Result<R["status"]>>();
  for (const r of rows) {
    const old = result.get(key(r));
    const statuses = new Set([...(old?.statuses ?? []), r.status]);
    result.set(key(r), { kernels: (old?.kernels ?? 0) + 1, statuses: [...statuses] });
  }
  return result;
}

export interface Change {
  key: string;
  a: Sums | undefined;
  b: Sums | undefined;
  /** The difference of the sums, b minus a, in ns. */
  delta: number;
}

/** merge adds groups with the same key, which can have several ids. */
export function merge(rows: readonly Sums[]): Map<string, Sums> {
  const result = new Map<string, Sums>();
  for (const r of rows) {
    const old = result.get(r.key);
    if (old) {
      old.count += r.count;
      old.sum_ns += r.sum_ns;
      if (r.ids) old.ids = [...(old.ids ?? []), ...r.ids];
    } else result.set(r.key, { ...r });
  }
  return result;
}

/** compare pairs groups by key, the largest difference of the sums first. */
export function compare(a: readonly Sums[], b: readonly Sums[]): Change[] {
  const [x, y] = [merge(a), merge(b)];
  return [...new Set([...x.keys(), ...y.keys()])]
    .map((key) => {
      const [p, q] = [x.get(key), y.get(key)];
      return { key, a: p, b: q, delta: (q?.sum_ns ?? 0) - (p?.sum_ns ?? 0) };
    })
    .sort((p, q) => Math.abs(q.delta) - Math.abs(p.delta) || p.key.localeCompare(q.key));
}
