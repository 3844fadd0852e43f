// SPDX-License-Identifier: Apache-2.0
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Schemas } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { bytes, count, dims, duration, exactDuration, offset, percent, plural, significant } from "../lib/format";
import { occupancy } from "../lib/occupancy";
import { around, rounded, type View } from "../lib/scale";
import { Histogram } from "../ui/Histogram";
import { Badge, Bar, Copy, Failure, Loading, type Made, num, row, Swatch, ui } from "../ui/parts";
import { CriticalPath } from "./CriticalPath";
import t from "./timeline.module.css";

/** toSpan is the search of a timeline that shows an interval, of 10 µs at least, and selects a span. */
export function toSpan(span: string | undefined, start: number, ns: number, extent: View): Record<string, unknown> {
  const v = rounded(around(start, start + Math.max(ns, 10_000), extent));
  return { from: Math.max(0, v.from), to: v.to, sel: span, at: String(start) };
}

const Fact = ({ name, children }: { name: string; children: ReactNode }) => (
  <>
    <dt>{name}</dt>
    <dd>{children}</dd>
  </>
);

/** Inspector shows everything that is known about one operation or scope. */
export function Inspector({ span, at, close }: { span: string; at: string | undefined; close: () => void }) {
  const session = useSession();
  const start = at !== undefined && /^-?\d{1,16}$/.test(at) ? Number(at) : undefined;
  const q = useGet(
    "/sessions/{session}/spans/{span}",
    { session: session.id, span },
    { base: session.base, at: start },
  );
  return (
    <aside className={t.inspector} aria-label="Inspector">
      {q.error ? <Failure error={q.error} /> : q.data ? <Detail d={q.data} close={close} /> : <Loading />}
    </aside>
  );
}

function Detail({ d, close }: { d: Schemas["Detail"]; close: () => void }) {
  return d.operation ? (
    <OperationDetail d={d} op={d.operation} close={close} />
  ) : d.span ? (
    <SpanDetail d={d} s={d.span} close={close} />
  ) : null;
}

function Head({
  name,
  kind,
  scope,
  close,
  children,
}: {
  name: string;
  kind: string;
  scope?: boolean;
  close: () => void;
  children?: ReactNode;
}) {
  return (
    <section>
      <div className={ui.row}>
        <Badge>{kind}</Badge>
        {children}
        <span className={ui.spacer} />
        <button type="button" className={ui.icon} onClick={close} aria-label="Close the inspector">
          ✕
        </button>
      </div>
      <h2>
        <Swatch name={name} scope={scope} />
        {name}
      </h2>
    </section>
  );
}

