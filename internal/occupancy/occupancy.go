// SPDX-License-Identifier: Apache-2.0

package occupancy

import (
	"errors"
	"math"
)

// Launch is what a kernel asks of a multiprocessor.
type Launch struct {
	// Threads of a block, at least 1.
	Threads int64
	// Registers of a thread; 0 for a kernel that uses none.
	Registers int64
	// Shared memory of a block in bytes, static and dynamic, without what the driver adds.
	Shared int64
	// Carveout is the shared memory in bytes to which the driver set the multiprocessor for this
	// launch; 0 if unknown, which stands for the largest. Where it does not hold even one block,
	// the smallest that does is taken, as the driver would.
	Carveout int64
	// Cluster is the number of blocks of a cluster; 0 and 1 are a launch without clusters.
	Cluster int64
}

// Limiter is a set of resources.
type Limiter uint8

// The resources that a multiprocessor can run out of.
const (
	Warps Limiter = 1 << iota
	Registers
	SharedMemory
	Blocks
)

// Result is the theoretical occupancy of a launch.
type Result struct {
	// Blocks and Warps are the most that a multiprocessor holds at once. 0 blocks: the kernel
	// cannot run.
	Blocks, Warps int
	// Theoretical is Warps as a share of what the multiprocessor could hold, 0 to 1.
	Theoretical float64
	// Limiter has each resource whose own limit is Blocks.
	Limiter Limiter
}

// What is wrong with a launch.
var (
	ErrNegative = errors.New("threads must be above 0, registers and shared memory not below")
	ErrCarveout = errors.New("carveout is more than the multiprocessor's shared memory")
)

// Compute returns the theoretical occupancy of a launch.
//
// A launch that the device would refuse (too large a block, too many registers, too much shared
// memory) has 0 blocks and the refusing resources as limiters. A launch that is none is an error:
// ErrNegative or ErrCarveout.
func (l *Limits) Compute(k Launch) (Result, error) {
	if k.Threads <= 0 || k.Registers < 0 || k.Shared < 0 || k.Carveout < 0 {
		return Result{}, ErrNegative
	}
	if k.Carveout > int64(l.Shared) {
		return Result{}, ErrCarveout
	}
	byWarps, byRegisters := l.byWarps(k), l.byRegisters(k)
	byShared, byBlocks := l.byShared(k), int64(l.Blocks)
	if k.Cluster > 1 && l.ClusterBlocks > 0 {
		byBlocks = min(byBlocks, int64(l.ClusterBlocks))
	}
	n := min(byWarps, byRegisters, byShared, byBlocks)
	var limiter Limiter
	if byWarps == n {
		limiter |= Warps
	}
	if byRegisters == n {
		limiter |= Registers
	}
	if byShared == n {
		limiter |= SharedMemory
	}
	if byBlocks == n {
		limiter |= Blocks
	}
	return l.result(k.Threads, int(n), limiter), nil
}

func (l *Limits) result(threads int64, blocks int, limiter Limiter) Result {
	r := Result{Blocks: blocks, Limiter: limiter}
	if blocks > 0 { // so that threads is small
		r.Warps = blocks * int(warpsOf(threads))
		r.Theoretical = float64(r.Warps) / float64(l.Warps)
	}
	return r
}

func (l *Limits) byWarps(k Launch) int64 {
	if k.Threads > int64(l.MaxThreads) {
		return 0
	}
	return int64(l.Warps) / warpsOf(k.Threads)
}

// byRegisters returns the limit of the registers: they are given to warps in units, and each warp
// takes its own from one sub-partition.
func (l *Limits) byRegisters(k Launch) int64 {
	switch {
	case k.Registers > int64(l.RegistersPerThread):
		return 0
	case k.Registers == 0:
		return math.MaxInt64
	}
	// Far more warps than registers, so that absurd blocks do not overflow.
	warps, partitions := min(warpsOf(k.Threads), 1<<20), int64(l.SubPartitions)
	perWarp := roundUp(k.Registers*WarpSize, int64(l.RegisterUnit))
	if perWarp*roundUp(warps, checkedPartitions) > int64(l.RegistersPerBlock) {
		return 0
	}
	return int64(l.Registers) / partitions / perWarp * partitions / warps
}

// checkedPartitions is the multiple to which a block's warps are rounded up for the check against the
// maximum of registers per block: each of four sub-partitions counts like the fullest. It is four also
// on 6.0, whose multiprocessors have two: CUDA accepts a block there only if it fits on 6.1.
const checkedPartitions = 4

func (l *Limits) byShared(k Launch) int64 {
	if k.Shared > int64(l.SharedPerBlock) {
		return 0
	}
	perBlock := roundUp(k.Shared+int64(l.SharedReserved), int64(l.SharedUnit))
	if perBlock == 0 {
		return math.MaxInt64
	}
	return l.carveout(k.Carveout, perBlock) / perBlock
}

// carveout returns the shared memory of a multiprocessor that is set to size, or must be set higher
// for a block to fit.
func (l *Limits) carveout(size, perBlock int64) int64 {
	if size == 0 || len(l.Carveouts) == 1 {
		return int64(l.Shared)
	}
	if size >= perBlock {
		return size
	}
	for _, c := range l.Carveouts {
		if int64(c) >= perBlock {
			return int64(c)
		}
	}
	return int64(l.Shared)
}

func warpsOf(threads int64) int64 { return (threads-1)/WarpSize + 1 }

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// Grid says how a grid of blocks spreads over a device.
type Grid struct {
	// Blocks of the grid, at least 1.
	Blocks int64
	// PerMultiprocessor are the blocks that one multiprocessor holds, Multiprocessors how many of
	// those the device has.
	PerMultiprocessor, Multiprocessors int64
	// Cluster is the number of blocks of a cluster; 0 and 1 are a launch without clusters.
	Cluster int64
}

// Resident returns the most blocks that the device holds at once: with clusters only whole ones, and
// none of a cluster larger than MaxCluster. A cluster lives inside one group of multiprocessors, of
// which nobody tells how many a device has and how large; so with clusters this is an upper bound.
func (g Grid) Resident() int64 {
	n := g.PerMultiprocessor * g.Multiprocessors
	switch {
	case g.Cluster <= 1:
		return n
	case g.Cluster > MaxCluster:
		return 0
	default:
		return n / g.Cluster * g.Cluster
	}
}

// Spread returns the number of waves that the grid needs, as a fraction, and the share of the device's
// capacity that it fills over its whole waves. On a device with a capacity of 1056 blocks, 20 blocks
// are 0.019 waves and fill 0.019. 1057 blocks are 1.001 waves, take the time of two, and fill half.
// Both results are 0 if no block can be resident or the grid has no blocks.
func (g Grid) Spread() (waves, fill float64) {
	resident := g.Resident()
	if resident <= 0 || g.Blocks <= 0 {
		return 0, 0
	}
	whole := g.Blocks / resident
	if g.Blocks%resident != 0 {
		whole++
	}
	return float64(g.Blocks) / float64(resident), float64(g.Blocks) / (float64(whole) * float64(resident))
}
