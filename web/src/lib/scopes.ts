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
