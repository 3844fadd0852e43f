// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type Answer, ApiError } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { css, pathColor } from "../lib/color";
import { duration, exactDuration, percent } from "../lib/format";
import type { View } from "../lib/scale";
import { Loading, ui } from "../ui/parts";
import { useDark } from "../ui/theme";
import t from "./timeline.module.css";

export type Path = Answer<"/sessions/{session}/analysis/critical">;

/** Subject is what a path is of: a scope or request, or a step of a device. */
export type Subject = { span: string; at: number | undefined } | { range: View };

/** usePath reads a critical path if there is a subject. */
export function usePath(subject: Subject | undefined) {
  const { id, base } = useSession();
  const of =
    subject === undefined
      ? {}
      : "span" in subject
        ? { span: subject.span, at: subject.at }
        : { from: subject.range.from, to: subject.range.to };
  return useGet(
    "/sessions/{session}/analysis/critical",
    { session: id },
    { base, ...of },
    { enabled: subject !== undefined },
  );
}

/** maxListed bounds the parts of the list. */
const maxListed = 200;

/** CriticalPath is a section of the inspector: what determined how long something took. */
export function CriticalPath({ subject }: { subject: Subject }) {
  const search = useSearch({ from: "/sessions/$session/timeline" });
  const navigate = useNavigate({ from: "/sessions/$session/timeline" });
  const open = search.path === "1";
  const q = usePath(open ? subject : undefined);
  return (
    <section aria-label="Critical path">
      <div className={ui.row}>
        <h3>Critical path</h3>
        <span className={ui.spacer} />
        <button
          type="button"
          className={ui.button}
          onClick={() => navigate({ search: (o) => ({ ...o, path: open ? undefined : "1" }), replace: true })}
        >
          {open ? "Hide" : "Show"}
        </button>
      </div>
      {open && q.error && !q.isPlaceholderData ? (
        <p className={ui.muted}>{q.error instanceof ApiError ? q.error.message : "The Collector does not answer."}</p>
      ) : open && (!q.data || q.isPlaceholderData) ? (
        <Loading />
      ) : open && q.data ? (
        <Parts path={q.data} />
      ) : null}
    </section>
  );
}

function Parts({ path }: { path: Path }) {
  const { id } = useSession();
  const dark = useDark();
  const total = Math.max(1, path.to - path.from);
  const sessions = new Set(path.parts.map((p) => p.session)).size;
  return (
    <>
      <table className={ui.table} aria-label="Critical path by kind">
        <tbody>
          {path.kinds.map((k) => (
            <tr key={k.kind}>
              <td title={k.text}>
                <span className={ui.swatch} style={{ background: css(pathColor(k.kind, dark)) }} /> {k.kind}
              </td>
              <td className={ui.right} title={exactDuration(k.ns)}>
                {duration(k.ns)}
              </td>
              <td className={ui.right}>{percent(k.ns / total)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {path.missing ? (
        <p className={ui.muted}>{path.missing.text} A device can have worked in the unknown parts.</p>
      ) : path.parts.some((p) => p.assumed) ? (
        <p className={ui.muted}>Launch times or waits of the host are missing, so parts of the order are assumed.</p>
      ) : null}
      <ol className={t.chain} aria-label="Parts of the critical path">
        {path.parts.slice(0, maxListed).map((p) => {
          const cited = p.spans[0];
          const label = `${p.kind}${p.name ? ` ${p.name}` : ""}`;
          return (
            <li key={p.start}>
              <span className={ui.name} title={label}>
                <span className={ui.swatch} style={{ background: css(pathColor(p.kind, dark)) }} />{" "}
                {cited ? (
                  <Link
                    to="/sessions/$session/timeline"
                    params={{ session: p.session || id }}
                    search={
                      ((o: Record<string, unknown>) =>
                        p.session && p.session !== id
                          ? { sel: cited.span }
                          : {
                              ...o,
                              sel: cited.span,
                              at: String(cited.start),
                              path: undefined,
                              m0: undefined,
                              m1: undefined,
                            }) as never
                    }
                  >
                    {label}
                  </Link>
                ) : (
                  label
                )}
                {sessions > 1 && p.session && p.session !== id && (
                  <span className={ui.muted}> in {p.session.slice(0, 8)}</span>
                )}
              </span>
              <span className={ui.muted} style={{ whiteSpace: "nowrap" }} title={exactDuration(p.duration_ns)}>
                {duration(p.duration_ns)}
              </span>
            </li>
          );
        })}
      </ol>
      {path.parts.length + path.more_parts > maxListed && (
        <p className={ui.muted}>{path.parts.length + path.more_parts - maxListed} more parts</p>
      )}
    </>
  );
}
