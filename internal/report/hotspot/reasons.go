// SPDX-License-Identifier: Apache-2.0

package hotspot

import "strings"

const (
	// reasonPrefix is the prefix of CUPTI's names of stall reasons.
	reasonPrefix = "smsp__pcsamp_warps_issue_stalled_"
	// notIssuedSuffix ends the names of the samples in whose cycle the scheduler issued nothing. They are
	// in the count of the reason without it as well (CUPTI 13 documentation: CUpti_ActivityPCSampling3,
	// "The count includes latencySamples", and the tutorial on PC sampling).
	notIssuedSuffix = "_not_issued"
)

// State is the state of a warp in a stall reason.
type State uint8

// The states of a warp. CUPTI calls some of them stalled although the warp does not wait.
const (
	// Waiting warps could not continue.
	Waiting State = iota
	// Ready warps could continue, but the scheduler selected another.
	Ready
	// Issuing warps issued an instruction in the cycle of the sample.
	Issuing
)

// Explanation describes a stall reason.
type Explanation struct {
	State State
	// Means completes a sentence that starts with "the warp". Try suggests a remedy.
	Means, Try string
}

// explanations are by CUPTI's names without prefix. The meanings are those of Nsight Compute 2025.3, Kernel
// Profiling Guide, "Warp Stall Reasons", in our words.
var explanations = map[string]Explanation{
	"long_scoreboard": {Waiting, "waits for an earlier load from global, local, surface or texture memory",
		"read less, or neighbouring words; keep what is read twice in shared memory; start loads earlier; have more warps at once"},
	"short_scoreboard": {Waiting, "waits for shared memory, a special function (sine, root, …) or another short operation of that unit",
		"avoid bank conflicts; keep values in registers; use fewer special functions"},
	"barrier": {Waiting, "waits at __syncthreads for the other warps of its block",
		"give the warps of a block equal work; use smaller blocks or fewer barriers"},
	"membar": {Waiting, "waits at a memory fence (__threadfence)",
		"use fewer fences, or fences of a smaller scope"},
	"wait": {Waiting, "waits the few fixed cycles that an instruction takes",
		"have independent instructions or more warps to fill the gap; well-tuned code has little but this"},
	"math_pipe_throttle": {Waiting, "waits for an arithmetic pipe that others keep busy",
		"the kernel is bound by this arithmetic: use less of it, a lower precision or tensor cores"},
	"lg_throttle": {Waiting, "waits for room in the queue of global and local memory instructions",
		"use fewer, wider accesses; check for register spills (local memory)"},
	"mio_throttle": {Waiting, "waits for room in the queue of shared memory, special functions and dynamic branches",
		"use fewer, wider accesses to shared memory"},
	"tex_throttle": {Waiting, "waits for room in the queue of texture and surface instructions",
		"use fewer, wider texture accesses, or plain loads"},
	"drain": {Waiting, "has ended and waits for its stores to be written",
		"write less at the end, and neighbouring words"},
	"imc_miss": {Waiting, "waits for a constant that is not in the constant cache",
		"have all lanes read the same constant; short kernels pay it at each start"},
	"branch_resolving": {Waiting, "waits for the target of a branch",
		"use fewer branches, unroll short loops"},
	"no_instructions": {Waiting, "waits for instructions, which are not in the instruction cache",
		"make the code smaller: less unrolling; short kernels pay it at each start"},
	"dispatch_stall": {Waiting, "is held back by the dispatcher, over a conflict",
		"little: it is rarely more than a few per cent"},
	"sleeping": {Waiting, "sleeps (__nanosleep)",
		"sleep less, or wait in another way"},
	"warpgroup_arrive": {Waiting, "waits for its warp group, before tensor core work of Hopper",
		"have more such work under way at once"},
	"misc": {Waiting, "waits for something else", "check the other reasons of the line"},
	"not_selected": {Ready, "was ready, and another warp was chosen",
		"fewer instructions: the scheduler has enough to issue"},
	"selected": {Issuing, "issued an instruction", "nothing: this is work being done"},
}

// Explain explains a stall reason, with or without CUPTI's prefix and suffix. ok is false if it is
// unknown.
func Explain(reason string) (Explanation, bool) {
	e, ok := explanations[trimReason(reason)]
	return e, ok
}

func trimReason(reason string) string {
	return strings.TrimSuffix(strings.TrimPrefix(reason, reasonPrefix), notIssuedSuffix)
}
