// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect } from "react";
import { useGet } from "../api/hooks";
import { count, duration, exactDuration, percent } from "../lib/format";
import { Badge, Bar, Choice, Failure, Loading, Message, ui } from "../ui/parts";

/** Usage sums device time over sessions. A rate per hour turns it into cost. */
export function Usage() {
  const search = useSearch({ from: "/usage" });
  const navigate = useNavigate({ from: "/usage" });
  const by = search.by ?? "service";
  const rate = search.rate && /^\d{1,6}(\.\d{1,4})?$/.test(search.rate) ? Number(search.rate) : undefined;
  const q = useGet("/usage", {}, { by, service: search.service, host: search.host });
  useEffect(() => {
    document.title = "Usage · gpuflight";
  }, []);
  if (q.error) return <Failure error={q.error} />;
  if (!q.data) return <Loading />;
  const groups = q.data.groups;
  const total = groups.reduce((n, g) => n + g.kernel_ns, 0);
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Usage</h1>
        <Choice
          label="Group usage by"
          param="by"
          value={by}
          options={[
            ["service", "Application"],
            ["host", "Host"],
            ["run", "Run"],
            ["session", "Session"],
            ["scope", "Scope"],
          ]}
        />
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
      <p className={ui.muted}>Kernel time of whole sessions. Kernels that overlap each count in full.</p>
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Usage">
          <thead>
            <tr>
              <th scope="col">{by === "service" ? "application" : by}</th>
              <th scope="col" className={ui.right}>
                Kernel time
              </th>
              <th scope="col">Share</th>
              <th scope="col" className={ui.right}>
                Kernels
              </th>
              <th scope="col" className={ui.right}>
                Sessions
              </th>
              {rate !== undefined && (
                <th scope="col" className={ui.right}>
                  Cost
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {groups.map((g) => {
              const filter =
                by === "service"
                  ? { service: g.name }
                  : by === "host"
                    ? { host: g.name }
                    : by === "run"
                      ? { run: g.name }
                      : {};
              const text = (t: string) =>
                by === "session" ? (
                  <Link
                    to="/sessions/$session/kernels"
                    params={{ session: g.name }}
                    search={{} as never}
                    className={ui.num}
                  >
                    {t}
                  </Link>
                ) : by === "scope" || !g.name ? (
                  t
                ) : (
                  <Link to="/" search={filter as never} className={ui.num}>
                    {t}
                  </Link>
                );
              return (
                <tr key={g.name}>
                  <td>{g.name || (by === "scope" ? "outside every scope" : "unknown")}</td>
                  <td className={ui.right} title={exactDuration(g.kernel_ns)}>
                    {text(duration(g.kernel_ns))}
                  </td>
                  <td>
                    <div className={`${ui.row} ${ui.nowrap}`}>
                      <span style={{ width: 90 }}>
                        <Bar share={total ? g.kernel_ns / total : 0} />
                      </span>
                      {percent(total ? g.kernel_ns / total : 0)}
                    </div>
                  </td>
                  <td className={ui.right}>{text(count(g.kernels))}</td>
                  <td className={ui.right}>{text(count(g.sessions))}</td>
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
