// SPDX-License-Identifier: Apache-2.0

package occupancy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Capability is a compute capability, such as 9.0.
type Capability struct{ Major, Minor int }

// String returns the capability as CUDA writes it: "9.0".
func (c Capability) String() string { return strconv.Itoa(c.Major) + "." + strconv.Itoa(c.Minor) }

// ParseCapability reads a capability as String writes it. The error names the text.
func ParseCapability(s string) (Capability, error) {
	major, minor, ok := strings.Cut(s, ".")
	a, errA := digits(major)
	b, errB := digits(minor)
	if !ok || errA != nil || errB != nil {
		return Capability{}, fmt.Errorf("compute capability %.20q: not of the form 9.0", s)
	}
	return Capability{a, b}, nil
}

// digits reads one or two digits and nothing else, signs and spaces included.
func digits(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || len(s) > 2 {
		return 0, strconv.ErrSyntax
	}
	return int(n), nil
}

// Limits is what the hardware of one compute capability offers. Memory is in bytes.
type Limits struct {
	Capability Capability
	// MaxThreads is the largest block.
	MaxThreads int
	// Warps and Blocks are the most that a multiprocessor holds at once.
	Warps, Blocks int
	// ClusterBlocks is the most blocks that a multiprocessor holds of a launch with clusters; 0
	// where nobody has measured it, for the guide does not say.
	ClusterBlocks int
	// Registers are those of a multiprocessor, RegistersPerBlock and RegistersPerThread the most
	// that one block and one thread may have.
	Registers, RegistersPerBlock, RegistersPerThread int
	// RegisterUnit is what the registers of a warp are rounded up to.
	RegisterUnit int
	// SubPartitions share a multiprocessor's registers; a warp lives in one of them.
	SubPartitions int
	// Shared is the shared memory of a multiprocessor at the largest carveout; SharedPerBlock the
	// most that a block may have when it opts in.
	Shared, SharedPerBlock int
	// SharedReserved is what the driver takes for itself in each block, SharedUnit what a block's
	// sum is rounded up to.
	SharedReserved, SharedUnit int
	// Carveouts are the sizes that shared memory can be set to, ascending: the rest of the same
	// memory is L1 cache. One entry means that the size is fixed.
	Carveouts []int

	// index is the place in the table, for Cache.
	index int
}

const (
	kib = 1 << 10

	// WarpSize is the number of threads of a warp, on every NVIDIA device.
	WarpSize = 32

	// MaxCluster is the largest cluster that hardware runs, in blocks; above 8 the kernel must opt
	// in (CUDA C++ Programming Guide, "Thread Block Clusters").
	MaxCluster = 16
)

// What the multiprocessors can set their shared memory to (CUDA C++ Programming Guide, the sections
// "Shared Memory" of each compute capability).
var (
	voltaCarveouts    = []int{0, 8 * kib, 16 * kib, 32 * kib, 64 * kib, 96 * kib}
	turingCarveouts   = []int{32 * kib, 64 * kib}
	largeCarveouts    = []int{0, 8 * kib, 16 * kib, 32 * kib, 64 * kib, 100 * kib, 132 * kib, 164 * kib}
	graphicsCarveouts = []int{0, 8 * kib, 16 * kib, 32 * kib, 64 * kib, 100 * kib}
	hopperCarveouts   = []int{
		0, 8 * kib, 16 * kib, 32 * kib, 64 * kib, 100 * kib, 132 * kib, 164 * kib, 196 * kib, 228 * kib,
	}
)

