// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useMemo } from "react";
import { type Schemas, url } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { count, percent, plural } from "../lib/format";
import { sassOffset, tokens } from "../lib/highlight";
import { efficiency } from "../lib/samples";
import { Badge, Bar, Choice, Failure, Loading, Message, num, row, ui } from "../ui/parts";
import c from "./code.module.css";
import { Flame } from "./Flame";

type Fn = Schemas["Function"];

const fnName = (f: Fn): string => f.function || f.kernel || "unknown function";

/** Code shows where the time comes from: a flame graph, or functions with their samples. */
export function Code() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/code" });
  const sampled = session.overview.session.counts.samples > 0;
  const view = search.view ?? (sampled || search.path !== undefined ? "functions" : "flame");
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Code</h1>
        <Choice
          label="View of the code"
          param="view"
          value={view}
          options={[
            ["functions", "Functions"],
            ["flame", "Flame graph"],
          ]}
        />
      </div>
      {view === "flame" ? <Flame /> : <Functions />}
    </div>
  );
}

/** Functions shows where kernels spend their samples: functions, lines, instructions and stall reasons. */
function Functions() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/code" });
  const params = { session: session.id };
  const functions = useGet(
    "/sessions/{session}/functions",
    params,
    { base: session.base, path: search.path },
    { every: session.every },
  );
  const texts = useGet("/sessions/{session}/texts", params);
  if (functions.error) return <Failure error={functions.error} />;
  if (!functions.data) return <Loading />;
  const list = functions.data.functions;
  const selected = list.find((f) => f.function === search.fn && f.kernel === search.kernel) ?? list[0];
  const all = texts.data?.texts ?? [];
  if (!list.length && !all.length) {
    return (
      <div className={ui.card}>
        <Message>
          The {search.path === undefined ? "session" : "scope"} has no samples and no listings. A deep-profiling window
          records them: <code>gpuflight deep</code>.
        </Message>
      </div>
    );
  }
  const total = list.reduce((n, f) => n + f.samples, 0);
  return (
    <>
      <div className={ui.row}>
        {search.path !== undefined && (
          <Link to="." search={((o: Record<string, unknown>) => ({ ...o, path: undefined })) as never}>
            <Badge tone="warn">only one scope ✕</Badge>
          </Link>
        )}
        <span className={ui.muted}>
          {total > 0 ? plural(total, "sample") : "Counters, no samples,"} in {plural(list.length, "function")}
        </span>
        {functions.data.truncated && <Badge tone="warn">the list is truncated</Badge>}
      </div>
      <div className={c.split}>
        <ul className={`${ui.card} ${c.list}`} aria-label="Functions">
          {list.map((f) => (
            <li
              key={`${f.kernel}|${f.function}|${f.file}`}
              {...row({ samples: f.samples, records: f.rows, metrics: f.metrics })}
            >
              <Link
                to="."
                replace
                search={
                  ((o: Record<string, unknown>) => ({
                    ...o,
                    fn: f.function,
                    kernel: f.kernel,
                    text: undefined,
                    what: undefined,
                  })) as never
                }
                aria-current={f === selected}
                activeProps={{}}
              >
                <div className={ui.name} title={f.kernel}>
                  {fnName(f)}
                </div>
                <span className={ui.muted}>
                  {f.samples
                    ? `${plural(f.samples, "sample")}, ${percent(total ? f.samples / total : 0)}`
                    : plural(Object.keys(f.metrics).length, "counter")}
                </span>
                {f.samples > 0 && <Bar share={total ? f.samples / total : 0} />}
              </Link>
            </li>
          ))}
        </ul>
        {selected && <FunctionView f={selected} texts={all} path={search.path} />}
      </div>
    </>
  );
}

