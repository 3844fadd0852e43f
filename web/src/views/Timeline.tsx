// SPDX-License-Identifier: Apache-2.0
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { get } from "../api/client";
import { useGet, useSession } from "../api/hooks";
import { css, families, oklch } from "../lib/color";
import { count, duration, exactDuration, offset, percent, plural } from "../lib/format";
import { around, clamp, pan, rounded, toNs, type View, zoom } from "../lib/scale";
import { lastBefore } from "../lib/search";
import { buildTracks, denseLanes, prepare, shown, useMetrics, useTimeline, withPath } from "../timeline/data";
import { hit, type Item, Painter, type Scene, type Track } from "../timeline/draw";
import { Failure, SearchBox, ui } from "../ui/parts";
import { useDark } from "../ui/theme";
import { usePath } from "./CriticalPath";
import { Inspector, Measured, toSpan } from "./Inspector";
import t from "./timeline.module.css";

/** same says that two scenes have the same picture. */
const same = (a: Scene, b: Scene | undefined): boolean =>
  b !== undefined &&
  a.tracks === b.tracks &&
  JSON.stringify({ ...a, tracks: undefined }) === JSON.stringify({ ...b, tracks: undefined });

interface Tip {
  x: number;
  y: number;
  title: string;
  lines: string[];
}

/** unmeasured is the search without a measured interval. */
const unmeasured = { m0: undefined, m1: undefined, step: undefined };