// table holds the capabilities from 5.0 to 12.1, ascending.
//
// Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability" (warps,
// blocks, registers, shared memory and its maximum per block). The guide of 12.9 is the source for 5.x
// to 7.2, which CUDA 13 no longer supports, and for 10.1, which it renamed to 11.0. The rows from 6.0
// on, except 7.2 and 10.1, were compared with NVIDIA's constants in CCCL (arch_traits, 2025).
//
// The guide omits these rules of NVIDIA's occupancy calculator (the CUDA toolkit's occupancy header of
// 12.9 and 13.x). A warp's registers are allocated in units of 256. A multiprocessor has four
// sub-partitions; on 6.0 it has two. Shared memory is allocated in units of 256 B up to 7.x. From 8.0
// on the unit is 128 B, and the driver reserves 1 KiB. The row of 9.0 was also measured on an H200.
var table = number([]Limits{
	row(5, 0, 64, 32, 64*kib, 64*kib, 48*kib, nil),
	row(5, 2, 64, 32, 64*kib, 96*kib, 48*kib, nil),
	row(5, 3, 64, 32, 32*kib, 64*kib, 48*kib, nil),
	row(6, 0, 64, 32, 64*kib, 64*kib, 48*kib, nil),
	row(6, 1, 64, 32, 64*kib, 96*kib, 48*kib, nil),
	row(6, 2, 64, 32, 32*kib, 64*kib, 48*kib, nil),
	row(7, 0, 64, 32, 64*kib, 96*kib, 96*kib, voltaCarveouts),
	row(7, 2, 64, 32, 64*kib, 96*kib, 96*kib, voltaCarveouts),
	row(7, 5, 32, 16, 64*kib, 64*kib, 64*kib, turingCarveouts),
	row(8, 0, 64, 32, 64*kib, 164*kib, 163*kib, largeCarveouts),
	row(8, 6, 48, 16, 64*kib, 100*kib, 99*kib, graphicsCarveouts),
	row(8, 7, 48, 16, 64*kib, 164*kib, 163*kib, largeCarveouts),
	row(8, 9, 48, 24, 64*kib, 100*kib, 99*kib, graphicsCarveouts),
	row(9, 0, 64, 32, 64*kib, 228*kib, 227*kib, hopperCarveouts),
	row(10, 0, 64, 32, 64*kib, 228*kib, 227*kib, hopperCarveouts),
	row(10, 1, 48, 24, 64*kib, 228*kib, 227*kib, hopperCarveouts),
	row(10, 3, 64, 32, 64*kib, 228*kib, 227*kib, hopperCarveouts),
	row(11, 0, 48, 24, 64*kib, 228*kib, 227*kib, hopperCarveouts),
	row(12, 0, 48, 24, 64*kib, 100*kib, 99*kib, graphicsCarveouts),
	row(12, 1, 48, 24, 64*kib, 100*kib, 99*kib, graphicsCarveouts),
})

// row fills in what whole generations have in common. A nil list of carveouts is a fixed size.
func row(major, minor, warps, blocks, registersPerBlock, shared, sharedPerBlock int, carveouts []int) Limits {
	l := Limits{
		Capability:         Capability{major, minor},
		MaxThreads:         1024,
		Warps:              warps,
		Blocks:             blocks,
		Registers:          64 * kib,
		RegistersPerBlock:  registersPerBlock,
		RegistersPerThread: 255,
		RegisterUnit:       256,
		SubPartitions:      4,
		Shared:             shared,
		SharedPerBlock:     sharedPerBlock,
		SharedUnit:         256,
		Carveouts:          carveouts,
	}
	if carveouts == nil {
		l.Carveouts = []int{shared}
	}
	if l.Capability == (Capability{6, 0}) {
		l.SubPartitions = 2
	}
	if l.Capability == (Capability{9, 0}) {
		// Measured on an H200 with driver 580: a multiprocessor holds at most 8 blocks of a launch with
		// clusters, but 32 of a launch without (docs/internals/measurements.md). The driver
		// (cuOccupancyMaxActiveClusters) and a kernel that counts its resident blocks agree.
		l.ClusterBlocks = 8
	}
	if major >= 8 {
		l.SharedReserved, l.SharedUnit = 1*kib, 128
	}
	return l
}

func number(rows []Limits) []Limits {
	for i := range rows {
		rows[i].index = i
	}
	return rows
}

// ErrUnknownCapability is the error of a capability that the table lacks.
var ErrUnknownCapability = errors.New("no limits are known for this compute capability")

// LimitsOf returns the limits of a capability, which nobody may change, or an error that is
// ErrUnknownCapability.
func LimitsOf(c Capability) (*Limits, error) {
	for i := range table {
		if table[i].Capability == c {
			return &table[i], nil
		}
	}
	return nil, fmt.Errorf("compute capability %s: %w", c, ErrUnknownCapability)
}

// Known returns the capabilities that LimitsOf knows, ascending.
func Known() []Capability {
	out := make([]Capability, len(table))
	for i := range table {
		out[i] = table[i].Capability
	}
	return out
}
