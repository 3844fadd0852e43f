# SPDX-License-Identifier: Apache-2.0
"""Reads a trace with Perfetto's protobuf classes and prints its sums as JSON.

usage: read_perfetto.py FILE

It checks what Perfetto requires: interning before use, timestamps, nested slices, known tracks. A
trace that violates that ends it with an assertion. Perfetto publishes no class for the extensions
of InternedData (protos/perfetto/trace/gpu/gpu_interned_data.proto), so the script reads these two
fields from the unknown ones.
"""

import collections
import json
import sys

from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

COMPUTE_KERNELS, COMPUTE_ARG_NAMES = 1000, 1001

trace = pb.Trace()
with open(sys.argv[1], "rb") as f:
    trace.ParseFromString(f.read())

stages = collections.defaultdict(lambda: [0, 0])
kernels = collections.defaultdict(lambda: [0, 0])
slices = collections.Counter()
counters = collections.Counter()
launches = {"grid": 0, "block": 0, "registers": 0}
tracks, parents, open_slices = {}, {}, {}
devices, events = [], set()
names, annotations, specs, contexts, compute, args = {}, {}, {}, {}, {}, {}
process = ""
cleared = False

# Sorted by time as Perfetto does. Packets of one time keep their order.
packets = [p for p in trace.packet]
for p in packets:
    assert p.trusted_packet_sequence_id == 1
    if p.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        cleared = True
        for table in (names, annotations, specs, contexts, compute, args):
            table.clear()
    assert cleared, "the first packet of the sequence clears its state"
    data = p.interned_data
    names.update((x.iid, x.name) for x in data.event_names)
    annotations.update((x.iid, x.name) for x in data.debug_annotation_names)
    specs.update((x.iid, x) for x in data.gpu_specifications)
    contexts.update((x.iid, x) for x in data.graphics_contexts)
    for field in unknown_fields.UnknownFieldSet(data):
        if field.field_number == COMPUTE_ARG_NAMES:
            x = pb.InternedComputeArgName.FromString(field.data)
            args[x.iid] = x.name
    for field in unknown_fields.UnknownFieldSet(data):
        if field.field_number == COMPUTE_KERNELS:
            x = pb.InternedComputeKernel.FromString(field.data)
            compute[x.iid] = (x, {args[a.name_iid] for a in x.args})
    kind = p.WhichOneof("data")
    if kind == "gpu_info":
        devices = [g.name for g in p.gpu_info.gpus]
    elif kind == "track_descriptor":
        d = p.track_descriptor
        assert d.uuid not in tracks
        tracks[d.uuid], parents[d.uuid] = d, d.parent_uuid
        if d.HasField("process"):
            process = d.process.process_name
    elif kind == "gpu_render_stage_event":
        e = p.gpu_render_stage_event
        assert p.timestamp > 0 and e.event_id not in events
        events.add(e.event_id)
        assert contexts[e.context].api == pb.InternedGraphicsContext.CUDA
        assert specs[e.hw_queue_iid].name and e.gpu_id < len(devices)
        stage = specs[e.stage_iid]
        for total in [stages[stage.name]] + ([kernels[names[e.name_iid]]] if stage.name == "Kernel" else []):
            total[0] += 1
            total[1] += e.duration
        if stage.name == "Kernel":
            assert stage.category == pb.InternedGpuRenderStageSpecification.COMPUTE
            kernel, parameters = compute[e.kernel_iid]
            assert kernel.name and kernel.demangled_name
            launches["grid"] += e.launch.grid_size.x > 0
            launches["block"] += e.launch.workgroup_size.x > 0
            launches["registers"] += "registers_per_thread" in parameters

for p in sorted((p for p in packets if p.WhichOneof("data") == "track_event"), key=lambda p: p.timestamp):
    e = p.track_event
    track = tracks[e.track_uuid]
    stack = open_slices.setdefault(e.track_uuid, [])
    if e.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
        stack.append(e.categories[0])
    elif e.type == pb.TrackEvent.TYPE_SLICE_END:
        slices[stack.pop()] += 1
    elif e.type == pb.TrackEvent.TYPE_COUNTER:
        assert track.HasField("counter")
        counters[track.name] += 1
assert not any(open_slices.values()), "all slices end"

json.dump({
    "process": process, "devices": devices, "stages": stages, "kernels": kernels, "slices": slices,
    "counters": counters, "launches": launches, "unparented": sum(u != 1 and p != 1 for u, p in parents.items()),
}, sys.stdout)
