// SPDX-License-Identifier: Apache-2.0
import { describe, expect, it } from "vitest";
import { align, deviceLabel, rate, title, valueFormat } from "./metrics";

describe("rate", () => {
  it("is the change per second, and null after a reset", () => {
    expect(rate([0, 1e9, 3e9, 4e9], [5, 15, 25, 3])).toEqual([null, 10, 5, null]);
  });
});

describe("align", () => {
  it("merges the times of series", () => {
    expect(
      align([
        { time: [1, 3], value: [10, 30] },
        { time: [2, 3], value: [20, null] },
      ]),
    ).toEqual({
      time: [1, 2, 3],
      values: [
        [10, undefined, 30],
        [undefined, 20, null],
      ],
    });
  });
});

describe("valueFormat", () => {
  it.each([
    ["By", 2 ** 31, "2.00 GiB"],
    ["1", 0.42, "42 %"],
    ["W", 82.375, "82.4 W"],
    ["Hz", 1.98e9, "1.98 GHz"],
    ["Cel", 32, "32.0 °C"],
    ["{error}", 3, "3.00 error"],
  ])("of %s", (unit, v, text) => expect(valueFormat(unit)(v)).toBe(text));
});

describe("names", () => {
  it("have the index of the device, or the start of its id", () => {
    expect(deviceLabel({ "cuda.device.index": 0, "hw.id": "GPU-0123456789ab" })).toBe("GPU 0");
    expect(deviceLabel({ "hw.id": "GPU-0123456789ab" })).toBe("GPU-01234567");
    expect(deviceLabel({})).toBe("");
  });
  it("are words for the metrics of the receiver nvml and of the connector gpu_usage", () => {
    expect(title("gpu.cuda.time")).toBe("Device time by scope");
    expect(title("hw.gpu.memory.free")).toBe("GPU memory, free");
    expect(title("hw.gpu.memory.controller.utilization")).toBe("GPU memory controller, busy");
  });
});
