// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect } from "react";
import type { Schemas } from "../api/client";
import { url } from "../api/client";
import { useGet } from "../api/hooks";
import { bytes, count, duration, exactDuration, offset, words } from "../lib/format";
import { Badge, type Column, Described, Failure, Loading, type Made, Message, num, row, ui } from "../ui/parts";
import { toSpan } from "./Inspector";
import s from "./ranks.module.css";

type Answer = Schemas["Ranks"];
type Rank = Schemas["Rank"];
type Group = Answer["groups"][number];
type Collective = Schemas["RankCollective"];
type Part = Schemas["RankPart"];

const shown = 20;
const unlimited = { from: 0, to: Number.MAX_SAFE_INTEGER };

/** Ranks says which rank of a distributed run the others waited for. */
export function Ranks() {
  const search = useSearch({ from: "/ranks" });
  const chosen = search.rank !== undefined || search.kind !== undefined || search.span !== undefined;
  const query = { run: search.run, sessions: search.sessions, limit: chosen ? 10_000 : 500 };
  const given = Boolean(search.run || search.sessions);
  const q = useGet("/ranks", {}, query, { enabled: given });
  useEffect(() => {
    document.title = "Ranks · gpuflight";
  }, []);
  if (!given) return <Message>Choose the ranks of a run in the list of sessions.</Message>;
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const a = q.data;
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Ranks</h1>
        <span>
          {search.run && (
            <Link to="/" search={{ run: search.run } as never}>
              run {search.run}
            </Link>
          )}
        </span>
        <span className={ui.muted}>
          {count(a.collectives_total)} collectives of several ranks in {duration(a.wall_ns)}
        </span>
        {!a.complete && <Badge tone="warn">read in part</Badge>}
        <a href={url("/ranks", query)} target="_blank" rel="noreferrer">
          as JSON
        </a>
      </div>
      <Advice a={a} />
      <RankTable a={a} />
      {a.groups.some((g) => g.bandwidths) && <Bandwidths a={a} />}
      {a.collectives.length > 0 && <Lanes a={a} />}
      {chosen ? <Chosen a={a} /> : a.collectives.length > 0 && <Delays a={a} />}
    </div>
  );
}

/** Show is a link to a span in the timeline of its session. */
function Show({
  r,
  span,
  start,
  ns,
  children,
}: {
  r: Rank;
  span: string;
  start: number;
  ns: number;
  children: string;
}) {
  return (
    <Link
      to="/sessions/$session/timeline"
      params={{ session: r.session }}
      search={toSpan(span, start, ns, unlimited) as never}
      title="Show it in the timeline of the session"
    >
      {children}
    </Link>
  );
}

/** Of is a number that links to the collectives that it is made of. */
function Of(props: {
  made: Made;
  value: number;
  column?: string;
  rank?: number;
  kind?: string;
  span?: string;
  children: string;
}) {
  const { made, value, column, rank, kind, span, children } = props;
  return (
    <Link
      to="/ranks"
      search={(o) => ({ run: o.run, sessions: o.sessions, from: o.from, to: o.to, rank, kind, span })}
      {...num(made, value, column)}
    >
      {children}
    </Link>
  );
}

const members = (a: Answer, g: Group) => g.ranks.map((i) => a.ranks[i]?.rank).join(", ");

function Advice({ a }: { a: Answer }) {
  return (
    <section className={ui.card} aria-label="Advice">
      {a.findings.length === 0 && <p className={s.text}>No rank delays the others by 1 % of the time or more.</p>}
      <ol className={ui.advice}>
        {a.findings.map((f) => {
          const r = a.ranks[f.rank] as Rank;
          return (
            <li key={f.rank}>
              <p>{f.text}</p>
              <p className={ui.muted} title={exactDuration(f.gain_at_most_ns)}>
                Gain at most {duration(f.gain_at_most_ns)}: {f.formula}.
              </p>
              <p>
                {r.cause?.evidence.map((e, i) => (
                  <span key={e.span}>
                    {i > 0 && " · "}
                    <Show r={r} span={e.span} start={e.start} ns={e.duration_ns ?? 1}>
                      {`${e.name || e.span} at ${offset(e.start, 1000)} of rank ${r.rank}`}
                    </Show>
                  </span>
                ))}
              </p>
            </li>
          );
        })}
      </ol>
      {a.groups.flatMap((g) =>
        (g.findings ?? []).map((f) => (
          <p key={`${g.ranks}${g.stream}${f}`} className={s.text}>
            Ranks {members(a, g)}: {f}
          </p>
        )),
      )}
      {a.problems.map((p) => (
        <p key={p} className={`${s.text} ${ui.muted}`}>
          {p}
        </p>
      ))}
      {a.groups
        .filter((g) => g.uncertain || g.complete < g.collectives)
        .map((g) => (
          <p key={`${g.ranks}${g.stream}`} className={`${s.text} ${ui.muted}`}>
            Ranks {members(a, g)}: {count(g.complete)} of {count(g.collectives)} collectives have parts of all ranks.
            {g.uncertain && ` It is uncertain which parts belong together: ${g.uncertain}.`}
          </p>
        ))}
    </section>
  );
}

