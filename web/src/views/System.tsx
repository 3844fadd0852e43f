// SPDX-License-Identifier: Apache-2.0
import { useQueries } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { get, type Schemas, url } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { css, oklch } from "../lib/color";
import { count, offset } from "../lib/format";
import { align, deviceLabel, rank, rate, title, valueFormat } from "../lib/metrics";
import { around, pan, rounded, tickStep, type View, zoom } from "../lib/scale";
import { Badge, Failure, Loading, Message, num, ui } from "../ui/parts";
import { useDark } from "../ui/theme";
import { WindowBadge } from "./Kernels";
import c from "./system.module.css";

type Series = Schemas["Series"] & { source: "session" | "system" };

const hidden = new Set([
  "hw.gpu.memory.limit",
  "hw.temperature.limit",
  "hw.power.limit",
  "system.memory.limit",
  "hw.status",
]);

// Sums by kernel have their own view, and one point is no line.
const chartable = (s: Series): boolean =>
  s.count > 1 &&
  !hidden.has(s.metric) &&
  (s.type === "gauge" || s.type === "sum") &&
  s.attributes["cuda.kernel.name"] === undefined;

/** tasks names the parts of a device whose utilisation is measured. */
const tasks: Record<string, string> = {
  general: "time with a kernel",
  encoder: "video encoder",
  decoder: "video decoder",
};

const label = (s: Series): string => {
  const rest = Object.entries(s.attributes)
    .filter(
      ([k]) => !["hw.id", "hw.type", "hw.name", "hw.vendor", "hw.model", "hw.parent", "cuda.device.index"].includes(k),
    )
    .map(
      ([k, v]) =>
        (k === "hw.gpu.task" && tasks[String(v)]) || (typeof v === "string" ? v : `${k.split(".").at(-1)} ${v}`),
    );
  if (s.metric === "hw.gpu.io.throughput" && !rest.length) rest.push("both directions");
  return (
    [deviceLabel(s.attributes), ...rest].filter(Boolean).join(" · ") ||
    (s.metric.startsWith("system.") ? "host" : "value")
  );
};

