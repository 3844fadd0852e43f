// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Schemas } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { bytes, count, duration, exactDuration, offset, percent, plural } from "../lib/format";
import { efficiency, stallReasons } from "../lib/samples";
import { byKernelTime } from "../lib/scopes";
import { Bar, Choice, Failure, Loading, type Made, Message, num, row, SearchBox, ui } from "../ui/parts";
import { toSpan } from "./Inspector";

type Node = Schemas["ScopeNode"];

/** visibleNodes returns the nodes that match a text with all above them, without those below closed ones. */
export function visibleNodes(nodes: readonly Node[], text: string, closed: ReadonlySet<number>): Node[] {
  const byPath = new Map(nodes.map((n) => [n.path, n]));
  const keep = new Set<number>();
  for (const n of nodes) {
    if (text && !n.name.toLowerCase().includes(text.toLowerCase())) continue;
    for (let p: Node | undefined = n; p && !keep.has(p.path); p = p.path === 0 ? undefined : byPath.get(p.parent))
      keep.add(p.path);
  }
  return nodes.filter((n) => {
    if (!keep.has(n.path)) return false;
    for (let p = n; p.path !== 0; ) {
      const up = byPath.get(p.parent);
      if (!up) break;
      if (closed.has(up.path)) return false;
      p = up;
    }
    return true;
  });
}

