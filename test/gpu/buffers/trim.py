# SPDX-License-Identifier: Apache-2.0
"""Makes test data of a capture: python3 trim.py CAPTURE/default OUT/NAME

Keeps the kernels and a hundred of every other kind, and the external ids and host calls of the device
work among them, in the order in which CUPTI delivered them. Records stand alone, so what is left is a buffer
like any other. Writes NAME.buf.gz (records), NAME.idx.gz (where they begin, little-endian uint32) and
NAME.names.gz (pointer in hex, tab, name).
"""

import glob
import gzip
import os
import struct
import sys

KEEP = 100  # of each kind
EXTERNAL, DRIVER, RUNTIME = 39, 4, 5
KERNELS = (3, 10)
MEMORY = 49
# Where a record has its correlation id.
CORRELATION = {1: 44, 2: 44, 3: 92, 4: 32, 5: 32, 10: 92, 22: 60, 38: 24, 39: 16, 49: 12, 51: 4}

source, target = sys.argv[1:]
records = []
for path in sorted(glob.glob(os.path.join(source, "*.buf"))):
    data = open(path, "rb").read()
    index = open(path[:-3] + "idx", "rb").read()
    begins = struct.unpack("<%dI" % (len(index) // 4), index)
    for begin, end in zip(begins, begins[1:] + (len(data),)):
        records.append(data[begin:end])


def kind(record):
    return struct.unpack_from("<I", record)[0]


def correlation(record):
    at = CORRELATION.get(kind(record))
    return struct.unpack_from("<I", record, at)[0] if at else 0


counts, kept, wanted = {}, [], set()
for number, record in enumerate(records):
    k = kind(record)
    if k in (EXTERNAL, DRIVER, RUNTIME):
        continue
    counts[k] = counts.get(k, 0) + 1
    if k in KERNELS or counts[k] <= KEEP:
        kept.append(number)
        if k != MEMORY:
            wanted.add(correlation(record))
wanted.discard(0)
for number, record in enumerate(records):
    if kind(record) in (EXTERNAL, DRIVER, RUNTIME) and correlation(record) in wanted:
        kept.append(number)
kept.sort()


def write(name, data):
    # No time in the header, so that the same capture gives the same file.
    with open(target + name, "wb") as f, gzip.GzipFile("", "wb", 9, f, 0) as z:
        z.write(data)


begins, at = [], 0
for number in kept:
    begins.append(at)
    at += len(records[number])
write(".buf.gz", b"".join(records[number] for number in kept))
write(".idx.gz", struct.pack("<%dI" % len(begins), *begins))
write(".names.gz", open(os.path.join(source, "names.txt"), "rb").read())
print(target, len(kept), "of", len(records), "records,", at, "bytes, kinds", sorted({kind(records[n]) for n in kept}))
