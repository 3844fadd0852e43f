// SPDX-License-Identifier: Apache-2.0

// Package cubin reads the machine code of CUDA modules as the driver loads it: it tells which
// functions an image has, and for an instruction the line of source it was made from, the functions
// that were inlined on the way there, and its SASS text. It needs neither a GPU nor CUDA; only the
// text comes from NVIDIA's nvdisasm, where that is installed.
//
//   - [Open] reads one image: functions, architecture, lines.
//   - [FindDisassembler] finds an nvdisasm that may be run, [Disassembler] runs it.
//   - [Resolver] does both for all images of a process, with bounds on memory and counts of what it
//     could not tell. It is what a profiler asks.
//   - [CUPTICRC] and [CRC] name images.
//
// Images are foreign bytes. Whatever is in them, reading ends, stays within the bounds given, and
// either works or says what is wrong and where. The package knows nothing of CUPTI, logs or spans; of
// the names that telemetry uses it knows those of listings.
//
// # What is in an image
//
// A cubin is a 64-bit ELF file for machine 190. Each kernel has a section of its own, called .text and its
// name. Device functions that were not inlined are symbols inside the section of the kernel that calls
// them, or have a section of their own in code that was linked (nvcc -rdc). CUPTI names an instruction by
// kernel and offset from the kernel's begin, also those of a device function inside its section (seen in SASS
// metrics recorded on an H200, driver 580, and in cuptiGetSassToSourceCorrelation of CUPTI 11.8 to 13.0).
//
// Code compiled with -lineinfo or -G has a line table in .debug_line: DWARF 2 and 3 (nvcc 13.5 with -G), with
// one opcode of NVIDIA's own, for inlining. .nv_debug_line_sass has the lines of the PTX text in between,
// and is not read. Instructions take 16 bytes since compute capability 7.0, which is the oldest that is read.
//
// Seen: ptxas 12.9, 13.0 and 13.5 for compute capabilities 8.0, 9.0, 10.0, 10.3 and 12.0. ABI 7, which CUDA 12.9 writes
// for 9.0, and ABI 8, which it writes for 10.0 and CUDA 13.0 for all, have the architecture in different bits.
package cubin
