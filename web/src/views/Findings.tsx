// SPDX-License-Identifier: Apache-2.0
import { Link, useSearch } from "@tanstack/react-router";
import { Fragment, type ReactNode } from "react";
import type { Schemas } from "../api/client";
import { url } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { count, duration, exactDuration, offset, percent, plural } from "../lib/format";
import { Badge, Bar, type Column, Described, Failure, Loading, type Made, Message, num, row, ui } from "../ui/parts";
import { toSpan } from "./Inspector";
import { WindowBadge } from "./Kernels";
import { boundText, boundTone, LaunchRate, lanesOf, ScopeLimits, SmallKernels, SmallTotal, windowOf } from "./Limits";

type Analysis = Schemas["Analysis"];
type Device = Schemas["AnalysedDevice"];
type Values = Schemas["StepValues"];

/** Findings says why a session was slow: idle time by cause, steps with outliers, and advice. */
export function Findings() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/findings" });
  const params = { session: session.id };
  const steps = search.list === "steps";
  const query = { base: session.base, from: search.from, to: search.to, steps: steps ? 10_000 : undefined };
  // An analysis reads all rows, so a live session is analysed at longer intervals.
  const q = useGet("/sessions/{session}/analysis", params, query, { every: session.every ? 15_000 : false });
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const a = q.data;
  const { counts } = session.overview.session;
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>{steps ? "Steps" : "Findings"}</h1>
        {steps && (
          <Link to="." search={((o: Record<string, unknown>) => ({ ...o, list: undefined })) as never}>
            back to the findings
          </Link>
        )}
        <WindowBadge from={search.from} to={search.to} />
        {session.every && <span className={ui.muted}>analysed again every 15 s</span>}
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
      {a.devices.length === 0 &&
        (counts.ops > 0 || counts.samples + counts.points === 0 ? (
          <Message>No work of a device.</Message>
        ) : (
          <Message>
            This recording has no kernels or copies, only counters or metrics. See{" "}
            <Link to="/sessions/$session/code" params={params} search={{} as never}>
              Code
            </Link>{" "}
            and{" "}
            <Link to="/sessions/$session/system" params={params} search={{} as never}>
              System
            </Link>
            .
          </Message>
        ))}
      {steps ? (
        <StepList a={a} />
      ) : (
        a.devices.length > 0 && (
          <>
            <Advice a={a} />
            {a.devices.map((d) => (
              <DevicePanel key={d.id} d={d} a={a} />
            ))}
            <StepsPanel a={a} />
            <ScopeLimits a={a} />
          </>
        )
      )}
    </div>
  );
}

/** Show is a link to an interval in the timeline. A number is the length of the interval. */
export function Show(props: {
  start: number;
  ns: number;
  span?: string;
  /** The name of a step, whose critical path is shown. */
  step?: string;
  number?: boolean;
  title?: string;
  children: string;
}) {
  const { start, ns, span, step, number, title, children } = props;
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
              path: step && "1",
              step,
            }) as never
      }
      title={title ?? (number ? exactDuration(ns) : "Show it in the timeline")}
      {...(number ? num("sum", ns, "length") : {})}
    >
      {children}
    </Link>
  );
}

/** PartName is a class of work of a device, of which its operations in an interval give the time. */
type PartName = "compute" | "communication" | "copy" | "idle";

const partsOf = (p: Schemas["Parts"]): [PartName, string, number][] => [
  ["compute", "compute", p.compute_ns],
  ["communication", "communication only", p.communication_ns],
  ["copy", "copies and sets only", p.copy_ns],
  ["idle", "idle", p.idle_ns],
];

/** PartTime is a number that links to the work of a device in an interval. */
function PartTime(props: { device: string; start: number; ns: number; part: PartName; value: number; text?: string }) {
  const { device, start, ns, part, value } = props;
  const session = useSession();
  const text = props.text ?? duration(value);
  const filter = lanesOf(session, device);
  if (filter === null) return <span title={exactDuration(value)}>{text}</span>;
  return (
    <Link
      to="/sessions/$session/launches"
      params={{ session: session.id }}
      search={
        {
          operation: "kernel,graph,memcpy,memset",
          from: Math.max(0, start),
          to: start + ns,
          overlapping: "true",
          lane: filter,
        } as never
      }
      title={exactDuration(value)}
      {...num("part", value, part)}
    >
      {text}
    </Link>
  );
}

