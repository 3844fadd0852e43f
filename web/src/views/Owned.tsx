// SPDX-License-Identifier: Apache-2.0
import { Link, useSearch } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { url } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { count, duration, exactDuration, offset, plural, words } from "../lib/format";
import { Badge, Bar, Failure, Loading, Message, row, Swatch, ui } from "../ui/parts";
import { toSpan } from "./Inspector";
import { WindowBadge } from "./Kernels";

const limit = 300;

/** values are what an operation adds to numbers of findings. */
const values = (o: Schemas["Parts"] & { late: number }, queue?: number) =>
  row({
    values: {
      wall: o.wall_ns,
      idle: o.idle_ns,
      late: o.late,
      ...(queue === undefined ? {} : { queue }),
      ...o.idle_by_cause_ns,
    },
  });

/** Owned lists the operations of which the time of a scope is made, or the gain of the advice to fuse kernels. */
export function Owned() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/owned" });
  const { from, to, device, scope, finding } = search;
  const params = { session: session.id };
  const query = { base: session.base, from, to, device, scope, finding, limit };
  const every = session.every ? 15_000 : false;
  const q = useGet("/sessions/{session}/analysis/operations", params, query, { every });
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const { operations, count: n, wall_ns: wall, idle_ns: idle, complete, many_scopes } = q.data;
  const path = scope?.split("\n").slice(1).filter(Boolean).join(" › ");
  const longest = operations[0]?.wall_ns || 1;
  const extent = { from: 0, to: session.overview.session.duration_ns };
  const late = operations.reduce((s, o) => s + (o.late ? 1 : 0), 0);
  const sum = (get: (p: Schemas["Parts"]) => number) => get(q.data) - operations.reduce((s, o) => s + get(o), 0);
  const rest = {
    ...q.data,
    wall_ns: sum((p) => p.wall_ns),
    idle_ns: sum((p) => p.idle_ns),
    late: q.data.late - late,
    idle_by_cause_ns: Object.fromEntries(
      Object.keys(q.data.idle_by_cause_ns).map((c) => [
        c,
        sum((p) => (p.idle_by_cause_ns as Record<string, number>)[c] ?? 0),
      ]),
    ),
  };
  const title = finding
    ? "Kernels to fuse"
    : scope === undefined
      ? "Device time"
      : `Device time of ${path ? `scope ${path}` : "what runs outside all scopes"}`;
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>{title}</h1>
        <WindowBadge from={from} to={to} />
        <Link to="/sessions/$session/findings" params={params} search={{ from, to } as never}>
          findings
        </Link>
        {!complete && (
          <Badge tone="warn" title="An analysis reads rows for at most 20 s">
            only a part was read
          </Badge>
        )}
      </div>
      <div className={ui.row}>
        {many_scopes ? (
          <Message>There are more than 200,000 scopes, so which operations belong to this scope is unknown.</Message>
        ) : (
          <span>
            <strong>{plural(n, "operation")}</strong>, together{" "}
            <strong title={exactDuration(wall)}>{duration(wall)}</strong>
            {finding ? " of idle time by causes launch and latency" : `, of which ${duration(idle)} idle before them`}
          </span>
        )}
        <a
          href={url(`/sessions/${encodeURIComponent(session.id)}/analysis/operations`, query)}
          target="_blank"
          rel="noreferrer"
        >
          as JSON
        </a>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Operations with their time">
          <thead>
            <tr>
              <th scope="col">Start</th>
              <th scope="col">Operation</th>
              {!finding && (
                <th
                  scope="col"
                  className={ui.right}
                  title="The idle time before the operation, and its time until a later one of its class takes over"
                >
                  Device time
                </th>
              )}
              <th scope="col" className={ui.wide} />
              <th scope="col" className={ui.right}>
                Idle before
              </th>
              <th scope="col">Largest cause</th>
              <th scope="col" title="Late: it returned when the device had no work left">
                Launch
              </th>
              <th scope="col" className={ui.right}>
                Queued
              </th>
            </tr>
          </thead>
          <tbody>
            {operations.map((o) => {
              const cause = Object.entries(o.idle_by_cause_ns).toSorted(([, m], [, n]) => n - m)[0]?.[0];
              return (
                <tr key={`${o.span}${o.start}`} {...values({ ...o, late: o.late ? 1 : 0 }, o.queue_ns)}>
                  <td className={ui.nowrap}>
                    <Link
                      to="/sessions/$session/timeline"
                      params={params}
                      search={toSpan(o.span, o.start, 1, extent) as never}
                      title="Show it in the timeline"
                    >
                      {offset(o.start, 1)}
                    </Link>
                  </td>
                  <td className={ui.name} title={o.before ? `${o.name}\nafter ${o.before}` : o.name}>
                    <Swatch name={o.name} />
                    {finding ? `${o.before} → ${o.name}` : o.name}
                  </td>
                  {!finding && (
                    <td className={ui.right} title={exactDuration(o.wall_ns)}>
                      {duration(o.wall_ns)}
                    </td>
                  )}
                  <td className={ui.wide}>
                    <Bar share={o.wall_ns / longest} />
                  </td>
                  <td className={ui.right} title={exactDuration(o.idle_ns)}>
                    {duration(o.idle_ns)}
                  </td>
                  <td className={ui.nowrap}>{cause && words(cause)}</td>
                  <td>{o.late ? "late" : o.launched ? "in time" : <span className={ui.muted}>unknown</span>}</td>
                  <td className={ui.right}>
                    {o.queue_ns === undefined ? <span className={ui.muted}>unknown</span> : duration(o.queue_ns)}
                  </td>
                </tr>
              );
            })}
            {n > operations.length && (
              <tr {...values(rest)}>
                <td />
                <td>{count(n - operations.length)} with less time</td>
                {!finding && (
                  <td className={ui.right} title={exactDuration(rest.wall_ns)}>
                    {duration(rest.wall_ns)}
                  </td>
                )}
                <td className={ui.wide} />
                <td className={ui.right} title={exactDuration(rest.idle_ns)}>
                  {duration(rest.idle_ns)}
                </td>
                <td />
                <td />
                <td />
              </tr>
            )}
          </tbody>
        </table>
        {!n && !many_scopes && <Message>No operation.</Message>}
      </div>
    </div>
  );
}