const speed = (v: number | undefined) => (v ? `${(v / 1e9).toFixed(1)} GB/s` : "unknown");

const bandwidthColumns: Column[] = [
  ["Bus bandwidth"],
  ["Median", "Half of the bytes moved at this bandwidth or less", ui.right],
  ["Best", undefined, ui.right],
  ["Peak", "NVLink in one direction", ui.right],
  ["Collectives", "Collectives whose size is known", ui.right],
  ["Bytes", undefined, ui.right],
  ["Ranks"],
];

/** Bandwidths has the bus bandwidth of each kind of collectives in each group. */
function Bandwidths({ a }: { a: Answer }) {
  return (
    <Described label="Bus bandwidth" columns={bandwidthColumns}>
      <tbody>
        {a.groups.flatMap((g, i) =>
          (g.bandwidths ?? []).map((b) => {
            const of = (made: Made, value: number, column: string, text: string) => (
              <td className={ui.right}>
                <Of made={made} value={value} column={column} kind={`${i} ${b.kind}`}>
                  {text}
                </Of>
              </td>
            );
            return (
              <tr key={`${g.ranks}${g.stream}${b.kind}`}>
                <td className={ui.nowrap}>{words(b.kind)}</td>
                {of("median", b.median_bytes_per_second, "bus", speed(b.median_bytes_per_second))}
                {of("max", b.best_bytes_per_second, "bus", speed(b.best_bytes_per_second))}
                <td className={ui.right}>{speed(g.peak_bytes_per_second)}</td>
                {of("rows", b.collectives, "", count(b.collectives))}
                {of("sum", b.bytes, "bytes", bytes(b.bytes))}
                <td className={ui.nowrap}>{members(a, g)}</td>
              </tr>
            );
          }),
        )}
      </tbody>
    </Described>
  );
}

/** millis shows a difference of clocks to the microsecond. */
const millis = (ns: number) => `${(ns / 1e6).toFixed(3)} ms`;

function clock(r: Rank): string {
  if (r.reference === r.rank) return "reference";
  if (!r.offset) return "unknown";
  const { ns, min_ns: min, max_ns: max } = r.offset;
  if (min === undefined || max === undefined) return `${millis(ns)}, without bounds`;
  return `${millis(ns)} (${bounds(ns, min, max)})`;
}

/** bounds says how far below and above a value its bounds are. */
const bounds = (ns: number, min: number, max: number) => `−${duration(ns - min)}, +${duration(max - ns)}`;

/** hasKernels says that collectives are kernels, not only calls of the host as those of gloo. */
const hasKernels = (a: Answer) => a.ranks.some((r) => r.communication_ns > 0);

const communication: Column[] = [
  ["Communication", "With a kernel of a collective: exposed + overlapped", ui.right],
  ["Exposed", "Communication without another kernel", ui.right],
  ["Overlapped", "Communication during another kernel", ui.right],
];

function RankTable({ a }: { a: Answer }) {
  const of = (rank: number, column: string, value: number, text: string) => (
    <td className={ui.right} title={text === count(value) ? undefined : exactDuration(value)}>
      <Of made="sum" value={value} column={column} rank={rank}>
        {text}
      </Of>
    </td>
  );
  const kernels = hasKernels(a);
  const columns: Column[] = [
    ["Rank"],
    ["Last", "Collectives in which the rank came last", ui.right],
    ["Certain", "Of these, whatever the offsets of the clocks are within their bounds", ui.right],
    ["Late", "From the last but one rank to this rank, in total", ui.right],
    ["Waited", "Inside collectives before the last rank entered", ui.right],
    ...(kernels ? communication : []),
    ["Clock ahead", "How far the clock is ahead of that of the reference, in the middle of the run"],
  ];
  return (
    <Described columns={columns} label="Ranks">
      <tbody>
        {a.ranks.map((r, i) => (
          <tr key={r.session} data-selected={a.findings[0]?.rank === i}>
            <td className={ui.nowrap}>
              <Link to="/sessions/$session/findings" params={{ session: r.session }} search={{} as never}>
                rank {r.rank}
              </Link>{" "}
              <span className={ui.muted}>{r.host}</span>
            </td>
            {of(i, "last", r.last, count(r.last))}
            {of(i, "certain", r.last_proven, count(r.last_proven))}
            {of(i, "late", r.late_ns, duration(r.late_ns))}
            {of(i, "waited", r.waited_ns, duration(r.waited_ns))}
            {kernels && (
              <>
                {of(i, "communication", r.communication_ns, duration(r.communication_ns))}
                {of(i, "exposed", r.exposed_ns, duration(r.exposed_ns))}
                {of(i, "overlapped", r.overlapped_ns, duration(r.overlapped_ns))}
              </>
            )}
            <td className={ui.nowrap}>{clock(r)}</td>
          </tr>
        ))}
      </tbody>
    </Described>
  );
}

