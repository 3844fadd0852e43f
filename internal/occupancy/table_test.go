// SPDX-License-Identifier: Apache-2.0

package occupancy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// launch is one case: what is asked for, and what CUDA must say.
type launch struct {
	threads, registers, shared, carveout int64
	blocks, warps                        int
	limiter                              Limiter
}

// byHand has cases for every capability. The expected numbers were derived by hand from the limits in
// the line above the group; each comment has the derivation. The limits are: warps (w) and block slots
// of a multiprocessor, registers of a multiprocessor and of a block, shared memory of a multiprocessor
// and its maximum per block. In all groups a block has at most 1024 threads and a thread at most 255
// registers. A warp of r registers per thread takes 32 r, rounded up to 256 ("256 a warp"). "quarters"
// are the sub-partitions of 16384 registers, from which each warp takes its registers.
var byHand = []struct {
	capabilities []Capability
	cases        []launch
}{
	// 64 w, 32 blocks, 64 K registers (64 K a block), 64 KiB shared (48 KiB a block), unit 256 B.
	{[]Capability{{5, 0}}, []launch{
		{256, 32, 0, 0, 8, 64, Warps | Registers},                       // 8 w: 64/8 = 8. 1024 a warp: 16 in a quarter, 64/8 = 8
		{32, 16, 0, 0, 32, 32, Blocks},                                  // 1 w: 64/1 = 64 blocks, but 32 slots
		{64, 32, 0, 0, 32, 64, Warps | Registers | Blocks},              // 2 w: 64/2 = 32 = slots; 64 w of registers / 2 = 32
		{256, 40, 0, 0, 6, 48, Registers},                               // 1280 a warp: 12 in a quarter, 48/8 = 6
		{128, 32, 16384, 0, 4, 16, SharedMemory},                        // 64 KiB / 16 KiB = 4
		{128, 32, 49152, 0, 1, 4, SharedMemory},                         // 64 KiB / 48 KiB = 1
		{128, 32, 49153, 0, 0, 0, SharedMemory},                         // above 48 KiB a block
		{96, 24, 2100, 0, 21, 63, Warps},                                // 3 w: 64/3 = 21. 2100 → 2304: 65536/2304 = 28. 768 a warp: 21 in a quarter, 84/3 = 28
		{1024, 64, 0, 0, 1, 32, Registers},                              // 2048 a warp: 8 in a quarter, 32/32 = 1; a block takes all 64 K
		{1024, 65, 0, 0, 0, 0, Registers},                               // 65*32 = 2080 → 2304 a warp: 73728 > 64 K a block
		{1025, 16, 0, 0, 0, 0, Warps},                                   // above 1024 threads
		{1000, 255, 49153, 0, 0, 0, Registers | SharedMemory},           // 8160 → 8192 a warp, 32 w: 256 K > 64 K; and above 48 KiB
		{256, 32, 8192, 16384, 8, 64, Warps | Registers | SharedMemory}, // the size is fixed: a carveout changes nothing, 64/8 = 8
	}},
	// 64 w, 32 blocks, 64 K registers (64 K a block), 96 KiB shared (48 KiB a block), unit 256 B.
	{[]Capability{{5, 2}, {6, 1}}, []launch{
		{1024, 32, 0, 0, 2, 64, Warps | Registers},      // 32 w: 64/32 = 2. 1024 a warp: 64/32 = 2
		{128, 32, 16384, 0, 6, 24, SharedMemory},        // 96 KiB / 16 KiB = 6
		{128, 32, 49152, 0, 2, 8, SharedMemory},         // 96 KiB / 48 KiB = 2
		{128, 32, 49153, 0, 0, 0, SharedMemory},         // above 48 KiB a block
		{32, 0, 3072, 0, 32, 32, SharedMemory | Blocks}, // 98304/3072 = 32 = slots; no registers, no limit by them
		{32, 8, 3073, 0, 29, 29, SharedMemory},          // 3073 → 3328: 98304/3328 = 29
		{256, 255, 0, 0, 1, 8, Registers},               // 8192 a warp: 2 in a quarter, 8/8 = 1
		{288, 255, 0, 0, 0, 0, Registers},               // 9 w, checked as 12: 12*8192 = 98304 > 64 K a block
		{32, 256, 0, 0, 0, 0, Registers},                // above 255 a thread
		{160, 48, 0, 0, 8, 40, Registers},               // 5 w: 1536 a warp, 10 in a quarter, 40/5 = 8; 64/5 = 12
		{33, 16, 0, 0, 32, 64, Warps | Blocks},          // 33 threads are 2 w: 64/2 = 32 = slots. 512 a warp: 128/2 = 64
	}},
	// 64 w, 32 blocks, 64 K registers but 32 K a block, 64 KiB shared (48 KiB a block), unit 256 B.
	{[]Capability{{5, 3}, {6, 2}}, []launch{
		{256, 32, 0, 0, 8, 64, Warps | Registers},  // 8 w: 64/8 = 8. 1024 a warp: 64/8 = 8
		{1024, 32, 0, 0, 2, 64, Warps | Registers}, // 32 w * 1024 = 32 K: just what a block may have; 64/32 = 2
		{1024, 33, 0, 0, 0, 0, Registers},          // 33*32 = 1056 → 1280 a warp: 40960 > 32 K a block
		{512, 64, 0, 0, 2, 32, Registers},          // 16 w * 2048 = 32 K. 8 in a quarter, 32/16 = 2
		{512, 65, 0, 0, 0, 0, Registers},           // 2304 a warp: 36864 > 32 K
		{128, 255, 0, 0, 2, 8, Registers},          // 4 w * 8192 = 32 K. 2 in a quarter, 8/4 = 2
		{160, 255, 0, 0, 0, 0, Registers},          // 5 w, checked as 8: 64 K > 32 K
		{416, 72, 0, 0, 0, 0, Registers},           // 13 w * 2304 = 29952 would do, but checked as 16 w: 36864 > 32 K
		{416, 64, 0, 0, 2, 26, Registers},          // checked as 16 w * 2048 = 32 K. 32 w / 13 = 2
		{128, 32, 16384, 0, 4, 16, SharedMemory},   // 64 KiB / 16 KiB = 4
		{64, 16, 0, 0, 32, 64, Warps | Blocks},     // 2 w: 64/2 = 32 = slots. 512 a warp: 128/2 = 64
	}},
	// As 5.0, but two sub-partitions of 32768 registers ("halves").
	{[]Capability{{6, 0}}, []launch{
		{256, 32, 0, 0, 8, 64, Warps | Registers}, // 1024 a warp: 32 in a half, 64/8 = 8
		{256, 40, 0, 0, 6, 48, Registers},         // 1280 a warp: 25 in a half, 50/8 = 6
		{64, 40, 0, 0, 25, 50, Registers},         // 50/2 = 25; with quarters of 12 it would be 24
		{32, 168, 0, 0, 12, 12, Registers},        // 5376 a warp: 6 in a half, 12/1 = 12
		{32, 104, 0, 0, 18, 18, Registers},        // 3328 a warp: 9 in a half, 18; quarters of 4 would give 16
		{1024, 64, 0, 0, 1, 32, Registers},        // 2048 a warp: 16 in a half, 32/32 = 1
		{416, 129, 0, 0, 0, 0, Registers},         // 4352 a warp, checked as 16 w: 69632 > 64 K, although two halves of 7 hold 13
		{384, 129, 0, 0, 1, 12, Registers},        // checked as 12 w: 52224 fits. 7 in a half, 14/12 = 1
		{128, 32, 12288, 0, 5, 20, SharedMemory},  // 65536/12288 = 5
		{128, 32, 49408, 0, 0, 0, SharedMemory},   // above 48 KiB a block
		{32, 8, 0, 0, 32, 32, Blocks},             // 32 slots
	}},
	// 64 w, 32 blocks, 64 K registers, 96 KiB shared (96 KiB a block), unit 256 B,
	// carveouts 0, 8, 16, 32, 64, 96 KiB.
	{[]Capability{{7, 0}, {7, 2}}, []launch{
		{256, 32, 0, 0, 8, 64, Warps | Registers},           // 64/8 = 8. 1024 a warp: 64/8 = 8
		{256, 32, 98304, 0, 1, 8, SharedMemory},             // 96 KiB / 96 KiB = 1
		{256, 32, 98305, 0, 0, 0, SharedMemory},             // above 96 KiB a block
		{256, 16, 8192, 0, 8, 64, Warps},                    // 64/8 = 8. 98304/8192 = 12
		{256, 16, 8192, 32768, 4, 32, SharedMemory},         // carveout 32 KiB: 32768/8192 = 4
		{256, 16, 8192, 65536, 8, 64, Warps | SharedMemory}, // 65536/8192 = 8 = 64/8
		{64, 16, 20000, 16384, 1, 2, SharedMemory},          // 20000 → 20224: not in 16 KiB, so 32 KiB: 32768/20224 = 1
		{64, 16, 20000, 0, 4, 8, SharedMemory},              // 98304/20224 = 4
		{32, 255, 0, 0, 8, 8, Registers},                    // 8192 a warp: 2 in a quarter, 8
		{1024, 64, 0, 0, 1, 32, Registers},                  // 2048 a warp: 32/32 = 1
		{1024, 72, 0, 0, 0, 0, Registers},                   // 2304 a warp: 73728 > 64 K
		{16, 16, 0, 0, 32, 32, Blocks},                      // half a warp is one: 64, but 32 slots
	}},
	// 32 w, 16 blocks, 64 K registers, 64 KiB shared (64 KiB a block), unit 256 B,
	// carveouts 32, 64 KiB.
	{[]Capability{{7, 5}}, []launch{
		{256, 32, 0, 0, 4, 32, Warps},                       // 32/8 = 4. 1024 a warp: 64/8 = 8
		{64, 32, 0, 0, 16, 32, Warps | Blocks},              // 32/2 = 16 = slots. 64/2 = 32
		{32, 32, 0, 0, 16, 16, Blocks},                      // 32/1 = 32, but 16 slots
		{1024, 64, 0, 0, 1, 32, Warps | Registers},          // 32/32 = 1. 2048 a warp: 32/32 = 1
		{1024, 65, 0, 0, 0, 0, Registers},                   // 2304 a warp: 73728 > 64 K
		{256, 96, 0, 0, 2, 16, Registers},                   // 3072 a warp: 5 in a quarter, 20/8 = 2
		{128, 32, 65536, 0, 1, 4, SharedMemory},             // 64/64 = 1
		{128, 32, 65537, 0, 0, 0, SharedMemory},             // above 64 KiB a block
		{128, 32, 4096, 32768, 8, 32, Warps | SharedMemory}, // carveout 32 KiB: 32768/4096 = 8 = 32/4
		{128, 32, 4096, 0, 8, 32, Warps},                    // 65536/4096 = 16, 32/4 = 8
		{128, 32, 40000, 32768, 1, 4, SharedMemory},         // 40192 not in 32 KiB, so 64 KiB: 65536/40192 = 1
	}},
	// 64 w, 32 blocks, 64 K registers, 164 KiB shared (163 KiB a block), unit 128 B, 1 KiB reserved,
	// carveouts 0, 8, 16, 32, 64, 100, 132, 164 KiB.
	{[]Capability{{8, 0}}, []launch{
		{256, 32, 0, 0, 8, 64, Warps | Registers},        // 64/8 = 8. 64/8 = 8. 167936/1024 = 164
		{128, 32, 166912, 0, 1, 4, SharedMemory},         // 163 KiB + 1 KiB = 164 KiB: 1
		{128, 32, 166913, 0, 0, 0, SharedMemory},         // above 163 KiB a block
		{256, 32, 16384, 0, 8, 64, Warps | Registers},    // 17408: 167936/17408 = 9
		{256, 32, 20480, 0, 7, 56, SharedMemory},         // 21504: 167936/21504 = 7
		{256, 32, 20480, 102400, 4, 32, SharedMemory},    // carveout 100 KiB: 102400/21504 = 4
		{256, 32, 20480, 8192, 1, 8, SharedMemory},       // not in 8 or 16 KiB, so 32 KiB: 32768/21504 = 1
		{32, 16, 0, 16384, 16, 16, SharedMemory},         // the driver's 1 KiB each: 16384/1024 = 16
		{32, 16, 1, 0, 32, 32, Blocks},                   // 1025 → 1152: 167936/1152 = 145; 32 slots
		{32, 16, 4224, 0, 32, 32, SharedMemory | Blocks}, // 5248: 167936/5248 = 32 = slots
		{32, 16, 4225, 0, 31, 31, SharedMemory},          // 5249 → 5376: 167936/5376 = 31
		{512, 128, 0, 0, 1, 16, Registers},               // 4096 a warp: 4 in a quarter, 16/16 = 1
		{544, 128, 0, 0, 0, 0, Registers},                // 17 w, checked as 20: 81920 > 64 K
	}},
	// 48 w, 16 blocks, 64 K registers, 100 KiB shared (99 KiB a block), unit 128 B, 1 KiB reserved,
	// carveouts 0, 8, 16, 32, 64, 100 KiB.
	{[]Capability{{8, 6}}, []launch{
		{256, 32, 0, 0, 6, 48, Warps},                // 48/8 = 6. 64/8 = 8
		{96, 32, 0, 0, 16, 48, Warps | Blocks},       // 48/3 = 16 = slots. 64/3 = 21
		{32, 32, 0, 0, 16, 16, Blocks},               // 16 slots
		{1024, 32, 0, 0, 1, 32, Warps},               // 48/32 = 1. 64/32 = 2
		{256, 48, 0, 0, 5, 40, Registers},            // 1536 a warp: 10 in a quarter, 40/8 = 5
		{256, 40, 0, 0, 6, 48, Warps | Registers},    // 1280 a warp: 12 in a quarter, 48/8 = 6
		{128, 32, 101376, 0, 1, 4, SharedMemory},     // 99 + 1 = 100 KiB: 1
		{128, 32, 101377, 0, 0, 0, SharedMemory},     // above 99 KiB a block
		{128, 32, 16384, 0, 5, 20, SharedMemory},     // 17408: 102400/17408 = 5
		{128, 32, 16384, 65536, 3, 12, SharedMemory}, // carveout 64 KiB: 65536/17408 = 3
		{64, 16, 9215, 0, 10, 20, SharedMemory},      // 10239 → 10240: 102400/10240 = 10
		{64, 16, 9217, 0, 9, 18, SharedMemory},       // 10241 → 10368: 102400/10368 = 9
	}},
	// 48 w, 16 blocks, 64 K registers, 164 KiB shared (163 KiB a block), unit 128 B, 1 KiB reserved,
	// carveouts 0, 8, 16, 32, 64, 100, 132, 164 KiB.
	{[]Capability{{8, 7}}, []launch{
		{256, 32, 0, 0, 6, 48, Warps},                 // 48/8 = 6. 64/8 = 8
		{64, 32, 0, 0, 16, 32, Blocks},                // 48/2 = 24, but 16 slots
		{128, 80, 0, 0, 6, 24, Registers},             // 2560 a warp: 6 in a quarter, 24/4 = 6
		{128, 32, 166912, 0, 1, 4, SharedMemory},      // 163 + 1 = 164 KiB: 1
		{128, 32, 166913, 0, 0, 0, SharedMemory},      // above 163 KiB a block
		{128, 32, 16384, 0, 9, 36, SharedMemory},      // 17408: 167936/17408 = 9. 48/4 = 12
		{128, 32, 16384, 135168, 7, 28, SharedMemory}, // carveout 132 KiB: 135168/17408 = 7
		{768, 40, 0, 0, 2, 48, Warps | Registers},     // 48/24 = 2. 1280 a warp: 48/24 = 2
		{800, 40, 0, 0, 1, 25, Warps | Registers},     // 25 w: 48/25 = 1. 48/25 = 1
		{32, 255, 0, 0, 8, 8, Registers},              // 8192 a warp: 2 in a quarter, 8
	}},
	// 48 w, 24 blocks, 64 K registers, 100 KiB shared (99 KiB a block), unit 128 B, 1 KiB reserved,
	// carveouts 0, 8, 16, 32, 64, 100 KiB.
	{[]Capability{{8, 9}, {12, 0}, {12, 1}}, []launch{
		{256, 32, 0, 0, 6, 48, Warps},                      // 48/8 = 6. 64/8 = 8
		{64, 32, 0, 0, 24, 48, Warps | Blocks},             // 48/2 = 24 = slots. 64/2 = 32
		{32, 32, 0, 0, 24, 24, Blocks},                     // 48/1 = 48, but 24 slots
		{64, 40, 0, 0, 24, 48, Warps | Registers | Blocks}, // 1280 a warp: 48/2 = 24
		{384, 168, 0, 0, 1, 12, Registers},                 // 5376 a warp: 3 in a quarter, 12/12 = 1
		{416, 168, 0, 0, 0, 0, Registers},                  // 13 w, checked as 16: 86016 > 64 K
		{128, 32, 101376, 0, 1, 4, SharedMemory},           // 99 + 1 = 100 KiB: 1
		{128, 32, 101377, 0, 0, 0, SharedMemory},           // above 99 KiB a block
		{128, 32, 7936, 0, 11, 44, SharedMemory},           // 8960: 102400/8960 = 11. 48/4 = 12
		{128, 32, 7936, 32768, 3, 12, SharedMemory},        // carveout 32 KiB: 32768/8960 = 3
		{32, 16, 0, 8192, 8, 8, SharedMemory},              // the driver's 1 KiB each: 8192/1024 = 8
		{1024, 64, 0, 0, 1, 32, Warps | Registers},         // 48/32 = 1. 2048 a warp: 32/32 = 1
	}},
	// 64 w, 32 blocks, 64 K registers, 228 KiB shared (227 KiB a block), unit 128 B, 1 KiB reserved,
	// carveouts 0, 8, 16, 32, 64, 100, 132, 164, 196, 228 KiB.
	{[]Capability{{9, 0}, {10, 0}, {10, 3}}, []launch{
		{256, 16, 16384, 167936, 8, 64, Warps},                       // 64/8 = 8. carveout 164 KiB: 167936/17408 = 9. 512 a warp: 128/8 = 16
		{256, 16, 1024, 32768, 8, 64, Warps},                         // 64/8 = 8. carveout 32 KiB: 32768/2048 = 16
		{256, 56, 0, 32768, 4, 32, Registers},                        // 1792 a warp: 9 in a quarter, 36/8 = 4
		{192, 16, 0, 32768, 10, 60, Warps},                           // 6 w: 64/6 = 10. 32768/1024 = 32
		{384, 168, 213204, 233472, 1, 12, Registers | SharedMemory},  // 5376 a warp: 3 in a quarter, 12/12 = 1. 214228 → 214272: 233472/214272 = 1
		{1, 16, 0, 32768, 32, 32, SharedMemory | Blocks},             // 32768/1024 = 32 = slots
		{256, 32, 232448, 0, 1, 8, SharedMemory},                     // 227 + 1 = 228 KiB: 1
		{256, 32, 232449, 0, 0, 0, SharedMemory},                     // above 227 KiB a block
		{512, 32, 57344, 0, 4, 64, Warps | Registers | SharedMemory}, // 64/16 = 4; 64/16 = 4; 58368: 233472/58368 = 4
		{608, 104, 163840, 0, 0, 0, Registers},                       // 19 w, checked as 20: 20*3328 = 66560 > 64 K
		{608, 96, 163840, 0, 1, 19, Registers | SharedMemory},        // checked as 20: 61440. 5 in a quarter, 20/19 = 1. 164864: 233472/164864 = 1
		{16, 14, 40000, 0, 5, 5, SharedMemory},                       // 41024 → 41088: 233472/41088 = 5
	}},
	// 48 w, 24 blocks, 64 K registers, 228 KiB shared (227 KiB a block), unit 128 B, 1 KiB reserved,
	// carveouts 0, 8, 16, 32, 64, 100, 132, 164, 196, 228 KiB.
	{[]Capability{{10, 1}, {11, 0}}, []launch{
		{256, 32, 0, 0, 6, 48, Warps},                 // 48/8 = 6. 64/8 = 8
		{64, 16, 0, 0, 24, 48, Warps | Blocks},        // 48/2 = 24 = slots
		{32, 16, 0, 0, 24, 24, Blocks},                // 24 slots
		{512, 80, 0, 0, 1, 16, Registers},             // 2560 a warp: 6 in a quarter, 24/16 = 1. 48/16 = 3
		{256, 32, 232448, 0, 1, 8, SharedMemory},      // 227 + 1 = 228 KiB: 1
		{256, 32, 232449, 0, 0, 0, SharedMemory},      // above 227 KiB a block
		{256, 32, 45056, 0, 5, 40, SharedMemory},      // 46080: 233472/46080 = 5
		{256, 32, 45056, 200704, 4, 32, SharedMemory}, // carveout 196 KiB: 200704/46080 = 4
		{1024, 32, 0, 0, 1, 32, Warps},                // 48/32 = 1. 64/32 = 2
		{1024, 65, 0, 0, 0, 0, Registers},             // 2304 a warp: 73728 > 64 K
	}},
}