/** Timeline shows what ran when. The URL has the view, the selection, the search and the measurement. */
export function Timeline() {
  const session = useSession();
  const search = useSearch({ from: "/sessions/$session/timeline" });
  const navigate = useNavigate({ from: "/sessions/$session/timeline" });
  const dark = useDark();
  const length = session.overview.session.duration_ns;
  const first = session.overview.lanes.reduce((n, l) => Math.min(n, l.first), 0);
  const last = session.overview.lanes.reduce((n, l) => Math.max(n, l.last), length);
  const extent = useMemo<View>(() => ({ from: Math.min(first, 0), to: Math.max(last, 1) }), [first, last]);
  const margin = (extent.to - extent.from) * 0.01;
  const whole = useMemo<View>(() => ({ from: extent.from - margin, to: extent.to + margin }), [extent, margin]);
  const fromUrl = search.from !== undefined && search.to !== undefined;
  const [view, setViewState] = useState<View>(
    fromUrl ? clamp({ from: search.from as number, to: search.to as number }, whole) : whole,
  );
  const viewRef = useRef(view);
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [scroll, setScroll] = useState(0);
  const [hover, setHover] = useState("");
  const [cursor, setCursor] = useState<number | null>(null);
  const [tip, setTip] = useState<Tip | null>(null);
  const [drag, setDrag] = useState<View | null>(null);
  const [measuring, setMeasuring] = useState(false); // the next drag measures
  const [mark, setMark] = useState<number | null>(null); // where the key M began a measurement
  const canvas = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const painter = useRef(new Painter());

  // A live session grows. The whole view follows it.
  const follow = useRef(!fromUrl);
  useEffect(() => {
    if (follow.current) {
      viewRef.current = whole;
      setViewState(whole);
    }
  }, [whole]);

  // A frame draws the latest view and nothing else. React follows when the view rests, and three times a second
  // while it moves: it loads data and renders what is said about the view.
  const frame = useRef(0);
  const paint = useRef(() => {});
  const schedule = useCallback(() => {
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      paint.current();
    });
  }, []);
  useEffect(
    () => () => {
      cancelAnimationFrame(frame.current);
      frame.current = 0;
    },
    [],
  );
  const pending = useRef<ReturnType<typeof setTimeout>>(undefined);
  const following = useRef<ReturnType<typeof setTimeout>>(undefined);
  const moving = useRef<number>(undefined);
  const written = useRef("");
  const setView = useCallback(
    (v: View) => {
      viewRef.current = v;
      schedule();
      const now = performance.now();
      moving.current ??= now;
      clearTimeout(following.current);
      following.current = setTimeout(
        () => {
          moving.current = undefined;
          setViewState(viewRef.current);
        },
        Math.min(80, moving.current + 330 - now),
      );
      follow.current = v.from <= whole.from && v.to >= whole.to;
      clearTimeout(pending.current);
      pending.current = setTimeout(() => {
        const r = rounded(v);
        const all = follow.current;
        written.current = all ? "" : `${Math.max(0, r.from)}-${r.to}`;
        navigate({
          search: (o) => ({ ...o, from: all ? undefined : Math.max(0, r.from), to: all ? undefined : r.to }),
          replace: true,
        });
      }, 200);
    },
    [navigate, whole, schedule],
  );
  useEffect(
    () => () => {
      clearTimeout(pending.current);
      clearTimeout(following.current);
      moving.current = undefined;
    },
    [],
  );
  // A link or the back button changes the URL from outside.
  useEffect(() => {
    const key = search.from !== undefined && search.to !== undefined ? `${search.from}-${search.to}` : "";
    if (key === written.current) return;
    written.current = key;
    const v = key ? clamp({ from: search.from as number, to: search.to as number }, whole) : whole;
    follow.current = !key;
    viewRef.current = v;
    setViewState(v);
  }, [search.from, search.to, whole]);

  useLayoutEffect(() => {
    const el = scroller.current;
    if (!el) return;
    const measure = () => {
      const left = window.innerWidth <= 820 ? 96 : 150;
      setSize({ width: Math.max(50, el.clientWidth - left), height: el.clientHeight });
    };
    measure();
    const o = new ResizeObserver(measure);
    o.observe(el);
    return () => o.disconnect();
  }, []);

  const data = useTimeline(session, view, extent, size.width);
  const metrics = useMetrics(session, extent, dark);
  const { columns, spans, gaps } = data;
  const prepared = useMemo(() => prepare({ columns, spans, gaps }, dark), [columns, spans, gaps, dark]);
  const denseIds = denseLanes(prepared, view, size.width);
  const plain = useMemo(
    () => buildTracks(session.overview, prepared, metrics.tracks, denseIds),
    [session.overview, prepared, metrics.tracks, denseIds],
  );
  // The path of the selected scope or request, or of the measured step.
  const scopeSelected = plain.some((x) => x.kind === "spans" && x.items.some((i) => i.id === search.sel));
  const subject =
    search.path === undefined
      ? undefined
      : search.sel !== undefined
        ? scopeSelected
          ? { span: search.sel, at: search.at === undefined ? undefined : Number(search.at) }
          : undefined
        : search.m0 !== undefined && search.m1 !== undefined
          ? { range: { from: search.m0, to: search.m1 } }
          : undefined;
  const path = usePath(subject);
  const pathData = subject && !path.isPlaceholderData ? path.data : undefined;
  const tracks = useMemo(
    () => (pathData ? withPath(plain, pathData, session.id, dark) : plain),
    [plain, pathData, session.id, dark],
  );
  const total = tracks.reduce((n, x) => Math.max(n, x.top + x.height), 0) + 34;
  // The URL has the vertical position. It is restored once the tracks are high enough, also after the browser's
  // back button.
  const scrolled = useRef<ReturnType<typeof setTimeout>>(undefined);
  const wanted = useRef(search.y);
  const writtenY = useRef(search.y);
  useLayoutEffect(() => {
    const el = scroller.current;
    if (search.y !== writtenY.current) {
      writtenY.current = search.y;
      wanted.current = search.y ?? 0;
      clearTimeout(scrolled.current);
    }
    if (!el || wanted.current === undefined || total < wanted.current + el.clientHeight) return;
    el.scrollTop = wanted.current;
    wanted.current = undefined;
  }, [total, search.y]);
  useEffect(() => () => clearTimeout(scrolled.current), []);
  const onScroll = (top: number) => {
    setScroll(top);
    if (wanted.current !== undefined) return;
    clearTimeout(scrolled.current);
    scrolled.current = setTimeout(() => {
      writtenY.current = Math.round(top) || undefined;
      navigate({ search: (o) => ({ ...o, y: writtenY.current }), replace: true });
    }, 200);
  };
  const items = useMemo(() => tracks.flatMap((x) => x.items), [tracks]);
  const selected = search.sel ?? "";
  const selectedTrack = selected ? tracks.find((x) => x.items.some((i) => i.id === selected)) : undefined;
  const selectedItem = selectedTrack?.items.find((i) => i.id === selected);
  const launchAt = useMemo(() => {
    const s = data.columns?.slices;
    if (!s || !selected) return null;
    const i = s.span.indexOf(BigInt(`0x${selected}`));
    const at = i >= 0 ? s.launch_start[i] : undefined;
    return at !== undefined && !Number.isNaN(at) ? at : null;
  }, [data.columns, selected]);
  const range =
    drag ?? (search.m0 !== undefined && search.m1 !== undefined ? { from: search.m0, to: search.m1 } : null);
  const match = (search.q ?? "").toLowerCase();
  const matches = useMemo(
    () => (match ? items.filter((i) => i.kind !== "gap" && i.name.toLowerCase().includes(match)) : []),
    [items, match],
  );

  const scene: Scene = {
    width: size.width,
    height: Math.max(size.height, 60),
    dpr: window.devicePixelRatio || 1,
    view,
    scroll,
    tracks,
    dark,
    selected,
    hover,
    match,
    range,
    cursor,
    launch:
      selectedItem && selectedTrack && launchAt !== null
        ? { at: launchAt, start: selectedItem.start, track: selectedTrack.key, row: selectedItem.row }
        : null,
  };
  const sceneRef = useRef(scene);
  sceneRef.current = scene;

  /** current is the scene of the next frame: its view can be newer than that of the last render. */
  const current = (): Scene => ({ ...sceneRef.current, view: viewRef.current });
  const painted = useRef<Scene>(undefined);
  paint.current = () => {
    const c = canvas.current;
    const ctx = c?.getContext("2d", { alpha: false });
    const s = current();
    if (!c || !ctx || !s.width || same(s, painted.current)) return;
    painted.current = s;
    const begin = performance.now();
    const w = Math.round(s.width * s.dpr);
    const h = Math.round(s.height * s.dpr);
    if (c.width !== w || c.height !== h) {
      c.width = w;
      c.height = h;
    }
    painter.current.paint(ctx, s);
    c.dataset.frame = (performance.now() - begin).toFixed(2);
  };
  useLayoutEffect(schedule);

  const select = useCallback(
    (i: Item | null) => {
      setTip(null);
      setMark(null);
      setMeasuring(false);
      if (i && i.kind !== "gap")
        navigate({
          search: (o) => ({ ...o, sel: i.id, at: String(i.at ?? i.start), ...unmeasured }),
          replace: true,
        });
      else if (i)
        navigate({
          search: (o) => ({ ...o, ...unmeasured, sel: undefined, at: undefined, m0: Math.max(0, i.start), m1: i.end }),
          replace: true,
        });
      else
        navigate({
          search: (o) => ({ ...o, sel: undefined, at: undefined, ...unmeasured }),
          replace: true,
        });
    },
    [navigate],
  );

  const reveal = useCallback(
    (i: Item) => {
      const v = viewRef.current;
      if (i.end < v.from || i.start > v.to) {
        const span = v.to - v.from;
        const middle = (i.start + i.end) / 2;
        setView(clamp({ from: middle - span / 2, to: middle + span / 2 }, whole));
      }
    },
    [setView, whole],
  );

  // Pointers: one drags, two pinch. Shift measures.
  const pointers = useRef(new Map<number, { x: number; y: number }>());
  const moved = useRef(0);
  const anchor = useRef<number | null>(null);
  const at = (e: { clientX: number; clientY: number }) => {
    const r = (canvas.current as HTMLCanvasElement).getBoundingClientRect();
    return { x: e.clientX - r.left, y: e.clientY - r.top };
  };
  /** measured is the interval from where a measurement began to the pointer. */
  const measured = (e: React.PointerEvent): View | null => {
    if (anchor.current === null) return null;
    const x = toNs(viewRef.current, size.width, at(e).x);
    return { from: Math.min(anchor.current, x), to: Math.max(anchor.current, x) };
  };
  const down = (e: React.PointerEvent) => {
    if (e.button !== 0) return;
    canvas.current?.setPointerCapture(e.pointerId);
    canvas.current?.focus({ preventScroll: true });
    pointers.current.set(e.pointerId, at(e));
    moved.current = 0;
    anchor.current = e.shiftKey || measuring ? toNs(viewRef.current, size.width, at(e).x) : null;
  };
  const move = (e: React.PointerEvent) => {
    const p = at(e);
    const before = pointers.current.get(e.pointerId);
    const v = viewRef.current;
    if (!before) {
      const h = hit(current(), p.x, p.y);
      setCursor(toNs(v, size.width, p.x));
      setHover(h?.item?.id ?? "");
      setTip(h ? describe(h.track, h.item, h.bin, e.clientX, e.clientY, toNs(v, size.width, p.x)) : null);
      return;
    }
    setTip(null);
    moved.current += Math.abs(p.x - before.x) + Math.abs(p.y - before.y);
    const interval = measured(e);
    if (interval) setDrag(interval);
    else if (pointers.current.size === 2) {
      const other = [...pointers.current].find(([id]) => id !== e.pointerId)?.[1];
      if (other) {
        const was = Math.max(Math.abs(before.x - other.x), 10);
        const is = Math.max(Math.abs(p.x - other.x), 10);
        setView(zoom(v, was / is, toNs(v, size.width, (p.x + other.x) / 2), whole));
      }
    } else if (moved.current > 3) {
      setView(pan(v, ((before.x - p.x) / size.width) * (v.to - v.from), whole));
      scroller.current?.scrollBy(0, before.y - p.y);
    }
    pointers.current.set(e.pointerId, p);
  };
  const up = (e: React.PointerEvent) => {
    const was = pointers.current.delete(e.pointerId);
    const interval = measured(e); // the state drag can lack the last move
    setDrag(null);
    if (interval && moved.current > 3) {
      const r = rounded(interval);
      setMeasuring(false);
      if (e.type === "pointerup")
        navigate({
          search: (o) => ({ ...o, ...unmeasured, sel: undefined, at: undefined, m0: Math.max(0, r.from), m1: r.to }),
          replace: true,
        });
    } else if (was && moved.current <= 3 && e.type === "pointerup") {
      const p = at(e);
      const h = hit(current(), p.x, p.y);
      if (h?.bin !== undefined && h.track.bins) {
        const b = h.track.bins;
        const start = b.from + (b.index[h.bin] as number) * b.width;
        setView(around(start, start + b.width, whole, 0.05));
      } else select(h?.item ?? null);
    }
    anchor.current = null;
  };

  // React registers wheel listeners as passive, so this one is registered by hand.
  useEffect(() => {
    const c = canvas.current;
    if (!c) return;
    const wheel = (e: WheelEvent) => {
      e.preventDefault();
      const s = sceneRef.current;
      const v = viewRef.current;
      const r = c.getBoundingClientRect();
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        const d = e.deltaX || e.deltaY;
        setView(pan(v, (d / s.width) * (v.to - v.from), whole));
      } else {
        setView(
          zoom(
            v,
            Math.exp(Math.max(-200, Math.min(200, e.deltaY)) * 0.0025),
            toNs(v, s.width, e.clientX - r.left),
            whole,
          ),
        );
      }
    };
    c.addEventListener("wheel", wheel, { passive: false });
    return () => c.removeEventListener("wheel", wheel);
  }, [setView, whole]);

  // Bins have no single operations to jump to, so the store finds the next launch of all kernels that match.
  const found = useGet(
    "/sessions/{session}/kernels",
    { session: session.id },
    { base: session.base, q: search.q, group: "shape", limit: 1000 },
    { enabled: match !== "" },
  );
  const jump = useCallback(
    async (direction: 1 | -1) => {
      const v = viewRef.current;
      const here = selected && search.at ? Number(search.at) : Math.floor(direction > 0 ? v.from - 1 : v.to);
      const sorted = [...matches].sort((a, b) => a.start - b.start);
      const index = sorted.findIndex((i) => i.id === selected);
      const drawn =
        index >= 0
          ? sorted[index + direction]
          : direction > 0
            ? sorted.find((i) => i.start > here)
            : sorted.findLast((i) => i.start < here);
      const shape = found.data?.groups.map((g) => g.id as number) ?? [];
      if (shape.length && (!drawn || tracks.some((x) => x.bins))) {
        const find = async (from: number, to: number, limit: number) => {
          const query = { base: session.base, shape, operation: "kernel", from, to, limit };
          const page = await get("/sessions/{session}/operations", { session: session.id }, query);
          return { rows: page.operations, more: page.next !== undefined };
        };
        const first = Math.floor(extent.from);
        // The views of the page show why the Collector does not answer.
        const op = await (direction > 0
          ? find(Math.max(here + 1, first), extent.to + 1, 1).then((p) => p.rows[0])
          : lastBefore((from, to) => find(from, to, 100), first, here)
        ).catch(() => undefined);
        if (op && (!drawn || direction * (op.start - drawn.start) < 0)) {
          navigate({
            search: (o) => ({ ...o, ...toSpan(op.span, op.start, op.duration_ns, extent) }),
            replace: true,
          });
          return;
        }
      }
      if (drawn) {
        select(drawn);
        reveal(drawn);
      }
    },
    [matches, tracks, selected, select, reveal, found.data, search.at, session.base, session.id, navigate, extent],
  );

  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (
        e.target instanceof HTMLInputElement ||
        e.target instanceof HTMLSelectElement ||
        e.ctrlKey ||
        e.metaKey ||
        e.altKey
      )
        return;
      if (document.querySelector("dialog[open]")) return;
      const v = viewRef.current;
      const span = v.to - v.from;
      const middle = cursor !== null && cursor > v.from && cursor < v.to ? cursor : (v.from + v.to) / 2;
      const neighbour = (d: 1 | -1) => {
        if (!selectedTrack || !selectedItem) return false;
        const row = selectedTrack.items.filter((i) => selectedTrack.kind === "lane" || i.row === selectedItem.row);
        const n = row[row.findIndex((i) => i.id === selectedItem.id) + d];
        if (n) {
          select(n);
          reveal(n);
        }
        return true;
      };
      switch (e.key) {
        case "w":
        case "W":
        case "+":
          setView(zoom(v, 1 / 1.5, middle, whole));
          break;
        case "s":
        case "S":
        case "-":
          setView(zoom(v, 1.5, middle, whole));
          break;
        case "a":
        case "A":
          setView(pan(v, -0.15 * span, whole));
          break;
        case "d":
        case "D":
          setView(pan(v, 0.15 * span, whole));
          break;
        case "ArrowLeft":
          if (!neighbour(-1)) setView(pan(v, -0.15 * span, whole));
          break;
        case "ArrowRight":
          if (!neighbour(1)) setView(pan(v, 0.15 * span, whole));
          break;
        case "f":
        case "F":
          if (range) setView(around(range.from, range.to, whole, 0.8));
          else if (selectedItem) setView(around(selectedItem.start, selectedItem.end, whole));
          break;
        case "0":
        case "Home":
          setView(whole);
          break;
        case "n":
          jump(1);
          break;
        case "N":
          jump(-1);
          break;
        case "Enter": {
          // The first slice in the view is a start for the keyboard.
          if (e.target !== canvas.current || selectedItem) return;
          const start =
            items.find((i) => i.kind === "op" && i.end > v.from && i.start < v.to) ??
            items.find((i) => i.kind === "span");
          if (start) select(start);
          break;
        }
        case "m":
        case "M": {
          const at = Math.max(0, Math.round(middle));
          if (mark === null || mark === at) setMark(at);
          else {
            setMark(null);
            navigate({
              search: (o) => ({
                ...o,
                sel: undefined,
                at: undefined,
                ...unmeasured,
                m0: Math.min(mark, at),
                m1: Math.max(mark, at),
              }),
              replace: true,
            });
          }
          break;
        }
        case "Escape":
          select(null);
          break;
        default:
          return;
      }
      e.preventDefault();
    };
    window.addEventListener("keydown", key);
    return () => window.removeEventListener("keydown", key);
  }, [setView, whole, select, reveal, jump, selectedItem, selectedTrack, range, cursor, items, mark, navigate]);

  const labels = useMemo(
    () =>
      tracks.map((x) => (
        <div
          key={x.key}
          className={t.label}
          data-kind={x.kind}
          style={{ top: x.top + 30, height: x.height }}
          title={`${x.label} ${x.detail}`}
        >
          <span>{x.label}</span>
          {x.detail && (x.height > 26 || x.kind === "group") && <small>{x.detail}</small>}
        </div>
      )),
    [tracks],
  );
  const remarks = shown(data, prepared, view, tracks, session.overview.session.counts.spans, metrics.left);
  const inView = matches.filter((i) => i.end >= view.from && i.start <= view.to).length;
  return (
    <>
      <div className={t.toolbar}>
        <SearchBox
          label="Highlight kernels, scopes"
          value={search.q ?? ""}
          onChange={(q) => navigate({ search: (o) => ({ ...o, q: q || undefined }), replace: true })}
          onEnter={() => jump(1)}
        />
        {match && (
          <span role="status">
            {count(inView)} drawn in view, {found.data ? plural(found.data.total.count, "launch") : "…"}{" "}
            <button type="button" className={ui.icon} onClick={() => jump(-1)} aria-label="Previous match">
              ↑
            </button>
            <button type="button" className={ui.icon} onClick={() => jump(1)} aria-label="Next match">
              ↓
            </button>
            <Link to="/sessions/$session/kernels" params={{ session: session.id }} search={{ q: search.q } as never}>
              as a table
            </Link>
          </span>
        )}
        <span className={ui.spacer} />
        <span className={ui.muted} title={exactDuration(Math.round(view.to - view.from))}>
          {duration(view.to - view.from)} in view
        </span>
        <Link
          to="/sessions/$session/kernels"
          params={{ session: session.id }}
          search={rounded(clamp(view, extent)) as never}
        >
          kernels in view
        </Link>
        <Link
          to="/sessions/$session/code"
          params={{ session: session.id }}
          search={{ view: "flame", ...rounded(clamp(view, extent)) } as never}
        >
          flame graph
        </Link>
        <button
          type="button"
          className={ui.button}
          aria-pressed={measuring}
          title="The next drag measures an interval, as Shift and a drag do"
          onClick={() => setMeasuring(!measuring)}
        >
          Measure
        </button>
        <button
          type="button"
          className={ui.button}
          aria-label="Zoom out"
          onClick={() => setView(zoom(view, 2, (view.from + view.to) / 2, whole))}
        >
          −
        </button>
        <button
          type="button"
          className={ui.button}
          aria-label="Zoom in"
          onClick={() => setView(zoom(view, 0.5, (view.from + view.to) / 2, whole))}
        >
          +
        </button>
        <button type="button" className={ui.button} onClick={() => setView(whole)}>
          All
        </button>
      </div>
      {data.error ? <Failure error={data.error} /> : null}
      <div className={t.body}>
        <div className={t.left}>
          <div className={t.scroller} ref={scroller} onScroll={(e) => onScroll(e.currentTarget.scrollTop)}>
            <div className={t.content} style={{ height: total }}>
              <div className={t.labels}>
                <div className={t.corner}>{data.fetching ? "loading…" : "from start"}</div>
                {labels}
              </div>
              <canvas
                ref={canvas}
                className={t.canvas}
                style={{ width: size.width, height: scene.height }}
                tabIndex={0}
                role="img"
                aria-label={`Timeline from ${offset(view.from, 1)} to ${offset(view.to, 1)}. ${remarks.join(". ")}. Press Enter to select, arrows to move, question mark for all keys.`}
                data-drag={drag !== null}
                onPointerDown={down}
                onPointerMove={move}
                onPointerUp={up}
                onPointerCancel={up}
                onPointerLeave={() => {
                  setTip(null);
                  setCursor(null);
                  setHover("");
                }}
                onDoubleClick={(e) => {
                  const p = at(e);
                  const h = hit(current(), p.x, p.y);
                  if (h?.item) setView(around(h.item.start, h.item.end, whole));
                }}
              />
            </div>
          </div>
          <div className={t.status}>
            {measuring && <strong role="status">Drag over the interval to measure.</strong>}
            {mark !== null && (
              <strong role="status">Measuring from {offset(mark, 1)}: move, then press M again. Escape ends it.</strong>
            )}
            {remarks.map((r) => (
              <span key={r}>{r}</span>
            ))}
            <span className={ui.spacer} />
            <span className={t.legend}>
              {families.map((f) => (
                <span key={f.id}>
                  <span className={ui.swatch} style={{ background: css(oklch(dark ? 0.7 : 0.78, f.chroma, f.hue)) }} />
                  {f.label}
                </span>
              ))}
              <span>(guessed from names)</span>
            </span>
          </div>
        </div>
        {selected ? (
          <Inspector key={selected} span={selected} at={search.at} close={() => select(null)} />
        ) : range && !drag ? (
          <Measured range={range} step={search.step} close={() => select(null)} />
        ) : null}
      </div>
      {tip && (
        <div
          className={t.tip}
          style={{
            left: Math.min(tip.x + 14, window.innerWidth - 330),
            top: Math.min(tip.y + 16, window.innerHeight - 110),
          }}
        >
          <strong>{tip.title}</strong>
          {tip.lines.map((l) => (
            <div key={l} className={ui.muted}>
              {l}
            </div>
          ))}
        </div>
      )}
    </>
  );
}