function OperationDetail({ d, op, close }: { d: Schemas["Detail"]; op: Schemas["Operation"]; close: () => void }) {
  const { id, base, overview } = useSession();
  const shape = d.shape;
  const kernel = op.operation === "kernel";
  const delay = d.attributes["cuda.launch.delay.stacktrace"];
  const group = useGet(
    "/sessions/{session}/kernels",
    { session: id },
    { base, group: "name", name: op.name, buckets: true, limit: 1 },
    { enabled: kernel },
  );
  const stat = group.data?.groups[0];
  const occ = occupancy({ ...shape?.attributes, ...d.attributes });
  const params = { session: id };
  const gapBefore = d.previous ? op.start - (d.previous.start + d.previous.duration_ns) : undefined;
  return (
    <>
      <Head name={op.name} kind={op.operation} close={close}>
        {op.estimated && (
          <Badge tone="warn" title="The times of this operation are not measured.">
            estimated
          </Badge>
        )}
      </Head>
      <section>
        <div className={t.big}>
          <div title={exactDuration(op.duration_ns)}>
            <strong>{duration(op.duration_ns)}</strong>
            <small>{kernel ? "on the device" : "duration"}</small>
          </div>
          {kernel && op.queue_ns === undefined && (
            <div title="The recording has no launch times.">
              <strong className={ui.muted}>unknown</strong>
              <small>queued</small>
            </div>
          )}
          {op.queue_ns !== undefined && (
            <div title={`From the end of the launch to the start on the device: ${exactDuration(op.queue_ns)}`}>
              <strong>{duration(op.queue_ns)}</strong>
              <small>queued</small>
            </div>
          )}
          {op.launch_start !== undefined && op.launch_end !== undefined && (
            <div title={exactDuration(op.launch_end - op.launch_start)}>
              <strong>{duration(op.launch_end - op.launch_start)}</strong>
              <small>launch call</small>
            </div>
          )}
        </div>
      </section>
      {stat && (
        <section>
          <h3>
            Among{" "}
            <Link
              to="/sessions/$session/launches"
              params={params}
              search={{ name: op.name, operation: "kernel", sort: "duration" } as never}
              {...num("rows", stat.count)}
            >
              {plural(stat.count, "launch")}
            </Link>{" "}
            of this kernel
          </h3>
          <Histogram buckets={stat.buckets ?? []} max={stat.max_ns} mark={op.duration_ns} />
          <span className={ui.muted}>{rank(op.duration_ns, stat)}</span>
        </section>
      )}
      {kernel && (
        <section>
          <h3>Occupancy</h3>
          {occ.theoretical !== undefined ? (
            <>
              <div className={ui.row}>
                <strong>{percent(occ.theoretical)}</strong>
                <span className={ui.muted}>theoretical</span>
                {occ.gridFill !== undefined && (
                  <>
                    <strong>{percent(occ.gridFill)}</strong>
                    <span className={ui.muted} title="Share of the theoretical residency that this grid can fill">
                      filled by the grid
                    </span>
                  </>
                )}
              </div>
              <Bar share={occ.theoretical} />
              {occ.sentences.map((x) => (
                <p key={x}>{x}</p>
              ))}
            </>
          ) : (
            <p className={ui.muted}>
              Unknown. The occupancy processor adds it if the device and the resources of the kernel are known.
            </p>
          )}
        </section>
      )}
      <section>
        <h3>{kernel ? "Launch" : "Operation"}</h3>
        <dl className={ui.dl}>
          {shape?.grid && <Fact name="grid">{dims(shape.grid)}</Fact>}
          {shape?.block && <Fact name="block">{dims(shape.block)}</Fact>}
          {shape?.cluster && <Fact name="cluster">{dims(shape.cluster)}</Fact>}
          {shape?.registers !== undefined && <Fact name="registers">{count(shape.registers)} per thread</Fact>}
          {(shape?.shared_static !== undefined || shape?.shared_dynamic !== undefined) && (
            <Fact name="shared memory">
              {bytes((shape.shared_static ?? 0) + (shape.shared_dynamic ?? 0))} per block
              {shape.shared_dynamic ? ` (${bytes(shape.shared_dynamic)} dynamic)` : ""}
            </Fact>
          )}
          {shape?.local_memory !== undefined && (
            <Fact name="local memory">
              {bytes(shape.local_memory)} per thread{shape.local_memory > 0 ? ": register spills or local arrays" : ""}
            </Fact>
          )}
          {occ.waves !== undefined && <Fact name="waves">{significant(occ.waves)}</Fact>}
          {op.bytes !== undefined && <Fact name="size">{bytes(op.bytes)}</Fact>}
          {op.bytes !== undefined && op.duration_ns > 0 && op.operation === "memcpy" && (
            <Fact name="throughput">{bytes((op.bytes / op.duration_ns) * 1e9)}/s</Fact>
          )}
          {op.address && <Fact name="address">{op.address}</Fact>}
          <Fact name="start">{offset(op.start, 1)}</Fact>
          {d.lane && (
            <Fact name="lane">
              <Link to="/sessions/$session/launches" params={params} search={{ lane: String(d.lane.id) } as never}>
                {d.lane.device_index !== undefined ? `GPU ${d.lane.device_index}` : "device"}
                {d.lane.stream !== undefined ? `, stream ${d.lane.stream}` : ""}, {d.lane.class}
              </Link>
            </Fact>
          )}
          {op.correlation !== undefined && <Fact name="correlation">{op.correlation}</Fact>}
        </dl>
      </section>
      {shape?.full_name && shape.full_name !== op.name && (
        <section>
          <h3>Full name</h3>
          <p className={t.full}>{shape.full_name}</p>
        </section>
      )}
      <Chain d={d} op={op} />
      {(d.previous || d.next) && (
        <section>
          <h3>In the same lane</h3>
          <ul className={t.chain}>
            {d.previous && (
              <Neighbour op={d.previous} label="before" gap={gapBefore} length={overview.session.duration_ns} />
            )}
            {d.next && (
              <Neighbour
                op={d.next}
                label="after"
                gap={d.next.start - (op.start + op.duration_ns)}
                length={overview.session.duration_ns}
              />
            )}
          </ul>
        </section>
      )}
      {kernel && !d.stack?.length && (
        <section>
          <h3>Host stack of the launch</h3>
          <p className={ui.muted}>Not recorded for this launch.</p>
        </section>
      )}
      <HostStack title="Host stack of the launch" frames={d.stack ?? []} />
      <HostStack title="Host stack before the launch" frames={delay ? String(delay).split("\n") : []} />
      <Attributes a={{ ...shape?.attributes, ...d.attributes }} />
    </>
  );
}

