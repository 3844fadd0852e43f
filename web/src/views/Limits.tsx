// SPDX-License-Identifier: Apache-2.0
import { Link, useSearch } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { url } from "../api/client";
import { type SessionState, useGet, useSession } from "../api/hooks";
import { count, dims, duration, exactDuration, percent, plural, significant } from "../lib/format";
import { scopeSearch } from "../lib/scopes";
import type { WindowSearch } from "../lib/search";
import { Badge, Bar, Failure, type Made, Message, num, row, Swatch, ui } from "../ui/parts";

type Analysis = Schemas["Analysis"];
type Device = Schemas["AnalysedDevice"];

const bounds: Record<Schemas["Bound"], string> = {
  device: "limited by the device",
  launch: "launch-bound: limited by launches",
  host: "limited by the host",
  communication: "limited by communication, or waits for other ranks",
  dependency: "limited by dependencies",
  unknown: "limit unknown",
};

export const boundText = (bound: Schemas["Bound"]) => bounds[bound];

export const boundTone = (bound: Schemas["Bound"]) =>
  bound === "device" ? "good" : bound === "unknown" ? undefined : "warn";

/** Lanes is the filter of operations of a device, undefined if all are of it, null if it is too long for an address. */
export function lanesOf(session: SessionState, device: string): string | undefined | null {
  const lanes = session.overview.lanes.filter((l) => l.class !== "host");
  const own = lanes.filter((l) => (l.device ?? "") === device).map((l) => l.id);
  if (own.length === lanes.length) return undefined;
  const filter = own.join(",");
  // The filter of a page has at most 500 characters. Some 100 streams of one device need more.
  return filter.length > 500 ? null : filter;
}

/** windowOf is the interval that an analysis has read: that of the page, unless the analysis ended early. */
export const windowOf = (a: Analysis, page: WindowSearch): WindowSearch =>
  a.complete ? { from: page.from, to: page.to } : { from: page.from ?? 0, to: a.to };

/** LaunchRate says how fast the host launched on a device, until the analysis ended. */
export function LaunchRate({ d, a }: { d: Device; a: Analysis }) {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/findings" });
  const x = d.launches;
  if (!x) return null;
  const lane = lanesOf(session, d.id);
  const link = (made: Made, ns: number, of: string) =>
    lane === null ? (
      duration(ns)
    ) : (
      <Link
        to="/sessions/$session/launches"
        params={{ session: session.id }}
        search={
          {
            operation: "kernel,graph",
            ...windowOf(a, search),
            lane,
            calls: "1",
          } as never
        }
        {...num(made, ns, of)}
      >
        {duration(ns)}
      </Link>
    );
  return (
    <p
      data-testid="launches"
      title={`${plural(x.calls, "launch")} of kernels and graphs. Calls of more than 1 ms and intervals of more than 100 µs do not count. A host that only launches needs about the 10th percentile for each.`}
    >
      <span className={ui.muted}>Launches: one every</span>{" "}
      <strong>{link("p50", x.interval_p50_ns, "interval")}</strong>{" "}
      <span className={ui.muted}>(median). A call takes</span> {link("p50", x.call_p50_ns, "call")}
      <span className={ui.muted}>, and at the 10th percentile</span> {link("p10", x.call_p10_ns, "call")}
      <span className={ui.muted}>, with recording.</span>
    </p>
  );
}

/** minScope is the smallest share of the active time of a scope that is listed, maxScopes the number of scopes. */
const minScope = 0.01;
const maxScopes = 30;

