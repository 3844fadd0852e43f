// SPDX-License-Identifier: Apache-2.0
import { bytes, duration, percent, significant } from "./format";

/** How metrics are grouped into charts, and how their values are shown. */

/** valueFormat returns the format of a unit of OpenTelemetry. */
export function valueFormat(unit: string): (v: number) => string {
  switch (unit) {
    case "By":
      return bytes;
    case "By/s":
      return (v) => `${bytes(v)}/s`;
    case "1":
      return percent;
    case "s":
      return (v) => duration(Math.round(v * 1e9));
    case "s/s":
      return percent;
    case "Hz":
      return (v) => (v >= 1e9 ? `${significant(v / 1e9)} GHz` : `${significant(v / 1e6)} MHz`);
    case "Cel":
      return (v) => `${significant(v)} °C`;
    default:
      return (v) => `${significant(v)}${unit ? ` ${unit.replace(/[{}]/g, "")}` : ""}`;
  }
}

/** deviceLabel names the device of a series: by its index, or by the start of its id. */
export function deviceLabel(attributes: Readonly<Record<string, unknown>>): string {
  const index = attributes["cuda.device.index"];
  return index !== undefined ? `GPU ${index}` : String(attributes["hw.id"] ?? "").slice(0, 12);
}

/** title names the chart of a metric in words. */
export function title(metric: string): string {
  const known: Record<string, string> = {
    "hw.gpu.utilization": "GPU utilisation",
    "hw.gpu.memory.usage": "GPU memory in use",
    "hw.gpu.memory.free": "GPU memory, free",
    "hw.gpu.memory.controller.utilization": "GPU memory controller, busy",
    "hw.gpu.memory.utilization": "GPU memory, share in use",
    "hw.power": "Power",
    "hw.temperature": "Temperature",
    "hw.gpu.speed": "Clocks",
    "hw.gpu.throttle.duration": "Throttling",
    "hw.gpu.throttle.active": "Throttled now, by reason",
    "hw.gpu.sm.utilization": "Multiprocessors with work",
    "hw.gpu.sm.occupancy": "Occupancy of the multiprocessors",
    "hw.gpu.pipe.utilization": "Pipes in use",
    "hw.gpu.memory.bandwidth.utilization": "Memory bandwidth in use",
    "hw.fan.speed_ratio": "Fan",
    "hw.gpu.io": "PCIe transfer",
    "hw.gpu.io.throughput": "PCIe throughput",
    "hw.gpu.interconnect.io": "NVLink transfer",
    "hw.energy": "Energy",
    "hw.errors": "Errors",
    "hw.voltage": "Voltage",
    "hw.gpu.speed.limit": "Clock limits",
    "process.gpu.memory.usage": "GPU memory by process",
    "process.gpu.utilization": "GPU utilisation by process",
    "gpu.cuda.busy.time": "GPU busy with kernels",
    "gpu.cuda.observed.time": "Observed time",
    "gpu.cuda.time": "Device time by scope",
    "gpu.cuda.kernel.launch.calls": "Kernel launches by scope",
    "gpu.cuda.cost": "Cost by scope",
    "system.cpu.utilization": "CPU utilisation of the host",
    "system.memory.usage": "Memory of the host in use",
  };
  return known[metric] ?? metric;
}

const order = [
  "hw.gpu.utilization",
  "hw.power",
  "hw.gpu.memory.usage",
  "hw.gpu.memory.utilization",
  "hw.temperature",
  "hw.gpu.speed",
  "hw.gpu.throttle",
  "hw.gpu.io",
  "hw.gpu.interconnect",
  "hw.",
  "process.gpu",
  "system.",
  "gpu.cuda",
];

/** rank orders metrics: what explains a slow GPU first. */
export function rank(metric: string): number {
  const i = order.findIndex((p) => metric.startsWith(p));
  return i < 0 ? order.length : i;
}

/** rate turns a cumulative counter into its change per second. A reset gives null. */
export function rate(time: readonly number[], value: readonly (number | null)[]): (number | null)[] {
  return value.map((v, i) => {
    const before = value[i - 1];
    const dt = i ? (time[i] as number) - (time[i - 1] as number) : 0;
    if (v === null || before === null || before === undefined || dt <= 0 || v < before) return null;
    return ((v - before) / dt) * 1e9;
  });
}

/** align puts several series on one time axis, as charts need. Absent values are undefined. */
export function align(series: readonly { time: readonly number[]; value: readonly (number | null)[] }[]): {
  time: number[];
  values: (number | null | undefined)[][];
} {
  const time = [...new Set(series.flatMap((s) => s.time))].sort((a, b) => a - b);
  const at = new Map(time.map((t, i) => [t, i]));
  const values = series.map((s) => {
    const column: (number | null | undefined)[] = new Array(time.length).fill(undefined);
    s.time.forEach((t, i) => {
      column[at.get(t) as number] = s.value[i] ?? null;
    });
    return column;
  });
  return { time, values };
}
