// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Schemas } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { count, dims, duration, exactDuration, offset, percent, plural } from "../lib/format";
import { occupancy } from "../lib/occupancy";
import { Badge, Bar, Choice, Failure, Loading, type Made, Message, num, row, SearchBox, Swatch, ui } from "../ui/parts";

type Group = Schemas["KernelGroup"];
type Column = "sum_ns" | "count" | "mean" | "p50_ns" | "p99_ns" | "max_ns" | "queue_ns" | "name";

const groups = [
  ["name", "Name"],
  ["shape", "Shape"],
  ["path", "Scope"],
  ["lane", "Stream"],
] as const;

const title = (g: Group): string =>
  g.names ? g.names.join(" › ") || "outside every scope" : g.lane ? laneName(g.lane) : (g.name ?? "");

const laneName = (l: Schemas["Lane"]): string =>
  `${l.device_index !== undefined ? `GPU ${l.device_index}` : (l.device ?? "unknown GPU")}, stream ${l.stream ?? "unknown"}`;

const sortValue = (g: Group, c: Column): number | string =>
  c === "name" ? title(g) : c === "mean" ? g.sum_ns / g.count : g[c];

/** WindowBadge says that a view is limited to an interval, and removes the limit. */
export function WindowBadge({ from, to }: { from: number | undefined; to: number | undefined }) {
  if (from === undefined || to === undefined) return null;
  return (
    <Link
      to="."
      search={((o: Record<string, unknown>) => ({ ...o, from: undefined, to: undefined })) as never}
      title="Show the whole session"
    >
      <Badge tone="warn">
        only {offset(from, 1)} to {offset(to, 1)} ({duration(to - from)}) ✕
      </Badge>
    </Link>
  );
}

/** Kernels is the table of kernels by name, shape, scope or stream. */
export function Kernels() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/kernels" });
  const navigate = useNavigate({ from: "/sessions/$session/kernels" });
  const group = search.group ?? "name";
  const sort = search.sort ?? "sum_ns";
  const ascending = (search.dir ?? (sort === "name" ? "asc" : "desc")) === "asc";
  const q = useGet(
    "/sessions/{session}/kernels",
    { session: session.id },
    { base: session.base, group, from: search.from, to: search.to, q: search.q, path: search.path, limit: 1000 },
    { every: session.every },
  );
  const rows = useMemo(() => {
    const list = [...(q.data?.groups ?? [])];
    list.sort((a, b) => {
      const [x, y] = [sortValue(a, sort), sortValue(b, sort)];
      const d = typeof x === "string" ? x.localeCompare(String(y)) : x - Number(y);
      return ascending ? d : -d;
    });
    return list;
  }, [q.data, sort, ascending]);
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const total = q.data.total;
  const header = (c: Column, label: string, hint?: string) => (
    <th
      scope="col"
      className={c === "name" ? undefined : ui.right}
      aria-sort={sort === c ? (ascending ? "ascending" : "descending") : "none"}
      title={hint}
    >
      <Link
        to="."
        replace
        search={
          ((o: Record<string, unknown>) => ({
            ...o,
            sort: c,
            dir: sort === c ? (ascending ? "desc" : "asc") : undefined,
          })) as never
        }
        className={ui.muted}
      >
        {label}
        {sort === c ? (ascending ? " ↑" : " ↓") : ""}
      </Link>
    </th>
  );
  const wide = group === "name" || group === "shape";
  const queued = rows.some((g) => g.queue_ns > 0);
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <Choice label="Group kernels by" param="group" value={group} options={groups} />
        <WindowBadge from={search.from} to={search.to} />
        {search.path !== undefined && (
          <Link to="." search={((o: Record<string, unknown>) => ({ ...o, path: undefined })) as never}>
            <Badge tone="warn">only one scope ✕</Badge>
          </Link>
        )}
        <span className={ui.spacer} />
        <span className={ui.muted}>
          {plural(total.count, "launch")}, <span title={exactDuration(total.sum_ns)}>{duration(total.sum_ns)}</span> in{" "}
          {plural(total.groups, "group")}
        </span>
        <SearchBox
          label="Search kernels"
          value={search.q ?? ""}
          onChange={(v) => navigate({ search: (o) => ({ ...o, q: v || undefined }), replace: true })}
        />
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Kernels" data-group={group}>
          <thead>
            <tr>
              {header("name", group === "path" ? "Scope" : group === "lane" ? "Stream" : "Kernel")}
              {header("sum_ns", "Total", "Sum of the durations. Kernels that overlap each count in full.")}
              <th scope="col" className={ui.wide}>
                Share
              </th>
              {header("count", "Launches")}
              {header("mean", "Mean")}
              {header("p50_ns", "p50", "Within 3.2 %")}
              {header("p99_ns", "p99", "Within 3.2 %")}
              {header("max_ns", "Max")}
              {queued && header("queue_ns", "Queued, sum", "Sum of the known times from launch to start")}
              {group === "shape" && (
                <>
                  <th scope="col">Occupancy</th>
                  <th scope="col">Grid, block</th>
                </>
              )}
            </tr>
          </thead>
          <tbody>
            {rows.map((g) => (
              <Row key={`${g.id ?? g.name}`} g={g} group={group} total={total.sum_ns} wide={wide} queued={queued} />
            ))}
          </tbody>
        </table>
        {!rows.length && (
          <Message>{search.q ? `No kernel contains “${search.q}”.` : "No kernel ran in this interval."}</Message>
        )}
      </div>
      {q.data.groups.length < total.groups && (
        <span className={ui.muted}>
          {count(total.groups - q.data.groups.length)} smaller groups are not listed. The totals include them.
        </span>
      )}
    </div>
  );
}

