# SPDX-License-Identifier: Apache-2.0

"""Prints what Holistic Trace Analysis says of Chrome traces as JSON: one list for each trace with the
idle, compute, other and total time in µs, and the share of communication during computation in %. An
argument has the traces of all ranks of a run, with commas between them."""

import json
import os
import sys

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # otherwise times are whole µs

from hta.trace_analysis import TraceAnalysis  # noqa: E402

results = []
for paths in sys.argv[1:]:
    ranks = dict(enumerate(paths.split(",")))
    analysis = TraceAnalysis(trace_files=ranks, trace_dir="")
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    try:
        overlaps = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    except (ValueError, KeyError, IndexError):  # without communication
        overlaps = {}
    for rank in ranks:
        result = [float(times.loc[rank][name + "(us)"]) for name in ("idle_time", "compute_time", "non_compute_time", "kernel_time")]
        overlap = float(overlaps.get(rank, "nan"))
        results.append([*result, None if overlap != overlap else overlap])
json.dump(results, sys.stdout)
