# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of this package: gpuflight and otelcol-gpuflight."""

import os
import sys


def _run(program):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", program)
    try:
        os.execv(path, [program, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"gpuflight: {path}: {e.strerror}: install the wheel for this platform: pip install gpuflight")


def gpuflight():
    _run("gpuflight")


def collector():
    _run("otelcol-gpuflight")


if __name__ == "__main__":
    gpuflight()
