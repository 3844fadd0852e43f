// SPDX-License-Identifier: Apache-2.0

// Package xid says in our own words what the XID codes of NVIDIA's driver mean, after the catalogue
// in NVIDIA's "XID Errors" documentation. It knows the codes that are met in practice, no others.
package xid

// Meaning returns what a code means in a sentence without a full stop, and whether it is known.
func Meaning(code uint64) (string, bool) {
	m, ok := meanings[code]
	return m, ok
}

var meanings = map[uint64]string{
	8:   "the GPU stopped processing: a command did not end in time",
	13:  "a graphics or compute engine raised an exception, mostly an illegal address or instruction in a program's kernel",
	16:  "the display engine hung",
	31:  "a program accessed memory that is not mapped: an MMU fault, mostly a fault of the program",
	32:  "the push buffer that feeds the GPU was invalid or corrupted, mostly a problem of the PCI Express link or the driver",
	38:  "the driver's firmware on the GPU failed",
	43:  "the GPU stopped processing one program's work, mostly through a fault of the program; other programs go on",
	44:  "a graphics engine fault during a context switch",
	45:  "a program's work was removed from the GPU early: it was killed or stopped, or another error came before",
	46:  "the GPU stopped processing and does not react",
	48:  "memory has an uncorrectable double bit ECC error; programs that used it end",
	54:  "the auxiliary power is not connected",
	56:  "the display engine raised an error",
	57:  "video memory is programmed wrongly or damaged",
	58:  "video memory timing is unstable",
	61:  "the GPU's internal microcontroller stopped at a breakpoint or warned",
	62:  "the GPU's internal microcontroller halted",
	63:  "a memory page was retired, or a memory row remapped, to replace a damaged one; it takes effect at the next reset",
	64:  "a memory page could not be retired, or a row not remapped; the board may need to be replaced",
	65:  "the video processor raised an exception",
	66:  "the driver gave the GPU an illegal access",
	68:  "the video decoder raised an exception",
	69:  "the graphics engine's class raised an error, mostly through a fault of the program",
	73:  "the video encoder raised an error",
	74:  "an NVLink connection to another GPU or a switch has an error",
	78:  "a virtual GPU could not be started",
	79:  "the GPU has fallen off the bus: the driver cannot reach it over PCI Express",
	80:  "data sent to the GPU was corrupted",
	81:  "the VGA subsystem has an error",
	92:  "memory has corrected single bit errors at a high rate",
	93:  "the board's non-volatile memory (InfoROM) could not be written",
	94:  "an uncorrectable memory error was contained: only the program that met it ends",
	95:  "an uncorrectable memory error was not contained: all programs on the GPU are affected, and it has to be reset",
	96:  "the decoder (fifth unit) raised an exception",
	109: "a program's work did not leave the GPU in time at a context switch",
	110: "a security fault: the GPU's protection of its firmware was triggered",
	119: "the driver's firmware processor (GSP) did not answer in time; the GPU may have to be reset",
	120: "the driver's firmware processor (GSP) raised an error; the GPU may have to be reset",
	121: "the link between chips (C2C) has a correctable error",
	122: "the power management unit could not read the board's SPI memory",
	123: "the power management unit could not write the board's SPI memory",
	124: "the power management unit could not erase the board's SPI memory",
	136: "the link training of a connection failed",
	140: "memory has an ECC error that was not recovered",
	143: "the GPU could not be initialised",
	144: "the NVLink unit has an error",
	145: "an NVLink connection has an error at its link layer",
	149: "an NVLink connection failed at its network layer",
	154: "the driver recommends an action to bring the GPU back, for example a reset",
	155: "the driver's software reports an NVLink error",
	156: "a memory resource was taken out of use",
	157: "a memory resource could not be taken out of use",
	158: "the GPU met a fatal timeout",
	171: "memory has uncorrectable ECC errors; see the record of XID 48",
	172: "static memory on the GPU has an uncorrectable ECC error; see the record of XID 48",
}
