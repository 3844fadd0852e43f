# SPDX-License-Identifier: Apache-2.0
"""Adds the programs in GPUFLIGHT_PROGRAMS to the wheel, and the platform that they need to its name."""

import os
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = ("gpuflight", "otelcol-gpuflight", "libgpuflight.so", "libgpuflight-recorder.so")
MACHINES = {62: "x86_64", 183: "aarch64"}  # EM_X86_64, EM_AARCH64


def platform(files):
    """The platform tag: the newest glibc whose symbols a program uses, 2.28 at least."""
    machines, minor = set(), 28
    for path in files:
        with open(path, "rb") as f:
            data = f.read()
        if data[:5] != b"\x7fELF\x02":
            raise ValueError(f"{path} is not a 64-bit ELF file")
        machines.add(MACHINES[int.from_bytes(data[18:20], "little")])
        # Versions are whole strings of the dynamic string table.
        minor = max([minor, *(int(m) for m in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", data))])
    if len(machines) != 1:
        raise ValueError(f"programs for {', '.join(sorted(machines))}")
    return f"manylinux_2_{minor}_{machines.pop()}"


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        folder = os.environ["GPUFLIGHT_PROGRAMS"]
        files = {os.path.join(folder, name): f"gpuflight/bin/{name}" for name in PROGRAMS}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform(files)}"
        build_data["force_include"].update(files)
        root = os.path.dirname(os.path.abspath(self.root))
        build_data["force_include"][os.path.join(root, "config", "local.yaml")] = "gpuflight/config/local.yaml"
