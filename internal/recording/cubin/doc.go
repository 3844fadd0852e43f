// SPDX-License-Identifier: Apache-2.0

// Package cubin reads the machine code of CUDA modules as the driver loads it. It lists the
// functions of an image. For an instruction, it returns the line of source, the functions inlined
// there, and the SASS text. For a function, it returns the PTX text if the image has it. It needs
// neither a GPU nor CUDA. Only the SASS text requires NVIDIA's nvdisasm.
//
//   - [Open] reads one image: functions, architecture, lines.
//   - [FindDisassembler] searches a trusted nvdisasm, [Disassembler] runs it.
//   - [Resolver] does both for all images of a process. It bounds memory and counts unresolved
//     places. Profilers use it.
//   - [CUPTICRC] and [CRC] identify images.
//
// Images are untrusted input. Reading terminates, stays within its bounds, and either works or
// returns an error with the position. The package does not depend on CUPTI, logs or spans. Of the
// names of telemetry it uses those of listings only.
//
// # Content of an image
//
// A cubin is a 64-bit ELF file for machine 190. Each kernel has a section of its own, called .text
// and its name. Device functions that were not inlined are symbols inside the section of the kernel
// that calls them. In linked code (nvcc -rdc) they have sections of their own.
//
// CUPTI identifies an instruction by the kernel and the offset from its start, also inside a device
// function in the kernel's section. This was seen in SASS metrics recorded on an H200, driver 580,
// and in cuptiGetSassToSourceCorrelation of CUPTI 11.8 to 13.0.
//
// Code compiled with -lineinfo or -G has a line table in .debug_line: DWARF 2 and 3 (nvcc 13.5 with
// -G), with one opcode of NVIDIA's own, for inlining. Such code also has its PTX text in
// .nv_debug_ptx_txt. .nv_debug_line_sass has the lines of this text and is not read. Instructions
// have 16 bytes since compute capability 7.0, the oldest that is supported.
//
// Seen: ptxas 12.9, 13.0 and 13.5 for compute capabilities 8.0, 9.0, 10.0, 10.3 and 12.0. The
// architecture is in different bits of ABI 7 and ABI 8. CUDA 12.9 writes ABI 7 for 9.0 and ABI 8
// for 10.0. CUDA 13.0 writes ABI 8 for all.
package cubin