/** Scopes is the tree of scopes, and the instances of one of them. */
export function Scopes() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/scopes" });
  const navigate = useNavigate({ from: "/sessions/$session/scopes" });
  const closed = useMemo(() => new Set(search.closed?.split(",").map(Number)), [search.closed]);
  const q = useGet("/sessions/{session}/scopes", { session: session.id }, { idle: true }, { every: session.every });
  const nodes = useMemo(() => byKernelTime(q.data?.nodes ?? []), [q.data]);
  const rows = useMemo(() => visibleNodes(nodes, search.q ?? "", closed), [nodes, search.q, closed]);
  const parents = useMemo(() => new Set(nodes.filter((n) => n.path !== 0).map((n) => n.parent)), [nodes]);
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const root = nodes[0];
  const total = root?.total.kernel_ns ?? 0;
  const params = { session: session.id };
  const selected = nodes.find((n) => n.path === search.path);
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Scopes</h1>
        <span className={ui.muted}>
          wall time on the host, kernels on the device, launched in the scope or below it
        </span>
        <span className={ui.spacer} />
        <SearchBox
          label="Search scopes"
          value={search.q ?? ""}
          onChange={(v) => navigate({ search: (o) => ({ ...o, q: v || undefined }), replace: true })}
        />
      </div>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Scopes">
          <thead>
            <tr>
              <th scope="col">Scope</th>
              <th scope="col" className={ui.right}>
                Calls
              </th>
              <th scope="col" className={ui.right}>
                Wall
              </th>
              <th scope="col" className={ui.right} title="Within 3.2 %">
                p50
              </th>
              <th scope="col" className={ui.right} title="Within 3.2 %">
                p99
              </th>
              <th scope="col" className={ui.right}>
                Kernels
              </th>
              <th scope="col" className={ui.right}>
                Kernel time
              </th>
              <th scope="col" className={ui.wide}>
                Share
              </th>
              <th scope="col" className={ui.right} title="Launched directly, not in a scope below">
                Self
              </th>
              <IdleHead />
              <th scope="col" className={`${ui.right} ${ui.wide}`} title="Sum of the times from launch to start">
                Queued, sum
              </th>
              <th scope="col" className={`${ui.right} ${ui.wide}`}>
                Copied
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map((n) => (
              <tr key={n.path} data-selected={n.path === search.path}>
                <td style={{ minWidth: 140 }}>
                  <span
                    style={{ paddingLeft: Math.max(0, n.depth) * 16, display: "inline-flex", alignItems: "center" }}
                  >
                    {parents.has(n.path) && n.path !== 0 ? (
                      <button
                        type="button"
                        className={ui.icon}
                        style={{ width: 22 }}
                        aria-expanded={!closed.has(n.path)}
                        aria-label={`${closed.has(n.path) ? "Open" : "Close"} ${n.name}`}
                        onClick={() => {
                          const next = new Set(closed);
                          if (!next.delete(n.path)) next.add(n.path);
                          navigate({ search: (o) => ({ ...o, closed: [...next].join() || undefined }), replace: true });
                        }}
                      >
                        {closed.has(n.path) ? "▸" : "▾"}
                      </button>
                    ) : (
                      <span style={{ width: 22 }} />
                    )}
                    {n.path === 0 ? (
                      <span className={ui.muted}>whole session</span>
                    ) : (
                      <Link
                        to="."
                        search={((o: Record<string, unknown>) => ({ ...o, path: n.path, name: undefined })) as never}
                        replace
                      >
                        {n.name}
                      </Link>
                    )}
                  </span>
                </td>
                <td className={ui.right}>
                  {n.path === 0 ? (
                    ""
                  ) : (
                    <Link
                      to="."
                      search={((o: Record<string, unknown>) => ({ ...o, path: n.path, sort: "wall" })) as never}
                      {...num("rows", n.instances)}
                    >
                      {count(n.instances)}
                    </Link>
                  )}
                </td>
                {([n.wall_ns, n.p50_ns, n.p99_ns] as const).map((ns, k) => (
                  // biome-ignore lint/suspicious/noArrayIndexKey: the columns are fixed
                  <td key={k} className={ui.right} title={exactDuration(ns)}>
                    {n.instances ? (
                      <Link
                        to="."
                        search={((o: Record<string, unknown>) => ({ ...o, path: n.path, sort: "wall" })) as never}
                        {...num(k === 0 ? "ns" : k === 1 ? "p50" : "p99", ns)}
                      >
                        {duration(ns)}
                      </Link>
                    ) : (
                      ""
                    )}
                  </td>
                ))}
                <td className={ui.right}>
                  <Link
                    to="/sessions/$session/kernels"
                    params={params}
                    search={(n.path === 0 ? {} : { path: n.path }) as never}
                    {...num("kernels", n.total.kernels)}
                    title="These kernels by name"
                  >
                    {count(n.total.kernels)}
                  </Link>
                </td>
                <td className={ui.right} title={exactDuration(n.total.kernel_ns)}>
                  <Link
                    to="/sessions/$session/launches"
                    params={params}
                    search={{ path: n.path === 0 ? undefined : n.path, operation: "kernel", sort: "duration" } as never}
                    {...num("ns", n.total.kernel_ns)}
                  >
                    {duration(n.total.kernel_ns)}
                  </Link>
                </td>
                <td className={ui.wide}>
                  <div className={`${ui.row} ${ui.nowrap}`}>
                    <span style={{ width: 60 }}>
                      <Bar share={total ? n.total.kernel_ns / total : 0} />
                    </span>
                    {percent(total ? n.total.kernel_ns / total : 0)}
                  </div>
                </td>
                <td className={ui.right} title={exactDuration(n.self.kernel_ns)}>
                  <Link
                    to="/sessions/$session/launches"
                    params={params}
                    search={{ path: n.path, direct: "true", operation: "kernel", sort: "duration" } as never}
                    {...num("ns", n.self.kernel_ns)}
                  >
                    {duration(n.self.kernel_ns)}
                  </Link>
                </td>
                <td className={ui.right}>
                  {n.idle_ns !== undefined ? (
                    <Link
                      to="."
                      search={((o: Record<string, unknown>) => ({ ...o, path: n.path, name: undefined })) as never}
                      {...num("idle", n.idle_ns)}
                      title={exactDuration(n.idle_ns)}
                    >
                      {duration(n.idle_ns)}
                    </Link>
                  ) : (
                    n.instances > 0 && (
                      <span className={ui.muted} title="Too many instances to sum; the list of instances has it">
                        –
                      </span>
                    )
                  )}
                </td>
                <td className={`${ui.right} ${ui.wide}`}>
                  {n.total.queue_ns ? (
                    <Link
                      to="/sessions/$session/launches"
                      params={params}
                      search={{ path: n.path === 0 ? undefined : n.path, operation: "kernel", sort: "queue" } as never}
                      {...num("queue", n.total.queue_ns)}
                      title={exactDuration(n.total.queue_ns)}
                    >
                      {duration(n.total.queue_ns)}
                    </Link>
                  ) : (
                    <span className={ui.muted}>–</span>
                  )}
                </td>
                <td className={`${ui.right} ${ui.wide}`}>
                  <Link
                    to="/sessions/$session/launches"
                    params={params}
                    search={{ path: n.path === 0 ? undefined : n.path, operation: "memcpy" } as never}
                    {...num("bytes", n.total.copy_bytes)}
                  >
                    {bytes(n.total.copy_bytes)}
                  </Link>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
        {nodes.length <= 1 && (
          <Message>
            The program opened no scopes. Open them with <code>gpufl.Scope</code> or NVTX ranges.
          </Message>
        )}
      </div>
      {(selected ?? root)?.samples && <Sampled node={(selected ?? root) as Node} />}
      {selected && selected.path !== 0 && <Instances node={selected} />}
    </div>
  );
}