/** ScopeLimits says how the time of the device with the most kernel time divides among scopes. */
export function ScopeLimits({ a }: { a: Analysis }) {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/findings" });
  const params = { session: session.id };
  const query = { base: session.base, from: search.from, to: search.to };
  const every = session.every ? 15_000 : false;
  const q = useGet("/sessions/{session}/analysis/scopes", params, query, { every });
  const tree = useGet("/sessions/{session}/scopes", params, {}, { every });
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return null;
  const { scopes, device, many_scopes } = q.data;
  if (many_scopes)
    return <Message>The interval has too many scopes to list their limits. Choose a shorter one.</Message>;
  const all = scopes.filter((x) => x.path.length < 2).reduce((n, x) => n + x.wall_ns, 0);
  const shown = scopes.filter((x) => x.wall_ns >= minScope * all).slice(0, maxScopes);
  if (!shown.some((x) => x.path.length > 0)) return null;
  const own = a.devices.find((d) => d.id === device);
  const text = (cause: string) => a.causes.find((c) => c.cause === cause)?.text ?? cause;
  return (
    <>
      <div className={ui.row}>
        <h2>Scopes</h2>
        <span className={ui.muted}>
          what limits each{a.devices.length > 1 ? ` on device ${own?.index ?? device.slice(0, 16)}` : ""}
        </span>
        <a
          href={url(`/sessions/${encodeURIComponent(session.id)}/analysis/scopes`, query)}
          target="_blank"
          rel="noreferrer"
        >
          as JSON
        </a>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Limits of scopes">
          <thead>
            <tr>
              <th scope="col">Scope</th>
              <th scope="col">Limit</th>
              <th
                scope="col"
                className={ui.right}
                title="Time of the device that belongs to the operations of the scope and those below: the idle time before each and its busy time. It does not count twice"
              >
                Device time
              </th>
              <th scope="col" className={ui.right}>
                Share
              </th>
              <th scope="col" className={ui.wide} />
              <th scope="col" className={ui.right} title="Share of the device time">
                Idle
              </th>
              <th scope="col" title="Share of the device time, the largest causes first">
                Idle by cause
              </th>
              <th
                scope="col"
                className={ui.right}
                title="Launches that returned when the device had no work left, of those with known times"
              >
                Late launches
              </th>
              <th scope="col" className={ui.right} title="Median time from the launch to the start">
                Queue p50
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((x) => {
              const of = (made: Made, value: number, column: string, text: string, title?: string) => (
                <Link
                  to="/sessions/$session/owned"
                  params={params}
                  search={
                    {
                      ...windowOf(a, search),
                      device,
                      scope: ["", ...x.path].join("\n") || "\n",
                    } as never
                  }
                  title={title ?? exactDuration(value)}
                  {...num(made, value, column)}
                >
                  {text}
                </Link>
              );
              const causes = Object.entries(x.idle_by_cause_ns).toSorted(([, m], [, n]) => n - m);
              const name = x.path.at(-1);
              const target = scopeSearch(tree.data?.nodes ?? [], x.path);
              return (
                <tr key={x.path.join("\0")}>
                  <td>
                    <span style={{ paddingLeft: Math.max(0, x.path.length - 1) * 16 }} title={x.path.join(" › ")}>
                      {name === undefined ? (
                        <span className={ui.muted}>outside all scopes</span>
                      ) : target ? (
                        <Link to="/sessions/$session/scopes" params={params} search={target as never}>
                          {name}
                        </Link>
                      ) : (
                        name
                      )}
                    </span>
                  </td>
                  <td>
                    <Badge tone={boundTone(x.bound)} title={boundText(x.bound)}>
                      {x.bound}
                    </Badge>
                  </td>
                  <td className={ui.right}>{of("sum", x.wall_ns, "wall", duration(x.wall_ns))}</td>
                  <td className={ui.right}>{percent(x.wall_ns / all)}</td>
                  <td className={ui.wide}>
                    <Bar share={x.wall_ns / all} />
                  </td>
                  <td className={ui.right}>
                    {of("sum", x.idle_ns, "idle", percent(x.wall_ns ? x.idle_ns / x.wall_ns : 0))}
                  </td>
                  <td
                    className={ui.nowrap}
                    title={causes.map(([c, ns]) => `${exactDuration(ns)} ${text(c)}`).join("\n")}
                  >
                    {causes
                      .slice(0, 2)
                      .filter(([, ns]) => ns >= minScope * x.wall_ns)
                      .map(([c, ns], i) => (
                        <span key={c}>
                          {i > 0 && ", "}
                          {text(c).split(":")[0]} {of("sum", ns, c, percent(ns / x.wall_ns))}
                        </span>
                      ))}
                  </td>
                  <td className={ui.right}>
                    {x.launches ? (
                      of(
                        "sum",
                        x.late,
                        "late",
                        percent(x.late / x.launches),
                        `${count(x.late)} of ${plural(x.launches, "launch")}`,
                      )
                    ) : (
                      <span className={ui.muted}>–</span>
                    )}
                  </td>
                  <td className={ui.right}>
                    {x.queue_p50_ns === undefined ? (
                      <span className={ui.muted}>–</span>
                    ) : (
                      of("p50", x.queue_p50_ns, "queue", duration(x.queue_p50_ns))
                    )}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {shown.length < scopes.length && (
        <p className={ui.muted}>
          {plural(scopes.length - shown.length, "scope")} with less time{" "}
          {scopes.length - shown.length === 1 ? "is" : "are"} in the JSON only.
        </p>
      )}
    </>
  );
}

const waves = (n: number) => (n < 0.001 ? "< 0.001" : significant(n));

/** minLost is the share of a device's kernel time that a shape must lose to be listed, and all shapes for a table. */
const minLost = 0.01;

/** smallId is the anchor of the small kernels of a device. */
const smallId = (d: Device) => `small-${d.id}`;

/** SmallTotal is a number that is made of the small kernels of a device. */
export const SmallTotal = ({ d, made, ns, of }: { d: Device; made: Made; ns: number; of: string }) => (
  <Link to="." search={(o) => o} hash={smallId(d)} title={exactDuration(ns)} {...num(made, ns, of)}>
    {duration(ns)}
  </Link>
);

/** SmallKernels lists kernels whose grids do not fill a device. */
export function SmallKernels({ d, a }: { d: Device; a: Analysis }) {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/findings" });
  const shown = d.small_kernels.filter((k) => k.lost_ns >= minLost * d.kernel_ns);
  if (d.small_total.lost_ns < minLost * d.kernel_ns || d.small_total.shapes === 0) return null;
  const values = (k: { ns: number; lost_ns: number }) =>
    row({ values: { [`lost ${d.id}`]: k.lost_ns, [`small ${d.id}`]: k.ns } });
  const sum = (get: (k: { count: number; ns: number; lost_ns: number }) => number) =>
    get(d.small_total) - shown.reduce((n, k) => n + get(k), 0);
  const rest = { count: sum((k) => k.count), ns: sum((k) => k.ns), lost_ns: sum((k) => k.lost_ns) };
  const lane = lanesOf(session, d.id);
  const window = windowOf(a, search);
  const link = (k: Schemas["SmallKernel"], text: string, made?: [Made, number], title?: string) =>
    lane === null ? (
      <span title={title}>{text}</span>
    ) : (
      <Link
        to="/sessions/$session/launches"
        params={{ session: session.id }}
        search={
          {
            operation: "kernel",
            shape: String(k.shape),
            ...window,
            overlapping: window.from === undefined ? undefined : "true",
            lane,
            sort: "duration",
          } as never
        }
        title={title}
        {...(made ? num(...made) : {})}
      >
        {text}
      </Link>
    );
  return (
    <div className={`${ui.card} ${ui.tableScroll}`} id={smallId(d)}>
      <table className={ui.table} aria-label="Small kernels">
        <thead>
          <tr>
            <th scope="col" title="Their grids fill less than half of the device">
              Kernel too small for the device
            </th>
            <th scope="col">Grid, block</th>
            <th scope="col" className={ui.right}>
              Launches
            </th>
            <th scope="col" className={ui.right}>
              Total
            </th>
            <th scope="col" className={ui.right} title="Total × (1 − grid fill)">
              Lost
            </th>
            <th scope="col" className={ui.right} title="Share of the device that the grid can fill">
              Grid fill
            </th>
            <th scope="col" className={ui.right}>
              Waves
            </th>
            <th scope="col" title="Theoretical, and what limits it">
              Occupancy
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((k) => (
            <tr key={k.shape} {...values(k)}>
              <td className={ui.name} title={k.name}>
                <Swatch name={k.name} />
                {link(k, k.name)}
              </td>
              <td className={`${ui.mono} ${ui.nowrap}`}>
                {dims(k.grid)} <span className={ui.muted}>{dims(k.block)}</span>
              </td>
              <td className={ui.right}>{link(k, count(k.count), ["rows", k.count])}</td>
              <td className={ui.right}>{link(k, duration(k.ns), ["ns", k.ns], exactDuration(k.ns))}</td>
              <td className={ui.right} title={exactDuration(k.lost_ns)}>
                {duration(k.lost_ns)}
              </td>
              <td className={ui.right}>{percent(k.grid_fill)}</td>
              <td className={ui.right}>
                {k.waves === undefined ? <span className={ui.muted}>–</span> : waves(k.waves)}
              </td>
              <td className={ui.nowrap}>
                {k.occupancy === undefined ? <span className={ui.muted}>–</span> : percent(k.occupancy)}{" "}
                <span className={ui.muted}>{k.limiter?.replaceAll("_", " ")}</span>
              </td>
            </tr>
          ))}
          {d.small_total.shapes > shown.length && (
            <tr data-rest {...values(rest)}>
              <td>{plural(d.small_total.shapes - shown.length, shown.length ? "other kernel" : "kernel")}</td>
              <td />
              <td className={ui.right}>{count(rest.count)}</td>
              <td className={ui.right} title={exactDuration(rest.ns)}>
                {duration(rest.ns)}
              </td>
              <td className={ui.right} title={exactDuration(rest.lost_ns)}>
                {duration(rest.lost_ns)}
              </td>
              <td />
              <td />
              <td />
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}
