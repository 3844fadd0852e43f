// SPDX-License-Identifier: Apache-2.0
import { useSyncExternalStore } from "react";

/** Theme is the user's choice. "auto" follows the system. */
export type Theme = "auto" | "light" | "dark";

const key = "gpuflight.theme";
const media = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let theme: Theme = read();

function read(): Theme {
  const v = localStorage.getItem(key);
  return v === "light" || v === "dark" ? v : "auto";
}

function apply() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

apply();
media.addEventListener("change", () => {
  for (const l of listeners) l();
});

function subscribe(l: () => void) {
  listeners.add(l);
  return () => listeners.delete(l);
}

/** setTheme stores and applies the choice. */
export function setTheme(t: Theme) {
  theme = t;
  if (t === "auto") localStorage.removeItem(key);
  else localStorage.setItem(key, t);
  apply();
  for (const l of listeners) l();
}

/** useTheme returns the user's choice. */
export const useTheme = (): Theme => useSyncExternalStore(subscribe, () => theme);

/** useDark says whether the page is dark now. */
export const useDark = (): boolean =>
  useSyncExternalStore(subscribe, () => (theme === "auto" ? media.matches : theme === "dark"));