const IdleHead = () => (
  <th
    scope="col"
    className={ui.right}
    title="While the scope was open: time between two kernels in which the device ran none, summed over the devices"
  >
    No kernel
  </th>
);

/** Sampled says what samples and counters of a scope show, each with a link to the functions that have them. */
function Sampled({ node }: { node: Node }) {
  const session = useSession();
  const x = node.samples;
  if (!x) return null;
  const facts = efficiency(x.metrics);
  const stalls = stallReasons(x.stalls).slice(0, 6);
  const most = stalls[0]?.[1] ?? 1;
  const rows = (text: string, made: Made, value: number, of?: string) => (
    <Link
      to="/sessions/$session/code"
      params={{ session: session.id }}
      search={{ path: node.path } as never}
      {...num(made, value, of)}
      title="The functions with these samples"
    >
      {text}
    </Link>
  );
  return (
    <section aria-label="Samples" className={`${ui.card} ${ui.facts}`}>
      <h2>{node.path === 0 ? "Samples of the session" : `Samples in ${node.name}`}</h2>
      {facts.map((f) => (
        <div key={f.name} title={f.formula}>
          <strong>{rows(f.value, "ratio", f.ratio, f.formula)}</strong>
          <small>{f.name}</small>
          <p>{f.sentence}</p>
        </div>
      ))}
      {stalls.length > 0 && (
        <div>
          <strong>{rows(count(x.samples), "samples", x.samples)}</strong>
          <small>samples of warps, by what they wait for</small>
          <dl className={ui.reasons}>
            {stalls.map(([name, n]) => [
              <dt key={name}>{name.replaceAll("_", " ")}</dt>,
              <dd key={`${name}b`}>
                <Bar share={n / most} />
              </dd>,
              <dd key={`${name}n`} title={plural(n, "sample")}>
                {percent(n / x.samples)}
              </dd>,
            ])}
          </dl>
        </div>
      )}
    </section>
  );
}