function describe(
  track: Track,
  item: Item | undefined,
  bin: number | undefined,
  x: number,
  y: number,
  ns: number,
): Tip | null {
  if (item) {
    const lines = [`${duration(item.end - item.start)} · at ${offset(item.start, 1)}`];
    if (item.estimated) lines.push("The times are estimated.");
    if (item.kind === "gap") return { x, y, title: "No kernel on the GPU", lines };
    return { x, y, title: item.name, lines };
  }
  if (bin !== undefined && track.bins) {
    const b = track.bins;
    const name = b.kinds[b.kind[bin] as number]?.name;
    return {
      x,
      y,
      title: `${plural((b.before[bin + 1] as number) - (b.before[bin] as number), "operation")} in ${duration(b.width)}`,
      lines: [
        `${percent(Math.min(1, (b.busy[bin] as number) / b.width))} busy (${duration(b.busy[bin] as number)})`,
        name ? `longest: ${name}` : "",
        "Click to zoom in.",
      ].filter(Boolean),
    };
  }
  for (const s of track.series ?? []) {
    let i = 0;
    while (i + 1 < s.t.length && (s.t[i + 1] as number) <= ns) i++;
    if (s.t.length)
      return {
        x,
        y,
        title: `${track.label}: ${s.format(s.v[i] as number)}`,
        lines: [`measured at ${offset(s.t[i] as number, 1e6)}`],
      };
  }
  return null;
}
