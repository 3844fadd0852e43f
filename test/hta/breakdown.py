# SPDX-License-Identifier: Apache-2.0

"""Prints what Holistic Trace Analysis says of Chrome traces as JSON: one list for each argument with the
idle, compute, other and total time in µs, and the share of communication during computation in %."""

import json
import os
import sys

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # otherwise times are whole µs

from hta.trace_analysis import TraceAnalysis  # noqa: E402

results = []
for path in sys.argv[1:]:
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="")
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    result = [float(times[name + "(us)"]) for name in ("idle_time", "compute_time", "non_compute_time", "kernel_time")]
    try:
        overlap = float(analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"])
    except (ValueError, KeyError, IndexError):  # without communication
        overlap = None
    results.append([*result, None if overlap != overlap else overlap])
json.dump(results, sys.stdout)
