// SPDX-License-Identifier: Apache-2.0
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { get, type Schemas, url } from "../api/client";
import { useSession } from "../api/hooks";
import { bytes, count, dims, duration, exactDuration, offset } from "../lib/format";
import { Badge, Choice, Failure, Loading, Message, row, Swatch, ui } from "../ui/parts";
import { toSpan } from "./Inspector";
import { WindowBadge } from "./Kernels";

const filters = ["operation", "name", "shape", "lane", "path", "stack", "parent", "min_ns", "max_ns"] as const;

/** filterText describes a filter of the page. */
function filterText(k: (typeof filters)[number], search: Record<string, unknown>, shape: string | undefined): string {
  const value = String(search[k]).slice(0, 60);
  switch (k) {
    case "shape":
      return `shape: ${shape ?? value}`;
    case "path":
      return search.direct ? "launched directly in one scope" : "launched in one scope";
    case "stack":
      return `${search.stack_exact ? "launched directly in" : "called from"} ${String(search.stack).split("\n").at(-1)}`;
    case "parent":
      return search.below ? "launched in one instance of a scope" : "launched directly in one instance of a scope";
    case "min_ns":
      return `at least ${duration(Number(value))}`;
    case "max_ns":
      return `at most ${duration(Number(value))}`;
    default:
      return `${k}: ${value}`;
  }
}

/** maxCall and maxInterval are the longest launch call and time between two that a launch rate counts. */
const [maxCall, maxInterval] = [1_000_000, 100_000];

/** callsOf are the durations of launch calls and the times between their starts, with those that a launch rate counts. */
function callsOf(operations: readonly Schemas["Operation"][]) {
  const known = operations.filter((o) => o.launch_start !== undefined && o.launch_end !== undefined);
  return new Map(
    known.map((o, i) => {
      const [start, before] = [o.launch_start as number, known[i - 1]?.launch_start];
      const call = (o.launch_end as number) - start;
      const interval = before === undefined ? undefined : start - before;
      const counted = {
        ...(call <= maxCall ? { call } : {}),
        ...(interval !== undefined && interval > 0 && interval <= maxInterval ? { interval } : {}),
      };
      return [o, { call, interval, counted }];
    }),
  );
}