function FunctionView({ f, texts, path }: { f: Fn; texts: readonly Schemas["TextInfo"][]; path: number | undefined }) {
  const session = useSession();
  const params = { session: session.id };
  const query = { base: session.base, function: f.function, kernel: f.kernel, path, by: ["line", "pc"], limit: 50_000 };
  const q = useGet("/sessions/{session}/samples", params, query);
  const samples = useMemo(() => (q.data?.samples ?? []).filter((s) => s.file === f.file), [q.data, f.file]);
  const stalls = Object.entries(f.stalls).sort(([, a], [, b]) => b - a);
  const metrics = Object.entries(f.metrics).sort(([a], [b]) => a.localeCompare(b));
  const most = stalls[0]?.[1] ?? 1;
  const own = texts
    .filter((t) =>
      t.kind === "source" ? t.file && t.file === f.file : t.function === f.function || t.kernel === f.kernel,
    )
    .toSorted((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
  const address = url(`/sessions/${encodeURIComponent(session.id)}/samples`, query);
  const rowsLink = (value: number, of: string) => (
    <a {...num("samples", value, of)} href={address} target="_blank" rel="noreferrer" title="The sums as JSON">
      {count(value)}
    </a>
  );
  return (
    <div className={ui.page} style={{ padding: 0, margin: 0, minWidth: 0 }}>
      <div className={ui.card}>
        <div className={ui.row} style={{ padding: 12 }}>
          <h2>{fnName(f)}</h2>
          {f.file && <span className={`${ui.muted} ${ui.mono}`}>{f.file}</span>}
        </div>
        {stalls.length > 0 && (
          <div className={c.reason}>
            {stalls.map(([name, n]) => [
              <span key={name}>{name.replace(/_not_issued$/, ", of these not issued").replaceAll("_", " ")}</span>,
              <Bar key={`${name}b`} share={n / most} />,
              <span key={`${name}n`}>{rowsLink(n, name)}</span>,
            ])}
          </div>
        )}
        {metrics.length > 0 && (
          <table className={ui.table} aria-label="Counters">
            <thead>
              <tr>
                <th scope="col">Counter</th>
                <th scope="col" className={ui.right}>
                  Sum
                </th>
              </tr>
            </thead>
            <tbody>
              {metrics.map(([name, n]) => (
                <tr key={name}>
                  <td className={ui.mono} style={{ overflowWrap: "anywhere" }}>
                    {name}
                  </td>
                  <td className={ui.right}>{rowsLink(n, name)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        <div style={{ paddingTop: 8 }}>
          <Efficiency m={f.metrics} />
        </div>
      </div>
      {q.error ? <Failure error={q.error} /> : null}
      <div className={c.panes}>
        {own.map((t) => (
          <Listing key={t.key} info={t} samples={samples} rowsLink={rowsLink} />
        ))}
      </div>
      {!own.length && <Instructions samples={samples} rowsLink={rowsLink} />}
    </div>
  );
}

/** Efficiency says how well warps and memory accesses are used, if the counters are present. */
function Efficiency({ m }: { m: Record<string, number> }) {
  return efficiency(m).map((f) => (
    <p key={f.name} style={{ padding: "0 12px 8px" }} title={f.formula}>
      <strong>{f.value}</strong> {f.name}. {f.sentence}
    </p>
  ));
}

/** Listings of a function are side by side in this order. */
const order = ["source", "ptx", "sass"];

interface Cell {
  value: number;
  what: Map<string, number>;
  /** Of what, the stall reasons or the metric of which value is the sum. */
  counted: Set<string>;
}

function sumBy(
  samples: readonly Schemas["SampleSum"][],
  key: (s: Schemas["SampleSum"]) => number | undefined,
): Map<number, Cell> {
  const result = new Map<number, Cell>();
  const stall = samples.some((s) => s.kind === "stall");
  for (const s of samples) {
    const k = key(s);
    if (k === undefined) continue;
    const cell = result.get(k) ?? { value: 0, what: new Map(), counted: new Set() };
    cell.what.set(s.what, (cell.what.get(s.what) ?? 0) + s.value);
    if (stall ? s.kind === "stall" && !s.what.endsWith("_not_issued") : s.what === "smsp__sass_inst_executed") {
      cell.value += s.value;
      cell.counted.add(s.what);
    }
    result.set(k, cell);
  }
  return result;
}

const describe = (cell: Cell): string =>
  [...cell.what]
    .sort(([, a], [, b]) => b - a)
    .map(([k, v]) => `${k}: ${count(v)}`)
    .join(", ");

function Listing({
  info,
  samples,
  rowsLink,
}: {
  info: Schemas["TextInfo"];
  samples: readonly Schemas["SampleSum"][];
  rowsLink: (value: number, of: string) => ReactNode;
}) {
  const session = useSession();
  const q = useGet("/sessions/{session}/texts/{key}", { session: session.id, key: info.key });
  // Samples have lines of the source and offsets of instructions, and no lines of PTX.
  const cells = useMemo(
    () => sumBy(info.kind === "ptx" ? [] : samples, (s) => (info.kind === "source" ? s.line : s.pc)),
    [samples, info.kind],
  );
  const most = [...cells.values()].reduce((n, x) => Math.max(n, x.value), 1);
  const lines = useMemo(() => (q.data?.text ?? "").split("\n"), [q.data]);
  const shown = useMemo(() => lines.slice(0, 5000), [lines]);
  const navigate = useNavigate({ from: "/sessions/$session/code" });
  const { what } = useSearch({ from: "/sessions/$session/code" });
  const chosen = what?.startsWith(`${info.kind} `) ? Number(what.slice(info.kind.length + 1)) : undefined;
  const cell = chosen === undefined ? undefined : cells.get(chosen);
  const first = q.data?.first_line || 1;
  // The rows do not depend on the selection, so that it is fast in long listings.
  const rows = useMemo(
    () =>
      shown.map((line, i) => {
        const number = first + i;
        const pc = info.kind === "source" ? number : sassOffset(line);
        const cell = pc === undefined ? undefined : cells.get(pc);
        const select = () => navigate({ search: (o) => ({ ...o, what: `${info.kind} ${pc}` }), replace: true });
        return (
          <tr
            key={number}
            data-hot={cell !== undefined && cell.value > most * 0.5}
            {...(cell ? { tabIndex: 0, onFocus: select, onClick: select, title: describe(cell) } : {})}
          >
            <td>
              {cell?.value ? (
                <Link
                  to="."
                  replace
                  tabIndex={-1}
                  search={((o: Record<string, unknown>) => ({ ...o, what: `${info.kind} ${pc}` })) as never}
                  {...num("sum", cell.value, info.kind)}
                >
                  {count(cell.value)}
                </Link>
              ) : (
                ""
              )}
            </td>
            <td>{number}</td>
            <td>
              {tokens(line, info.kind).map((t, k) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: tokens have no other identity
                <span key={k} className={c[t.kind]}>
                  {t.text}
                </span>
              ))}
            </td>
          </tr>
        );
      }),
    [shown, first, cells, most, info.kind, navigate],
  );
  return (
    <section className={ui.card} aria-label={info.kind}>
      <div className={ui.row} style={{ padding: "8px 12px" }}>
        <h3>{info.kind === "source" ? (info.file ?? "source") : info.kind.toUpperCase()}</h3>
        {info.architecture && <Badge>{info.architecture}</Badge>}
        {!info.complete && <Badge tone="warn">parts are missing</Badge>}
        {lines.length > shown.length && <Badge tone="warn">the first 5,000 of {count(lines.length)} lines</Badge>}
      </div>
      {q.error ? <Failure error={q.error} /> : null}
      <section
        className={c.listing}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it
        tabIndex={0}
        aria-label={`Listing of ${info.function ?? info.file ?? info.key}`}
      >
        <table>
          <tbody>{rows}</tbody>
        </table>
      </section>
      {info.kind === "ptx" && samples.length > 0 && (
        <p className={`${c.cell} ${ui.muted}`}>Samples belong to source lines and instructions, not to PTX lines.</p>
      )}
      {cells.size > 0 && (
        <div className={c.cell} role="status">
          {cell ? (
            <>
              <strong>
                {info.kind === "source" ? `Line ${chosen}` : `Offset 0x${chosen?.toString(16).padStart(4, "0")}`}
              </strong>
              <ul>
                {[...cell.what]
                  .sort(([, a], [, b]) => b - a)
                  .map(([k, v]) => (
                    <li key={k} {...row({ values: { [info.kind]: cell.counted.has(k) ? v : 0 } })}>
                      {k}: {rowsLink(v, `${info.kind === "source" ? "line" : "pc"} ${chosen} ${k}`)}
                    </li>
                  ))}
              </ul>
            </>
          ) : (
            <span className={ui.muted}>Select a row with a number to see its stall reasons and counters.</span>
          )}
        </div>
      )}
    </section>
  );
}

/** Instructions lists samples by line and instruction where no listing is stored. */
function Instructions({
  samples,
  rowsLink,
}: {
  samples: readonly Schemas["SampleSum"][];
  rowsLink: (value: number, of: string) => ReactNode;
}) {
  const byPc = useMemo(() => {
    const lines = new Map<number, number | undefined>();
    for (const s of samples) if (s.pc !== undefined) lines.set(s.pc, s.line);
    return [...sumBy(samples, (s) => s.pc)]
      .sort(([a], [b]) => a - b)
      .map(([pc, cell]) => ({ pc, line: lines.get(pc), cell }));
  }, [samples]);
  const most = byPc.reduce((n, x) => Math.max(n, x.cell.value), 1);
  if (!byPc.length) return null;
  return (
    <div className={`${ui.card} ${ui.tableScroll}`}>
      <p className={ui.muted} style={{ padding: 12 }}>
        No listing of this function is stored, so instructions have offsets only.
      </p>
      <table className={ui.table} aria-label="Instructions">
        <thead>
          <tr>
            <th scope="col">Offset</th>
            <th scope="col">Line</th>
            <th scope="col" className={ui.right}>
              Samples or executions
            </th>
            <th scope="col">Share of the largest</th>
          </tr>
        </thead>
        <tbody>
          {byPc.slice(0, 500).map((x) => (
            <tr key={x.pc} title={describe(x.cell)}>
              <td className={ui.mono}>0x{x.pc.toString(16).padStart(4, "0")}</td>
              <td>{x.line ?? ""}</td>
              <td className={ui.right}>{rowsLink(x.cell.value, `pc ${x.pc}`)}</td>
              <td>
                <Bar share={x.cell.value / most} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {byPc.length > 500 && <Message>{count(byPc.length - 500)} more instructions are not listed.</Message>}
    </div>
  );
}
