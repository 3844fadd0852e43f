// SPDX-License-Identifier: Apache-2.0
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { getBinary, url } from "../api/client";
import type { SessionState } from "../api/hooks";
import { duration } from "../lib/format";
import { openPerfetto, perfettoOrigin } from "../lib/perfetto";
import { Menu } from "./Menu";
import { Failure, ui } from "./parts";

const formats = [
  ["perfetto", "Perfetto trace", "for ui.perfetto.dev and trace_processor"],
  ["chrome", "Chrome trace", "JSON for chrome://tracing and tools for PyTorch's traces"],
  ["pprof", "pprof profile", "for go tool pprof: host stack, scopes, kernel"],
  ["otlp-profiles", "OpenTelemetry profiles", "for the otlp_json_file receiver of a Collector"],
  ["parquet", "Parquet table", "of operations, for DuckDB, pandas and others"],
] as const;

/** ExportMenu downloads the session, or the interval of the view, and opens it in Perfetto. */
export function ExportMenu({ state }: { state: SessionState }) {
  const search = useSearch({ strict: false }) as { from?: number; to?: number; whole?: "1" };
  const navigate = useNavigate();
  const shown = search.from !== undefined && search.to !== undefined ? { from: search.from, to: search.to } : null;
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const s = state.overview.session;
  const path = `/sessions/${encodeURIComponent(s.id)}/export`;
  const part =
    shown && !search.whole ? { base: state.base, from: Math.floor(shown.from), to: Math.ceil(shown.to) } : {};
  const perfetto = async () => {
    setBusy(true);
    setError(null);
    try {
      await openPerfetto(() => getBinary(path, { format: "perfetto", ...part }), s.service || s.id);
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  return (
    <Menu label="Export">
      {shown && (
        <label>
          <input
            type="checkbox"
            checked={!search.whole}
            onChange={(e) =>
              navigate({
                to: ".",
                search: ((o: object) => ({ ...o, whole: e.target.checked ? undefined : "1" })) as never,
                replace: true,
              })
            }
          />{" "}
          only the interval of the view, {duration(shown.to - shown.from)}
        </label>
      )}
      <button type="button" className={ui.button} disabled={busy} onClick={perfetto} title={perfettoOrigin}>
        {busy ? "Opening…" : "Open in Perfetto"}
      </button>
      <small>Opens ui.perfetto.dev. The trace stays in this browser.</small>
      {error !== null && <Failure error={error} />}
      <ul>
        {formats.map(([format, name, use]) => (
          <li key={format}>
            <a href={url(path, { format, ...part })} download>
              {name}
            </a>
            <small>{use}</small>
          </li>
        ))}
        <li>
          <a href={url(path)} download>
            Session file
          </a>
          <small>all data, for gpuflight view and the first page</small>
        </li>
      </ul>
    </Menu>
  );
}