/** CauseTime is idle time of a device that links to its gaps. */
function CauseTime({ a, cause, device, ns }: { a: Analysis; cause: string; device: string; ns: number }) {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/findings" });
  return (
    <Link
      to="/sessions/$session/gaps"
      params={{ session: session.id }}
      search={{ ...windowOf(a, search), cause, device } as never}
      title={exactDuration(ns)}
      {...num("ns", ns)}
    >
      {duration(ns)}
    </Link>
  );
}

/** Gain is the most that an advice can save. It links to its rows if it is a sum of rows that a page has. */
function Gain({ f, a }: { f: Schemas["Finding"]; a: Analysis }) {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/findings" });
  const ns = f.gain_at_most_ns;
  const device = a.devices.find((d) => d.id === f.device);
  if (device?.active.idle_by_cause_ns[f.kind as Schemas["Cause"]] === ns)
    return <CauseTime a={a} cause={f.kind} device={f.device} ns={ns} />;
  const part = { communication: "communication", exposed_copy: "copy", pageable_copy: "copy" } as const;
  const name = part[f.kind as keyof typeof part];
  if (device && name && partsOf(device.active).some(([n, , value]) => n === name && value === ns))
    return <PartTime device={f.device} start={device.start} ns={device.active.wall_ns} part={name} value={ns} />;
  if (f.kind === "slow_steps") {
    const late = a.steps.outliers.filter((o) => o.number > 1); // a first step warms up
    if (late.reduce((n, o) => n + o.wall_ns - a.steps.p50.wall_ns, 0) === ns)
      return (
        <OfSteps made="excess" value={ns} column={`${late.map((o) => o.number).join(",")} wall`}>
          {duration(ns)}
        </OfSteps>
      );
  }
  const value = { title: exactDuration(ns), children: duration(ns) };
  if (f.kind === "cuda_graph")
    return (
      <OfSteps made="sum" value={ns} column="graph">
        {duration(ns)}
      </OfSteps>
    );
  if (f.kind === "fusion")
    return (
      <Link
        to="/sessions/$session/owned"
        params={{ session: session.id }}
        search={{ ...windowOf(a, search), device: f.device, finding: "fusion" } as never}
        {...num("sum", ns, "wall")}
        {...value}
      />
    );
  if (device && f.kind === "small_kernels")
    return (
      <SmallTotal
        d={device}
        made="scaled"
        ns={ns}
        of={`lost ${device.id} × ${device.active.compute_ns} / ${device.kernel_ns}`}
      />
    );
  return <span {...value} />;
}

const units: Record<string, number> = { s: 1e9, ms: 1e6, µs: 1e3, ns: 1 };

