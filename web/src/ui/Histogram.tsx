// SPDX-License-Identifier: Apache-2.0
import type { Schemas } from "../api/client";
import { count, duration } from "../lib/format";
import { ui } from "./parts";

/** Histogram shows a distribution of durations of at most max ns on a logarithmic axis, with one value marked. */
export function Histogram(props: { buckets: readonly Schemas["Bucket"][]; max: number; mark?: number | undefined }) {
  const { buckets, max, mark } = props;
  const first = buckets[0];
  const last = buckets.at(-1);
  if (!first || !last) return null;
  const lo = Math.log(Math.max(first.from_ns, 1));
  // The last bucket ends at the longest launch, so that a mark is where the axis says.
  const end = (ns: number) => Math.min(ns, max) + 1;
  const span = Math.log(Math.max(end(last.to_ns), 2)) - lo || 1;
  const top = buckets.reduce((n, b) => Math.max(n, b.count), 1);
  const x = (ns: number) => ((Math.log(Math.max(ns, 1)) - lo) / span) * 340;
  const total = buckets.reduce((n, b) => n + b.count, 0);
  return (
    <svg
      className={ui.hist}
      viewBox="0 0 340 84"
      preserveAspectRatio="none"
      role="img"
      aria-label={`Distribution of ${count(total)} durations from ${duration(first.from_ns)} to ${duration(max)}${mark === undefined ? "" : `, this one is ${duration(mark)}`}`}
    >
      {buckets.map((b) => {
        const h = Math.max((b.count / top) * 62, 1.5);
        return (
          <rect
            key={b.from_ns}
            x={x(b.from_ns)}
            y={66 - h}
            width={Math.max(x(end(b.to_ns)) - x(b.from_ns) - 0.6, 1.2)}
            height={h}
            fill="var(--bar)"
          >
            <title>
              {count(b.count)} from {duration(b.from_ns)} to {duration(Math.min(b.to_ns, max))}
            </title>
          </rect>
        );
      })}
      {mark !== undefined && (
        <rect x={Math.min(Math.max(x(mark) - 1, 0), 338)} y="0" width="2" height="66" fill="var(--accent)" />
      )}
      <text x="0" y="81" fontSize="11" fill="var(--muted)">
        {duration(first.from_ns)}
      </text>
      <text x="340" y="81" fontSize="11" fill="var(--muted)" textAnchor="end">
        {duration(max)}
      </text>
    </svg>
  );
}
