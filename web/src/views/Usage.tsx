// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect } from "react";
import { type Schemas, url } from "../api/client";
import { useGet } from "../api/hooks";
import { count, duration, exactDuration, percent } from "../lib/format";
import { Badge, Bar, Choice, Failure, Loading, type Made, Message, num, row, ui } from "../ui/parts";

/** money formats an amount with its currency. */
export function money(amount: number, currency: string): string {
  if (!/^[A-Z]{3}$/.test(currency)) return `${significantAmount(amount)} ${currency}`.trim();
  const small = Math.abs(amount) < 1;
  return new Intl.NumberFormat("en-US", {
    style: "currency",
    currency,
    ...(small ? { maximumSignificantDigits: 3 } : {}),
  }).format(amount);
}

const significantAmount = (n: number): string =>
  new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 }).format(n);

const nameless: Record<string, string> = {
  namespace: "no namespace",
  run: "no run",
  scope: "outside every scope",
  request: "outside every request",
};

const nameOf = (by: string, name: string): string =>
  name === "_idle" ? "idle devices" : name || (nameless[by] ?? "unknown");

const heading = (by: string): string => (by === "service" ? "Application" : by.charAt(0).toUpperCase() + by.slice(1));

/** change sets parameters of the page. */
const change = (c: Record<string, string | undefined>) => ((o: Record<string, unknown>) => ({ ...o, ...c })) as never;

