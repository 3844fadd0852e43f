// SPDX-License-Identifier: Apache-2.0

interface ScopeNode {
  path: number;
  parent: number;
  total: { kernel_ns: number };
}

/** byKernelTime returns a tree depth first, the children with the largest kernel time first. The first node is the root. */
export function byKernelTime<N extends ScopeNode>(nodes: readonly N[]): N[] {
  const children = new Map<number, N[]>();
  for (const n of nodes.slice(1)) {
    const siblings = children.get(n.parent);
    if (siblings) siblings.push(n);
    else children.set(n.parent, [n]);
  }
  const result: N[] = [];
  const add = (n: N) => {
    result.push(n);
    const below = children.get(n.path) ?? [];
    for (const c of below.toSorted((a, b) => b.total.kernel_ns - a.total.kernel_ns)) add(c);
  };
  if (nodes[0]) add(nodes[0]);
  return result;
}

/** shapeOf returns a name with "*" for each number, as in names of several scopes, and without one at the end. */
function shapeOf(name: string): string {
  const shape = name.replaceAll(/\d+/g, "*");
  return shape.replace(/[\s#_:.\-*]*\*$/, "") || shape;
}

interface NamedNode {
  path: number;
  parent: number;
  name: string;
}

/**
 * scopeSearch returns the search parameters of the page of scopes for a path of names without numbers at their ends.
 * Several scopes are found by name. It returns undefined if there is none.
 */
export function scopeSearch(
  nodes: readonly NamedNode[],
  names: readonly string[],
): Record<string, unknown> | undefined {
  const byPath = new Map(nodes.map((n) => [n.path, n]));
  const wanted = names.map(shapeOf).toReversed();
  const found = nodes.filter((n) => {
    if (n.path === 0) return false;
    let at: NamedNode | undefined = n;
    for (const name of wanted) {
      if (!at || at.path === 0 || shapeOf(at.name) !== name) return false;
      at = byPath.get(at.parent);
    }
    return at?.path === 0;
  });
  if (found.length === 0) return undefined;
  return found.length === 1 ? { path: found[0]?.path } : { q: names.at(-1) };
}
