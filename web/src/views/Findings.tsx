// SPDX-License-Identifier: Apache-2.0
import { Link, useSearch } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { url } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { count, duration, exactDuration, offset, percent, plural } from "../lib/format";
import { Badge, Bar, Failure, Loading, Message, ui } from "../ui/parts";
import { toSpan } from "./Inspector";
import { WindowBadge } from "./Kernels";

type Analysis = Schemas["Analysis"];
type Device = Schemas["AnalysedDevice"];
type Values = Schemas["StepValues"];

const bounds: Record<Schemas["Bound"], string> = {
  device: "limited by the device",
  launch: "launch-bound: limited by launches",
  host: "limited by the host",
  communication: "limited by communication, or waits for other ranks",
  dependency: "limited by dependencies",
  unknown: "limit unknown",
};

/** Findings says why a session was slow: idle time by cause, steps with outliers, and advice. */
export function Findings() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/findings" });
  const params = { session: session.id };
  const query = { base: session.base, from: search.from, to: search.to };
  // An analysis reads all rows, so a live session is analysed at longer intervals.
  const q = useGet("/sessions/{session}/analysis", params, query, { every: session.every ? 15_000 : false });
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const a = q.data;
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Findings</h1>
        <WindowBadge from={search.from} to={search.to} />
        <a href={url(`/sessions/${encodeURIComponent(session.id)}/analysis`, query)} target="_blank" rel="noreferrer">
          as JSON
        </a>
      </div>
      {!a.complete && (
        <div className={ui.row}>
          <Badge tone="warn" title="An analysis reads rows for at most 20 s">
            only the first {duration(a.to - a.from)}
          </Badge>
          <Link to="." search={{ from: a.to, to: a.to + (a.to - a.from) } as never}>
            next {duration(a.to - a.from)}
          </Link>
        </div>
      )}
      {a.devices.length === 0 && <Message>No work of a device.</Message>}
      {a.devices.length > 0 && <Advice a={a} />}
      {a.devices.map((d) => (
        <DevicePanel key={d.id} d={d} a={a} />
      ))}
      {a.devices.length > 0 && <StepsPanel a={a} />}
    </div>
  );
}

/** Show is a link to an interval in the timeline. */
function Show(props: { start: number; ns: number; span?: string; path?: boolean; children: string }) {
  const { start, ns, span, path, children } = props;
  const session = useSession();
  const extent = { from: 0, to: session.overview.session.duration_ns };
  return (
    <Link
      to="/sessions/$session/timeline"
      params={{ session: session.id }}
      search={
        (span
          ? toSpan(span, start, ns, extent)
          : {
              ...toSpan(undefined, start, ns, extent),
              at: undefined,
              m0: Math.max(0, start),
              m1: start + ns,
              path: path ? "1" : undefined,
            }) as never
      }
      title="Show it in the timeline"
    >
      {children}
    </Link>
  );
}

function Advice({ a }: { a: Analysis }) {
  if (a.findings.length === 0)
    return <Message>Nothing to improve was found: no cause has 5 % of the active time.</Message>;
  return (
    <section className={ui.card} aria-label="Advice">
      <ol className={ui.advice}>
        {a.findings.map((f) => (
          <li key={`${f.device}${f.kind}`} data-kind={f.kind}>
            <p>{f.text}</p>
            {f.gain_at_most_ns > 0 && (
              <p className={ui.muted} title={`${exactDuration(f.gain_at_most_ns)}: ${f.formula}`}>
                Without this, at least {duration(f.active_at_least_ns)} of {duration(f.active_ns)} remain (minus{" "}
                {f.formula}).
              </p>
            )}
            <p>
              {f.kind === "slow_steps"
                ? a.steps.outliers.slice(0, 5).map((o) => (
                    <span key={o.number}>
                      <Show start={o.start} ns={o.wall_ns} path>
                        {o.name}
                      </Show>{" "}
                    </span>
                  ))
                : f.evidence.map((e) => (
                    <span key={e.span}>
                      <Show start={e.start} ns={1} span={e.span}>
                        {e.name || e.span}
                      </Show>{" "}
                    </span>
                  ))}
            </p>
          </li>
        ))}
      </ol>
    </section>
  );
}

