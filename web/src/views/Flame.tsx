// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { useGet, useSession } from "../api/hooks";
import { css, scopeColor, sliceColor } from "../lib/color";
import { boxes, type Frame, find, flameTree, kernelsOf, sampledStacks, stackFilter } from "../lib/flame";
import { count, duration, exactDuration, offset, percent, plural } from "../lib/format";
import { Badge, Failure, Loading, Message, num, row, SearchBox, Swatch, ui } from "../ui/parts";
import { useDark } from "../ui/theme";
import c from "./code.module.css";
import { WindowBadge } from "./Kernels";

const kinds = {
  all: "",
  host: "host function",
  scope: "scope",
  kernel: "kernel",
  line: "line, estimated from samples",
} as const;

/** Flame shows which host code, scopes and kernels the kernel time comes from. */
export function Flame() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/code" });
  const navigate = useNavigate({ from: "/sessions/$session/code" });
  const dark = useDark();
  const [over, setOver] = useState("");
  const q = useGet(
    "/sessions/{session}/stacks",
    { session: session.id },
    { base: session.base, from: search.from, to: search.to },
    { every: session.every },
  );
  const root = useMemo(() => flameTree(q.data?.stacks ?? [], q.data?.lines ?? []), [q.data]);
  const zoom = search.zoom ?? "";
  const { boxes: list, hidden } = useMemo(() => boxes(root, zoom, 0.001), [root, zoom]);
  if (q.error && !q.data) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  if (!root.count) return <Message>The session has no kernels.</Message>;
  const depth = list.reduce((n, b) => Math.max(n, b.depth + 1), 0);
  const match = (search.q ?? "").toLowerCase();
  const chain = find(root, over || zoom);
  const shown = chain.at(-1) as Frame;
  const focus = find(root, zoom).at(-1) as Frame;
  const matched = match ? matchedNs(focus, match) : 0;
  const part = q.data.part;
  // The interval of the launches behind the numbers.
  const interval = part ?? { from: search.from, to: search.to };
  const sampled = sampledStacks(q.data.stacks);
  const hasStacks = q.data.stacks.some((s) => s.stack.length > 0);
  const color = (f: Frame) =>
    f.kind === "kernel" || f.kind === "line"
      ? css(sliceColor(f.kind === "line" ? "" : f.name, dark))
      : css(f.kind === "scope" ? scopeColor(f.name, dark) : dark ? [150, 158, 172] : [214, 219, 227]);
  return (
    <>
      <div className={ui.row}>
        <span className={ui.muted}>
          kernel time by {hasStacks ? "host stack, " : ""}scope and kernel{q.data.lines.length ? ", and line" : ""}. The
          width is the time; the order has no meaning.
        </span>
        {!hasStacks && (
          <Badge title="A recording with host stacks has them above the scopes.">no host stacks recorded</Badge>
        )}
        <WindowBadge from={search.from} to={search.to} />
        {part && (
          <Link to="/sessions/$session/timeline" params={{ session: session.id }} search={part as never}>
            <Badge
              tone="warn"
              title="The interval has more than 500,000 operations, and only those of this interval are read. Zoom into the timeline and follow “flame graph” for another one."
            >
              {plural(root.count, "kernel")} from {offset(part.from, 1)} to {offset(part.to, 1)}
            </Badge>
          </Link>
        )}
        {sampled > 0 && (
          <Badge title="Launches without a host stack are shared among the stacks of the same kernel in the same scope.">
            host stacks of {count(sampled)} launches
          </Badge>
        )}
        {q.data.truncated && <Badge tone="warn">only the largest stacks</Badge>}
        <span className={ui.spacer} />
        <SearchBox
          label="Highlight frames"
          value={search.q ?? ""}
          onChange={(v) => navigate({ search: (o) => ({ ...o, q: v || undefined }), replace: true })}
        />
      </div>
      <section className={`${ui.card} ${c.flame}`} aria-label="Flame graph">
        <div className={c.flameInfo} role="status">
          <strong>{shown.name}</strong>{" "}
          <span className={ui.muted}>
            {kinds[shown.kind]}
            {kinds[shown.kind] && " · "}
            {shown.kind === "line" ? (
              <span
                title={`${exactDuration(Math.round(shown.ns))}: the share of its samples in the time of the kernel`}
              >
                {duration(shown.ns)} · {plural(shown.count, "sample")}
              </span>
            ) : (
              <>
                <FrameNumber frame={shown} zoom={over || zoom} interval={interval} made="ns" />
                {" · "}
                <FrameNumber frame={shown} zoom={over || zoom} interval={interval} made="kernels" />
              </>
            )}{" "}
            · {percent(root.ns ? shown.ns / root.ns : 0)} of all
            {match ? ` · ${percent(focus.ns ? matched / focus.ns : 0)} matches` : ""}
          </span>{" "}
          {zoom && (
            <Link to="." replace search={((o: Record<string, unknown>) => ({ ...o, zoom: undefined })) as never}>
              show all
            </Link>
          )}
        </div>
        <div className={c.flameBody} style={{ height: depth * 21 }}>
          {list.map((b) => (
            <Link
              key={b.id}
              to="."
              replace
              search={((o: Record<string, unknown>) => ({ ...o, zoom: b.id || undefined })) as never}
              className={c.frame}
              activeProps={{}}
              style={{
                left: `${b.x * 100}%`,
                width: `${b.width * 100}%`,
                top: b.depth * 21,
                background: color(b.frame),
                opacity: match && !b.frame.name.toLowerCase().includes(match) ? 0.35 : 1,
              }}
              aria-label={[b.frame.name, kinds[b.frame.kind], duration(b.frame.ns)].filter(Boolean).join(", ")}
              title={`${b.frame.name}\n${duration(b.frame.ns)}, ${percent(root.ns ? b.frame.ns / root.ns : 0)}`}
              onMouseEnter={() => setOver(b.id)}
              onMouseLeave={() => setOver("")}
              onFocus={() => setOver(b.id)}
              onBlur={() => setOver("")}
            >
              {b.width > 0.02 ? b.frame.name : ""}
            </Link>
          ))}
        </div>
        {hidden > 0 && (
          <p className={ui.muted} style={{ padding: "4px 12px 10px", margin: 0 }}>
            {count(hidden)} frames below 0.1 % are not drawn. Select a frame to zoom in.
          </p>
        )}
      </section>
      <KernelsOf frame={focus} root={root} interval={interval} />
    </>
  );
}

