// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo } from "react";
import { useGet } from "../api/hooks";
import { compare, type Sums } from "../lib/compare";
import { count, dims, duration, exactDuration, instant, signedPercent } from "../lib/format";
import { Badge, Choice, Failure, Loading, type Made, Message, num, SearchBox, Swatch, ui } from "../ui/parts";

/** Compare shows what changed from session a to session b. */
export function Compare() {
  const search = useSearch({ from: "/compare" });
  const navigate = useNavigate({ from: "/compare" });
  const by = search.by ?? "name";
  const sessions = useGet("/sessions", {}, { limit: 200 });
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
    <label className={ui.row}>
      <Badge>{side.toUpperCase()}</Badge>
      <select
        className={ui.input}
        style={{ width: 340, maxWidth: "100%" }}
        aria-label={side === "a" ? "Baseline" : "Compared with it"}
        value={search[side] ?? ""}
        onChange={(e) => navigate({ search: (o) => ({ ...o, [side]: e.target.value || undefined }) })}
      >
        <option value="">choose a session</option>
        {sessions.data.sessions.map((s) => (
          <option key={s.id} value={s.id}>
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
              {duration(sa)} → {duration(sb)}
            </strong>
            <Badge tone={sb > sa * 1.05 ? "bad" : sb < sa * 0.95 ? "good" : undefined}>
              {signedPercent(sb / sa - 1)} kernel time
            </Badge>
            <span className={ui.spacer} />
            <SearchBox
              label="Search"
              value={search.q ?? ""}
              onChange={(v) => navigate({ search: (o) => ({ ...o, q: v || undefined }), replace: true })}
            />
          </div>
          <div className={`${ui.card} ${ui.tableScroll}`}>
            <table className={ui.table} aria-label="Differences">
              <thead>
                <tr>
                  <th scope="col">{by === "scope" ? "Scope" : "Kernel"}</th>
                  <th scope="col" className={ui.right}>
                    A total
                  </th>
                  <th scope="col" className={ui.right}>
                    B total
                  </th>
                  <th scope="col" className={ui.right}>
                    Difference
                  </th>
                  <th scope="col" className={ui.right}>
                    Change
                  </th>
                  <th scope="col" className={ui.right}>
                    A launches
                  </th>
                  <th scope="col" className={ui.right}>
                    B launches
                  </th>
                  <th scope="col" className={ui.right} title="Mean duration">
                    Per launch
                  </th>
                </tr>
              </thead>
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
                      <td className={ui.right} title={exactDuration(r.delta)}>
                        {r.delta > 0 ? "+" : ""}
                        {duration(r.delta)}
                      </td>
                      <td className={ui.right}>
                        {r.a && r.b ? (
                          <Badge
                            tone={
                              r.b.sum_ns > r.a.sum_ns * 1.05
                                ? "bad"
                                : r.b.sum_ns < r.a.sum_ns * 0.95
                                  ? "good"
                                  : undefined
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
                    </tr>
                  );
                })}
              </tbody>
            </table>
            {!rows.length && <Message>Nothing to compare.</Message>}
          </div>
          {rows.length > 500 && (
            <span className={ui.muted}>{count(rows.length - 500)} smaller differences are not listed.</span>
          )}
        </>
      )}
    </div>
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