/** Sentence is the text of an advice. Its numbers link to their rows, its names to their pages, in the order of the text. */
function Sentence({ f, a }: { f: Schemas["Finding"]; a: Analysis }) {
  const session = useSession();
  const device = a.devices.find((d) => d.id === f.device);
  const slow = f.kind === "slow_steps" ? a.steps.outliers.find((o) => o.number > 1) : undefined;
  const targets: [ns: number, link: ReactNode][] = [[f.gain_at_most_ns, <Gain key="gain" f={f} a={a} />]];
  if (slow) {
    const { p50 } = a.steps;
    targets[0] = [
      p50.wall_ns,
      <OfSteps key="median" made="p50" value={p50.wall_ns} column="wall">
        {duration(p50.wall_ns)}
      </OfSteps>,
    ];
    targets.push([
      slow.wall_ns,
      <Show key="wall" start={slow.start} ns={slow.wall_ns} number>
        {duration(slow.wall_ns)}
      </Show>,
    ]);
    targets.push([slow.part_excess_ns, <Excess key="excess" o={slow} />]);
  }
  if (device && f.kind === "small_kernels") {
    const { ns } = device.small_total;
    targets.push([ns, <SmallTotal key="small" d={device} made="sum" ns={ns} of={`small ${device.id}`} />]);
  }
  if (device && f.kind === "no_launch_times") {
    const ns = device.active.idle_by_cause_ns.unknown ?? 0;
    targets[0] = [ns, <CauseTime key="unknown" a={a} cause="unknown" device={device.id} ns={ns} />];
  }
  const parts: ReactNode[] = [];
  let end = 0;
  const put = (at: number, text: string, link: ReactNode) => {
    parts.push(f.text.slice(end, at), <Fragment key={at}>{link}</Fragment>);
    end = at + text.length;
  };
  for (const m of f.text.matchAll(/(\d\S*) (s|ms|µs|ns)\b/g)) {
    // A text has three digits.
    const ns = Number(m[1]) * (units[m[2] as string] as number);
    const i = targets.findIndex(([t]) => Math.abs(t - ns) <= 0.006 * t);
    if (i >= 0) put(m.index, m[0], targets.splice(i, 1)[0]?.[1]);
  }
  const name = (text: string | undefined, link: ReactNode) => {
    const at = text ? f.text.indexOf(text, end) : -1;
    if (text && at >= 0) put(at, text, link);
  };
  if (slow) name(slow.kernel, <KernelOf o={slow} />);
  const { run } = session.overview.session;
  if (run)
    name(
      "view Ranks",
      <Link to="/ranks" search={{ run } as never}>
        view Ranks
      </Link>,
    );
  return (
    <p>
      {parts}
      {f.text.slice(end)}
    </p>
  );
}

/** Active is the active time of an advice. That of a device is an interval of the timeline. */
function Active({ f, a }: { f: Schemas["Finding"]; a: Analysis }) {
  const device = a.devices.find((d) => d.id === f.device && d.active.wall_ns === f.active_ns);
  if (!device) return duration(f.active_ns);
  return (
    <Show start={device.start} ns={f.active_ns} number>
      {duration(f.active_ns)}
    </Show>
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
            <Sentence f={f} a={a} />
            {f.gain_at_most_ns > 0 && (
              <p className={ui.muted}>
                This can save at most <Gain f={f} a={a} /> of the <Active f={f} a={a} /> of active time, so at least{" "}
                {duration(f.active_at_least_ns)} remain. How it is computed: {f.formula}.
              </p>
            )}
            <p>
              {f.kind === "slow_steps"
                ? a.steps.outliers.slice(0, 5).map((o, i) => (
                    <span key={o.number}>
                      {i > 0 && " · "}
                      <Show start={o.start} ns={o.wall_ns} step={o.name}>
                        {o.name}
                      </Show>
                    </span>
                  ))
                : f.evidence.map((e, i) => (
                    <span key={e.span}>
                      {i > 0 && " · "}
                      <Show start={e.start} ns={1} span={e.span}>
                        {`${e.name || e.span} at ${offset(e.start, 1000)}`}
                      </Show>
                    </span>
                  ))}
            </p>
          </li>
        ))}
      </ol>
    </section>
  );
}

const causeColumns: Column[] = [
  ["Cause of idle time"],
  ["Idle", "Time in which the device ran no kernel, copy or set", ui.right],
  ["Of active", undefined, ui.right],
  ["", undefined, ui.wide],
  ["In the longest gaps", "The part of each gap that has this cause"],
];

const stepColumns: Column[] = [
  ["Part of a step", "Each number is of one step, so the parts do not add up to the wall time"],
  ["p50", undefined, ui.right],
  ["p95", undefined, ui.right],
  ["Max", undefined, ui.right],
];