interface Interval {
  from: number | undefined;
  to: number | undefined;
}

/** FrameNumber links to the launches of a host function, or to the kernels of another frame, which the table lists. */
function FrameNumber(p: { frame: Frame; zoom: string; interval: Interval; made: "ns" | "kernels" }) {
  const { id } = useSession();
  const { frame: f, made } = p;
  const text = made === "ns" ? duration(f.ns) : plural(Math.round(f.count), "launch");
  const title = made === "ns" ? exactDuration(Math.round(f.ns)) : undefined;
  if (f.kind === "host" && equal(f.ns, f.own.ns)) {
    return (
      <Link
        to="/sessions/$session/launches"
        params={{ session: id }}
        search={{ operation: "kernel", ...stackFilter(f), ...p.interval } as never}
        title={title}
        {...num(made, Math.round(made === "ns" ? f.ns : f.count))}
      >
        {text}
      </Link>
    );
  }
  return (
    <Link
      to="."
      replace
      search={((o: Record<string, unknown>) => ({ ...o, zoom: p.zoom || undefined })) as never}
      title={title}
      {...num(made, made === "ns" ? f.ns : f.count)}
    >
      {text}
    </Link>
  );
}

const maxListed = 200;

/** equal compares sums of shares of launches, which are not exact. */
const equal = (a: number, b: number) => Math.abs(a - b) < 0.5;

