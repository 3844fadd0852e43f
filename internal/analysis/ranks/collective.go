// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
)

// Kind is the function of a collective. The text of each is stable.
type Kind uint8

// Kinds. Those that synchronise come first.
const (
	AllReduce Kind = iota + 1
	AllGather
	ReduceScatter
	Barrier
	Broadcast
	Reduce
	AllToAll
	SendRecv
	// Other is a kernel of NCCL whose name does not state the function, such as ncclDevKernel_Generic.
	Other

	numKinds
)

var kindNames = [numKinds]string{
	AllReduce: "all_reduce", AllGather: "all_gather", ReduceScatter: "reduce_scatter", Barrier: "barrier", Broadcast: "broadcast",
	Reduce: "reduce", AllToAll: "all_to_all", SendRecv: "send_recv", Other: "other",
}

// String returns the name of the kind in JSON.
func (k Kind) String() string { return kindNames[k] }

// MarshalText returns the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(kindNames[k]), nil }

// UnmarshalText reads the name.
func (k *Kind) UnmarshalText(b []byte) error {
	i := slices.Index(kindNames[:], string(b))
	if i <= 0 {
		return fmt.Errorf("unknown kind of collective %q", b)
	}
	*k = Kind(i)
	return nil
}

// synchronises says that no rank leaves before the last one has entered, because each needs data of
// all others. An all-to-all with empty parts does not, and a broadcast waits for its root only.
func (k Kind) synchronises() bool { return k >= AllReduce && k <= Barrier }

// common says that all ranks of a communicator take part, so that the n-th ones belong together.
func (k Kind) common() bool { return k >= AllReduce && k <= AllToAll }

// Collective is the part of one rank in a collective: a kernel of NCCL, or a scope of the host.
// Times are Unix nanoseconds of the rank's clock.
type Collective struct {
	Kind Kind
	// Name is the name of the kernel or scope. Parts of one collective have equal names.
	Name           string
	StartNs, EndNs int64
	Span           store.SpanID
	// OverlappedNs is the time in which another kernel ran on the device too.
	OverlappedNs int64
	// Bytes is the message size that NCCL stated, 0 if it is unknown.
	Bytes int64

	scope store.SpanID // that launched it
}

// words are parts of names in lower case without separators, the longer ones before their parts.
var words = [...]struct {
	word string
	kind Kind
}{
	{"allreduce", AllReduce}, {"allgather", AllGather}, {"reducescatter", ReduceScatter}, {"alltoall", AllToAll}, {"barrier", Barrier},
	{"broadcast", Broadcast}, {"bcast", Broadcast}, {"sendrecv", SendRecv}, {"reduce", Reduce},
}

func kindOf(name string) Kind {
	name = strings.ToLower(strings.ReplaceAll(name, "_", ""))
	for _, w := range words {
		if strings.Contains(name, w.word) {
			return w.kind
		}
	}
	return Other
}

// KernelKind returns the kind of a kernel by its short name. Ok is false if it is not one of NCCL or
// RCCL. Names are ncclDevKernel_AllReduce_Sum_f32_RING_LL since NCCL 2.19,
// ncclKernel_AllReduce_RING_LL_Sum_float since 2.8, and ncclAllReduceRingLLKernel_sum_f32 before; see
// src/device/generate.py and src/collectives/device/common.h of github.com/NVIDIA/nccl. Algorithm
// and protocol in a name are those of the entry point, and can differ from those that run.
func KernelKind(name string) (kind Kind, ok bool) {
	if !strings.HasPrefix(name, "nccl") {
		return 0, false
	}
	return kindOf(name), true
}

// ScopeKind returns the kind of a scope. Ok is false if its name is not one of [analysis.HostCollective].
func ScopeKind(name string) (kind Kind, ok bool) {
	operation := analysis.HostCollective(name)
	if operation == "" {
		return 0, false
	}
	kind = kindOf(operation)
	return kind, kind != Other
}
