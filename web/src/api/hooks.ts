// SPDX-License-Identifier: Apache-2.0
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { createContext, useContext } from "react";
import { type Answer, get } from "./client";
import type { paths } from "./schema";

type Params = Record<string, string | number>;
type Query = Record<string, string | number | boolean | readonly (string | number)[] | undefined>;

/**
 * useGet reads from the API. Every is the interval of a live view in ms. The browser sends the ETag
 * of its cache, so an unchanged answer costs little.
 */
export const useGet = <P extends keyof paths>(
  template: P,
  params: Params,
  query: Query = {},
  options: { every?: number | false; enabled?: boolean } = {},
) =>
  useQuery<Answer<P>>({
    queryKey: [template, params, query],
    queryFn: ({ signal }) => get(template, params, query, signal),
    placeholderData: keepPreviousData,
    refetchInterval: options.every ?? false,
    enabled: options.enabled ?? true,
  });

/** SessionState is what the views of a session share. */
export interface SessionState {
  id: string;
  base: string;
  overview: Answer<"/sessions/{session}">;
  /** The interval of polling while the session is live, otherwise false. */
  every: number | false;
}

export const SessionContext = createContext<SessionState | null>(null);

/** useSession returns the session of the current page. */
export function useSession(): SessionState {
  const s = useContext(SessionContext);
  if (!s) throw new Error("no session around this view");
  return s;
}