/**
 * KernelsOf lists the kernels that a frame is made of. Numbers of a host stack are estimates if a part of the
 * launches of a kernel has no stack. Then the table has the launches behind them too.
 */
function KernelsOf(props: { frame: Frame; root: Frame; interval: Interval }) {
  const { frame, root, interval } = props;
  const { id } = useSession();
  const all = useMemo(() => new Map(kernelsOf(root).map((k) => [`${k.path}|${k.name}`, k])), [root]);
  if (frame.kind === "line") return null;
  const rows = kernelsOf(frame);
  const listed = rows.slice(0, maxListed);
  const rest = { ns: frame.ns, count: frame.count };
  for (const k of listed) {
    rest.ns -= k.ns;
    rest.count -= k.count;
  }
  const estimated = frame.stack.length > 0 && listed.some((k) => !equal(k.ns, k.own.ns));
  return (
    <div className={`${ui.card} ${ui.tableScroll}`}>
      <table className={ui.table} aria-label="Kernels of the frame">
        <thead>
          <tr>
            <th scope="col">Kernels of {frame.kind === "all" ? "all frames" : "the frame"}</th>
            <th scope="col">Scope</th>
            <th scope="col" className={ui.right}>
              Time
            </th>
            <th scope="col" className={ui.right}>
              Launches
            </th>
            {estimated && (
              <>
                <th scope="col" className={ui.right} title="The launches whose host stack was recorded">
                  Recorded here
                </th>
                <th
                  scope="col"
                  className={ui.right}
                  title="All launches of the kernel in the scope, also those without a host stack"
                >
                  In all stacks
                </th>
              </>
            )}
          </tr>
        </thead>
        <tbody>
          {listed.map((k) => {
            const total = all.get(`${k.path}|${k.name}`) ?? k;
            const launches = (made: "ns" | "rows", sum: { ns: number; count: number }, filter: object) => (
              <Link
                to="/sessions/$session/launches"
                params={{ session: id }}
                search={
                  { operation: "kernel", name: k.name, path: k.path, direct: "true", ...filter, ...interval } as never
                }
                title={exactDuration(Math.round(sum.ns))}
                {...num(made, Math.round(made === "ns" ? sum.ns : sum.count))}
              >
                {made === "ns" ? duration(sum.ns) : count(Math.round(sum.count))}
              </Link>
            );
            const filter = stackFilter(frame);
            const exact = !frame.stack.length || equal(k.ns, k.own.ns);
            return (
              <tr key={`${k.path}|${k.name}`} {...row({ ns: k.ns, kernels: k.count })}>
                <td className={ui.name} title={k.name}>
                  <Swatch name={k.name} />
                  {k.name}
                </td>
                <td className={ui.name} title={k.scope.join(" › ")}>
                  {k.scope.join(" › ")}
                </td>
                <td className={ui.right} title={exactDuration(Math.round(k.ns))}>
                  {exact ? launches("ns", k, filter) : duration(k.ns)}
                </td>
                <td className={ui.right}>{exact ? launches("rows", k, filter) : count(Math.round(k.count))}</td>
                {estimated && (
                  <>
                    <td className={ui.right}>{launches("ns", k.own, filter)}</td>
                    <td className={ui.right}>{launches("ns", total, {})}</td>
                  </>
                )}
              </tr>
            );
          })}
          {rows.length > listed.length && (
            <tr {...row({ ns: rest.ns, kernels: rest.count })}>
              <td>{plural(rows.length - listed.length, "other kernel")}</td>
              <td />
              <td className={ui.right}>{duration(rest.ns)}</td>
              <td className={ui.right}>{count(Math.round(rest.count))}</td>
              {estimated && (
                <>
                  <td />
                  <td />
                </>
              )}
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

/** matchedNs is the time of the outermost frames whose names match. */
function matchedNs(f: Frame, match: string): number {
  if (f.name.toLowerCase().includes(match)) return f.ns;
  return f.children.reduce((n, x) => n + matchedNs(x, match), 0);
}
