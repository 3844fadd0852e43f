// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

func TestKernelLabels(t *testing.T) {
	const add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
	const fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
	for _, tc := range []struct {
		name          string
		names, shapes []string
		n             int
		want          []string
	}{
		{"short names stay", []string{"void f<int>(int*)", "g"}, []string{"1/2", "3/4"}, 40, []string{"void f<int>(int*)", "g"}},
		{"namespaces and parameters are omitted", []string{add}, []string{""}, 90, []string{"vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3ul> >"}},
		{"a common begin is omitted", []string{add, fill}, []string{"", ""}, 34, []string{"vectorized_eleme…<…CUDAFunctor_ad…", "vectorized_eleme…<…FillFunctor<fl…"}},
		{"equal labels have shapes", []string{add, add + " "}, []string{"80/128", "1x2/32"}, 40, []string{"vectorized_elem…<4, CUDAFunctor_… 80/128", "vectorized_elem…<4, CUDAFunctor_… 1x2/32"}},
		{"both ends of other names", []string{strings.Repeat("a", 60) + "_NNT"}, []string{""}, 30, []string{strings.Repeat("a", 19) + "…aaaaaa_NNT"}},
		{"anonymous namespaces", []string{"void (anonymous namespace)::f<true>(int)"}, []string{""}, 12, []string{"f<true>"}},
		{"members of templates", []string{"a::b<c::d>::e(int, long, long)"}, []string{""}, 20, []string{"b<d>::e"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := kernelLabels(tc.names, tc.shapes, tc.n)
			assert.Equal(t, tc.want, got)
			for _, label := range got {
				assert.LessOrEqual(t, utf8.RuneCountInString(label), tc.n)
			}
		})
	}
}

// FuzzKernelLabels checks that no name of a kernel makes a label too long.
func FuzzKernelLabels(f *testing.F) {
	f.Add("void a::b<c>(d)", "void a::b<e>(d)", 20)
	f.Add("<<>)(::>", "\xff", 12)
	f.Fuzz(func(t *testing.T, a, b string, n int) {
		n = max(min(n, 200), 2*minCell)
		for _, label := range kernelLabels([]string{a, b}, []string{"1/1", "2/2"}, n) {
			if utf8.RuneCountInString(label) > n {
				t.Errorf("%q has more than %d characters", label, n)
			}
		}
	})
}

func TestTable_Width(t *testing.T) {
	x := table{head: []string{"TIME", "NAME"}}
	x.add("12.00ms", strings.Repeat("x", 40))
	var out bytes.Buffer
	x.write(&out, 30)
	assert.Equal(t, "     TIME  NAME\n  12.00ms  xxxxxxxxxxxx…xxxxxx\n", out.String())
}

func TestProse(t *testing.T) {
	var out bytes.Buffer
	prose(&out, "1. ", "one two  three", 9)
	assert.Equal(t, "1. one\n   two\n   three\n", out.String())
}