function Row({
  g,
  group,
  total,
  wide,
  queued,
}: {
  g: Group;
  group: string;
  total: number;
  wide: boolean;
  queued: boolean;
}) {
  const { id } = useSession();
  const search = useSearch({ from: "/sessions/$session/kernels" });
  const window = search.from !== undefined ? { from: search.from, to: search.to } : {};
  const select =
    group === "name"
      ? { name: g.name }
      : group === "shape"
        ? { shape: g.id }
        : group === "lane"
          ? { lane: String(g.id) }
          : { path: g.id, direct: "true" };
  const rows = (sort: string) => ({ ...window, path: search.path, ...select, operation: "kernel", sort });
  // The page of operations has no search in names.
  const exact = !search.q || group === "name" || group === "shape";
  const link = (made: Made, value: number, sort: string, text = duration(value), hint = exactDuration(value)) =>
    exact ? (
      <Link
        to="/sessions/$session/launches"
        params={{ session: id }}
        search={rows(sort) as never}
        {...num(made, value)}
        title={hint}
      >
        {text}
      </Link>
    ) : (
      <span title={hint}>{text}</span>
    );
  const name = title(g);
  const occ = g.shape ? occupancy(g.shape.attributes) : undefined;
  return (
    <tr {...row({ ns: g.sum_ns, queue: g.queue_ns, kernels: g.count })}>
      <td className={ui.name} title={g.shape?.full_name ?? name}>
        {wide && <Swatch name={g.name ?? ""} />}
        {group === "path" ? (
          <Link to="/sessions/$session/scopes" params={{ session: id }} search={{ path: g.id } as never}>
            {name}
          </Link>
        ) : (
          <Link to="/sessions/$session/launches" params={{ session: id }} search={rows("duration") as never}>
            {name}
          </Link>
        )}
      </td>
      <td className={ui.right}>{link("ns", g.sum_ns, "duration")}</td>
      <td className={ui.wide}>
        <div className={`${ui.row} ${ui.nowrap}`}>
          {group !== "shape" && (
            <span style={{ width: 70 }}>
              <Bar share={total ? g.sum_ns / total : 0} />
            </span>
          )}
          {percent(total ? g.sum_ns / total : 0)}
        </div>
      </td>
      <td className={ui.right}>{link("rows", g.count, "start", count(g.count), "The launches by time")}</td>
      <td className={ui.right}>{link("mean", Math.round(g.sum_ns / g.count), "duration")}</td>
      <td className={ui.right}>{link("p50", Math.min(g.p50_ns, g.max_ns), "duration")}</td>
      <td className={ui.right}>{link("p99", Math.min(g.p99_ns, g.max_ns), "duration")}</td>
      <td className={ui.right}>{link("max", g.max_ns, "duration")}</td>
      {queued && (
        <td className={ui.right}>
          {g.queue_ns ? link("queue", g.queue_ns, "queue") : <span className={ui.muted}>–</span>}
        </td>
      )}
      {group === "shape" && (
        <>
          <td title={occ?.sentences.join(" ")}>
            {occ?.theoretical !== undefined ? percent(occ.theoretical) : <span className={ui.muted}>unknown</span>}
            <br />
            <span className={ui.muted}>{occ?.limiters.join(", ").replaceAll("_", " ")}</span>
          </td>
          <td className={`${ui.mono} ${ui.nowrap}`}>
            {dims(g.shape?.grid)}
            <br />
            <span className={ui.muted}>{dims(g.shape?.block)}</span>
          </td>
        </>
      )}
    </tr>
  );
}