function Instances({ node }: { node: Node }) {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/scopes" });
  const navigate = useNavigate({ from: "/sessions/$session/scopes" });
  const sort = search.sort ?? "wall";
  const path = "/sessions/{session}/scopes/{path}/instances";
  const params = { session: session.id, path: node.path };
  const name = search.name || undefined;
  const query = { base: session.base, sort, limit: 200, idle: true, name };
  const all = useGet(path, params, query, { every: session.every });
  const extent = { from: 0, to: session.overview.session.duration_ns };
  // The path of scopes with numbers has "*" in their place.
  const numbered = node.name.includes("*");
  const longest = all.data?.instances.reduce((n, i) => Math.max(n, i.duration_ns), 1) ?? 1;
  const launches = (
    i: Schemas["Instance"],
    made: Made,
    value: number,
    more: Record<string, unknown>,
    text = duration(value),
    title: string | undefined = exactDuration(value),
  ) => (
    <Link
      to="/sessions/$session/launches"
      params={{ session: session.id }}
      search={{ parent: i.span, below: "true", ...more } as never}
      {...num(made, value)}
      title={title}
    >
      {text}
    </Link>
  );
  return (
    <section aria-label="Instances">
      <div className={ui.row}>
        <h2>{all.data?.names.join(" › ") ?? node.name}</h2>
        <span className={ui.muted}>
          {plural(node.instances, "instance")}
          {numbered ? " with other numbers" : ""}
          {all.data?.truncated ? `, the first ${count(all.data.instances.length)} in this order` : ""}
        </span>
        <span className={ui.spacer} />
        {numbered && (
          <SearchBox
            label="Exact name"
            second
            value={search.name ?? ""}
            onChange={(v) => navigate({ search: (o) => ({ ...o, name: v || undefined }), replace: true })}
          />
        )}
        <Choice
          label="Sort instances by"
          param="sort"
          value={sort}
          options={[
            ["wall", "Slowest"],
            ["device", "Most device time"],
            ["queue", "Most queued"],
            ["start", "Start"],
          ]}
        />
      </div>
      <br />
      <div className={`${ui.card} ${ui.tableScroll}`}>
        {all.error ? <Failure error={all.error} /> : null}
        {search.name && all.data?.instances.length === 0 && <Message>No instance has the name {search.name}.</Message>}
        <table className={ui.table} aria-label="Instances">
          <thead>
            <tr>
              {numbered && <th scope="col">Name</th>}
              <th scope="col">Start</th>
              <th scope="col" className={ui.right}>
                Wall
              </th>
              <th scope="col" className={ui.wide}>
                Compared with the longest
              </th>
              <th scope="col" className={ui.right} title="Launched in it or in a scope below it">
                Kernels
              </th>
              <th scope="col" className={ui.right} title="Of kernels launched in it or in a scope below it">
                Kernel time
              </th>
              <th scope="col" className={ui.right} title="Of copies launched in it or in a scope below it">
                Copies
              </th>
              <IdleHead />
              <th scope="col" className={`${ui.right} ${ui.wide}`} title="Sum of the times from launch to start">
                Queued, sum
              </th>
            </tr>
          </thead>
          <tbody>
            {all.data?.instances.map((i) => {
              const ns = i.idle_ns;
              return (
                <tr key={`${i.span}${i.start}`} {...row({ ns: i.duration_ns, idle: ns ?? 0 })}>
                  {numbered && <td>{i.name}</td>}
                  <td>
                    <Link
                      to="/sessions/$session/timeline"
                      params={{ session: session.id }}
                      search={toSpan(i.span, i.start, i.duration_ns, extent) as never}
                      title="Show it in the timeline"
                    >
                      {offset(i.start, 1000)}
                    </Link>
                  </td>
                  <td className={ui.right} title={exactDuration(i.duration_ns)}>
                    {duration(i.duration_ns)}
                  </td>
                  <td className={ui.wide}>
                    <Bar share={i.duration_ns / longest} />
                  </td>
                  <td className={ui.right}>
                    {launches(i, "rows", i.kernels, { operation: "kernel" }, count(i.kernels), undefined)}
                  </td>
                  <td className={ui.right}>
                    {launches(i, "ns", i.kernel_ns, { operation: "kernel", sort: "duration" })}
                  </td>
                  <td className={ui.right}>
                    {launches(i, "ns", i.copy_ns, { operation: "memcpy", sort: "duration" })}
                  </td>
                  <td className={ui.right}>
                    {ns === undefined ? (
                      <span className={ui.muted} title="Only the first rows have it">
                        –
                      </span>
                    ) : (
                      <Link
                        to="/sessions/$session/gaps"
                        params={{ session: session.id }}
                        search={{ from: Math.max(0, i.start), to: Math.max(1, i.start + i.duration_ns) } as never}
                        {...num("ns", ns)}
                        title={exactDuration(ns)}
                      >
                        {duration(ns)}
                      </Link>
                    )}
                  </td>
                  <td className={`${ui.right} ${ui.wide}`}>
                    {i.queue_ns ? (
                      launches(i, "queue", i.queue_ns, { operation: "kernel", sort: "queue" })
                    ) : (
                      <span className={ui.muted}>–</span>
                    )}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}