func TestComputeAgreesWithCasesDerivedByHand(t *testing.T) {
	counts := map[Capability]int{}
	for _, group := range byHand {
		for _, c := range group.capabilities {
			l, err := LimitsOf(c)
			require.NoError(t, err)
			for _, k := range group.cases {
				counts[c]++
				t.Run(fmt.Sprintf("%s/%d threads %d registers %d B of %d B", c, k.threads, k.registers, k.shared, k.carveout), func(t *testing.T) {
					got, err := l.Compute(Launch{Threads: k.threads, Registers: k.registers, Shared: k.shared, Carveout: k.carveout})
					require.NoError(t, err)
					assert.Equal(t, k.blocks, got.Blocks, "blocks")
					assert.Equal(t, k.warps, got.Warps, "warps")
					assert.Equal(t, k.limiter, got.Limiter, "limiter")
					assert.InDelta(t, float64(k.warps)/float64(warpsOfGroup(c)), got.Theoretical, 1e-12, "theoretical")
				})
			}
		}
	}
	for _, c := range Known() {
		assert.GreaterOrEqual(t, counts[c], 8, "cases for %s", c)
	}
}

// warpsOfGroup is the most warps of a multiprocessor, spelled out a second time.
func warpsOfGroup(c Capability) int {
	switch c {
	case Capability{7, 5}:
		return 32
	case Capability{8, 6}, Capability{8, 7}, Capability{8, 9}, Capability{10, 1}, Capability{11, 0}, Capability{12, 0}, Capability{12, 1}:
		return 48
	default:
		return 64
	}
}
