// SPDX-License-Identifier: Apache-2.0
import { Link, useSearch } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { url } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { count, duration, exactDuration, offset, words } from "../lib/format";
import { Badge, Bar, Failure, Loading, Message, row, Swatch, ui } from "../ui/parts";
import { Show } from "./Findings";
import { toSpan } from "./Inspector";
import { WindowBadge } from "./Kernels";

const limit = 300;

/** Gaps lists idle time of devices: that between kernels, or that with a cause. */
export function Gaps() {
  const { cause } = useSearch({ from: "/sessions/$session/gaps" });
  return cause ? <CauseGaps cause={cause as Schemas["Cause"]} /> : <KernelGaps />;
}

/** CauseGaps lists the gaps of which the idle time of a device by cause is made. */
function CauseGaps({ cause }: { cause: Schemas["Cause"] }) {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/gaps" });
  const params = { session: session.id };
  const query = { base: session.base, from: search.from, to: search.to, device: search.device, cause, limit };
  const q = useGet("/sessions/{session}/analysis/gaps", params, query, { every: session.every ? 15_000 : false });
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const { gaps, count: n, sum_ns: sum, complete } = q.data;
  const part = (g: Schemas["AnalysedGap"]) => g.idle_by_cause_ns[cause] ?? 0;
  const rest = sum - gaps.reduce((s, g) => s + part(g), 0);
  const longest = gaps[0] ? part(gaps[0]) : 1;
  const extent = { from: 0, to: session.overview.session.duration_ns };
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1 title="Time in which a device ran no kernel, copy or set">Idle time: {words(cause)}</h1>
        <WindowBadge from={search.from} to={search.to} />
        <Link to="/sessions/$session/findings" params={params} search={{ from: search.from, to: search.to } as never}>
          all causes
        </Link>
        {!complete && (
          <Badge tone="warn" title="An analysis reads rows for at most 20 s">
            only a part was read
          </Badge>
        )}
      </div>
      <div className={ui.row}>
        <span>
          parts of <strong>{count(n)}</strong> gaps, together{" "}
          <strong title={exactDuration(sum)}>{duration(sum)}</strong>
        </span>
        <a
          href={url(`/sessions/${encodeURIComponent(session.id)}/analysis/gaps`, query)}
          target="_blank"
          rel="noreferrer"
        >
          as JSON
        </a>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Gaps of a cause">
          <thead>
            <tr>
              <th scope="col">Start</th>
              <th scope="col" className={ui.right} title="The part of the gap that has this cause">
                With this cause
              </th>
              <th scope="col" className={ui.right}>
                Whole gap
              </th>
              <th scope="col" className={ui.wide}>
                Compared with the longest
              </th>
              <th scope="col">Call, scope</th>
              <th scope="col">Ends with</th>
            </tr>
          </thead>
          <tbody>
            {gaps.map((g) => (
              <tr key={g.start} {...row({ ns: part(g) })}>
                <td>
                  <Show start={g.start} ns={g.duration_ns}>
                    {offset(g.start, 1)}
                  </Show>
                </td>
                <td className={ui.right} title={exactDuration(part(g))}>
                  {duration(part(g))}
                </td>
                <td className={ui.right}>
                  <Show start={g.start} ns={g.duration_ns} number>
                    {duration(g.duration_ns)}
                  </Show>
                </td>
                <td className={ui.wide}>
                  <Bar share={part(g) / longest} />
                </td>
                <td title={g.delay_stack || g.stack}>{[g.call, g.scope].filter(Boolean).join(", in ")}</td>
                <td className={ui.name}>
                  {g.after && (
                    <>
                      <Swatch name={g.after.name} />
                      <Link
                        to="/sessions/$session/timeline"
                        params={params}
                        search={toSpan(g.after.span, g.after.start, 1, extent) as never}
                      >
                        {g.after.name}
                      </Link>
                    </>
                  )}
                </td>
              </tr>
            ))}
            {n > gaps.length && (
              <tr {...row({ ns: rest })}>
                <td>{count(n - gaps.length)} smaller parts</td>
                <td className={ui.right} title={exactDuration(rest)}>
                  {duration(rest)}
                </td>
                <td />
                <td className={ui.wide} />
                <td />
                <td />
              </tr>
            )}
          </tbody>
        </table>
        {!n && <Message>No gap.</Message>}
      </div>
    </div>
  );
}