function DevicePanel({ d, a }: { d: Device; a: Analysis }) {
  const p = d.active;
  const share = (ns: number) => (p.wall_ns > 0 ? ns / p.wall_ns : 0);
  const rows = a.causes
    .map((c) => ({ ...c, ns: p.idle_by_cause_ns[c.cause] ?? 0 }))
    .filter((c) => c.ns > 0)
    .sort((x, y) => y.ns - x.ns);
  const longest = (cause: Schemas["Cause"]) =>
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
        <Badge tone={boundTone(d.bound)}>{boundText(d.bound)}</Badge>
        {partsOf(p).map(([part, name, ns]) => (
          <span key={name}>
            {name}{" "}
            <strong>
              <PartTime device={d.id} start={d.start} ns={p.wall_ns} part={part} value={ns} text={percent(share(ns))} />
            </strong>
          </span>
        ))}
        <span className={ui.muted}>
          of{" "}
          <Show start={d.start} ns={p.wall_ns} number>
            {duration(p.wall_ns)}
          </Show>{" "}
          {a.steps.count > 0 && a.steps.device === d.id
            ? "from the first to the last step"
            : "from the first kernel to the end of the work"}
        </span>
      </div>
      <LaunchRate d={d} a={a} />
      <Described label="Idle time by cause" columns={causeColumns}>
        <tbody>
          {rows.map((c) => (
            <tr key={c.cause} data-cause={c.cause}>
              <td>{c.text}</td>
              <td className={ui.right}>
                <CauseTime a={a} cause={c.cause} device={d.id} ns={c.ns} />
              </td>
              <td className={ui.right}>{percent(share(c.ns))}</td>
              <td className={ui.wide}>
                <Bar share={share(c.ns)} />
              </td>
              <td>
                {longest(c.cause).map((g, i) => (
                  <span key={g.start} className={ui.nowrap}>
                    {i > 0 && ", "}
                    <Show
                      start={g.start}
                      ns={g.duration_ns}
                      title={[
                        `of a gap of ${duration(g.duration_ns)}`,
                        [g.call, g.scope].filter(Boolean).join(", in scope "),
                        g.delay_stack,
                      ]
                        .filter(Boolean)
                        .join("\n")}
                    >
                      {duration(g.idle_by_cause_ns[c.cause] ?? 0)}
                    </Show>
                  </span>
                ))}
              </td>
            </tr>
          ))}
        </tbody>
      </Described>
      <SmallKernels d={d} a={a} />
    </>
  );
}