function HostStack({ title, frames }: { title: string; frames: readonly string[] }) {
  if (!frames.length) return null;
  return (
    <section aria-label={title}>
      <div className={ui.row}>
        <h3>{title}</h3>
        <span className={ui.spacer} />
        <Copy text={frames.join("\n")} label="Copy" />
      </div>
      <ol className={t.stack}>
        {frames.map((f, i) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a recursive function occurs twice
          <li key={i}>{f}</li>
        ))}
      </ol>
    </section>
  );
}

/** rank says where a duration is among those of its kernel. */
export function rank(
  ns: number,
  stat: Pick<Schemas["KernelGroup"], "count" | "sum_ns" | "p50_ns" | "p99_ns" | "max_ns">,
): string {
  if (stat.count < 2) return "This is the only launch.";
  const p50 = `The median is ${duration(stat.p50_ns)}, p99 ${duration(Math.min(stat.p99_ns, stat.max_ns))}, the longest ${duration(stat.max_ns)}.`;
  if (ns >= stat.max_ns) return `This is the longest launch. ${p50}`;
  const ratio = ns / Math.max(stat.p50_ns, 1);
  if (ratio > 1.1) return `This one takes ${ratio.toFixed(1)} times the median. ${p50}`;
  return p50;
}

function Chain({ d, op }: { d: Schemas["Detail"]; op?: Schemas["Operation"] }) {
  const { id, overview } = useSession();
  const extent = { from: 0, to: overview.session.duration_ns };
  const chain = d.parents.filter((p) => p.operation !== "session");
  if (!chain.length && !op?.scope_path?.length) {
    return (
      <section>
        <h3>Scopes</h3>
        <p className={ui.muted}>Outside every scope.</p>
      </section>
    );
  }
  return (
    <section>
      <h3>Scopes{op?.inferred ? " (inferred)" : ""}</h3>
      <ul className={t.chain}>
        {chain.length
          ? chain.map((p, i) => (
              <li key={p.span} style={{ paddingLeft: i * 10 }}>
                <Link
                  to="/sessions/$session/timeline"
                  params={{ session: id }}
                  search={toSpan(p.span, p.start, p.duration_ns, extent) as never}
                >
                  {p.name}
                </Link>
                <span className={ui.muted} title={exactDuration(p.duration_ns)}>
                  {duration(p.duration_ns)}
                </span>
              </li>
            ))
          : op?.scope_path?.map((n, i) => (
              <li key={n} style={{ paddingLeft: i * 10 }}>
                {n}
              </li>
            ))}
      </ul>
    </section>
  );
}

function Neighbour({
  op,
  label,
  gap,
  length,
}: {
  op: Schemas["Operation"];
  label: string;
  gap: number | undefined;
  length: number;
}) {
  const { id } = useSession();
  return (
    <li>
      <span>
        <span className={ui.muted}>{label}: </span>
        <Link
          to="/sessions/$session/timeline"
          params={{ session: id }}
          search={toSpan(op.span, op.start, op.duration_ns, { from: 0, to: length }) as never}
        >
          {op.name}
        </Link>
      </span>
      <span className={ui.muted}>
        {gap === undefined ? "" : gap >= 0 ? `gap ${duration(gap)}` : `overlaps ${duration(-gap)}`}
      </span>
    </li>
  );
}