/** KernelGaps lists the intervals in which a device ran no kernel, with the parts that are inside the window. */
function KernelGaps() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/gaps" });
  const params = { session: session.id };
  const query = { base: session.base, from: search.from, to: search.to, overlapping: true, limit };
  const q = useGet("/sessions/{session}/gaps", params, query, { every: session.every });
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const { gaps, count: n, sum_ns: sum } = q.data;
  const names = new Map(q.data.shapes.map((s) => [s.id, s.name]));
  const extent = { from: 0, to: session.overview.session.duration_ns };
  const from = search.from ?? Number.NEGATIVE_INFINITY;
  const to = search.to ?? Number.POSITIVE_INFINITY;
  const rows = gaps.map((g) => ({ ...g, inside: Math.min(g.start + g.duration_ns, to) - Math.max(g.start, from) }));
  const rest = sum - rows.reduce((s, g) => s + g.inside, 0);
  const longest = rows.reduce((s, g) => Math.max(s, g.inside), 1);
  const devices = new Set(rows.map((g) => g.device)).size;
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Time without a kernel</h1>
        <WindowBadge from={search.from} to={search.to} />
        <span className={ui.muted}>
          between two kernels, in which a device ran no kernel; copies and sets can run in it
        </span>
      </div>
      <div className={ui.row}>
        <span>
          <strong data-testid="rows">{count(n)}</strong> gaps, together{" "}
          <strong data-testid="sum" title={exactDuration(sum)}>
            {duration(sum)}
          </strong>
        </span>
        <a href={url(`/sessions/${encodeURIComponent(session.id)}/gaps`, query)} target="_blank" rel="noreferrer">
          as JSON
        </a>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Gaps without a kernel">
          <thead>
            <tr>
              <th scope="col">Start</th>
              {devices > 1 && <th scope="col">Device</th>}
              <th scope="col" className={ui.right} title="The part of the gap in the interval">
                No kernel
              </th>
              <th scope="col" className={ui.wide}>
                Compared with the longest
              </th>
              <th scope="col">Ends with</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((g) => (
              <tr key={`${g.device}${g.start}`} {...row({ ns: g.inside })}>
                <td>
                  <Show start={g.start} ns={g.duration_ns}>
                    {offset(g.start, 1)}
                  </Show>
                </td>
                {devices > 1 && <td className={ui.mono}>{g.device.slice(0, 16)}</td>}
                <td className={ui.right} title={exactDuration(g.inside)}>
                  {duration(g.inside)}
                </td>
                <td className={ui.wide}>
                  <Bar share={g.inside / longest} />
                </td>
                <td className={ui.name}>
                  <Swatch name={names.get(g.after.shape ?? -1) ?? ""} />
                  <Link
                    to="/sessions/$session/timeline"
                    params={params}
                    search={toSpan(g.after.span, g.after.start, 1, extent) as never}
                  >
                    {names.get(g.after.shape ?? -1) ?? "kernel"}
                  </Link>
                </td>
              </tr>
            ))}
            {n > rows.length && (
              <tr {...row({ ns: rest })}>
                <td>{count(n - rows.length)} shorter gaps</td>
                {devices > 1 && <td />}
                <td className={ui.right} title={exactDuration(rest)}>
                  {duration(rest)}
                </td>
                <td className={ui.wide} />
                <td className={ui.muted}>{rows.length < limit ? "each below 10 µs" : ""}</td>
              </tr>
            )}
          </tbody>
        </table>
        {!n && <Message>No gap.</Message>}
      </div>
    </div>
  );
}