function StepsPanel({ a }: { a: Analysis }) {
  const s = a.steps;
  if (s.count === 0) return <Message>No steps found: no scope repeats, and no kernel begins a regular period.</Message>;
  const line = (column: string, name: string, get: (v: Values) => number) => {
    if (get(s.max) === 0) return null;
    const columns: [Made, Values][] = [
      ["p50", s.p50],
      ["p95", s.p95],
      ["max", s.max],
    ];
    return (
      <tr>
        <td>{name}</td>
        {columns.map(([made, v]) => (
          <td key={made} className={ui.right}>
            <OfSteps made={made} value={get(v)} column={column}>
              {duration(get(v))}
            </OfSteps>
          </td>
        ))}
      </tr>
    );
  };
  return (
    <>
      <div className={ui.row}>
        <h2>
          <OfSteps made="rows" value={s.count}>
            {plural(s.count, "step")}
          </OfSteps>
        </h2>
        {s.typical && (
          <>
            <Badge title="What limits the typical step">{boundText(s.typical.bound)}</Badge>
            <Show start={s.typical.start} ns={s.typical.wall_ns} step={s.typical.name}>
              critical path of the typical step
            </Show>
          </>
        )}
        <span className={ui.muted}>
          each begins with the {s.rule === "scopes" ? "scope" : "kernel"} {s.name}
        </span>
      </div>
      <Described label="Steps" columns={stepColumns}>
        <tbody>
          {line("wall", "wall", (v) => v.wall_ns)}
          {line("compute", "compute", (v) => v.compute_ns)}
          {line("communication", "communication only", (v) => v.communication_ns)}
          {line("copy", "copies and sets only", (v) => v.copy_ns)}
          {line("idle", "idle", (v) => v.idle_ns)}
        </tbody>
      </Described>
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
                  <Show start={o.start} ns={o.wall_ns} step={o.name}>
                    {o.name}
                  </Show>
                </td>
                <td className={ui.right}>{count(o.number)}</td>
                <td className={ui.right}>
                  <Show start={o.start} ns={o.wall_ns} number>
                    {duration(o.wall_ns)}
                  </Show>
                </td>
                <td className={ui.nowrap}>{offset(o.start, 1000)}</td>
                <td className={ui.nowrap}>{boundText(o.bound)}</td>
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

/** OfSteps is a number that links to the list of all steps. */
function OfSteps(props: { made: Made; value: number; column?: string; children: string }) {
  const { made, value, column, children } = props;
  return (
    <Link
      to="."
      search={((o: Record<string, unknown>) => ({ ...o, list: "steps" })) as never}
      title={column && exactDuration(value)}
      {...num(made, value, column)}
    >
      {children}
    </Link>
  );
}

/** StepList has the steps of which the quantiles are made. */
function StepList({ a }: { a: Analysis }) {
  const s = a.steps;
  const graph = a.findings.find((f) => f.kind === "cuda_graph");
  return (
    <>
      <div className={ui.row}>
        <span>
          <strong>{count(s.longest.length)}</strong>
          {s.longest.length < s.count ? ` of ${count(s.count)} steps, the longest first` : " steps, the longest first"}
        </span>
        <span className={ui.muted}>
          p50 and p95 are the smallest value of a column that 50 % and 95 % of the steps do not exceed.
        </span>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="All steps">
          <thead>
            <tr>
              <th scope="col">Step</th>
              <th scope="col" className={ui.right}>
                Number
              </th>
              <th scope="col">Start</th>
              {["Wall", "Compute", "Communication only", "Copies and sets only", "Idle"].map((h) => (
                <th key={h} scope="col" className={ui.right}>
                  {h}
                </th>
              ))}
              {graph && (
                <th scope="col" className={ui.right} title={graph.formula}>
                  A graph saves
                </th>
              )}
              <th scope="col">Limit</th>
            </tr>
          </thead>
          <tbody>
            {s.longest.slice(0, 1000).map((o) => (
              <tr key={o.number} {...stepRow(o)}>
                <td>
                  <Show start={o.start} ns={o.wall_ns} step={o.name}>
                    {o.name}
                  </Show>
                </td>
                <td className={ui.right}>{count(o.number)}</td>
                <td className={ui.nowrap}>{offset(o.start, 1000)}</td>
                <td className={ui.right}>
                  <Show start={o.start} ns={o.wall_ns} number>
                    {duration(o.wall_ns)}
                  </Show>
                </td>
                {partsOf(o).map(([part, name, ns]) => (
                  <td key={name} className={ui.right}>
                    <PartTime device={s.device} start={o.start} ns={o.wall_ns} part={part} value={ns} />
                  </td>
                ))}
                {graph && (
                  <td className={ui.right} title={exactDuration(o.graph_gain_ns)}>
                    {duration(o.graph_gain_ns)}
                  </td>
                )}
                <td className={ui.nowrap}>{boundText(o.bound)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {s.longest.length > 1000 && (
        <p className={ui.muted}>{count(s.longest.length - 1000)} shorter steps are in the JSON only.</p>
      )}
    </>
  );
}

const stepRow = (o: Schemas["AnalysedStep"]) =>
  row({
    values: {
      number: o.number,
      wall: o.wall_ns,
      compute: o.compute_ns,
      communication: o.communication_ns,
      copy: o.copy_ns,
      idle: o.idle_ns,
      graph: o.graph_gain_ns,
      ...o.idle_by_cause_ns,
    },
  });

type Slow = Schemas["AnalysedStep"] & Partial<Schemas["AnalysedOutlier"]>;

/** Excess is how much the part of a slow step that differs most is above its median. */
const Excess = ({ o }: { o: Slow }) => (
  <OfSteps made="excess" value={o.part_excess_ns ?? 0} column={`${o.number} ${o.part}`}>
    {duration(o.part_excess_ns ?? 0)}
  </OfSteps>
);

/** KernelOf is a link to the launches in a slow step of the kernel that differs most. */
function KernelOf({ o }: { o: Slow }) {
  const session = useSession();
  return (
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
  );
}

/** Differs says what of a slow step is above its median the most. */
function Differs({ o, a }: { o: Slow; a: Analysis }) {
  if (!o.part) return null;
  const cause = a.causes.find((c) => c.cause === o.part)?.text.split(":")[0];
  return (
    <>
      {cause ? `idle time (${cause})` : o.part}: <Excess o={o} /> above the median
      {o.kernel && (
        <div className={ui.name} title={o.kernel}>
          <KernelOf o={o} />
        </div>
      )}
    </>
  );
}
