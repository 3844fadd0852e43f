// SPDX-License-Identifier: Apache-2.0

/** Formatting of numbers with their units. Durations and times are nanoseconds. */

const integer = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** count formats an integer in full: 1,234,567. From 2^53 its last digits are not known: 1.845e+19. */
export const count = (n: number): string =>
  Number.isInteger(n) && !Number.isSafeInteger(n) ? n.toExponential(3) : integer.format(n);

/** plural formats a count with its noun: 1 step, 2 steps. */
export const plural = (n: number, noun: string): string =>
  `${count(n)} ${n === 1 ? noun : `${noun.replace(/y$/, "ie").replace(/ch$/, "che")}s`}`;

/** compact formats a count in at most five characters: 1,234, 12.3k, 4.56M. */
export function compact(n: number): string {
  if (Math.abs(n) < 10_000) return integer.format(n);
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const) {
    if (Math.abs(n) >= size) return significant(n / size) + unit;
  }
  return integer.format(n);
}

/** significant formats a number with three significant digits, and with more before the point. */
export function significant(x: number): string {
  const a = Math.abs(x);
  if (a === 0) return "0";
  if (a >= 100) return integer.format(x);
  if (a >= 10) return x.toFixed(1);
  if (a >= 1) return x.toFixed(2);
  if (a >= 0.001) return x.toFixed(3);
  return x.toExponential(1);
}

const units = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
] as const;

/** duration formats nanoseconds with three or four significant digits: 12.3 µs, 1 h 04 min. */
export function duration(ns: number): string {
  const a = Math.abs(ns);
  const sign = ns < 0 ? "−" : "";
  if (a >= 3600e9) {
    const minutes = Math.round(a / 60e9);
    return `${sign}${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  }
  if (a >= 100e9) {
    const seconds = Math.round(a / 1e9);
    return `${sign}${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
  }
  for (const [size, unit] of units) {
    if (a >= size) return unit === "ns" ? `${sign}${integer.format(a)} ns` : `${sign}${significant(a / size)} ${unit}`;
  }
  return `${integer.format(ns)} ns`;
}

/** exactDuration formats nanoseconds in full: 1,234,567 ns. */
export const exactDuration = (ns: number): string => `${integer.format(ns)} ns`;

/** offset formats a position on the session's time axis with the resolution of a step. */
export function offset(ns: number, step: number): string {
  const negative = ns < 0 ? "−" : "";
  const a = Math.abs(ns);
  if (step >= 60e9 || a >= 3600e9) {
    const total = Math.floor(a / 1e9);
    const h = Math.floor(total / 3600);
    const m = Math.floor((total % 3600) / 60);
    const digits = decimals(step / 1e9);
    const s = (a / 1e9 - h * 3600 - m * 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
    return `${negative}${h}:${String(m).padStart(2, "0")}:${s}`;
  }
  const [size, unit] = a >= 1e9 ? units[0] : a >= 1e6 ? units[1] : a >= 1e3 ? units[2] : units[3];
  return `${negative}${(a / size).toFixed(Math.min(decimals(step / size), 9))} ${unit}`;
}

function decimals(step: number): number {
  return step >= 1 ? 0 : Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
}

/** bytes formats a size in units of 1024. */
export function bytes(n: number): string {
  for (const [size, unit] of [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ] as const) {
    if (Math.abs(n) >= size) return `${significant(n / size)} ${unit}`;
  }
  return `${integer.format(n)} B`;
}

/** percent formats a ratio. Values below 0.1 % are not rounded to zero. */
export function percent(ratio: number): string {
  const p = ratio * 100;
  if (p === 0) return "0 %";
  if (Math.abs(p) < 0.1) return "< 0.1 %";
  return `${Math.abs(p) >= 10 ? p.toFixed(0) : p.toFixed(1)} %`;
}

/** signedPercent formats a relative change with its sign. */
export function signedPercent(ratio: number): string {
  if (!Number.isFinite(ratio)) return "new";
  const p = ratio * 100;
  return `${p > 0 ? "+" : p < 0 ? "−" : ""}${Math.abs(p) >= 10 ? Math.abs(p).toFixed(0) : Math.abs(p).toFixed(1)} %`;
}

/** words writes an identifier as words: copy_call is "copy call". */
export const words = (id: string): string => id.replaceAll("_", " ");

/** dims formats a grid or block: 32 × 8 × 1. */
export const dims = (d: readonly number[] | undefined): string => (d?.length ? d.map(count).join(" × ") : "unknown");

/** instant formats Unix nanoseconds, given as a decimal string, in local time. */
export function instant(unixNs: string, withMs = false): string {
  const ms = Number(BigInt(unixNs) / 1_000_000n);
  const d = new Date(ms);
  const p = (n: number, w = 2) => String(n).padStart(w, "0");
  const day = `${d.getFullYear()}-${p(d.getMonth() + 1)}-${p(d.getDate())}`;
  const time = `${p(d.getHours())}:${p(d.getMinutes())}:${p(d.getSeconds())}`;
  return withMs ? `${day} ${time}.${p(d.getMilliseconds(), 3)}` : `${day} ${time}`;
}

/** ago formats the age of a time: "3 min ago". */
export function ago(unixNs: string, nowMs: number): string {
  const s = Math.max(0, Math.round((nowMs - Number(BigInt(unixNs) / 1_000_000n)) / 1000));
  if (s < 5) return "now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} days ago`;
}