const partOf = (c: Collective, rank: number) => c.parts.find((p) => p.rank === rank) as Part;
const begin = (c: Collective) => Math.min(...c.parts.map((p) => p.enter));
const end = (c: Collective) => Math.max(...c.parts.map((p) => p.leave));

/** around is the interval that shows a collective. */
const around = (c: Collective) => {
  const margin = Math.max((end(c) - begin(c)) * 2, 1000);
  return { from: Math.max(0, Math.round(begin(c) - margin)), to: Math.round(end(c) + margin) };
};

/** Lanes draws when each rank was inside the collectives, on one axis. */
function Lanes({ a }: { a: Answer }) {
  const search = useSearch({ from: "/ranks" });
  const navigate = useNavigate({ from: "/ranks" });
  const from = search.from ?? 0;
  const to = search.to ?? Math.max(a.wall_ns, 1);
  const height = 18;
  const x = (t: number) => (1000 * (t - from)) / (to - from);
  const visible = a.collectives.filter((c) => end(c) >= from && begin(c) <= to);
  return (
    <section className={ui.card} aria-label="Collectives of all ranks">
      <div className={`${ui.row} ${s.text}`}>
        <strong>Collectives on the aligned clock</strong>
        <span className={ui.muted}>
          {offset(from, to - from)} to {offset(to, to - from)}
        </span>
        {a.collectives.length < a.collectives_total && (
          <Badge>only the {count(a.collectives.length)} with the largest delays</Badge>
        )}
        <span className={s.waited}>waits for the last rank</span>
        <span className={s.busy}>all ranks are inside; red is the last rank</span>
        <span className={ui.spacer} />
        {search.from !== undefined && (
          <Link to="/ranks" search={(o) => ({ ...o, from: undefined, to: undefined })} className={ui.button}>
            Whole run
          </Link>
        )}
      </div>
      <div className={s.lanes}>
        <div className={s.names}>
          {a.ranks.map((r) => (
            <span key={r.session}>rank {r.rank}</span>
          ))}
        </div>
        <svg
          viewBox={`0 0 1000 ${height * a.ranks.length}`}
          preserveAspectRatio="none"
          style={{ height: height * a.ranks.length }}
          role="img"
          aria-label={`${visible.length} collectives by rank`}
        >
          {visible.map((c) =>
            c.parts.map((p) => {
              const all = Math.min(p.leave, p.enter + p.waited_ns);
              const bar = (t: number, u: number, cls: string | undefined) =>
                u > t && (
                  <rect
                    className={cls}
                    x={x(t)}
                    width={Math.max(x(u) - x(t), 0.7)}
                    y={p.rank * height + 2}
                    height={height - 4}
                  />
                );
              return (
                // biome-ignore lint/a11y/noStaticElementInteractions: the table below has the same as links
                <g
                  key={`${p.rank} ${p.span}`}
                  onClick={() => {
                    navigate({ search: (o) => ({ ...o, ...around(c) }) });
                  }}
                >
                  <title>{`${words(c.kind)}, rank ${a.ranks[p.rank]?.rank}: ${duration(p.leave - p.enter)}, waited ${duration(p.waited_ns)}`}</title>
                  {bar(p.enter, all, s.waits)}
                  {bar(all, p.leave, c.late?.rank === p.rank ? s.last : s.inside)}
                </g>
              );
            }),
          )}
        </svg>
      </div>
    </section>
  );
}