function DevicePanel({ d, a }: { d: Device; a: Analysis }) {
  const p = d.active;
  const share = (ns: number) => (p.wall_ns > 0 ? ns / p.wall_ns : 0);
  const rows = a.causes
    .map((c) => ({ ...c, ns: p.idle_by_cause_ns[c.cause] ?? 0 }))
    .filter((c) => c.ns > 0)
    .sort((x, y) => y.ns - x.ns);
  const parts: [string, number][] = [
    ["compute", p.compute_ns],
    ["communication only", p.communication_ns],
    ["copies only", p.copy_ns],
    ["idle", p.idle_ns],
  ];
  const longest = (cause: string) =>
    d.gaps
      .filter((g) => g.start >= d.start && (g.idle_by_cause_ns[cause] ?? 0) > 0)
      .sort((x, y) => (y.idle_by_cause_ns[cause] ?? 0) - (x.idle_by_cause_ns[cause] ?? 0))
      .slice(0, 5);
  return (
    <>
      <div className={ui.row}>
        <h2>
          Device {d.index ?? d.id.slice(0, 16)} {d.model && <span className={ui.muted}>{d.model}</span>}
        </h2>
        <Badge tone={d.bound === "device" ? "good" : d.bound === "unknown" ? undefined : "warn"}>
          {bounds[d.bound]}
        </Badge>
        {parts.map(([name, ns]) => (
          <span key={name} title={exactDuration(ns)}>
            {name} <strong>{percent(share(ns))}</strong>
          </span>
        ))}
        <span className={ui.muted}>of {duration(p.wall_ns)}</span>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Idle time by cause">
          <thead>
            <tr>
              <th scope="col">Cause of idle time</th>
              <th scope="col" className={ui.right}>
                Idle
              </th>
              <th scope="col" className={ui.right}>
                Of active
              </th>
              <th scope="col" className={ui.wide} />
              <th scope="col">Longest gaps</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((c) => (
              <tr key={c.cause} data-cause={c.cause}>
                <td>{c.text}</td>
                <td className={ui.right} title={exactDuration(c.ns)}>
                  {duration(c.ns)}
                </td>
                <td className={ui.right}>{percent(share(c.ns))}</td>
                <td className={ui.wide}>
                  <Bar share={share(c.ns)} />
                </td>
                <td>
                  {longest(c.cause).map((g, i) => (
                    <span
                      key={g.start}
                      className={ui.nowrap}
                      title={[[g.call, g.scope].filter(Boolean).join(", in scope "), g.delay_stack]
                        .filter(Boolean)
                        .join("\n")}
                    >
                      {i > 0 && ", "}
                      <Show start={g.start} ns={g.duration_ns}>
                        {duration(g.duration_ns)}
                      </Show>
                    </span>
                  ))}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function StepsPanel({ a }: { a: Analysis }) {
  const s = a.steps;
  if (s.count === 0) return <Message>No steps found: no scope repeats, and no kernel begins a regular period.</Message>;
  const line = (name: string, get: (v: Values) => number) => {
    if (get(s.max) === 0) return null;
    return (
      <tr>
        <td>{name}</td>
        {[s.p50, s.p95, s.max].map((v, i) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the columns never change
          <td key={i} className={ui.right} title={exactDuration(get(v))}>
            {duration(get(v))}
          </td>
        ))}
      </tr>
    );
  };
  return (
    <>
      <div className={ui.row}>
        <h2>{plural(s.count, "step")}</h2>
        {s.typical && (
          <>
            <Badge title="What limits the typical step">{bounds[s.typical.bound]}</Badge>
            <Show start={s.typical.start} ns={s.typical.wall_ns} path>
              critical path of the typical step
            </Show>
          </>
        )}
        <span className={ui.muted}>
          begin with {s.rule === "scopes" ? "scope" : "kernel"} {s.name}
        </span>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Steps">
          <thead>
            <tr>
              <th scope="col">Part of a step</th>
              <th scope="col" className={ui.right}>
                p50
              </th>
              <th scope="col" className={ui.right}>
                p95
              </th>
              <th scope="col" className={ui.right}>
                Max
              </th>
            </tr>
          </thead>
          <tbody>
            {line("wall", (v) => v.wall_ns)}
            {line("compute", (v) => v.compute_ns)}
            {line("communication only", (v) => v.communication_ns)}
            {line("copies only", (v) => v.copy_ns)}
            {line("idle", (v) => v.idle_ns)}
          </tbody>
        </table>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Slow steps">
          <thead>
            <tr>
              <th scope="col">
                {s.outliers.length ? "Slow step" : "Longest step"}
                {s.outliers.length < s.outliers_total && ` (${s.outliers.length} of ${count(s.outliers_total)})`}
              </th>
              <th scope="col" className={ui.right}>
                Number
              </th>
              <th scope="col" className={ui.right}>
                Wall
              </th>
              <th scope="col">Start</th>
              <th scope="col">Limit</th>
              <th scope="col">Differs most</th>
            </tr>
          </thead>
          <tbody>
            {(s.outliers.length ? s.outliers : s.longest.slice(0, 5)).map((o) => (
              <tr key={o.number}>
                <td>
                  <Show start={o.start} ns={o.wall_ns} path>
                    {o.name}
                  </Show>
                </td>
                <td className={ui.right}>{count(o.number)}</td>
                <td className={ui.right} title={exactDuration(o.wall_ns)}>
                  {duration(o.wall_ns)}
                </td>
                <td>{offset(o.start, 1)}</td>
                <td>{bounds[o.bound]}</td>
                <td>
                  <Differs o={o} a={a} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Differs says what of a slow step is above its median the most. A kernel is a link to its launches in the step. */
function Differs({ o, a }: { o: Schemas["AnalysedStep"] & Partial<Schemas["AnalysedOutlier"]>; a: Analysis }) {
  const session = useSession();
  if (!o.part) return null;
  const cause = a.causes.find((c) => c.cause === o.part)?.text.split(":")[0];
  return (
    <>
      {cause ? `idle time (${cause})` : o.part}: {duration(o.part_excess_ns ?? 0)} above the median
      {o.kernel && (
        <>
          {", "}
          <Link
            to="/sessions/$session/launches"
            params={{ session: session.id }}
            search={
              {
                from: Math.max(0, o.start),
                to: o.start + o.wall_ns,
                operation: "kernel",
                name: o.kernel,
                sort: "duration",
              } as never
            }
          >
            {o.kernel}
          </Link>
        </>
      )}
    </>
  );
}