function SpanDetail({ d, s, close }: { d: Schemas["Detail"]; s: Schemas["Span"]; close: () => void }) {
  const { id, base, overview } = useSession();
  const inside = useGet(
    "/sessions/{session}/kernels",
    { session: id },
    { base, from: s.start, to: s.start + s.duration_ns + 1, limit: 8 },
  );
  const instances = useGet("/sessions/{session}/scopes", { session: id });
  const node = instances.data?.nodes.find((n) => n.path === s.path);
  const params = { session: id };
  const sums = useGet(
    "/sessions/{session}/scopes/{path}/instances",
    { session: id, path: s.path ?? 0 },
    { base, from: s.start, to: s.start + 1, idle: true, limit: 100 },
    { enabled: s.path !== undefined && s.path !== 0 },
  );
  const own = sums.data?.instances.find((i) => i.span === s.span);
  // With asynchronous launches, most of them start after the scope ends.
  const launched = useGet(
    "/sessions/{session}/operations",
    { session: id },
    { base, parent: s.span, below: true, operation: "kernel", sort: "duration", limit: 8 },
    { enabled: own !== undefined && own.kernels > 0 },
  );
  const rows = (made: Made, value: number, search: Record<string, unknown>) => (
    <Link
      to="/sessions/$session/launches"
      params={params}
      search={{ parent: s.span, below: "true", ...search } as never}
      {...num(made, value)}
    >
      {duration(value)}
    </Link>
  );
  return (
    <>
      <Head name={s.name} kind={s.operation ?? s.kind} scope close={close}>
        {s.status === "error" && <Badge tone="bad">error</Badge>}
      </Head>
      <section>
        <div className={t.big}>
          <div title={exactDuration(s.duration_ns)}>
            <strong>{duration(s.duration_ns)}</strong>
            <small>wall time</small>
          </div>
          {own && (
            <>
              <div title={exactDuration(own.kernel_ns)}>
                <strong>{rows("ns", own.kernel_ns, { operation: "kernel", sort: "duration" })}</strong>
                <small>{plural(own.kernels, "kernel")} launched in it</small>
              </div>
              {own.copies > 0 && (
                <div title={exactDuration(own.copy_ns)}>
                  <strong>{rows("ns", own.copy_ns, { operation: "memcpy", sort: "duration" })}</strong>
                  <small>{plural(own.copies, "copy")}</small>
                </div>
              )}
              {own.queue_ns > 0 && (
                <div title={exactDuration(own.queue_ns)}>
                  <strong>{rows("queue", own.queue_ns, { operation: "kernel", sort: "queue" })}</strong>
                  <small>queued</small>
                </div>
              )}
              {own.idle_ns !== undefined && s.duration_ns > 0 && (
                <div
                  title={`${exactDuration(own.idle_ns)} between two kernels in which a device ran none, summed over the devices`}
                >
                  <strong>
                    <Link
                      to="/sessions/$session/gaps"
                      params={params}
                      search={{ from: Math.max(0, s.start), to: s.start + s.duration_ns } as never}
                      {...num("ns", own.idle_ns)}
                    >
                      {duration(own.idle_ns)}
                    </Link>
                  </strong>
                  <small>no kernel</small>
                </div>
              )}
            </>
          )}
        </div>
        {s.status_message && <p>{s.status_message}</p>}
        {node && node.instances > 1 && (
          <p>
            One of{" "}
            <Link
              to="/sessions/$session/scopes"
              params={params}
              search={{ path: s.path, sort: "wall" } as never}
              {...num("rows", node.instances)}
            >
              {count(node.instances)} instances
            </Link>
            . The median is {duration(node.p50_ns)}, p99 {duration(node.p99_ns)}.
          </p>
        )}
      </section>
      <CriticalPath subject={{ span: s.span, at: s.start }} />
      {launched.data && (
        <section>
          <h3>Longest kernels launched in it</h3>
          <ul className={t.chain}>
            {launched.data.operations.map((op) => (
              <li key={op.span}>
                <span className={ui.name}>
                  <Swatch name={op.name} />
                  <Link
                    to="/sessions/$session/timeline"
                    params={params}
                    search={
                      toSpan(op.span, op.start, op.duration_ns, {
                        from: 0,
                        to: overview.session.duration_ns,
                      }) as never
                    }
                  >
                    {op.name}
                  </Link>
                </span>
                <span className={ui.muted} title={exactDuration(op.duration_ns)}>
                  {duration(op.duration_ns)}
                </span>
              </li>
            ))}
          </ul>
        </section>
      )}
      <section>
        <h3>All kernels that start in this interval</h3>
        <KernelList groups={inside.data} from={s.start} to={s.start + s.duration_ns + 1} />
      </section>
      <Chain d={d} />
      <section>
        <dl className={ui.dl}>
          <Fact name="start">{offset(s.start, 1)}</Fact>
          {s.source && <Fact name="source">{s.source}</Fact>}
          {s.thread && <Fact name="thread">{s.thread}</Fact>}
          {s.instrumentation && <Fact name="instrumentation">{s.instrumentation}</Fact>}
          {s.trace && <Fact name="trace">{s.trace}</Fact>}
        </dl>
      </section>
      <Attributes a={{ ...s.attributes, ...d.attributes }} />
    </>
  );
}

