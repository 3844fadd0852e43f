// SPDX-License-Identifier: Apache-2.0
import { useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { type Schemas, send } from "../api/client";
import { useGet } from "../api/hooks";
import { ago, bytes, compact, count, duration, exactDuration, instant, percent } from "../lib/format";
import { midnight } from "../lib/search";
import { Badge, Bar, Copy, Failure, LiveMark, Loading, Message, num, row, SearchBox, ui } from "../ui/parts";
import { useMay } from "./Login";

type Session = Schemas["Session"];

/** Sessions lists the sessions of the store, newest first. */
export function Sessions() {
  const search = useSearch({ from: "/" });
  const navigate = useNavigate({ from: "/" });
  const client = useQueryClient();
  const admin = useMay("admin");
  const filter = {
    q: search.q,
    host: search.host,
    service: search.service,
    run: search.run,
    from: midnight(search.since),
    to: midnight(search.until, 1),
  };
  const page = useGet("/sessions", {}, { ...filter, limit: 100, cursor: search.cursor }, { every: 2000 });
  useEffect(() => {
    document.title = "Sessions · gpuflight";
  }, []);
  const sessions = page.data?.sessions ?? [];
  const filtered = Object.values(filter).some(Boolean);
  if (page.error && !page.data) return <Failure error={page.error} />;
  if (!page.data) return <Loading />;
  if (!sessions.length && !filtered && !search.cursor) return <FirstPage />;
  const filterBy = (change: Partial<typeof search>) =>
    navigate({ search: (o) => ({ ...o, ...change, cursor: undefined }), replace: true });
  const pin = async (s: Session) => {
    await send(s.pinned ? "DELETE" : "PUT", `/sessions/${encodeURIComponent(s.id)}/pin`);
    await client.invalidateQueries({ queryKey: ["/sessions"] });
  };
  return (
    <div className={ui.page}>
      <div className={ui.row}>
        <h1>Sessions</h1>
        <span className={ui.muted}>one run of one process, newest first</span>
        <span className={ui.spacer} />
        {(["service", "host", "run"] as const).map(
          (k) =>
            search[k] && (
              <Link
                key={k}
                to="/"
                search={(o) => ({ ...o, [k]: undefined, cursor: undefined })}
                className={ui.badge}
                aria-label={`Remove the filter ${k}`}
              >
                {k}: {search[k]} ✕
              </Link>
            ),
        )}
        {(
          [
            ["since", "from"],
            ["until", "to"],
          ] as const
        ).map(([k, text]) => (
          <label key={k} className={ui.muted}>
            {text}{" "}
            <input
              type="date"
              className={ui.input}
              style={{ width: 140 }}
              value={search[k] ?? ""}
              onChange={(e) => filterBy({ [k]: e.target.value || undefined })}
            />
          </label>
        ))}
        <SearchBox label="Search sessions" value={search.q ?? ""} onChange={(q) => filterBy({ q: q || undefined })} />
      </div>
      {search.a && (
        <Link to="/" search={(o) => ({ ...o, a: undefined })}>
          <Badge tone="warn">choose the session to compare with {search.a.slice(0, 8)} ✕</Badge>
        </Link>
      )}
      <div className={`${ui.card} ${ui.tableScroll}`}>
        <table className={ui.table} aria-label="Sessions">
          <thead>
            <tr>
              <th scope="col">Application</th>
              <th scope="col">Started</th>
              <th scope="col" className={ui.right}>
                Duration
              </th>
              <th scope="col" className={ui.right}>
                Kernels
              </th>
              <th scope="col">Kernel time</th>
              <th scope="col" className={`${ui.right} ${ui.wide}`}>
                Copies
              </th>
              <th
                scope="col"
                className={`${ui.right} ${ui.wide}`}
                title="Of deep-profiling windows: samples of instructions and counters of the hardware"
              >
                Code samples
                <br />
                and counters
              </th>
              <th scope="col" className={ui.wide}>
                Host · run
              </th>
              <th scope="col" className={`${ui.right} ${ui.wide}`}>
                Size on disk
              </th>
              <th scope="col">
                <span className="visually-hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {sessions.map((s) => (
              <Row key={s.id} s={s} pin={admin ? () => pin(s) : undefined} compareWith={search.a} />
            ))}
          </tbody>
        </table>
        {!sessions.length && <Message>No session matches the filter.</Message>}
      </div>
      <div className={ui.row}>
        {search.cursor && (
          <Link to="/" search={(o) => ({ ...o, cursor: undefined })} className={ui.button}>
            Newest
          </Link>
        )}
        {page.data.next && (
          <Link to="/" search={(o) => ({ ...o, cursor: page.data?.next })} className={ui.button}>
            Older
          </Link>
        )}
      </div>
    </div>
  );
}

