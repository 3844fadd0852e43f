// SPDX-License-Identifier: Apache-2.0
import { useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useLocation, useParams } from "@tanstack/react-router";
import { useEffect, useMemo, useRef } from "react";
import { send } from "../api/client";
import { SessionContext, type SessionState, useGet } from "../api/hooks";
import { compact, count, duration, exactDuration, instant, percent, plural } from "../lib/format";
import { BaselineMenu } from "../ui/BaselineMenu";
import { ExportMenu } from "../ui/ExportMenu";
import { Menu } from "../ui/Menu";
import { Badge, Failure, LiveMark, Loading, num, ui } from "../ui/parts";
import { useMay } from "./Login";

/** SessionLayout loads the session for the views below it and shows what it is. */
export function SessionLayout() {
  const { session } = useParams({ strict: false }) as { session: string };
  const base = useRef({ session: "", base: "" });
  if (base.current.session !== session) base.current = { session, base: "" };
  const wasLive = useRef(true);
  const q = useGet(
    "/sessions/{session}",
    { session },
    { base: base.current.base || undefined },
    { every: wasLive.current ? 1000 : false },
  );
  const live = q.data?.session.live ?? true;
  wasLive.current = live;
  // The first answer fixes the base, because the start of a live session can move.
  if (q.data && !base.current.base && q.data.session.id === session) base.current.base = q.data.base;
  const data = q.data;
  const state = useMemo<SessionState | null>(
    () =>
      data && data.session.id === session
        ? { id: session, base: data.base, overview: data, every: live ? 2000 : false }
        : null,
    [data, session, live],
  );
  const view = useLocation().pathname.split("/").at(-1) ?? "";
  useEffect(() => {
    if (data)
      document.title = `${view.charAt(0).toUpperCase()}${view.slice(1)} · ${data.session.service || data.session.id} · gpuflight`;
  }, [data, view]);
  if (q.error && !state) return <Failure error={q.error} />;
  if (!state) return <Loading />;
  return (
    <SessionContext.Provider value={state}>
      <SessionBar state={state} />
      <Outlet />
    </SessionContext.Provider>
  );
}

function SessionBar({ state }: { state: SessionState }) {
  const client = useQueryClient();
  const admin = useMay("admin");
  const s = state.overview.session;
  const kernels = s.operations.kernel ?? 0;
  const pin = async () => {
    await send(s.pinned ? "DELETE" : "PUT", `/sessions/${encodeURIComponent(s.id)}/pin`);
    await client.invalidateQueries();
  };
  return (
    <div className={ui.sessionBar}>
      <h1>{s.service || "unnamed application"}</h1>
      {s.live ? <LiveMark /> : null}
      <span className={ui.muted} title={s.id}>
        {s.host ? `${s.host} · ` : ""}
        {s.rank !== undefined && (
          <>
            {s.run ? (
              <Link to="/ranks" search={{ run: s.run } as never} title="Which rank of the run the others waited for">
                rank {s.rank}
              </Link>
            ) : (
              `rank ${s.rank}`
            )}
            {s.rank_size ? ` of ${s.rank_size}` : ""} ·{" "}
          </>
        )}
        {s.pid !== undefined ? `pid ${s.pid} · ` : ""}
        {instant(s.start)} · <span title={exactDuration(s.duration_ns)}>{duration(s.duration_ns)}</span>
      </span>
      <Link
        to="/sessions/$session/kernels"
        params={{ session: s.id }}
        search={{} as never}
        {...num("kernels", kernels)}
        title={plural(kernels, "kernel")}
      >
        {compact(kernels)} {kernels === 1 ? "kernel" : "kernels"}
      </Link>
      <Quality state={state} />
      <span className={ui.spacer} />
      <span className={`${ui.row} ${ui.nowrap}`}>
        <ExportMenu state={state} />
        <BaselineMenu key={s.id} session={s} />
        <button
          type="button"
          className={ui.icon}
          disabled={!admin}
          aria-pressed={s.pinned}
          onClick={pin}
          title="Retention does not delete a pinned session"
        >
          {s.pinned ? "★ pinned" : "☆ pin"}
        </button>
      </span>
    </div>
  );
}

/** Quality says what the recording dropped, estimated or left out. The capture logs have the details. */
function Quality({ state }: { state: SessionState }) {
  const logs = useGet(
    "/sessions/{session}/logs",
    { session: state.id },
    { base: state.base, event: "cuda.capture", limit: 20 },
  );
  const rows = logs.data?.logs ?? [];
  const s = state.overview.session;
  const remarks = useMemo(() => captureRemarks(rows.map((r) => r.attributes)), [rows]);
  return (
    <>
      {s.rows_dropped && (
        <Badge tone="warn" title="Retention removed single operations. Sums remain.">
          sums only
        </Badge>
      )}
      {!s.ended && !s.live && (
        <Badge tone="warn" title="The recording has no end. The process was killed, or its last data is missing.">
          no end recorded
        </Badge>
      )}
      {remarks.length > 0 ? (
        <Menu tone="warn" label={`⚠ ${remarks[0]}${remarks.length > 1 ? ` and ${remarks.length - 1} more` : ""}`}>
          <ul>
            {remarks.map((r) => (
              <li key={r}>{r}</li>
            ))}
          </ul>
        </Menu>
      ) : (
        logs.data && (
          <Badge
            tone={rows.length ? "good" : undefined}
            title={rows.length ? "The capture log reports no loss." : "The recording has no capture log."}
          >
            {rows.length ? "nothing dropped" : "losses unknown"}
          </Badge>
        )
      )}
    </>
  );
}

/** captureRemarks lists what capture logs report as dropped, left out, degraded, unavailable or recorded in part. */
export function captureRemarks(attributes: readonly Record<string, unknown>[]): string[] {
  const result = new Set<string>();
  for (const a of attributes) {
    for (const [k, v] of Object.entries(a)) {
      const name = k.replace(/^cuda\.capture\./, "").replaceAll(/[._]/g, " ");
      if (k === "cuda.capture.recorded.ratio" && typeof v === "number" && v < 1)
        result.add(`recorded ${percent(v)} of the session`);
      else if (k === "cuda.capture.paused.time" && typeof v === "number" && v > 0)
        result.add(`recording paused for ${duration(v * 1e9)}`);
      else if (/drop|reject|omit|lost|missing|degrad|unavailable|skipp|left_out|unsampled|without/i.test(k)) {
        if (typeof v === "number" && v > 0) result.add(`${name}: ${count(v)}`);
        else if (typeof v === "string" && v !== "" && v !== "0") result.add(`${name}: ${v}`);
        else if (Array.isArray(v) && v.length) result.add(`${name}: ${v.join(", ")}`);
      }
    }
  }
  return [...result];
}
