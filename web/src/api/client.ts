// SPDX-License-Identifier: Apache-2.0

/** Requests to the query API. The types are generated from its description. */
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** ApiError has the one sentence that the API answered with. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

type Query = Record<string, string | number | boolean | readonly (string | number)[] | undefined>;

/** url builds the address of a request, also for links to the rows as JSON. */
export function url(path: string, query: Query = {}): string {
  const p = new URLSearchParams();
  for (const [k, v] of Object.entries(query)) {
    // An empty text is no filter, but "of" names the group without a name by it.
    if (v !== undefined && (v !== "" || k === "of")) p.set(k, Array.isArray(v) ? v.join(",") : String(v));
  }
  const s = p.toString();
  return `/api/v1${path}${s ? `?${s}` : ""}`;
}

async function request(
  method: string,
  address: string,
  accept: string,
  signal?: AbortSignal,
  body?: Blob,
): Promise<Response> {
  let r: Response;
  try {
    r = await fetch(address, { method, headers: { Accept: accept }, signal: signal ?? null, body: body ?? null });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new ApiError("The Collector does not answer. Is it still running?", 0);
  }
  if (r.ok) return r;
  let message = `The Collector answered with status ${r.status}.`;
  try {
    const body = (await r.json()) as Schemas["Error"];
    if (body.error) message = body.error;
  } catch {
    // The answer has no JSON body, so the status remains.
  }
  throw new ApiError(message, r.status);
}

/** Answer is the JSON body of a successful GET. */
export type Answer<P extends keyof paths> = paths[P] extends {
  get: { responses: { 200: { content: { "application/json": infer T } } } };
}
  ? T
  : never;

/** get sends a GET request. The path template selects the type of the answer. */
export async function get<P extends keyof paths>(
  template: P,
  params: Record<string, string | number>,
  query: Query = {},
  signal?: AbortSignal,
): Promise<Answer<P>> {
  const path = template.replace(/\{(\w+)\}/g, (_, k: string) => encodeURIComponent(String(params[k])));
  return (await (await request("GET", url(path, query), "application/json", signal)).json()) as Answer<P>;
}

/** getBinary sends a GET request for columns in binary form. */
export async function getBinary(path: string, query: Query, signal?: AbortSignal): Promise<ArrayBuffer> {
  return (await request("GET", url(path, query), "application/octet-stream", signal)).arrayBuffer();
}

/** send sends a request that changes something. */
export async function send(
  method: "POST" | "PUT" | "DELETE",
  path: string,
  body?: Blob,
  query: Query = {},
): Promise<unknown> {
  const r = await request(method, url(path, query), "application/json", undefined, body);
  return r.status === 204 ? undefined : r.json();
}
