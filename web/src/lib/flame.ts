// SPDX-License-Identifier: Apache-2.0

/** Frame is a node of a flame graph: a frame of the host stack, a scope, a kernel or a line of its code. */
export interface Frame {
  kind: "all" | "host" | "scope" | "kernel" | "line";
  name: string;
  /** Kernel time in ns. That of a line is estimated from samples. */
  ns: number;
  /** Launches, or samples of a line. */
  count: number;
  /** The launches with the host stack of the frame. The others of ns and count have none, and are shared among stacks. */
  own: { ns: number; count: number };
  /** The host stack of the frame, outermost first. */
  stack: readonly string[];
  /** The path of scopes of a kernel, and their names. */
  path?: number;
  scope?: readonly string[];
  children: Frame[];
}

interface Stack {
  stack: readonly string[];
  scope: readonly string[];
  path: number;
  name: string;
  count: number;
  sum_ns: number;
}

/**
 * shared gives the time of launches without a host stack to the stacks of the same kernel in the same
 * scope, by the launches of each. A recorder samples the stacks of a part of the launches.
 */
function shared(stacks: readonly Stack[]): readonly (Stack & { estimated?: true })[] {
  const known = new Map<string, { list: Stack[]; count: number }>();
  const key = (s: Stack) => `${s.path}|${s.name}`;
  for (const s of stacks) {
    if (!s.stack.length) continue;
    const k = known.get(key(s)) ?? { list: [], count: 0 };
    k.list.push(s);
    k.count += s.count;
    known.set(key(s), k);
  }
  return stacks.flatMap((s) => {
    const k = s.stack.length ? undefined : known.get(key(s));
    if (!k?.count) return [s];
    return k.list.map((x) => {
      const share = x.count / k.count;
      return { ...x, count: s.count * share, sum_ns: s.sum_ns * share, estimated: true as const };
    });
  });
}

/** sampledStacks counts launches with a host stack, if others of the same session have none. */
export function sampledStacks(stacks: readonly Stack[]): number {
  const known = stacks.reduce((n, s) => n + (s.stack.length ? s.count : 0), 0);
  return stacks.some((s) => !s.stack.length) ? known : 0;
}

interface Line {
  path: number;
  name: string;
  file: string;
  line: number;
  samples: number;
}

/**
 * flameTree adds up stacks from the host to the kernel. The lines of a kernel share its time by their
 * samples in the same scope.
 */
export function flameTree(stacks: readonly Stack[], lines: readonly Line[]): Frame {
  const frame = (kind: Frame["kind"], name: string, stack: readonly string[]): Frame => ({
    kind,
    name,
    ns: 0,
    count: 0,
    own: { ns: 0, count: 0 },
    stack,
    children: [],
  });
  const root = frame("all", "all kernels", []);
  const index = new Map<Frame, Map<string, Frame>>();
  const child = (p: Frame, kind: Frame["kind"], name: string): Frame => {
    let own = index.get(p);
    if (!own) {
      own = new Map();
      index.set(p, own);
    }
    let f = own.get(kind + name);
    if (!f) {
      f = frame(kind, name, kind === "host" ? [...p.stack, name] : p.stack);
      own.set(kind + name, f);
      p.children.push(f);
    }
    return f;
  };
  const linesOf = new Map<string, Line[]>();
  for (const l of lines) {
    const key = `${l.path}|${l.name}`;
    linesOf.set(key, [...(linesOf.get(key) ?? []), l]);
  }
  for (const s of shared(stacks)) {
    const chain = [root];
    for (const f of s.stack) chain.push(child(chain.at(-1) as Frame, "host", f));
    for (const f of s.scope) chain.push(child(chain.at(-1) as Frame, "scope", f));
    const kernel = child(chain.at(-1) as Frame, "kernel", s.name);
    kernel.path = s.path;
    kernel.scope = s.scope;
    for (const f of [...chain, kernel]) {
      f.ns += s.sum_ns;
      f.count += s.count;
      if (s.estimated) continue;
      f.own.ns += s.sum_ns;
      f.own.count += s.count;
    }
    const own = linesOf.get(`${s.path}|${s.name}`) ?? [];
    const samples = own.reduce((n, l) => n + l.samples, 0);
    for (const l of own) {
      const f = child(kernel, "line", `${l.file.split("/").pop() || "line"}:${l.line}`);
      f.ns += samples ? (s.sum_ns * l.samples) / samples : 0;
      f.count = l.samples;
    }
  }
  const sort = (f: Frame) => {
    f.children.sort((a, b) => b.ns - a.ns || (a.name < b.name ? -1 : 1));
    f.children.forEach(sort);
  };
  sort(root);
  return root;
}

