// SPDX-License-Identifier: Apache-2.0

/**
 * The state of all views is in the URL. Search parameters are plain strings, so that links stay
 * readable and an id of digits stays a string. Each view validates its own parameters. An invalid
 * one counts as absent.
 */

type Raw = Record<string, unknown>;

/** parseSearch reads the query of a URL. */
export const parseSearch = (s: string): Record<string, string> => Object.fromEntries(new URLSearchParams(s));

/** stringifySearch writes the query of a URL. It leaves out what is absent. */
export function stringifySearch(search: Raw): string {
  const p = new URLSearchParams();
  for (const [k, v] of Object.entries(search)) {
    if (v !== undefined && v !== null && v !== "") p.set(k, String(v));
  }
  const s = p.toString();
  return s ? `?${s}` : "";
}

/** time reads a time in ns, an integer from 0 to 2^53. */
export function time(v: unknown): number | undefined {
  if (typeof v !== "string" && typeof v !== "number") return undefined;
  if (v === "" || !/^\d{1,16}$/.test(String(v))) return undefined;
  const n = Number(v);
  return Number.isSafeInteger(n) ? n : undefined;
}

/** date reads a day, as an input of dates writes it: 2026-11-27. */
export const date = (v: unknown): string | undefined =>
  typeof v === "string" && /^\d{4}-\d\d-\d\d$/.test(v) && !Number.isNaN(Date.parse(v)) ? v : undefined;

/** midnight returns the start of a day in local time, days later, in Unix nanoseconds. */
export function midnight(day: string | undefined, later = 0): string | undefined {
  if (day === undefined) return undefined;
  const d = new Date(`${day}T00:00`);
  d.setDate(d.getDate() + later);
  return `${d.getTime()}000000`;
}

/** text reads a string of at most 500 characters. */
export const text = (v: unknown): string | undefined =>
  typeof v === "string" && v !== "" && v.length <= 500 ? v : undefined;

/** id reads a small non-negative integer. */
export const id = (v: unknown): number | undefined => {
  const n = time(v);
  return n !== undefined && n <= 0xffffffff ? n : undefined;
};

/** ids reads a list of integers with commas between them. */
export const ids = (v: unknown): string | undefined => (/^\d+(,\d+)*$/.test(String(v)) ? String(v) : undefined);

/** spanId reads 16 hexadecimal digits. */
export const spanId = (v: unknown): string | undefined =>
  typeof v === "string" && /^[0-9a-f]{16}$/.test(v) ? v : undefined;

/** oneOf reads one of the given words. */
export function oneOf<T extends string>(v: unknown, words: readonly T[]): T | undefined {
  return words.find((w) => w === v);
}

/**
 * interval reads two times. Both are absent unless the second is larger. It sets them even then,
 * because the router keeps the raw value of a parameter that is not set.
 */
export function interval(from: unknown, to: unknown): { from: number | undefined; to: number | undefined } {
  const a = time(from);
  const b = time(to);
  return a !== undefined && b !== undefined && b > a ? { from: a, to: b } : { from: undefined, to: undefined };
}

/** window is the interval that the views of a session share. */
export interface WindowSearch {
  from?: number;
  to?: number;
}

/**
 * lastBefore returns the last row that starts from first to before to. Find returns the first rows of an interval,
 * because the store sorts forward only: the interval grows until it has a row, and is halved while it has more
 * than find returns.
 */
export async function lastBefore<T>(
  find: (from: number, to: number) => Promise<{ rows: readonly T[]; more: boolean }>,
  first: number,
  to: number,
): Promise<T | undefined> {
  let end = to;
  let width = 1_000_000;
  let from = Math.max(first, end - width);
  if (from >= end) return undefined;
  let page = await find(from, end);
  while (!page.rows.length && from > first) {
    end = from;
    width *= 8;
    from = Math.max(first, end - width);
    page = await find(from, end);
  }
  while (page.more && end - from > 1) {
    const middle = Math.floor((from + end) / 2);
    const later = await find(middle, end);
    if (later.rows.length) {
      from = middle;
      page = later;
    } else {
      end = middle;
      page = await find(from, end);
    }
  }
  return page.rows.at(-1);
}