/** System shows the metrics of the devices and the host on the session's time axis. */
export function System() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/system" });
  const params = { session: session.id };
  const own = useGet(
    "/sessions/{session}/series",
    params,
    { base: session.base, source: "session" },
    { every: session.every },
  );
  const system = useGet(
    "/sessions/{session}/series",
    params,
    { base: session.base, source: "system" },
    { every: session.every },
  );
  const xids = useGet("/sessions/{session}/logs", params, {
    base: session.base,
    source: "system",
    event: "gpu.xid",
    limit: 100,
  });
  const charts = useMemo(() => {
    const all: Series[] = [
      ...(own.data?.series ?? []).map((s) => ({ ...s, source: "session" as const })),
      ...(system.data?.series ?? []).map((s) => ({ ...s, source: "system" as const })),
    ].filter(chartable);
    const groups = new Map<string, Series[]>();
    // A device has the same colour in each chart.
    all.sort((a, b) => label(a).localeCompare(label(b), "en", { numeric: true }));
    for (const s of all) groups.set(s.metric, [...(groups.get(s.metric) ?? []), s]);
    return [...groups].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
  }, [own.data, system.data]);
  const error = own.error ?? system.error;
  if (error && !charts.length) return <Failure error={error} />;
  if (!own.data || !system.data) return <Loading />;
  const window = {
    from: search.from ?? 0,
    to: search.to ?? Math.max(session.overview.session.duration_ns, 1),
  };
  const whole = { from: 0, to: Math.max(session.overview.session.duration_ns, 1) };
  const width = window.to - window.from;
  const middle = window.from + width / 2;
  const moves: [name: string, sign: string, view: View][] = (
    [
      ["Zoom in", "+", zoom(window, 0.5, middle, whole)],
      ["Zoom out", "−", zoom(window, 2, middle, whole)],
      ["Earlier", "←", pan(window, -width / 4, whole)],
      ["Later", "→", pan(window, width / 4, whole)],
    ] as const
  ).map(([name, sign, v]) => [name, sign, rounded(v)]);
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>System</h1>
        <span className={ui.muted}>drag in a chart to zoom</span>
        <span className={`${ui.row} ${ui.nowrap}`}>
          {moves.map(([name, sign, v]) => (
            <Link key={name} to="." replace search={v as never} className={ui.button} aria-label={name}>
              {sign}
            </Link>
          ))}
        </span>
        <WindowBadge from={search.from} to={search.to} />
        <span className={ui.spacer} />
        <Link
          to="/sessions/$session/timeline"
          params={params}
          search={(search.from !== undefined ? search : {}) as never}
        >
          this interval in the timeline
        </Link>
      </div>
      {xids.data && xids.data.logs.length > 0 && (
        <div className={ui.error}>
          {xids.data.logs.map((l) => {
            const process = l.attributes["process.pid"];
            return (
              <div key={l.uid}>
                <Badge tone="bad">XID {String(l.attributes["gpu.xid.code"] ?? "")}</Badge> at{" "}
                <Link
                  to="/sessions/$session/timeline"
                  params={params}
                  search={rounded(around(l.time, l.time + 1e6, whole)) as never}
                  style={{ color: "inherit", textDecoration: "underline" }}
                >
                  {offset(l.time, 1e6)}
                </Link>
                {l.attributes["hw.id"] ? ` on ${l.attributes["hw.id"]}` : ""}
                {process ? `, process ${process}` : ""}: {String(l.body)}
              </div>
            );
          })}
          {xids.data.next && <div>Only the first {count(xids.data.logs.length)} are listed.</div>}
        </div>
      )}
      <div className={c.grid}>
        {charts.map(([metric, series]) => (
          <Chart key={metric} metric={metric} series={series} window={window} />
        ))}
      </div>
      {!charts.length && (
        <div className={ui.card}>
          <Message>
            The session has no metrics, and neither has its host at that time. The receiver <code>nvml</code> records
            utilisation, power, memory and clocks.
          </Message>
        </div>
      )}
    </div>
  );
}