/** Box is a visible frame: its position and width are shares of 1. Id has the indices of the frame and those above it. */
export interface Box {
  frame: Frame;
  id: string;
  x: number;
  width: number;
  depth: number;
}

/** find returns the frame with an id, with all frames above it, outermost first. An unknown id gives the root. */
export function find(root: Frame, id: string): Frame[] {
  const chain = [root];
  for (const part of id ? id.split(".") : []) {
    const next = chain.at(-1)?.children[Number(part)];
    if (!next) return [root];
    chain.push(next);
  }
  return chain;
}

/** boxes lays out a frame, those above it in full width, and those below it that are at least as wide as a share. */
export function boxes(root: Frame, id: string, smallest: number): { boxes: Box[]; hidden: number } {
  const chain = find(root, id);
  const parts = chain.length > 1 ? id.split(".") : [];
  const result: Box[] = chain.map((frame, depth) => ({
    frame,
    id: parts.slice(0, depth).join("."),
    x: 0,
    width: 1,
    depth,
  }));
  let hidden = 0;
  const focus = chain.at(-1) as Frame;
  const add = (f: Frame, at: string, x: number, depth: number) => {
    let left = x;
    f.children.forEach((c, i) => {
      const width = focus.ns ? c.ns / focus.ns : 0;
      if (width < smallest) {
        hidden++;
        return;
      }
      const childId = at ? `${at}.${i}` : String(i);
      result.push({ frame: c, id: childId, x: left, width, depth });
      add(c, childId, left, depth + 1);
      left += width;
    });
  };
  add(focus, parts.join("."), 0, chain.length);
  return { boxes: result, hidden };
}

/** KernelSum is the launches of a kernel in a scope. */
export interface KernelSum {
  name: string;
  path: number;
  scope: readonly string[];
  ns: number;
  count: number;
  /** The part of them with the host stack of the frame. */
  own: { ns: number; count: number };
}

/** stackFilter selects the launches with the host stack of a frame: of a host function also those of functions that it calls. */
export const stackFilter = (f: Frame) =>
  f.stack.length ? { stack: f.stack.join("\n"), stack_exact: f.kind === "host" ? undefined : "true" } : {};

/** kernelsOf sums the kernels of a frame by name and scope, the largest first. */
export function kernelsOf(frame: Frame): KernelSum[] {
  const sums = new Map<string, KernelSum>();
  const visit = (f: Frame) => {
    if (f.kind !== "kernel") {
      f.children.forEach(visit);
      return;
    }
    const key = `${f.path}|${f.name}`;
    const sum = sums.get(key) ?? {
      name: f.name,
      path: f.path ?? 0,
      scope: f.scope ?? [],
      ns: 0,
      count: 0,
      own: { ns: 0, count: 0 },
    };
    sum.ns += f.ns;
    sum.count += f.count;
    sum.own.ns += f.own.ns;
    sum.own.count += f.own.count;
    sums.set(key, sum);
  };
  visit(frame);
  return [...sums.values()].sort((a, b) => b.ns - a.ns || (a.name < b.name ? -1 : 1));
}
