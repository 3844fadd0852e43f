// SPDX-License-Identifier: Apache-2.0
import { type ReactNode, useRef } from "react";
import { ui } from "./parts";

/** Menu opens below its label, which is a badge if it has a tone. Escape, or the focus elsewhere, closes it. */
export function Menu({ label, tone, children }: { label: string; tone?: string; children: ReactNode }) {
  const menu = useRef<HTMLDetailsElement>(null);
  return (
    <details
      ref={menu}
      className={ui.menu}
      onKeyDown={(e) => {
        if (e.key !== "Escape" || !menu.current?.open) return;
        e.stopPropagation();
        menu.current.open = false;
        menu.current.querySelector("summary")?.focus();
      }}
      onBlur={(e) => {
        // The focus moves to the body while a file is saved; then relatedTarget is null.
        if (menu.current && e.relatedTarget && !menu.current.contains(e.relatedTarget)) menu.current.open = false;
      }}
    >
      <summary className={tone && ui.badge} data-tone={tone}>
        {label}
      </summary>
      <div className={ui.menuBody}>{children}</div>
    </details>
  );
}