function KernelList({ groups, from, to }: { groups: Schemas["Kernels"] | undefined; from: number; to: number }) {
  const { id } = useSession();
  if (!groups) return <Loading />;
  if (!groups.groups.length) return <p className={ui.muted}>None.</p>;
  const window = { from: Math.max(0, Math.floor(from)), to: Math.ceil(to) };
  return (
    <>
      <ul className={t.chain}>
        {groups.groups.map((g) => (
          <li key={g.name}>
            <span className={ui.name}>
              <Swatch name={g.name ?? ""} />
              {g.name}
            </span>
            <Link
              to="/sessions/$session/launches"
              params={{ session: id }}
              search={{ ...window, name: g.name, operation: "kernel" } as never}
              {...num("ns", g.sum_ns)}
              title={exactDuration(g.sum_ns)}
            >
              {count(g.count)} × {duration(g.sum_ns / g.count)}
            </Link>
          </li>
        ))}
      </ul>
      <Link to="/sessions/$session/kernels" params={{ session: id }} search={window as never}>
        {plural(groups.total.groups, "kernel")}, {plural(groups.total.count, "launch")} in all
      </Link>
    </>
  );
}

/** Measured shows the sums of a measured interval. */
export function Measured({ range, step, close }: { range: View; step: string | undefined; close: () => void }) {
  const { id, base } = useSession();
  const kernels = useGet(
    "/sessions/{session}/kernels",
    { session: id },
    { base, from: range.from, to: range.to, limit: 12 },
  );
  const gaps = useGet(
    "/sessions/{session}/gaps",
    { session: id },
    { base, from: range.from, to: range.to, overlapping: true, limit: 5 },
  );
  const total = kernels.data?.total;
  return (
    <aside className={t.inspector} aria-label="Measured interval">
      <section>
        <div className={ui.row}>
          <Badge>interval</Badge>
          <span className={ui.spacer} />
          <button type="button" className={ui.icon} onClick={close} aria-label="Close the measurement">
            ✕
          </button>
        </div>
        {step && <h2>{step} on the device</h2>}
        <div className={t.big}>
          <div title={exactDuration(range.to - range.from)} {...row({ values: { length: range.to - range.from } })}>
            <strong>{duration(range.to - range.from)}</strong>
            <small>length</small>
          </div>
          {total && (
            <div title={exactDuration(total.sum_ns)}>
              <strong>
                <Link
                  to="/sessions/$session/launches"
                  params={{ session: id }}
                  search={{ from: range.from, to: range.to, operation: "kernel", sort: "duration" } as never}
                  {...num("ns", total.sum_ns)}
                >
                  {duration(total.sum_ns)}
                </Link>
              </strong>
              <small>{plural(total.count, "kernel")} started inside</small>
            </div>
          )}
          {gaps.data && (
            <div title={`${exactDuration(gaps.data.sum_ns)} between two kernels in which a device ran none`}>
              <strong>
                <Link
                  to="/sessions/$session/gaps"
                  params={{ session: id }}
                  search={{ from: range.from, to: range.to } as never}
                  {...num("ns", gaps.data.sum_ns)}
                >
                  {duration(gaps.data.sum_ns)}
                </Link>
              </strong>
              <small>no kernel, in {plural(gaps.data.count, "gap")}</small>
            </div>
          )}
        </div>
        <span className={ui.muted}>
          {offset(range.from, 1)} to {offset(range.to, 1)}
        </span>
      </section>
      <CriticalPath subject={{ range }} />
      <section>
        <h3>Kernels</h3>
        <KernelList groups={kernels.data} from={range.from} to={range.to} />
      </section>
      {gaps.data && gaps.data.gaps.length > 0 && (
        <section>
          <h3>Longest gaps without a kernel</h3>
          <ul className={t.chain}>
            {gaps.data.gaps.map((g) => (
              <li key={`${g.device}${g.start}`}>
                <Link
                  to="/sessions/$session/timeline"
                  params={{ session: id }}
                  search={
                    {
                      ...toSpan(undefined, g.start, g.duration_ns, { from: 0, to: Number.MAX_SAFE_INTEGER }),
                      m0: Math.max(0, g.start),
                      m1: g.start + g.duration_ns,
                    } as never
                  }
                >
                  at {offset(g.start, 1000)}
                </Link>
                <span>{duration(g.duration_ns)}</span>
              </li>
            ))}
          </ul>
        </section>
      )}
    </aside>
  );
}

function Attributes({ a }: { a: Record<string, unknown> }) {
  const keys = Object.keys(a).sort();
  if (!keys.length) return null;
  return (
    <section>
      <details>
        <summary>All attributes ({keys.length})</summary>
        <dl className={ui.dl}>
          {keys.map((k) => (
            <Fact key={k} name={k}>
              {typeof a[k] === "object" ? JSON.stringify(a[k]) : String(a[k])}
            </Fact>
          ))}
        </dl>
      </details>
    </section>
  );
}