/** Launches lists the operations that a number on another page is made of. */
export function Launches() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/launches" });
  const { calls: withCalls, ...filter } = search;
  // The time from one call to the next is known in the order of the starts only.
  const sort = withCalls ? "start" : (search.sort ?? "start");
  const query = { ...filter, base: session.base, sort, limit: 500 };
  const params = { session: session.id };
  const q = useInfiniteQuery({
    queryKey: ["operations", session.id, query],
    queryFn: ({ pageParam, signal }) =>
      get("/sessions/{session}/operations", params, { ...query, cursor: pageParam || undefined }, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next,
  });
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const rows = q.data.pages.flatMap((p) => p.operations);
  const shapes = new Map(q.data.pages.flatMap((p) => p.shapes.map((s) => [s.id, s])));
  const sum = rows.reduce((n, r) => n + r.duration_ns, 0);
  const queued = rows.reduce((n, r) => n + (r.queue_ns ?? 0), 0);
  const size = rows.reduce((n, r) => n + (r.bytes ?? 0), 0);
  const extent = { from: 0, to: session.overview.session.duration_ns };
  const withBytes = rows.some((r) => r.bytes !== undefined);
  const calls = withCalls && callsOf(rows);
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Operations</h1>
        {filters.map(
          (k) =>
            search[k] !== undefined && (
              <Link
                key={k}
                to="."
                search={((o: Record<string, unknown>) => ({ ...o, [k]: undefined })) as never}
                title="Remove this filter"
              >
                <Badge>{filterText(k, search, shapes.get(Number(search.shape))?.name)} ✕</Badge>
              </Link>
            ),
        )}
        <WindowBadge from={search.from} to={search.to} />
        <span className={ui.spacer} />
        {!calls && (
          <Choice
            label="Sort operations by"
            param="sort"
            value={sort}
            options={[
              ["start", "Start"],
              ["duration", "Longest"],
              ["queue", "Longest queued"],
            ]}
          />
        )}
      </div>
      <div className={ui.row}>
        <span>
          <strong data-testid="rows">{count(rows.length)}</strong> operations{q.hasNextPage ? " so far" : ""}, together{" "}
          <strong data-testid="sum" title={exactDuration(sum)}>
            {duration(sum)}
          </strong>
        </span>
        {rows.some((r) => r.queue_ns !== undefined) && (
          <span data-testid="queued" title={exactDuration(queued)}>
            queued {duration(queued)}
          </span>
        )}
        {withBytes && (
          <span data-testid="bytes" title={`${count(size)} B`}>
            {bytes(size)}
          </span>
        )}
        {calls && (
          <span className={ui.muted}>
            The launch rate does not count values in parentheses: calls over {duration(maxCall)}, and over{" "}
            {duration(maxInterval)} from one call to the next.
          </span>
        )}
        <a href={url(`/sessions/${encodeURIComponent(session.id)}/operations`, query)} target="_blank" rel="noreferrer">
          as JSON
        </a>
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Operations">
          <thead>
            <tr>
              <th scope="col">Start</th>
              <th scope="col">Operation</th>
              {calls && (
                <>
                  <th scope="col" className={ui.right} title="Time that the host was in the call">
                    Launch call
                  </th>
                  <th
                    scope="col"
                    className={ui.right}
                    title="From the start of the call before to the start of this one"
                  >
                    Since the call before
                  </th>
                </>
              )}
              <th scope="col" className={ui.right}>
                Duration
              </th>
              {!calls && (
                <th scope="col" className={ui.right}>
                  Queued
                </th>
              )}
              <th scope="col">{withBytes ? "Size" : "Grid, block"}</th>
              <th scope="col" className={ui.wide}>
                Scope
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map((r) => {
              const shape = shapes.get(r.shape);
              const call = calls ? calls.get(r) : undefined;
              const cell = (ns: number | undefined, counted: number | undefined) =>
                ns === undefined || counted === undefined ? (
                  <td className={`${ui.right} ${ui.muted}`} title="The launch rate does not count it">
                    {ns === undefined ? (call ? "–" : "unknown") : `(${duration(ns)})`}
                  </td>
                ) : (
                  <td className={ui.right}>{duration(ns)}</td>
                );
              return (
                <tr
                  key={`${r.span}${r.start}`}
                  {...row({
                    ns: r.duration_ns,
                    queue: r.queue_ns ?? 0,
                    bytes: r.bytes ?? 0,
                    kernels: r.operation === "kernel" ? 1 : 0,
                    values: call?.counted,
                  })}
                >
                  <td>
                    <Link
                      to="/sessions/$session/timeline"
                      params={params}
                      search={toSpan(r.span, r.start, r.duration_ns, extent) as never}
                      title="Show it in the timeline"
                    >
                      {offset(r.start, 1)}
                    </Link>
                  </td>
                  <td className={ui.name} title={shape?.full_name ?? r.name}>
                    <Swatch name={r.name} />
                    {r.name}
                    {r.estimated && <Badge tone="warn">estimated</Badge>}
                  </td>
                  {calls && cell(call?.call, call?.counted.call)}
                  {calls && cell(call?.interval, call?.counted.interval)}
                  <td className={ui.right} title={exactDuration(r.duration_ns)}>
                    {duration(r.duration_ns)}
                  </td>
                  {!calls && (
                    <td className={ui.right}>
                      {r.queue_ns === undefined ? <span className={ui.muted}>unknown</span> : duration(r.queue_ns)}
                    </td>
                  )}
                  <td className={`${ui.mono} ${ui.nowrap}`}>
                    {r.bytes !== undefined
                      ? bytes(r.bytes)
                      : shape?.grid
                        ? `${dims(shape.grid)}, ${dims(shape.block)}`
                        : ""}
                  </td>
                  <td className={ui.wide}>{r.scope_path?.join(" › ") ?? r.scope ?? ""}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
        {!rows.length && (
          <Message>
            {session.overview.session.rows_dropped
              ? "Retention removed the single operations of this session. Sums remain."
              : "No operation matches."}
          </Message>
        )}
      </div>
      {q.hasNextPage && (
        <button type="button" className={ui.button} disabled={q.isFetching} onClick={() => q.fetchNextPage()}>
          {q.isFetching ? "Loading…" : "More"}
        </button>
      )}
    </div>
  );
}
