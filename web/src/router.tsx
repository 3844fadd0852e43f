// SPDX-License-Identifier: Apache-2.0
import { createRootRoute, createRoute, createRouter, redirect } from "@tanstack/react-router";
import { date, id, ids, interval, oneOf, parseSearch, spanId, stringifySearch, text } from "./lib/search";
import { Failure } from "./ui/parts";
import { Shell } from "./ui/Shell";
import { Code } from "./views/Code";
import { Compare } from "./views/Compare";
import { Findings } from "./views/Findings";
import { Gaps } from "./views/Gaps";
import { Kernels } from "./views/Kernels";
import { Launches } from "./views/Launches";
import { Owned } from "./views/Owned";
import { Ranks } from "./views/Ranks";
import { Scopes } from "./views/Scopes";
import { SessionLayout } from "./views/Session";
import { Sessions } from "./views/Sessions";
import { System } from "./views/System";
import { Timeline } from "./views/Timeline";
import { Usage } from "./views/Usage";

type Raw = Record<string, unknown>;

const optional = <T extends object>(search: T): Partial<T> => search;

const root = createRootRoute({
  component: Shell,
  errorComponent: ({ error }) => <Failure error={error} />,
  notFoundComponent: () => <Failure error="This page does not exist." />,
});

export const sessionsRoute = createRoute({
  getParentRoute: () => root,
  path: "/",
  validateSearch: (s: Raw) =>
    optional({
      q: text(s.q),
      host: text(s.host),
      service: text(s.service),
      run: text(s.run),
      since: date(s.since),
      until: date(s.until),
      a: text(s.a),
      cursor: text(s.cursor),
    }),
  component: Sessions,
});

export const usageRoute = createRoute({
  getParentRoute: () => root,
  path: "/usage",
  validateSearch: (s: Raw) =>
    optional({
      by: oneOf(s.by, ["service", "namespace", "host", "run", "session", "scope", "request"] as const),
      service: text(s.service),
      host: text(s.host),
      rate: text(s.rate),
      cost: text(s.cost),
      of: text(s.of),
    }),
  component: Usage,
});

export const compareRoute = createRoute({
  getParentRoute: () => root,
  path: "/compare",
  validateSearch: (s: Raw) =>
    optional({
      a: text(s.a),
      b: text(s.b),
      by: oneOf(s.by, ["name", "shape", "scope"] as const),
      q: text(s.q),
    }),
  component: Compare,
});

export const ranksRoute = createRoute({
  getParentRoute: () => root,
  path: "/ranks",
  validateSearch: (s: Raw) =>
    optional({
      ...interval(s.from, s.to),
      run: text(s.run),
      sessions: text(s.sessions),
      rank: id(s.rank),
      kind: text(s.kind),
      span: spanId(s.span),
    }),
  component: Ranks,
});

export const sessionRoute = createRoute({
  getParentRoute: () => root,
  path: "/sessions/$session",
  validateSearch: (s: Raw) => optional({ whole: oneOf(s.whole, ["1"]) }),
  component: SessionLayout,
});

const indexRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "/",
  beforeLoad: ({ params }) => {
    throw redirect({ to: "/sessions/$session/timeline", params, search: {} as never, replace: true });
  },
});

export const timelineRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "timeline",
  validateSearch: (s: Raw) => {
    const range = interval(s.m0, s.m1);
    return optional({
      ...interval(s.from, s.to),
      sel: spanId(s.sel),
      at: text(s.at),
      q: text(s.q),
      m0: range.from,
      m1: range.to,
      path: oneOf(s.path, ["1"]),
      step: text(s.step),
      y: id(s.y),
      kind: text(s.kind),
    });
  },
  component: Timeline,
});

export const kernelsRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "kernels",
  validateSearch: (s: Raw) =>
    optional({
      ...interval(s.from, s.to),
      group: oneOf(s.group, ["name", "shape", "path", "lane"] as const),
      sort: oneOf(s.sort, ["sum_ns", "count", "mean", "p50_ns", "p99_ns", "max_ns", "queue_ns", "name"] as const),
      dir: oneOf(s.dir, ["asc", "desc"] as const),
      q: text(s.q),
      path: id(s.path),
    }),
  component: Kernels,
});

export const launchesRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "launches",
  validateSearch: (s: Raw) =>
    optional({
      ...interval(s.from, s.to),
      operation: text(s.operation),
      name: typeof s.name === "string" && s.name !== "" ? s.name : undefined,
      shape: ids(s.shape),
      lane: text(s.lane),
      path: id(s.path),
      direct: oneOf(s.direct, ["true"] as const),
      stack: typeof s.stack === "string" && s.stack !== "" ? s.stack : undefined,
      stack_exact: oneOf(s.stack_exact, ["true"] as const),
      parent: spanId(s.parent),
      below: oneOf(s.below, ["true"] as const),
      min_ns: id(s.min_ns),
      max_ns: text(s.max_ns),
      overlapping: oneOf(s.overlapping, ["true"] as const),
      sort: oneOf(s.sort, ["start", "duration", "queue"] as const),
      calls: oneOf(s.calls, ["1"]),
    }),
  component: Launches,
});

export const findingsRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "findings",
  validateSearch: (s: Raw) => optional({ ...interval(s.from, s.to), list: oneOf(s.list, ["steps"]) }),
  component: Findings,
});

export const gapsRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "gaps",
  validateSearch: (s: Raw) => optional({ ...interval(s.from, s.to), cause: text(s.cause), device: text(s.device) }),
  component: Gaps,
});

export const ownedRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "owned",
  validateSearch: (s: Raw) =>
    optional({
      ...interval(s.from, s.to),
      device: text(s.device),
      scope: typeof s.scope === "string" && s.scope !== "" ? s.scope : undefined,
      finding: oneOf(s.finding, ["fusion"] as const),
    }),
  component: Owned,
});

export const scopesRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "scopes",
  validateSearch: (s: Raw) =>
    optional({
      path: id(s.path),
      sort: oneOf(s.sort, ["start", "wall", "device", "queue"] as const),
      q: text(s.q),
      name: text(s.name),
      closed: ids(s.closed),
    }),
  component: Scopes,
});

export const systemRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "system",
  validateSearch: (s: Raw) => optional(interval(s.from, s.to)),
  component: System,
});

export const codeRoute = createRoute({
  getParentRoute: () => sessionRoute,
  path: "code",
  validateSearch: (s: Raw) =>
    optional({
      ...interval(s.from, s.to),
      path: id(s.path),
      view: oneOf(s.view, ["flame", "functions"] as const),
      zoom: typeof s.zoom === "string" && /^\d+(\.\d+)*$/.test(s.zoom) ? s.zoom : undefined,
      q: text(s.q),
      kernel: typeof s.kernel === "string" ? s.kernel : undefined,
      fn: typeof s.fn === "string" ? s.fn : undefined,
      text: text(s.text),
      what: text(s.what),
    }),
  component: Code,
});

export const router = createRouter({
  routeTree: root.addChildren([
    sessionsRoute,
    usageRoute,
    compareRoute,
    ranksRoute,
    sessionRoute.addChildren([
      indexRoute,
      timelineRoute,
      kernelsRoute,
      launchesRoute,
      findingsRoute,
      gapsRoute,
      ownedRoute,
      scopesRoute,
      systemRoute,
      codeRoute,
    ]),
  ]),
  parseSearch,
  stringifySearch,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