function Chart({
  metric,
  series,
  window,
}: {
  metric: string;
  series: readonly Series[];
  window: { from: number; to: number };
}) {
  const session = useSession();
  const navigate = useNavigate({ from: "/sessions/$session/system" });
  const dark = useDark();
  const shown = series.slice(0, 12);
  const slack = (window.to - window.from) * 0.05;
  const request = (s: Series) => ({
    base: session.base,
    source: s.source,
    from: Math.floor(window.from - slack),
    to: Math.ceil(window.to + slack),
    points: 2000,
  });
  const results = useQueries({
    queries: shown.map((s) => ({
      queryKey: ["points", session.id, s.key, request(s)],
      queryFn: ({ signal }: { signal: AbortSignal }) =>
        get("/sessions/{session}/series/{key}", { session: session.id, key: s.key }, request(s), signal),
      refetchInterval: session.every,
    })),
  });
  const stamp = results.map((r) => r.dataUpdatedAt).join();
  const cumulative = series[0]?.type === "sum" && series[0].monotonic && series[0].temporality === "cumulative";
  const unit = series[0]?.unit ?? "";
  const format = valueFormat(cumulative ? (unit === "J" ? "W" : `${unit}/s`) : unit);
  // biome-ignore lint/correctness/useExhaustiveDependencies: stamp changes with the points
  const data = useMemo(
    () =>
      align(
        results.map((r) => {
          const time = r.data?.time ?? [];
          const value = r.data?.value ?? [];
          return { time, value: cumulative ? rate(time, value) : value };
        }),
      ),
    [stamp, cumulative],
  );
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const [at, setAt] = useState<number | null>(null);
  const formatRef = useRef(format);
  formatRef.current = format;
  const names = shown.map(label).join("|");
  // biome-ignore lint/correctness/useExhaustiveDependencies: the chart is built again when its shape changes
  useEffect(() => {
    const el = host.current;
    if (!el) return;
    const text = dark ? "#9aa5b6" : "#555f6e";
    const grid = dark ? "#252d3b" : "#e6eaf0";
    const axis = {
      stroke: text,
      grid: { stroke: grid, width: 1 },
      ticks: { stroke: grid, width: 1 },
      font: "11px system-ui, 'DejaVu Sans'",
    };
    const u = new uPlot(
      {
        width: el.clientWidth,
        height: 170,
        scales: {
          x: { time: false },
          y: { range: (_, lo, hi) => [Math.min(0, lo), unit === "1" && !cumulative && hi <= 1 ? 1 : hi * 1.08 || 1] },
        },
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 }, sync: { key: "system" } },
        axes: [
          {
            ...axis,
            size: 30,
            space: 90,
            values: (_, v) => v.map((x) => offset(x, tickStep(window.to - window.from, 6))),
          },
          {
            ...axis,
            size: (_, v) => 20 + 6.5 * Math.max(8, ...(v ?? []).map((x) => x.length)),
            values: (_, v) => v.map((x) => formatRef.current(x)),
            // Bytes have binary units.
            ...(unit.startsWith("By") ? { incrs: Array.from({ length: 60 }, (_, i) => 2 ** i) } : {}),
          },
        ],
        series: [
          {},
          ...shown.map((_, i) => ({
            stroke: color(i, dark),
            width: 1.6,
            spanGaps: true,
            points: { show: false },
            fill: shown.length === 1 ? color(i, dark, 0.14) : undefined,
          })),
        ] as uPlot.Series[],
        hooks: {
          setCursor: [(p) => setAt(p.cursor.idx ?? null)],
          setSelect: [
            (p) => {
              if (p.select.width < 4) return;
              const from = Math.max(0, Math.floor(p.posToVal(p.select.left, "x")));
              const to = Math.ceil(p.posToVal(p.select.left + p.select.width, "x"));
              p.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              if (to > from) navigate({ search: { from, to } });
            },
          ],
        },
      },
      [data.time, ...data.values] as uPlot.AlignedData,
      el,
    );
    u.setScale("x", { min: window.from, max: window.to });
    plot.current = u;
    const o = new ResizeObserver(() => u.setSize({ width: el.clientWidth, height: 170 }));
    o.observe(el);
    return () => {
      o.disconnect();
      u.destroy();
    };
  }, [dark, names, data, window.from, window.to, unit]);
  const error = results.find((r) => r.error)?.error;
  const index = at ?? data.time.length - 1;
  return (
    <section className={`${ui.card} ${c.chart}`} aria-label={title(metric)}>
      <div className={ui.row}>
        <h2>
          {title(metric)}
          {cumulative ? ", per second" : ""}
        </h2>
        <span className={ui.spacer} />
        <span className={`${ui.muted} ${ui.mono}`}>{metric}</span>
      </div>
      {error ? <Failure error={error} /> : null}
      <div ref={host} className={c.plot} />
      <ul className={c.legend}>
        {shown.map((s, i) => {
          const column = data.values[i] ?? [];
          let k = index;
          while (k >= 0 && (column[k] === undefined || column[k] === null)) k--;
          const v = column[k];
          return (
            <li key={s.key}>
              <span className={ui.swatch} style={{ background: color(i, dark) }} aria-hidden="true" />
              {label(s)} {at === null && typeof v === "number" && <span className={ui.muted}>last </span>}
              <a
                {...num(cumulative ? "rate" : "value", v ?? 0)}
                href={url(`/sessions/${encodeURIComponent(session.id)}/series/${s.key}`, request(s))}
                target="_blank"
                rel="noreferrer"
                title={`The points as JSON. ${data.time[k] !== undefined ? `Measured at ${offset(data.time[k] as number, 1e6)}.` : ""}`}
              >
                {typeof v === "number" ? format(v) : "no value"}
              </a>
            </li>
          );
        })}
        {series.length > shown.length && (
          <li className={ui.muted}>{series.length - shown.length} more series are not drawn</li>
        )}
      </ul>
    </section>
  );
}

const color = (i: number, dark: boolean, alpha = 1): string =>
  css(oklch(dark ? 0.75 : 0.55, 0.14, (250 + i * 67) % 360), alpha);