/** Delays lists the collectives with the largest delays. */
function Delays({ a }: { a: Answer }) {
  const late = a.collectives
    .filter((c) => c.late)
    .sort((x, y) => (y.late?.ns ?? 0) - (x.late?.ns ?? 0))
    .slice(0, shown);
  if (late.length === 0) return <Message>No collective has all its ranks.</Message>;
  return (
    <Described label="Largest delays" columns={delayColumns}>
      <tbody>
        {late.map((c) => {
          const l = c.late as NonNullable<Collective["late"]>;
          return (
            <tr key={`${c.group} ${partOf(c, l.rank).span}`}>
              <td className={ui.nowrap}>
                <Link to="/ranks" search={(o) => ({ ...o, ...around(c) })} title="Show it above">
                  {offset(begin(c), 1000)}
                </Link>
              </td>
              <td title={c.name}>{words(c.kind)}</td>
              <td className={ui.nowrap}>rank {a.ranks[l.rank]?.rank}</td>
              <td className={ui.right} title={exactDuration(l.ns)}>
                <Of made="late" value={l.ns} column="enter" span={partOf(c, l.rank).span}>
                  {duration(l.ns)}
                </Of>
              </td>
              <td className={ui.nowrap}>
                {l.min_ns === undefined || l.max_ns === undefined ? (
                  "unknown"
                ) : l.min_ns > 0 ? (
                  bounds(l.ns, l.min_ns, l.max_ns)
                ) : (
                  <Badge title="Within the bounds of the clocks, another rank can have been the last">
                    not certain
                  </Badge>
                )}
              </td>
              <td className={ui.right} title={exactDuration(l.spread_ns)}>
                <Of made="spread" value={l.spread_ns} column="enter" span={partOf(c, l.rank).span}>
                  {duration(l.spread_ns)}
                </Of>
              </td>
              <td>
                <Spans a={a} c={c} />
              </td>
            </tr>
          );
        })}
      </tbody>
    </Described>
  );
}

const delayColumns: Column[] = [
  ["First enters"],
  ["Collective"],
  ["Last"],
  ["Late", "From the last but one rank to the last", ui.right],
  ["Bounds", "How far below and above it the bounds are, because the clocks differ"],
  ["Spread", "From the first rank to the last", ui.right],
  ["Timelines"],
];

/** Spans are links to the parts of a collective. */
const Spans = ({ a, c }: { a: Answer; c: Collective }) =>
  c.parts.map((p, i) => {
    const r = a.ranks[p.rank] as Rank;
    return (
      <span key={p.span}>
        {i > 0 && " · "}
        <Show r={r} span={p.span} start={p.start} ns={p.leave - p.enter}>
          {`rank ${r.rank}`}
        </Show>
      </span>
    );
  });

/** Chosen lists the collectives, or the parts of collectives, that a number of the page is made of. */
function Chosen({ a }: { a: Answer }) {
  const search = useSearch({ from: "/ranks" });
  const [group, kind] = (search.kind ?? "").split(" ");
  const title =
    search.rank !== undefined
      ? `Collectives of rank ${a.ranks[search.rank]?.rank ?? search.rank}`
      : search.span
        ? "Ranks of the collective"
        : `${words(kind ?? "")} with a known size`;
  return (
    <>
      <div className={ui.row}>
        <h2>{title}</h2>
        <Link
          to="/ranks"
          search={(o) => ({ run: o.run, sessions: o.sessions, from: o.from, to: o.to })}
          title="Remove this filter"
        >
          largest delays
        </Link>
      </div>
      {search.kind !== undefined ? (
        <BandwidthRows
          list={a.collectives.filter((c) => c.group === Number(group) && c.kind === kind && c.bus_bytes_per_second)}
          a={a}
        />
      ) : (
        <Parts
          list={a.collectives.flatMap((c) =>
            search.span === undefined || c.parts.some((p) => p.span === search.span)
              ? c.parts.filter((p) => search.span !== undefined || p.rank === search.rank).map((p) => ({ c, p }))
              : [],
          )}
          a={a}
          rank={search.span === undefined ? a.ranks[search.rank ?? -1] : undefined}
        />
      )}
    </>
  );
}

/** listed bounds the rows of a table. Those that follow are summed in one row. */
const listed = 500;

const valuesOf = (c: Collective, p: Part) => {
  const late = c.late?.rank === p.rank ? c.late : undefined;
  return {
    last: late ? 1 : 0,
    certain: (late?.min_ns ?? 0) > 0 ? 1 : 0,
    late: late?.ns ?? 0,
    waited: p.waited_ns,
    communication: p.exposed_ns + p.overlapped_ns,
    exposed: p.exposed_ns,
    overlapped: p.overlapped_ns,
  };
};

