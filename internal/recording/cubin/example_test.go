// SPDX-License-Identifier: Apache-2.0

package cubin_test

import (
	"fmt"
	"os"

	"github.com/gpuflight/gpuflight/internal/recording/cubin"
)

// Resolve an instruction of a kernel through two inlined functions.
func ExampleResolver() {
	image, err := os.ReadFile("testdata/lines.sm_90.cubin")
	if err != nil {
		fmt.Println(err)
		return
	}
	crc := cubin.CUPTICRC(image)
	r := cubin.NewResolver(cubin.Settings{Image: func(uint64) []byte { return image }})
	loc, reason := r.Resolve(crc, "_Z7inlinedILi32EEvPfPKf", 0x120)
	fmt.Println(reason, loc.Function.Full)
	for _, f := range loc.Frames {
		fmt.Printf("%s %s:%d\n", f.Function.Short, f.File, f.Line)
	}
	// Output:
	// resolved void inlined<32>(float*, float const*)
	// reciprocal /tmp/kernels/lines.cuh:4
	// squared /tmp/kernels/lines.cuh:8
	// inlined /tmp/kernels/lines.cu:19
}
