// SPDX-License-Identifier: Apache-2.0
import { Link } from "@tanstack/react-router";
import { Fragment, type ReactNode, useEffect, useRef, useState } from "react";
import { css, scopeColor, sliceColor } from "../lib/color";
import { useDark } from "./theme";
import s from "./ui.module.css";

export { s as ui };

/** Badge is a short remark: "good", "warn" and "bad" have a colour. */
export function Badge({ tone, title, children }: { tone?: string; title?: string; children: ReactNode }) {
  return (
    <span className={s.badge} data-tone={tone} title={title}>
      {children}
    </span>
  );
}

/** LiveMark says that a session gets data. */
export const LiveMark = () => (
  <Badge tone="good" title="The newest data is less than 60 s old">
    <span className={s.dot} />
    live
  </Badge>
);

/** Failure shows an error as the sentence that it has. */
export const Failure = ({ error }: { error: unknown }) => (
  <div className={s.error} role="alert">
    {error instanceof Error ? error.message : String(error)}
  </div>
);

/** Loading appears after a moment, so that fast answers do not flicker. */
export function Loading() {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const t = setTimeout(() => setShown(true), 250);
    return () => clearTimeout(t);
  }, []);
  return (
    <div className={s.message} aria-busy="true">
      {shown ? "Loading…" : ""}
    </div>
  );
}

/** Message says why there is nothing to show. */
export const Message = ({ children }: { children: ReactNode }) => <div className={s.message}>{children}</div>;

/** Column is a column of a table: its head, what it means, and its class. */
export type Column = readonly [name: string, meaning?: string, className?: string];

/** Described is a table in a card that says what its columns mean, also to users without a mouse. */
export function Described({ label, columns, children }: { label: string; columns: Column[]; children: ReactNode }) {
  return (
    <div className={`${s.card} ${s.tableScroll}`}>
      <table className={s.table} aria-label={label}>
        <thead>
          <tr>
            {columns.map(([name, meaning, className]) => (
              <th key={name} scope="col" className={className} title={meaning}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        {children}
      </table>
      <details className={s.meanings}>
        <summary>What the columns mean</summary>
        <dl className={s.dl}>
          {columns.map(
            ([name, meaning]) =>
              meaning && (
                <Fragment key={name}>
                  <dt>{name}</dt>
                  <dd>{meaning}</dd>
                </Fragment>
              ),
          )}
        </dl>
      </details>
    </div>
  );
}

/** Bar shows a share of 1. */
export const Bar = ({ share }: { share: number }) => (
  <span className={s.bar} aria-hidden="true">
    <i style={{ width: `${Math.min(100, Math.max(0, share * 100))}%` }} />
  </span>
);

/** Swatch is the colour of a name in the timeline: of an operation, or of a scope. */
export function Swatch({ name, scope }: { name: string; scope?: boolean }) {
  const color = (scope ? scopeColor : sliceColor)(name, useDark());
  return <span className={s.swatch} style={{ background: css(color) }} aria-hidden="true" />;
}

/** SearchBox reports its text after a pause. The key "/" moves the focus to it, unless it is the second one. */
export function SearchBox(p: {
  value: string;
  label: string;
  second?: boolean;
  onChange: (v: string) => void;
  onEnter?: () => void;
}) {
  const [text, setText] = useState(p.value);
  const input = useRef<HTMLInputElement>(null);
  const latest = useRef(p);
  latest.current = p;
  useEffect(() => setText(p.value), [p.value]);
  useEffect(() => {
    if (text === latest.current.value) return;
    const t = setTimeout(() => latest.current.onChange(text), 200);
    return () => clearTimeout(t);
  }, [text]);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (latest.current.second || e.key !== "/" || e.target instanceof HTMLInputElement || e.ctrlKey || e.metaKey)
        return;
      e.preventDefault();
      input.current?.focus();
    };
    window.addEventListener("keydown", key);
    return () => window.removeEventListener("keydown", key);
  }, []);
  return (
    <input
      ref={input}
      type="search"
      className={s.input}
      placeholder={p.second ? p.label : `${p.label}  ( / )`}
      aria-label={p.label}
      value={text}
      onChange={(e) => setText(e.target.value)}
      onKeyDown={(e) => {
        if (e.key === "Escape") e.currentTarget.blur();
        if (e.key === "Enter") p.onEnter?.();
      }}
    />
  );
}

/** Choice sets one search parameter of the current page. */
export function Choice<T extends string>(p: {
  label: string;
  param: string;
  value: T;
  options: readonly (readonly [T, string])[];
}) {
  return (
    <nav className={s.segments} aria-label={p.label}>
      {p.options.map(([value, text]) => (
        <Link
          key={value}
          to="."
          search={(old: Record<string, unknown>) => ({ ...old, [p.param]: value }) as never}
          aria-current={p.value === value}
          activeOptions={{ exact: true }}
          activeProps={{}}
          replace
        >
          {text}
        </Link>
      ))}
    </nav>
  );
}

/** Made says how the rows of a page add up to a number that links to it. */
export type Made =
  | "rows"
  | "kernels"
  | "ns"
  | "queue"
  | "idle"
  | "bytes"
  | "samples"
  | "max"
  | "mean"
  | "p10"
  | "p50"
  | "p99"
  | "records"
  | "ratio"
  | "value"
  | "rate"
  | "seconds"
  | "cost"
  // Of the column of the rows that "of" names.
  | "sum"
  | "p95"
  | "excess"
  | "late"
  | "spread"
  | "median"
  // A sum times the ratio of the two numbers that "of" has, at most the sum itself.
  | "scaled"
  // The time of a class of work, of the operations that overlap the interval of the target.
  | "part";

/**
 * num makes a link a number that is made of the rows of its target. The browser test follows each of
 * them and adds up the rows, which have their values from [row].
 */
export const num = (made: Made, value: number, of?: string) => ({
  className: s.num,
  "data-made": made,
  "data-value": value,
  "data-of": of,
});

/** row gives a table row the values that it adds to numbers elsewhere. */
export const row = (v: {
  ns?: number;
  queue?: number;
  idle?: number;
  bytes?: number;
  kernels?: number;
  records?: number;
  samples?: number;
  metrics?: Record<string, number>;
  seconds?: number;
  costs?: Record<string, number>;
  values?: Record<string, number>;
}) => ({ "data-row": JSON.stringify(v) });

/** Copy is a button that copies a text. */
export function Copy({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      className={s.button}
      onClick={() =>
        navigator.clipboard.writeText(text).then(() => {
          setDone(true);
          setTimeout(() => setDone(false), 1500);
        })
      }
    >
      {done ? "Copied" : label}
    </button>
  );
}
