// SPDX-License-Identifier: Apache-2.0
import { useIsFetching } from "@tanstack/react-query";
import { Link, Outlet, useLocation, useMatchRoute, useParams, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { Account, LoginGate } from "../views/Login";
import { ui } from "./parts";
import { setTheme, type Theme, useTheme } from "./theme";

const next: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };

const views = [
  ["timeline", "Timeline"],
  ["findings", "Findings"],
  ["kernels", "Kernels"],
  ["scopes", "Scopes"],
  ["system", "System"],
  ["code", "Code"],
] as const;

/** Busy marks the page while it waits for data. Only this component renders when that changes. */
function Busy() {
  const busy = useIsFetching() > 0;
  useEffect(() => document.getElementById("main")?.setAttribute("aria-busy", String(busy)), [busy]);
  return null;
}

/** nextRow moves the focus to the same column of the row above or below in a table. */
function nextRow(e: KeyboardEvent) {
  const step = e.key === "ArrowDown" ? 1 : e.key === "ArrowUp" ? -1 : 0;
  const cell = e.target instanceof HTMLAnchorElement ? e.target.closest<HTMLTableCellElement>("td, th") : null;
  const rows = [...(cell?.closest("table")?.rows ?? [])];
  if (!step || !cell || e.ctrlKey || e.metaKey || e.altKey || e.shiftKey) return;
  for (let i = rows.findIndex((r) => r.contains(cell)) + step; rows[i]; i += step) {
    const link = rows[i]?.cells[cell.cellIndex]?.querySelector("a") ?? rows[i]?.querySelector("a");
    if (!link) continue;
    link.focus();
    e.preventDefault();
    return;
  }
}