/** Metered is what the connector gpu_usage measured: the time and cost of devices, idle time included. */
function Metered({ by, cost }: { by: string; cost: Schemas["Cost"] }) {
  const currencies = [...new Set(cost.groups.flatMap((g) => Object.keys(g.costs)))].sort();
  const sum = (c: string) => cost.groups.reduce((n, g) => n + (g.costs[c] ?? 0), 0);
  if (!cost.groups.length) {
    return by === "request" ? (
      <div className={ui.card}>
        <Message>
          The connector <code>gpu_usage</code> has measured nothing yet. It sums device time and cost by request.
        </Message>
      </div>
    ) : null;
  }
  return (
    <section aria-label="Measured by gpu_usage">
      <div className={ui.row}>
        <h2>Measured by gpu_usage</h2>
        <span className={ui.muted}>
          {currencies.length
            ? "Running kernels share the price of their device. Idle devices have their own row."
            : "Set prices in the connector to see the cost."}
        </span>
        {cost.truncated && <Badge tone="warn">1,000 series of a metric only</Badge>}
        <a href={url("/usage/cost", { by })} target="_blank" rel="noreferrer">
          as JSON
        </a>
      </div>
      <br />
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Cost">
          <thead>
            <tr>
              <th scope="col">{heading(by)}</th>
              <th scope="col" className={ui.right} title="gpu.cuda.time: work that overlaps counts in full">
                Device time
              </th>
              {currencies.map((c) => (
                <th key={c} scope="col" className={ui.right} title="gpu.cuda.cost">
                  Cost{c ? `, ${c}` : ""}
                </th>
              ))}
              {currencies.length === 1 && <th scope="col">Share</th>}
            </tr>
          </thead>
          <tbody>
            {cost.groups.map((g) => (
              <tr key={g.name}>
                <td>{nameOf(by, g.name)}</td>
                <td className={ui.right} title={`${g.device_seconds} s`}>
                  {g.device_seconds ? (
                    <Link to="/usage" search={change({ cost: `=${g.name}` })} {...num("seconds", g.device_seconds)}>
                      {duration(g.device_seconds * 1e9)}
                    </Link>
                  ) : (
                    "–"
                  )}
                </td>
                {currencies.map((c) => (
                  <td key={c} className={ui.right} title={String(g.costs[c] ?? 0)}>
                    <Link to="/usage" search={change({ cost: `=${g.name}` })} {...num("cost", g.costs[c] ?? 0, c)}>
                      {money(g.costs[c] ?? 0, c)}
                    </Link>
                  </td>
                ))}
                {currencies.length === 1 && (
                  <td>
                    <div className={`${ui.row} ${ui.nowrap}`}>
                      <span style={{ width: 90 }}>
                        <Bar share={(g.costs[currencies[0] ?? ""] ?? 0) / (sum(currencies[0] ?? "") || 1)} />
                      </span>
                      {percent((g.costs[currencies[0] ?? ""] ?? 0) / (sum(currencies[0] ?? "") || 1))}
                    </div>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** Series are what the cost and device time of a group are made of. */
function Series({ by, of, filter }: { by: string; of: string; filter: Record<string, string | undefined> }) {
  const q = useGet("/usage/cost", {}, { by, ...filter, of });
  if (q.error) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const list = [...(q.data.series ?? [])].sort((a, b) => b.increase - a.increase);
  return (
    <>
      <div className={ui.row}>
        <h2>Device time and cost of {nameOf(by, of)}</h2>
        <Link to="/usage" search={change({ cost: undefined })}>
          back to all
        </Link>
        {q.data.truncated && <Badge tone="warn">1,000 series of a metric only</Badge>}
        <span className={ui.spacer} />
        <a href={url("/usage/cost", { by, ...filter, of })} target="_blank" rel="noreferrer">
          as JSON
        </a>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Series">
          <thead>
            <tr>
              <th scope="col">Application</th>
              <th scope="col">Host</th>
              <th scope="col">Device</th>
              <th scope="col">Scope</th>
              <th scope="col">Operation or request</th>
              <th scope="col" className={ui.right}>
                Device time
              </th>
              <th scope="col" className={ui.right}>
                Cost
              </th>
            </tr>
          </thead>
          <tbody>
            {list.map((x) => {
              const currency = String(x.attributes["cuda.cost.currency"] ?? "");
              const cost = x.metric === "gpu.cuda.cost";
              return (
                <tr
                  key={JSON.stringify([x.metric, x.attributes, x.resource])}
                  {...row(cost ? { costs: { [currency]: x.increase } } : { seconds: x.increase })}
                >
                  <td>{nameOf("service", String(x.resource["service.name"] ?? ""))}</td>
                  <td>{String(x.resource["host.name"] ?? "")}</td>
                  <td title={String(x.attributes["hw.name"] ?? "")}>{String(x.attributes["hw.id"] ?? "")}</td>
                  <td>{String(x.attributes["cuda.scope.name"] ?? "")}</td>
                  <td>{String(x.attributes["cuda.operation"] ?? x.attributes["cuda.request.operation"] ?? "")}</td>
                  <td className={ui.right} title={cost ? undefined : `${x.increase} s`}>
                    {cost ? "" : duration(x.increase * 1e9)}
                  </td>
                  <td className={ui.right} title={cost ? String(x.increase) : undefined}>
                    {cost ? money(x.increase, currency) : ""}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}

const without = { service: "an application", namespace: "a namespace", host: "a host", run: "a run" };

type Grouping = "service" | "namespace" | "host" | "run" | "scope";

/** GroupSessions are the sessions of a group. For a top-level scope, they are those in which it has kernels. */
function GroupSessions({ by, of, filter }: { by: Grouping; of: string; filter: Record<string, string | undefined> }) {
  const q = useGet("/usage", {}, { by, ...filter, of });
  if (q.error) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  return (
    <>
      <div className={ui.row}>
        <h2>
          {by === "scope"
            ? `Sessions with kernels ${of ? `in ${of}` : nameOf(by, of)}`
            : of
              ? `Sessions of ${of}`
              : `Sessions without ${without[by]}`}
        </h2>
        <Link to="/usage" search={change({ of: undefined })}>
          back to all
        </Link>
        {q.data.truncated && <Badge tone="warn">newest sessions only</Badge>}
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Sessions of the group">
          <thead>
            <tr>
              <th scope="col">Session</th>
              <th scope="col" className={ui.right}>
                Kernel time
              </th>
              <th scope="col" className={ui.right}>
                Kernels
              </th>
            </tr>
          </thead>
          <tbody>
            {q.data.groups.map((g) => {
              const launches = (made: Made, value: number, text: string) => (
                <Link
                  to="/sessions/$session/launches"
                  params={{ session: g.name }}
                  search={{ operation: "kernel", path: g.path, direct: g.path === 0 ? "true" : undefined } as never}
                  {...num(made, value)}
                >
                  {text}
                </Link>
              );
              return (
                <tr key={`${g.name} ${g.path}`} {...row({ ns: g.kernel_ns, kernels: g.kernels })}>
                  <td>{g.name}</td>
                  <td className={ui.right} title={exactDuration(g.kernel_ns)}>
                    {launches("ns", g.kernel_ns, duration(g.kernel_ns))}
                  </td>
                  <td className={ui.right}>{launches("kernels", g.kernels, count(g.kernels))}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Usage sums device time over sessions. A rate per hour turns it into cost. */
export function Usage() {
  const search = useSearch({ from: "/usage" });
  const navigate = useNavigate({ from: "/usage" });
  const by = search.by ?? "service";
  const rate = search.rate && /^\d{1,6}(\.\d{1,4})?$/.test(search.rate) ? Number(search.rate) : undefined;
  const filter = { service: search.service, host: search.host };
  const sessions = useGet("/usage", {}, { by, ...filter }, { enabled: by !== "request" });
  const metered = by !== "run" && by !== "session";
  const cost = useGet("/usage/cost", {}, { by, ...filter }, { enabled: metered });
  useEffect(() => {
    document.title = "Usage · gpuflight";
  }, []);
  const q = by === "request" ? cost : sessions;
  if (q.error) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const groups = by === "request" ? [] : (sessions.data?.groups ?? []);
  const total = groups.reduce((n, g) => n + g.kernel_ns, 0);
  // A name can be empty, so a "=" comes before it.
  const [series, of] = [search.cost?.slice(1), search.of?.slice(1)];
  const grouping = by === "session" || by === "request" ? undefined : by;
  const all = !(metered && series !== undefined) && !(grouping && of !== undefined);
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Usage</h1>
        {all && (
          <Choice
            label="Group usage by"
            param="by"
            value={by}
            options={[
              ["service", "Application"],
              ["namespace", "Namespace"],
              ["host", "Host"],
              ["run", "Run"],
              ["session", "Session"],
              ["scope", "Scope"],
              ["request", "Request"],
            ]}
          />
        )}
        {q.data.truncated && (
          <Badge tone="warn" title="Only the newest sessions are summed.">
            newest sessions only
          </Badge>
        )}
        <span className={ui.spacer} />
        <label className={ui.row}>
          Price of one GPU hour
          <input
            className={ui.input}
            style={{ width: 90, minWidth: 0 }}
            inputMode="decimal"
            value={search.rate ?? ""}
            onChange={(e) => navigate({ search: (o) => ({ ...o, rate: e.target.value || undefined }), replace: true })}
          />
        </label>
      </div>
      {metered && series !== undefined ? <Series by={by} of={series} filter={filter} /> : null}
      {grouping && of !== undefined ? <GroupSessions by={grouping} of={of} filter={filter} /> : null}
      {all && metered && cost.data && <Metered by={by} cost={cost.data} />}
      {all && by !== "request" && (
        <p className={ui.muted}>Kernel time of the stored sessions. Kernels that overlap each count in full.</p>
      )}
      <div hidden={!all || by === "request"} className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Usage">
          <thead>
            <tr>
              <th scope="col">{heading(by)}</th>
              <th scope="col" className={ui.right}>
                Kernel time
              </th>
              <th scope="col">Share</th>
              <th scope="col" className={ui.right}>
                Kernels
              </th>
              {by !== "session" && (
                <th scope="col" className={ui.right}>
                  Sessions
                </th>
              )}
              {rate !== undefined && (
                <th scope="col" className={ui.right}>
                  Cost
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {groups.map((g) => {
              const own =
                by === "service"
                  ? { service: g.name }
                  : by === "host"
                    ? { host: g.name }
                    : by === "run"
                      ? { run: g.name }
                      : {};
              const text = (made: Made, value: number, t = count(value)) =>
                by === "session" ? (
                  <Link
                    to="/sessions/$session/kernels"
                    params={{ session: g.name }}
                    search={{} as never}
                    {...num(made, value)}
                  >
                    {t}
                  </Link>
                ) : by === "scope" || by === "namespace" || !g.name ? (
                  <Link to="/usage" search={change({ of: `=${g.name}` })} {...num(made, value)}>
                    {t}
                  </Link>
                ) : (
                  <Link to="/" search={own as never} {...num(made, value)}>
                    {t}
                  </Link>
                );
              return (
                <tr key={g.name}>
                  <td>{nameOf(by, g.name)}</td>
                  <td className={ui.right} title={exactDuration(g.kernel_ns)}>
                    {text("ns", g.kernel_ns, duration(g.kernel_ns))}
                  </td>
                  <td>
                    <div className={`${ui.row} ${ui.nowrap}`}>
                      <span style={{ width: 90 }}>
                        <Bar share={total ? g.kernel_ns / total : 0} />
                      </span>
                      {percent(total ? g.kernel_ns / total : 0)}
                    </div>
                  </td>
                  <td className={ui.right}>{text("kernels", g.kernels)}</td>
                  {by !== "session" && <td className={ui.right}>{text("rows", g.sessions)}</td>}
                  {rate !== undefined && <td className={ui.right}>{((g.kernel_ns / 3600e9) * rate).toPrecision(3)}</td>}
                </tr>
              );
            })}
          </tbody>
        </table>
        {!groups.length && <Message>No session has kernels.</Message>}
      </div>
    </div>
  );
}