/** Parts lists when ranks were inside collectives. With a rank, they sum to the numbers of its row. */
function Parts({ list, a, rank }: { list: { c: Collective; p: Part }[]; a: Answer; rank: Rank | undefined }) {
  const rows = list.slice(0, listed).map(({ c, p }) => ({ c, p, v: valuesOf(c, p) }));
  const sum = (k: keyof ReturnType<typeof valuesOf>) => rows.reduce((n, x) => n + x.v[k], 0);
  const rest = rank && {
    last: rank.last - sum("last"),
    certain: rank.last_proven - sum("certain"),
    late: rank.late_ns - sum("late"),
    waited: rank.waited_ns - sum("waited"),
    communication: rank.communication_ns - sum("communication"),
    exposed: rank.exposed_ns - sum("exposed"),
    overlapped: rank.overlapped_ns - sum("overlapped"),
  };
  const more = (rank?.matched ?? rows.length) - rows.length;
  const kernels = hasKernels(a);
  const time = (ns: number) => (
    <td className={ui.right} title={exactDuration(ns)}>
      {duration(ns)}
    </td>
  );
  const cells = (v: ReturnType<typeof valuesOf>) => (
    <>
      {time(v.late)}
      {time(v.waited)}
      {kernels && time(v.exposed)}
      {kernels && time(v.overlapped)}
    </>
  );
  return (
    <div className={`${ui.card} ${ui.tableScroll}`}>
      <table className={ui.table} aria-label="Parts of collectives">
        <thead>
          <tr>
            <th scope="col">Rank</th>
            <th scope="col">Collective</th>
            <th scope="col" className={ui.right} title="On the aligned clock">
              Entered
            </th>
            <th scope="col" className={ui.right}>
              Left
            </th>
            <th scope="col">Last</th>
            {["Late", "Waited", ...(kernels ? ["Exposed", "Overlapped"] : [])].map((h) => (
              <th key={h} scope="col" className={ui.right}>
                {h}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ c, p, v }) => {
            const r = a.ranks[p.rank] as Rank;
            return (
              <tr key={`${p.rank} ${p.span}`} {...row({ values: { ...v, enter: p.enter } })}>
                <td className={ui.nowrap}>
                  <Show r={r} span={p.span} start={p.start} ns={p.leave - p.enter}>
                    {`rank ${r.rank}`}
                  </Show>
                </td>
                <td title={c.name}>{words(c.kind)}</td>
                <td className={ui.right}>
                  <Link to="/ranks" search={(o) => ({ ...o, ...around(c) })} title="Show it above">
                    {offset(p.enter, 1000)}
                  </Link>
                </td>
                <td className={ui.right}>{offset(p.leave, 1000)}</td>
                <td>{v.last ? (v.certain ? "certainly" : "not certain") : ""}</td>
                {cells(v)}
              </tr>
            );
          })}
          {rest && more > 0 && (
            <tr {...row({ values: rest })}>
              <td>
                {count(more)} others, {count(rest.last)} of them last ({count(rest.certain)} certainly)
              </td>
              <td />
              <td />
              <td />
              <td />
              {cells(rest)}
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

/** BandwidthRows lists collectives with their bus bandwidths, the fastest first. */
function BandwidthRows({ list, a }: { list: Collective[]; a: Answer }) {
  const rows = list.toSorted((x, y) => (y.bus_bytes_per_second ?? 0) - (x.bus_bytes_per_second ?? 0));
  return (
    <>
      <p className={ui.muted}>
        The median is the bandwidth at or below which half of the bytes moved.
        {rows.length > 2000 && ` The slowest ${count(rows.length - 2000)} are in the JSON only.`}
      </p>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Bandwidths of collectives">
          <thead>
            <tr>
              <th scope="col">First enters</th>
              <th scope="col" className={ui.right}>
                Size
              </th>
              <th scope="col" className={ui.right}>
                Bus bandwidth
              </th>
              <th scope="col">Timelines</th>
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, 2000).map((c) => (
              <tr
                key={c.parts[0]?.span}
                {...row({ values: { bus: c.bus_bytes_per_second ?? 0, bytes: c.bytes ?? 0 } })}
              >
                <td className={ui.nowrap}>
                  <Link to="/ranks" search={(o) => ({ ...o, ...around(c) })} title="Show it above">
                    {offset(begin(c), 1000)}
                  </Link>
                </td>
                <td className={ui.right} title={`${count(c.bytes ?? 0)} B`}>
                  {bytes(c.bytes ?? 0)}
                </td>
                <td className={ui.right}>{speed(c.bus_bytes_per_second)}</td>
                <td>
                  <Spans a={a} c={c} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