function Row({ s, pin, compareWith }: { s: Session; pin: (() => void) | undefined; compareWith: string | undefined }) {
  const kernels = s.operations.kernel ?? 0;
  const copies = s.operations.memcpy ?? 0;
  const share = s.duration_ns > 0 ? s.kernel_ns / s.duration_ns : 0;
  return (
    <tr data-session={s.id} {...row({ ns: s.kernel_ns, kernels })}>
      <td>
        <div className={ui.row}>
          <Link to="/sessions/$session/timeline" params={{ session: s.id }} search={{} as never}>
            <strong>{s.service || "unnamed"}</strong>
          </Link>
          {s.live && <LiveMark />}
          {!s.live && !s.ended && (
            <Badge title="The recording has no end. The process was killed, or its last data is missing.">no end</Badge>
          )}
        </div>
        <div className={ui.row}>
          {s.service && (
            <Link
              to="/"
              search={(o) => ({ ...o, service: s.service, cursor: undefined })}
              title={`Only sessions of ${s.service}`}
            >
              filter
            </Link>
          )}
          {s.rank !== undefined &&
            (s.run ? (
              <Link to="/ranks" search={{ run: s.run } as never} title="Which rank of the run the others waited for">
                rank {s.rank}
              </Link>
            ) : (
              <span className={ui.muted}>rank {s.rank}</span>
            ))}
          <span className={`${ui.muted} ${ui.mono}`}>{s.id.length > 20 ? `${s.id.slice(0, 13)}…` : s.id}</span>
        </div>
      </td>
      <td className={ui.nowrap} title={instant(s.start, true)}>
        {instant(s.start)}
        <br />
        <span className={ui.muted}>{ago(s.start, Date.now())}</span>
      </td>
      <td className={ui.right} title={exactDuration(s.duration_ns)}>
        {duration(s.duration_ns)}
      </td>
      <td className={ui.right}>
        <Link
          to="/sessions/$session/kernels"
          params={{ session: s.id }}
          search={{} as never}
          {...num("kernels", kernels)}
          title={count(kernels)}
        >
          {compact(kernels)}
        </Link>
      </td>
      <td className={ui.nowrap} title={`${exactDuration(s.kernel_ns)}. Kernels that overlap each count in full.`}>
        <Link
          to="/sessions/$session/launches"
          params={{ session: s.id }}
          search={{ operation: "kernel", sort: "duration" } as never}
          {...num("ns", s.kernel_ns)}
        >
          {duration(s.kernel_ns)}
        </Link>{" "}
        <span className={ui.muted}>{percent(share)}</span>
        <Bar share={share} />
      </td>
      <td className={`${ui.right} ${ui.wide}`}>
        <Link
          to="/sessions/$session/launches"
          params={{ session: s.id }}
          search={{ operation: "memcpy" } as never}
          {...num("rows", copies)}
        >
          {compact(copies)}
        </Link>
      </td>
      <td className={`${ui.right} ${ui.wide}`}>
        <Link
          to="/sessions/$session/code"
          params={{ session: s.id }}
          search={{} as never}
          {...num("records", s.counts.samples)}
        >
          {compact(s.counts.samples)}
        </Link>
      </td>
      <td className={ui.wide}>
        {s.host && (
          <Link to="/" search={(o) => ({ ...o, host: s.host, cursor: undefined })}>
            {s.host}
          </Link>
        )}
        {s.run && (
          <>
            {" · "}
            <Link to="/" search={(o) => ({ ...o, run: s.run, cursor: undefined })} title={s.run}>
              {s.run.length > 20 ? `${s.run.slice(0, 19)}…` : s.run}
            </Link>
          </>
        )}
      </td>
      <td className={`${ui.right} ${ui.wide} ${ui.muted}`}>{s.bytes ? bytes(s.bytes) : ""}</td>
      <td className={ui.right}>
        {compareWith === s.id ? null : compareWith ? (
          <Link to="/compare" search={{ a: compareWith, b: s.id } as never} className={ui.button}>
            Compare
          </Link>
        ) : (
          <Link to="/" search={(o) => ({ ...o, a: s.id })} title="Compare with another session">
            Compare
          </Link>
        )}
        {!compareWith && (
          <button
            type="button"
            className={ui.icon}
            disabled={!pin}
            aria-pressed={s.pinned}
            aria-label={`Pin ${s.service || s.id}`}
            onClick={pin}
            title="Retention does not delete a pinned session"
          >
            {s.pinned ? "★" : "☆"}
          </button>
        )}
      </td>
    </tr>
  );
}

const record = "gpuflight trace -- python train.py";

/** FirstPage says how to get data. */
function FirstPage() {
  const client = useQueryClient();
  const navigate = useNavigate();
  const admin = useMay("admin");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const add = async (path: "/import" | "/demo", file?: File) => {
    setBusy(true);
    setError(null);
    try {
      const r = (await send("POST", path, file)) as Schemas["Imported"];
      await navigate({ to: "/sessions/$session/timeline", params: { session: r.session }, search: {} as never });
      await client.invalidateQueries();
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  return (
    <div className={ui.page}>
      <h1>There is no session yet</h1>
      <p className={ui.muted}>This page shows a session as soon as its first data arrives.</p>
      {error !== null && <Failure error={error} />}
      <div className={ui.steps}>
        <section className={ui.card}>
          <h2>Look at a demo</h2>
          <p>
            Sessions that were recorded on an NVIDIA H200: a training in PyTorch, an HTTP server and vector additions.
            They come with the Collector, and you can delete them like others.
          </p>
          <button
            type="button"
            className={`${ui.button} ${ui.primary}`}
            disabled={busy || !admin}
            onClick={() => add("/demo")}
          >
            {busy ? "Loading…" : "Load the demo"}
          </button>
        </section>
        <section className={ui.card}>
          <h2>Open an exported session</h2>
          <p>A file that another Collector exported, for example from a colleague.</p>
          <input
            type="file"
            aria-label="File of an exported session"
            disabled={busy || !admin}
            onChange={(e) => e.target.files?.[0] && add("/import", e.target.files[0])}
          />
        </section>
        <section className={ui.card}>
          <h2>Record a program</h2>
          <p>The program stays unchanged. It needs an NVIDIA GPU.</p>
          <pre className={ui.pre}>{record}</pre>
          <Copy text={record} label="Copy" />
        </section>
        <section className={ui.card}>
          <h2>Read GPU Flight logs</h2>
          <p>
            Configure the receiver <code>gpuflog</code> with the folder of the logs.
          </p>
          <pre className={ui.pre}>{"receivers:\n  gpuflog:\n    include: [/var/log/gpuflight]"}</pre>
        </section>
      </div>
    </div>
  );
}
