// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stackOf returns how many bytes of stack each function uses, and which functions it calls.
func stackOf(program asm.Instructions) (used map[string]int, calls map[string][]string) {
	used, calls = map[string]int{}, map[string][]string{}
	function := ""
	frame := map[asm.Register]bool{} // registers that have the address of the frame
	for _, ins := range program {
		if symbol := ins.Symbol(); symbol != "" {
			function = symbol
			used[function] += 0
		}
		note := func(offset int) { used[function] = max(used[function], -offset) }
		class := ins.OpCode.Class()
		switch {
		case class.IsLoad() && ins.Src == asm.RFP, class.IsStore() && ins.Dst == asm.RFP:
			note(int(ins.Offset))
		case class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Mov:
			frame[ins.Dst] = ins.OpCode.Source() == asm.RegSource && ins.Src == asm.RFP
		case class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource && frame[ins.Dst]:
			note(int(ins.Constant))
			frame[ins.Dst] = false
		case ins.IsFunctionCall():
			calls[function] = append(calls[function], ins.Reference())
		}
	}
	return used, calls
}

// Kernels before 6.13 refuse programs whose functions use more than 512 bytes of stack together, each rounded up to 32;
// later ones may give each function its own.
func TestStackFitsOlderKernels(t *testing.T) {
	const limit = 512
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"cuda": loadCuda, "trace": loadTrace} {
		spec, err := load()
		require.NoError(t, err)
		for program, p := range spec.Programs {
			used, calls := stackOf(p.Instructions)
			var depth func(function string) int
			depth = func(function string) int {
				deepest := 0
				for _, called := range calls[function] {
					require.Contains(t, used, called)
					deepest = max(deepest, depth(called))
				}
				return max(32, (used[function]+31)/32*32) + deepest
			}
			first := p.Instructions[0].Symbol()
			require.NotEmpty(t, first)
			n := depth(first)
			t.Logf("%s %s: %d bytes, %d instructions", name, program, n, len(p.Instructions))
			assert.LessOrEqual(t, n, limit, "%s %s", name, program)
			if name == "cuda" && program == "launch" {
				assert.NotEmpty(t, calls[first], "what this test looks for is there")
				assert.Greater(t, n, 256)
			}
		}
	}
}
