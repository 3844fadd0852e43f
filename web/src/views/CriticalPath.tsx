// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type Answer, ApiError } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { css, pathColor } from "../lib/color";
import { count, duration, exactDuration, percent, words } from "../lib/format";
import type { View } from "../lib/scale";
import { Loading, num, row, ui } from "../ui/parts";
import { useDark } from "../ui/theme";
import { toSpan } from "./Inspector";
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
  const { kind } = useSearch({ from: "/sessions/$session/timeline" });
  const chosen = path.kinds.find((k) => k.kind === kind);
  const parts = chosen ? path.parts.filter((p) => p.kind === kind) : path.parts;
  const listed = parts.slice(0, maxListed);
  const rest = (chosen ? chosen.ns : path.to - path.from) - listed.reduce((n, p) => n + p.duration_ns, 0);
  const total = Math.max(1, path.to - path.from);
  const sessions = new Set(path.parts.map((p) => p.session)).size;
  return (
    <>
      <table className={ui.table} aria-label="Critical path by kind">
        <thead>
          <tr>
            <th scope="col">Kind</th>
            <th scope="col" className={ui.right}>
              Time
            </th>
            <th scope="col" className={ui.right}>
              Share
            </th>
          </tr>
        </thead>
        <tbody>
          {path.kinds.map((k) => (
            <tr key={k.kind}>
              <td title={k.text}>
                <span className={ui.swatch} style={{ background: css(pathColor(k.kind, dark)) }} /> {words(k.kind)}
              </td>
              <td className={ui.right} title={exactDuration(k.ns)}>
                <Link
                  to="."
                  replace
                  search={((o: Record<string, unknown>) => ({ ...o, kind: k.kind })) as never}
                  {...num("sum", k.ns, "path")}
                >
                  {duration(k.ns)}
                </Link>
              </td>
              <td className={ui.right}>{percent(k.ns / total)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {path.parts.some((p) => p.assumed) && (
        <p className={ui.muted}>Launch times or waits of the host are missing, so parts of the order are assumed.</p>
      )}
      {chosen && (
        <Link
          to="."
          replace
          search={((o: Record<string, unknown>) => ({ ...o, kind: undefined })) as never}
          title="Remove this filter"
        >
          only {words(chosen.kind)} ✕
        </Link>
      )}
      <ol className={t.chain} aria-label="Parts of the critical path">
        {listed.map((p) => {
          const cited = p.spans[0];
          const label = `${words(p.kind)}${p.name ? ` ${p.name}` : ""}`;
          const own = !p.session || p.session === id;
          return (
            <li key={p.start} {...row({ values: { path: p.duration_ns } })}>
              <span className={ui.name} title={label}>
                <span className={ui.swatch} style={{ background: css(pathColor(p.kind, dark)) }} />{" "}
                {cited ? (
                  <Link
                    to="/sessions/$session/timeline"
                    params={{ session: p.session || id }}
                    search={
                      ((o: Record<string, unknown>) =>
                        !own
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
                {sessions > 1 && !own && <span className={ui.muted}> in {p.session.slice(0, 8)}</span>}
              </span>
              <span className={ui.muted} style={{ whiteSpace: "nowrap" }} title={exactDuration(p.duration_ns)}>
                {own && p.start >= 0 ? (
                  <Link
                    to="/sessions/$session/timeline"
                    params={{ session: id }}
                    search={
                      {
                        ...toSpan(undefined, p.start, p.duration_ns, { from: 0, to: Number.MAX_SAFE_INTEGER }),
                        at: undefined,
                        m0: p.start,
                        m1: p.start + p.duration_ns,
                      } as never
                    }
                    {...num("sum", p.duration_ns, "length")}
                  >
                    {duration(p.duration_ns)}
                  </Link>
                ) : (
                  duration(p.duration_ns)
                )}
              </span>
            </li>
          );
        })}
      </ol>
      {rest > 0 && (
        <p className={ui.muted} title={exactDuration(rest)} {...row({ values: { path: rest } })}>
          {chosen ? "Others" : `${count(path.parts.length + path.more_parts - listed.length)} others`}: {duration(rest)}
        </p>
      )}
    </>
  );
}
