// SPDX-License-Identifier: Apache-2.0

/**
 * Colours of kernels and scopes. The hue is the family of the operation, guessed from its name. The
 * shade is a hash of the name, so one name has one colour in all views.
 */

export type Family = "matmul" | "attention" | "normalise" | "elementwise" | "collective" | "copy" | "memory" | "other";

/** families lists the families in the order of the legend. */
export const families: { id: Family; label: string; hue: number; chroma: number }[] = [
  { id: "matmul", label: "matrix multiply", hue: 255, chroma: 0.12 },
  { id: "attention", label: "attention, softmax", hue: 305, chroma: 0.12 },
  { id: "normalise", label: "norm, reduce", hue: 75, chroma: 0.13 },
  { id: "elementwise", label: "elementwise", hue: 185, chroma: 0.1 },
  { id: "collective", label: "collective", hue: 20, chroma: 0.14 },
  { id: "copy", label: "copy", hue: 140, chroma: 0.13 },
  { id: "memory", label: "set, allocate, wait", hue: 265, chroma: 0.02 },
  { id: "other", label: "other", hue: 105, chroma: 0.11 },
];

const patterns: [RegExp, Family][] = [
  [/nccl|allreduce|all_reduce|allgather|reduce_scatter|nvshmem/i, "collective"],
  [/^memcpy|copy_(h|d)|direct_copy/i, "copy"],
  [/^memset|^malloc|^free$|synchronize|^cuda[A-Z]/, "memory"],
  [/flash|fmha|attention|softmax|mha_/i, "attention"],
  [/gemm|gemv|cutlass|cublas|xmma|wgmma|matmul|conv|winograd|splitk|nvjet|dot_kernel/i, "matmul"],
  [/norm|reduc|sum|argmax|moments|cub::|scan|sort|topk/i, "normalise"],
  [
    /elementwise|pointwise|triton_poi|vectorized|relu|gelu|silu|dropout|adam|foreach|multi_tensor|fill|axpy|add|mul/i,
    "elementwise",
  ],
];

const cache = new Map<string, Family>();

/** family guesses the family of an operation from its name. */
export function family(name: string): Family {
  let f = cache.get(name);
  if (!f) {
    f = patterns.find(([p]) => p.test(name))?.[1] ?? "other";
    cache.set(name, f);
  }
  return f;
}

/** hash is FNV-1a. */
export function hash(s: string): number {
  let h = 0x811c9dc5;
  for (let i = 0; i < s.length; i++) h = Math.imul(h ^ s.charCodeAt(i), 0x01000193);
  return h >>> 0;
}

/** oklch converts a colour to 8-bit sRGB. Lightness and chroma are ratios, the hue is in degrees. */
export function oklch(l: number, c: number, h: number): [number, number, number] {
  const a = c * Math.cos((h * Math.PI) / 180);
  const b = c * Math.sin((h * Math.PI) / 180);
  const L = (l + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const M = (l - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const S = (l - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const channel = (x: number) => {
    const v = x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
    return Math.round(Math.min(1, Math.max(0, v)) * 255);
  };
  return [
    channel(4.0767416621 * L - 3.3077115913 * M + 0.2309699292 * S),
    channel(-1.2684380046 * L + 2.6097574011 * M - 0.3413193965 * S),
    channel(-0.0041960863 * L - 0.7034186147 * M + 1.707614701 * S),
  ];
}

/** contrast is the WCAG contrast ratio of two colours. */
export function contrast(a: readonly number[], b: readonly number[]): number {
  const [x, y] = [luminance(a), luminance(b)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}

function luminance(rgb: readonly number[]): number {
  const [r, g, b] = rgb.map((v) => {
    const s = v / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** ink is the text colour on slices, in both themes. */
export const ink: [number, number, number] = [13, 17, 26];

const rgbCache = new Map<string, [number, number, number]>();

/** sliceColor returns the colour of an operation. All of them have a contrast of at least 4.5 to ink. */
export function sliceColor(name: string, dark: boolean): [number, number, number] {
  const key = (dark ? "d" : "l") + name;
  let rgb = rgbCache.get(key);
  if (!rgb) {
    const f = families.find((x) => x.id === family(name)) as (typeof families)[number];
    const h = hash(name);
    const lightness = (dark ? 0.64 : 0.74) + ((h >>> 3) % 4) * 0.04;
    rgb = oklch(lightness, f.chroma, f.hue + ((h >>> 8) % 5) * 7 - 14);
    rgbCache.set(key, rgb);
  }
  return rgb;
}

/** scopeColor returns the colour of a scope: pale, so that device work stands out. */
export function scopeColor(name: string, dark: boolean): [number, number, number] {
  const key = (dark ? "D" : "L") + name;
  let rgb = rgbCache.get(key);
  if (!rgb) {
    const h = hash(name);
    rgb = dark
      ? oklch(0.66 + ((h >>> 3) % 3) * 0.04, 0.05, h % 360)
      : oklch(0.86 + ((h >>> 3) % 3) * 0.03, 0.05, h % 360);
    rgbCache.set(key, rgb);
  }
  return rgb;
}

/** hues of the kinds of a critical path; the rest is grey. */
const pathHues: Record<string, number> = {
  compute: 255,
  communication: 305,
  copy: 195,
  host: 55,
  launch: 90,
  slow_launch: 90,
  latency: 90,
  sync: 25,
  allocator: 25,
  copy_call: 25,
  remote: 145,
};

/** pathColor returns the colour of a kind of a critical path. */
export function pathColor(kind: string, dark: boolean): [number, number, number] {
  const hue = pathHues[kind];
  return oklch(dark ? 0.7 : 0.78, hue === undefined ? 0.01 : 0.12, hue ?? 0);
}

/** css formats a colour for CSS and canvas. */
export const css = (c: readonly number[], alpha = 1): string =>
  alpha === 1 ? `rgb(${c[0]},${c[1]},${c[2]})` : `rgba(${c[0]},${c[1]},${c[2]},${alpha})`;
