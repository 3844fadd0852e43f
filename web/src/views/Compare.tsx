// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo } from "react";
import type { Schemas } from "../api/client";
import { url } from "../api/client";
import { useGet } from "../api/hooks";
import { compare, type Result as Joined, results, type Sums } from "../lib/compare";
import { count, dims, duration, exactDuration, instant, percent, plural, signedPercent, words } from "../lib/format";
import {
  Badge,
  Choice,
  type Column,
  Described,
  Failure,
  Loading,
  type Made,
  Message,
  num,
  SearchBox,
  Swatch,
  ui,
} from "../ui/parts";

/** Compare shows what changed from session a to session b. */
export function Compare() {
  const search = useSearch({ from: "/compare" });
  const navigate = useNavigate({ from: "/compare" });
  const by = search.by ?? "name";
  const sessions = useGet("/sessions", {}, { limit: 200 });
  const baselines = useGet("/baselines", {});
  const query = { a: search.a ?? "", b: search.b ?? "" };
  const tests = useGet("/compare", {}, query, { enabled: search.a !== undefined && search.b !== undefined });
  const statuses = useMemo(() => statusByKey(tests.data, by), [tests.data, by]);
  const a = useSide(search.a, by);
  const b = useSide(search.b, by);
  useEffect(() => {
    document.title = "Compare · gpuflight";
  }, []);
  const rows = useMemo(() => {
    const all = compare(a.rows ?? [], b.rows ?? []);
    const text = (search.q ?? "").toLowerCase();
    return text ? all.filter((r) => r.key.toLowerCase().includes(text)) : all;
  }, [a.rows, b.rows, search.q]);
  if (sessions.error) return <Failure error={sessions.error} />;
  if (!sessions.data) return <Loading />;
  const choose = (side: "a" | "b") => (
    <label className={`${ui.row} ${ui.nowrap}`} style={{ minWidth: 0 }}>
      <Badge>{side.toUpperCase()}</Badge>
      <select
        className={ui.input}
        style={{ width: 340, minWidth: 0 }}
        aria-label={side === "a" ? "Baseline" : "Compared with it"}
        value={search[side] ?? ""}
        onChange={(e) => navigate({ search: (o) => ({ ...o, [side]: e.target.value || undefined }) })}
      >
        <option value="">choose a session</option>
        {baselines.data?.baselines.map((b) => (
          <option key={b.name} value={b.session}>
            baseline {b.name} · {b.session.slice(0, 8)}
          </option>
        ))}
        {sessions.data.sessions.map((s) => (
          <option key={s.id} value={s.id}>
            {s.run && `${s.run} · `}
            {s.rank !== undefined && `rank ${s.rank} · `}
            {s.service || "unnamed"} · {instant(s.start)} · {duration(s.duration_ns)} · {s.id.slice(0, 8)}
          </option>
        ))}
      </select>
    </label>
  );
  const ready = a.rows && b.rows;
  const sum = (r: readonly Sums[] | undefined) => r?.reduce((n, x) => n + x.sum_ns, 0) ?? 0;
  const [sa, sb] = [sum(a.rows), sum(b.rows)];
  const error = a.error ?? b.error;
  // Work that was not recorded makes sums and launches smaller.
  const missing = tests.data?.a.missing ?? tests.data?.b.missing;
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Compare</h1>
        {choose("a")}
        {choose("b")}
        <Link
          to="/compare"
          search={((o: Record<string, unknown>) => ({ ...o, a: search.b, b: search.a })) as never}
          className={ui.button}
        >
          Swap
        </Link>
      </div>
      {error ? <Failure error={error} /> : null}
      {!search.a || !search.b ? (
        <div className={ui.card}>
          <Message>Choose a baseline and a session to compare with it.</Message>
        </div>
      ) : !ready ? (
        <Loading />
      ) : (
        <>
          {tests.error && !tests.data ? (
            <Failure error={tests.error} />
          ) : tests.data ? (
            <Verdict c={tests.data} />
          ) : (
            <Loading />
          )}
          <div className={ui.row}>
            <Choice
              label="Compare by"
              param="by"
              value={by}
              options={[
                ["name", "Kernel"],
                ["shape", "Shape"],
                ["scope", "Scope"],
              ]}
            />
            <strong>
              <AllKernels session={search.a} ns={sa} /> → <AllKernels session={search.b} ns={sb} />
            </strong>
            {missing ? (
              <Badge>recorded kernel time</Badge>
            ) : (
              <Badge
                tone={sb > sa * 1.05 ? "bad" : sb < sa * 0.95 ? "good" : undefined}
                title="Of all launches, also outside steps. The tests above are of steps. Few slow ones are not significant there."
              >
                {signedPercent(sb / sa - 1)} kernel time
              </Badge>
            )}
            <span className={ui.spacer} />
            <SearchBox
              label="Search"
              value={search.q ?? ""}
              onChange={(v) => navigate({ search: (o) => ({ ...o, q: v || undefined }), replace: true })}
            />
          </div>
          <Described label="Differences" columns={[[by === "scope" ? "Scope" : "Kernel"], ...differenceColumns]}>
            <tbody>
              {rows.slice(0, 500).map((r) => {
                const mean = r.a && r.b ? r.b.sum_ns / r.b.count / (r.a.sum_ns / r.a.count) - 1 : undefined;
                const link = (session: string | undefined, x: Sums | undefined, made: Made, text: string) =>
                  x && session ? (
                    <Link
                      to="/sessions/$session/launches"
                      params={{ session }}
                      search={
                        {
                          operation: "kernel",
                          sort: "duration",
                          ...(by === "scope"
                            ? { path: x.ids?.[0], direct: "true" }
                            : by === "shape"
                              ? { shape: x.ids?.join(",") }
                              : { name: r.key }),
                        } as never
                      }
                      {...num(made, made === "ns" ? x.sum_ns : x.count)}
                    >
                      {text}
                    </Link>
                  ) : (
                    <span className={ui.muted}>–</span>
                  );
                return (
                  <tr key={r.key}>
                    <td className={ui.name} title={r.key}>
                      {by !== "scope" && <Swatch name={r.key.split("  ")[0] ?? ""} />}
                      {r.key}
                    </td>
                    <td className={ui.right}>{link(search.a, r.a, "ns", duration(r.a?.sum_ns ?? 0))}</td>
                    <td className={ui.right}>{link(search.b, r.b, "ns", duration(r.b?.sum_ns ?? 0))}</td>
                    <td className={ui.right} title={missing ? undefined : exactDuration(r.delta)}>
                      {missing ? "–" : `${r.delta > 0 ? "+" : ""}${duration(r.delta)}`}
                    </td>
                    <td className={ui.right}>
                      {missing ? (
                        "–"
                      ) : r.a && r.b ? (
                        <Badge
                          tone={
                            r.b.sum_ns > r.a.sum_ns * 1.05 ? "bad" : r.b.sum_ns < r.a.sum_ns * 0.95 ? "good" : undefined
                          }
                        >
                          {signedPercent(r.b.sum_ns / r.a.sum_ns - 1)}
                        </Badge>
                      ) : (
                        <Badge tone="warn">{r.b ? "only in B" : "only in A"}</Badge>
                      )}
                    </td>
                    <td className={ui.right}>{link(search.a, r.a, "rows", count(r.a?.count ?? 0))}</td>
                    <td className={ui.right}>{link(search.b, r.b, "rows", count(r.b?.count ?? 0))}</td>
                    <td className={ui.right}>{mean === undefined ? "" : signedPercent(mean)}</td>
                    <td>
                      <JoinedResult of={statuses.get(by === "scope" ? r.key.replaceAll(" *", "") : r.key)} />
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </Described>
          {!rows.length && <Message>Nothing to compare.</Message>}
          {rows.length > 500 && (
            <span className={ui.muted}>{count(rows.length - 500)} smaller differences are not listed.</span>
          )}
        </>
      )}
    </div>
  );
}

/** AllKernels is the kernel time of a session, which its table of kernels sums. */
const AllKernels = ({ session, ns }: { session: string; ns: number }) => (
  <Link
    to="/sessions/$session/kernels"
    params={{ session }}
    search={{} as never}
    title={exactDuration(ns)}
    {...num("ns", ns)}
  >
    {duration(ns)}
  </Link>
);

type Comparison = Schemas["Comparison"];
type Row = Schemas["CompareRow"];

const tones: Partial<Record<Schemas["CompareStatus"], string>> = {
  slower: "bad",
  faster: "good",
  more: "warn",
  fewer: "warn",
  new: "warn",
  gone: "warn",
};

function Result({ status }: { status: Schemas["CompareStatus"] | undefined }) {
  if (!status) return null;
  return tones[status] ? <Badge tone={tones[status]}>{status}</Badge> : <span className={ui.muted}>{status}</span>;
}

function JoinedResult({ of }: { of: Joined<Schemas["CompareStatus"]> | undefined }) {
  if (!of || of.statuses.length < 2) return <Result status={of?.statuses[0]} />;
  return (
    <span className={ui.muted} title="Kernels with this short name, such as instances of a template, differ.">
      {count(of.kernels)} kernels: {of.statuses.join(", ")}
    </span>
  );
}

const shapeKey = (r: Row) => `${r.name}  ${dims(r.grid)} , ${dims(r.block)}`;

/** statusByKey returns the results of the rows of the table below. */
function statusByKey(c: Comparison | undefined, by: "name" | "shape" | "scope") {
  if (by === "scope") return results(c?.scopes ?? [], (r) => r.path?.join(" › ") ?? "");
  if (by === "name") return results(c?.kernels ?? [], (r) => r.name);
  return results(
    [...(c?.kernels ?? []), ...(c?.shapes ?? [])].filter((r) => r.grid),
    shapeKey,
  );
}

const differenceColumns: Column[] = [
  ["A total", undefined, ui.right],
  ["B total", undefined, ui.right],
  ["Difference", undefined, ui.right],
  ["Change", undefined, ui.right],
  ["A launches", undefined, ui.right],
  ["B launches", undefined, ui.right],
  ["Per launch", "Change of the mean duration", ui.right],
  ["Result", "Tests of the time of a launch and of the launches of a step"],
];

const stepColumns: Column[] = [
  ["Part of a step"],
  ["A", "Mean of the medians of blocks of steps, or of their means if some steps are much longer", ui.right],
  ["B", "Mean of the medians of blocks of steps, or of their means if some steps are much longer", ui.right],
  ["Effect", "B − A", ui.right],
  ["Change", "(B − A) / A", ui.right],
  ["At 95 %", "Bounds of the change by Welch's test", ui.right],
  ["Result", "Of a test, or untested: below 1 % of the step, too few steps, or means that differ and vary too much"],
];

/** Verdict shows whether steps became slower, and why. */
function Verdict({ c }: { c: Comparison }) {
  const side = (name: string, session: string, s: Schemas["CompareSide"]) => (
    <span>
      <Badge>{name}</Badge>{" "}
      {s.steps > 0 ? (
        <Link
          to="/sessions/$session/findings"
          params={{ session }}
          search={{ list: "steps" } as never}
          {...num("rows", s.steps)}
        >
          {plural(s.steps, "step")}
        </Link>
      ) : (
        <Link to="/sessions/$session/findings" params={{ session }}>
          no steps
        </Link>
      )}
    </span>
  );
  return (
    <section className={ui.verdict} aria-label="Verdict">
      <div className={ui.row}>
        {c.verdict === "same" ? <Badge>no significant difference</Badge> : <Result status={c.verdict} />}
        <strong>{c.text}</strong>
        <span className={ui.spacer} />
        {side("A", c.session_a, c.a)}
        {side("B", c.session_b, c.b)}
        <a href={url("/compare", { a: c.session_a, b: c.session_b })} target="_blank" rel="noreferrer">
          as JSON
        </a>
      </div>
      <Confidence t={c.step?.mean ?? c.step?.duration} />
      {c.warnings.map((w) => (
        <p key={w} className={ui.muted}>
          {w}
        </p>
      ))}
      {c.step && (
        <Described label="Steps" columns={stepColumns}>
          <tbody>
            {[c.step, ...c.parts].map((r) => (
              <Part key={r.name} r={r} c={c} />
            ))}
          </tbody>
        </Described>
      )}
    </section>
  );
}

/** Confidence says how certain the verdict on the steps is. */
function Confidence({ t }: { t: Schemas["CompareTest"] | undefined }) {
  if (!t || t.a <= 0) return null;
  return (
    <p data-testid="confidence">
      With 95 % confidence, the step time changed by {signedPercent(Math.max(-1, t.low / t.a))} to{" "}
      {signedPercent(t.high / t.a)} (not corrected). If nothing had changed, a difference this large or larger would
      have a probability of {percent(t.p_adjusted)} (corrected for the number of tests). A change is reported if this
      probability is at most 5 %.
    </p>
  );
}

const partNames: Record<string, string> = {
  step: "all of it",
  compute: "compute",
  communication: "communication only",
  copy: "copies and sets only",
};

function Part({ r, c }: { r: Row; c: Comparison }) {
  const t = r.mean ?? r.duration;
  // A tested time is the mean of the medians of blocks of steps, with r.mean of their means, and another one is the mean of the steps. All are made of all steps.
  const mean = (session: string, s: Schemas["CompareSums"], tested: number | undefined) => (
    <Link
      to="/sessions/$session/findings"
      params={{ session }}
      search={{ list: "steps" } as never}
      title={
        tested === undefined
          ? `mean of ${plural(s.count, "step")}`
          : `mean of the ${r.mean ? "means" : "medians"} of blocks of steps; that of all ${plural(s.count, "step")} is ${duration(Math.round(s.ns / Math.max(s.count, 1)))}`
      }
      {...num("sum", s.ns, r.name === "step" ? "wall" : r.name)}
    >
      {duration(Math.round(tested ?? s.ns / Math.max(s.count, 1)))}
    </Link>
  );
  // A bound of the interval can be below zero time, but no time can.
  const share = (ns: number) => (t && t.a > 0 ? signedPercent(Math.max(-1, ns / t.a)) : "");
  return (
    <tr data-part={r.name}>
      <td>{partNames[r.name] ?? `idle: ${words(r.name)}`}</td>
      <td className={ui.right}>{mean(c.session_a, r.a, t?.a)}</td>
      <td className={ui.right}>{mean(c.session_b, r.b, t?.b)}</td>
      {t ? (
        <td className={ui.right} title={exactDuration(r.effect_ns)}>
          {r.effect_ns > 0 ? "+" : ""}
          {duration(r.effect_ns)}
        </td>
      ) : (
        <td className={`${ui.right} ${ui.muted}`}>–</td>
      )}
      <td className={ui.right}>{t ? share(t.shift) : ""}</td>
      <td className={ui.right}>{t && t.a > 0 ? `${share(t.low)} to ${share(t.high)}` : ""}</td>
      <td title={t ? `p = ${t.p_adjusted.toPrecision(2)}` : undefined}>
        <Result status={r.status} />
      </td>
    </tr>
  );
}

function useSide(session: string | undefined, by: "name" | "shape" | "scope") {
  const group = by === "scope" ? "path" : by;
  const q = useGet(
    "/sessions/{session}/kernels",
    { session: session ?? "" },
    { group, limit: 10_000 },
    { enabled: session !== undefined },
  );
  const rows = useMemo(
    () =>
      session === undefined
        ? undefined
        : q.data?.groups.map((g) => ({
            key: g.names
              ? g.names.join(" › ") || "outside every scope"
              : by === "shape"
                ? `${g.name}  ${dims(g.shape?.grid)} , ${dims(g.shape?.block)}`
                : (g.name ?? ""),
            count: g.count,
            sum_ns: g.sum_ns,
            ids: g.id === undefined ? [] : [g.id],
          })),
    [q.data, session, by],
  );
  return { rows, error: q.error };
}