/** tables are the page's tables with links, by name. Those of several devices have numbers. */
function tables(): [name: string, table: Element][] {
  const all = [...document.querySelectorAll("main table[aria-label]")].filter((t) => t.querySelector("tbody a"));
  const names = all.map((t) => String(t.getAttribute("aria-label")));
  return all.map((t, i) => {
    const name = names[i] as string;
    const number = names.slice(0, i + 1).filter((n) => n === name).length;
    return [names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} ${number}`, t];
  });
}

/** Skips are hidden links to the content and to each table. The Tab key shows them. */
function Skips() {
  const page = useLocation({ select: (l) => `${l.pathname} ${(l.search as { list?: string }).list}` });
  const nav = useRef<HTMLElement>(null);
  const last = useRef(page);
  const key = useRef(false);
  useEffect(() => {
    const input = (e: Event) => {
      key.current = e.type === "keydown";
    };
    for (const type of ["keydown", "pointerdown"]) window.addEventListener(type, input, true);
    return () => {
      for (const type of ["keydown", "pointerdown"]) window.removeEventListener(type, input, true);
    };
  }, []);
  useEffect(() => {
    if (last.current === page) return;
    last.current = page;
    const main = document.getElementById("main");
    main?.scrollTo(0, 0);
    // A page that a key opens begins here, as after a load. After a click, keys scroll the content.
    const begin = key.current ? nav.current : main;
    begin?.focus({ preventScroll: true });
  }, [page]);
  const [list, setList] = useState<ReturnType<typeof tables>>([]);
  const loading = useIsFetching();
  // biome-ignore lint/correctness/useExhaustiveDependencies: data can bring tables
  useEffect(() => setList(tables()), [loading]);
  return (
    <nav ref={nav} className={ui.skips} aria-label="Skip" tabIndex={-1} onFocus={() => setList(tables())}>
      <a className={ui.skip} href="#main">
        Skip to the content
      </a>
      {list.map(([name, table]) => (
        <button
          key={name}
          type="button"
          className={ui.skip}
          onClick={() => table.querySelector<HTMLElement>("tbody a")?.focus()}
        >
          Skip to the table{list.length > 1 ? `: ${name}` : ""}
        </button>
      ))}
    </nav>
  );
}

/** Shell is the frame around all pages. */
export function Shell() {
  const theme = useTheme();
  const [help, setHelp] = useState(false);
  const { session } = useParams({ strict: false });
  const search = useSearch({ strict: false }) as { from?: number; to?: number };
  const match = useMatchRoute();
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (e.key === "?" && !(e.target instanceof HTMLInputElement)) setHelp((h) => !h);
      nextRow(e);
    };
    window.addEventListener("keydown", key);
    return () => window.removeEventListener("keydown", key);
  }, []);
  // On a phone the bar of views scrolls.
  const { pathname } = useLocation();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the current view changes with the path
  useEffect(() => {
    nav.current?.querySelector("[aria-current=page]")?.scrollIntoView({ inline: "center", block: "nearest" });
  }, [pathname]);
  // The views of a session share the interval.
  const shared = search.from !== undefined && search.to !== undefined ? { from: search.from, to: search.to } : {};
  const onTimeline = !!match({ to: "/sessions/$session/timeline" });
  return (
    <div className={ui.shell}>
      <Skips />
      <header className={ui.header}>
        <Link to="/" search={{} as never} className={ui.brand} aria-label="gpuflight: all sessions">
          <img src="/icon.svg" width="22" height="22" alt="" />
          <span>gpuflight</span>
        </Link>
        <nav ref={nav} className={ui.nav} aria-label="Views">
          <Link to="/" search={{} as never} activeOptions={{ exact: true, includeSearch: false }}>
            Sessions
          </Link>
          {session &&
            views.map(([to, label]) => (
              <Link
                key={to}
                to={`/sessions/$session/${to}`}
                params={{ session }}
                search={
                  (to === "timeline" || to === "findings" || to === "kernels" || to === "system" ? shared : {}) as never
                }
                activeOptions={{ includeSearch: false }}
              >
                {label}
              </Link>
            ))}
          <Link
            to="/compare"
            search={(session ? { a: session } : {}) as never}
            activeOptions={{ includeSearch: false }}
          >
            Compare
          </Link>
          <Link to="/usage" search={{} as never} activeOptions={{ includeSearch: false }}>
            Usage
          </Link>
        </nav>
        <span className={ui.spacer} />
        <Account />
        <button type="button" className={ui.icon} onClick={() => setHelp(true)} aria-label="Keyboard shortcuts">
          ?
        </button>
        <button
          type="button"
          className={ui.icon}
          onClick={() => setTheme(next[theme])}
          title={`Theme: ${theme}. Click for ${next[theme]}.`}
          aria-label={`Theme: ${theme}. Switch to ${next[theme]}`}
        >
          {theme === "auto" ? "◐" : theme === "light" ? "☀" : "☾"}
        </button>
      </header>
      <main id="main" className={`${ui.main} ${onTimeline ? ui.fixed : ""}`} tabIndex={-1}>
        <LoginGate>
          <Outlet />
        </LoginGate>
      </main>
      <Busy />
      {help && <Help close={() => setHelp(false)} />}
    </div>
  );
}

const keys: [string, string][] = [
  ["W S or wheel", "zoom in, zoom out"],
  ["A D or ← →", "move left, move right; with a selection, ← → go to the neighbour in the lane"],
  ["drag", "move"],
  ["Shift + drag, or M twice", "measure an interval; M takes the pointer, or the centre of the view"],
  ["F or double click", "fit the selection"],
  ["0", "show the whole session"],
  ["N, Shift + N", "next and previous match of the search"],
  ["/", "search"],
  ["Tab, Enter", "at the top of a page: skip to the content, or with Tab again to one of its tables"],
  ["↑ ↓", "in a table, the link of the row above or below"],
  ["Escape", "clear selection and measurement"],
  ["?", "this list"],
];

function Help({ close }: { close: () => void }) {
  useEffect(() => {
    const key = (e: KeyboardEvent) => e.key === "Escape" && close();
    window.addEventListener("keydown", key);
    return () => window.removeEventListener("keydown", key);
  }, [close]);
  return (
    <dialog
      ref={(d) => {
        if (d && !d.open) d.showModal();
      }}
      onClose={close}
      aria-label="Keyboard shortcuts"
    >
      <h2>Keyboard</h2>
      <dl className={ui.dl}>
        {keys.map(([k, text]) => [
          <dt key={k}>
            <kbd>{k}</kbd>
          </dt>,
          <dd key={text}>{text}</dd>,
        ])}
      </dl>
      <form method="dialog">
        <button type="submit" className={ui.button}>
          Close
        </button>
      </form>
    </dialog>
  );
}
