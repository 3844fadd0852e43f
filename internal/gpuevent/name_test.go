// SPDX-License-Identifier: Apache-2.0

package gpuevent

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

func TestKernelNameForms(t *testing.T) {
	for _, tt := range []struct{ raw, full, symbol, short, qualified string }{
		{
			raw:       "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)",
			short:     "vectorized_elementwise_kernel",
			qualified: "at::native::vectorized_elementwise_kernel",
		},
		{
			raw:       "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIiEESt5arrayIPcLm1EEEEviT0_T1_",
			full:      "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)",
			symbol:    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIiEESt5arrayIPcLm1EEEEviT0_T1_",
			short:     "vectorized_elementwise_kernel",
			qualified: "at::native::vectorized_elementwise_kernel",
		},
		{raw: "_Z9transposePKfPfi", full: "transpose(float const*, float*, int)", symbol: "_Z9transposePKfPfi", short: "transpose", qualified: "transpose"},
		{raw: "ampere_sgemm_128x64_nn", short: "ampere_sgemm_128x64_nn", qualified: "ampere_sgemm_128x64_nn"},
		{raw: "", short: "", qualified: ""},
		{
			raw:       "void (anonymous namespace)::softmax_warp_forward<c10::Half, float, float, 7, false, false>(float*, c10::Half const*, int, int, int, bool const*, int, bool)",
			short:     "softmax_warp_forward",
			qualified: "(anonymous namespace)::softmax_warp_forward",
		},
		{
			raw:       "at::native::(anonymous namespace)::embedding_backward_feature_kernel",
			short:     "embedding_backward_feature_kernel",
			qualified: "at::native::(anonymous namespace)::embedding_backward_feature_kernel",
		},
		{raw: "_ZN12_GLOBAL__N_14fillEPfi", full: "(anonymous namespace)::fill(float*, int)", symbol: "_ZN12_GLOBAL__N_14fillEPfi", short: "fill", qualified: "(anonymous namespace)::fill"},
		{raw: "unsigned long long ns::sum<int>(int)", short: "sum", qualified: "ns::sum"},
		{raw: "void cutlass::Kernel<cutlass_80_tensorop_s16816gemm_f16_128x128_32x5_nn_align8>(cutlass_80_tensorop_s16816gemm_f16_128x128_32x5_nn_align8::Params)", short: "Kernel", qualified: "cutlass::Kernel"},
		{raw: "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::epilogue::thread::Op<(cutlass::Order)0>, void, void> >(cutlass::gemm::Params)", short: "device_kernel", qualified: "cutlass::device_kernel"},
		{raw: "bool ns::operator< <int>(ns::V<int>, ns::V<int>)", short: "operator<", qualified: "ns::operator<"},
		{raw: "ns::V::operator<<(int)", short: "operator<<", qualified: "ns::V::operator<<"},
		{raw: "ns::V::operator->() const", short: "operator->", qualified: "ns::V::operator->"},
		{raw: "void ns::F::operator()<float>(float) const", short: "operator()", qualified: "ns::F::operator()"},
		{raw: "ns::F::operator unsigned int() const", short: "operator unsigned int", qualified: "ns::F::operator unsigned int"},
		{raw: "ns::operator new[](unsigned long)", short: "operator new[]", qualified: "ns::operator new[]"},
		{raw: "operators::run(int)", short: "run", qualified: "operators::run"},
		{raw: "void run<&(ns::operator<(ns::V, ns::V))>(int)", short: "run", qualified: "run"},
		{raw: "void run<(a)3>(int)", short: "run", qualified: "run"},
		{raw: "void run<(1 > 0)>(int)", short: "run", qualified: "run"},
		{raw: "f(int)::{lambda(long)#1}::operator()(long) const", short: "operator()", qualified: "f::{lambda(long)#1}::operator()"},
		{raw: "f(int)::<lambda(long)>", short: "<lambda(long)>", qualified: "f::<lambda(long)>"},
		{raw: "f() const::'lambda'(int)::operator()(int) const", short: "operator()", qualified: "f::'lambda'::operator()"},
		{raw: "void wrap<f(int)::{lambda(long)#1}>(f(int)::{lambda(long)#1})", short: "wrap", qualified: "wrap"},
		{raw: "decltype (x + y) ns::add<int>(int, int)", short: "add", qualified: "ns::add"},
		{raw: "void (*ns::pick(int))(char)", short: "pick", qualified: "ns::pick"},
		{raw: "ns::f[abi:cxx11](int)", short: "f", qualified: "ns::f"},
		{raw: "f(int) [clone .part.0]", short: "f", qualified: "f"},
		{raw: "f [clone .part.0]", short: "f", qualified: "f"},
		{raw: "[CUDA memcpy HtoD]", short: "[CUDA memcpy HtoD]", qualified: "[CUDA memcpy HtoD]"},
		{raw: "cudapy::__main__::add$241(Array<float, 1, C, mutable, aligned>)", short: "add$241", qualified: "cudapy::__main__::add$241"},
		// Cut off.
		{raw: "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::Half, at::na", short: "reduce_kernel", qualified: "at::native::reduce_kernel"},
		{raw: "void at::native::redu", short: "redu", qualified: "at::native::redu"},
		{raw: "void at::native::", short: "native", qualified: "at::native"},
		{raw: "void ", short: "void", qualified: "void"},
		{raw: "   ", short: "   ", qualified: "   "},
		{
			raw:       "_ZN2at6native46_GLOBAL__N__1df100ae_13_AmpKernels_cu_3810c27325multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_14UnaryOpFunctorIfLi1ELi1ELi0EEEJZZZNS0_47_amp_foreach_non_finite_check_and_unscale_cuda_EN3c108ArrayRefINS_6TensorEEERS9_RKS9_ENKU",
			short:     "multi_tensor_apply_kernel",
			qualified: "at::native::(anonymous namespace)::multi_tensor_apply_kernel",
		},
		{raw: "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZ", short: "elementwise_kernel", qualified: "at::native::elementwise_kernel"},
		{raw: "_ZN2at6native18elementwi", short: "elementwi", qualified: "at::native::elementwi"},
		{raw: "_ZN2at6native18", short: "native", qualified: "at::native"},
		{raw: "_Z9transposeP", short: "transpose", qualified: "transpose"},
		{raw: "_ZL9transposeP", short: "transpose", qualified: "transpose"},
		{raw: "_ZSt9transposeIiEP", short: "transpose", qualified: "std::transpose"},
		{raw: "_Z", short: "_Z", qualified: "_Z"},
		{raw: "_Z99999999999999999999f", short: "999999999999999f", qualified: "999999999999999f"},
		{raw: "_Zebra", short: "_Zebra", qualified: "_Zebra"},
		{raw: "bad\xffname", full: "bad\uFFFDname", short: "bad\uFFFDname", qualified: "bad\uFFFDname"},
	} {
		if tt.full == "" {
			tt.full = tt.raw
		}
		if got, want := *NewKernelName(tt.raw), (KernelName{tt.full, tt.symbol, tt.short, tt.qualified}); got != want {
			t.Errorf("%q:\n got %q\nwant %q", tt.raw, got, want)
		}
	}
}

func TestKernelNamesAreBounded(t *testing.T) {
	for what, raw := range map[string]string{
		"plain":            strings.Repeat("é", 1<<20),
		"open brackets":    "f" + strings.Repeat("<", 1<<20),
		"closing brackets": "f" + strings.Repeat("<>", 1<<20),
		"operators":        strings.Repeat("operator<", 1<<18),
		"namespaces":       strings.Repeat("a::", 1<<18),
		"deep mangled":     "_Z1f" + strings.Repeat("P", 1<<22),
		"deep whole":       "_Z1f" + strings.Repeat("P", maxNameBytes-10) + "i",
		// Each type is a pair of the one before: 2^60 names when written out.
		"self multiplying": "_Z1f" + doubling(60),
	} {
		begin := time.Now()
		n := NewKernelName(raw)
		if took := time.Since(begin); took > time.Minute { // without a bound it never ends
			t.Errorf("%s: took %v", what, took)
		}
		for _, s := range []string{n.Full, n.Symbol, n.Short, n.Qualified} {
			if len(s) > maxNameBytes || !utf8.ValidString(s) {
				t.Errorf("%s: %d bytes, valid UTF-8: %v", what, len(s), utf8.ValidString(s))
			}
		}
		if n.Short == "" {
			t.Errorf("%s: no short name", what)
		}
	}
}

// doubling returns mangled parameters of which each is a template over the one before, twice.
func doubling(n int) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var b strings.Builder
	b.WriteString("1aIiiE") // S_ is a, S0_ is a<int, int>
	last := 0
	for range n {
		ref := "S" + string(digits[last%36]) + "_"
		if last >= 36 {
			ref = "S" + string(digits[last/36]) + string(digits[last%36]) + "_"
		}
		b.WriteString("S_I" + ref + ref + "E")
		last++
	}
	return b.String()
}

func FuzzKernelName(f *testing.F) {
	for _, s := range []string{
		"", " ", "::", "_Z", "_ZN", "_R", "operator", "operator<", "f(", "f<", "(anonymous namespace)",
		"void a::b<c::d>(e) const::{lambda()#1}::operator()() const", "_Z9transposePKfPfi",
		"_ZN2at6native29vectorized_elementwise_kernelILi4E", "void (*f(int))(char)", "\xff", "a ->b", ">", ")",
		"_RNvCs1234_7mycrate3foo", "decltype (", "f(int) const &", "<a as b>::c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		alloctest.Limit{PerByte: 1 << 6, Constant: 1 << 18}.Check(t, len(raw), func() { NewKernelName(raw) })
		n := NewKernelName(raw)
		if (raw == "") != (n.Short == "") || (raw == "") != (n.Full == "") || (raw == "") != (n.Qualified == "") {
			t.Fatalf("%q gives %q", raw, *n)
		}
		for _, s := range []string{n.Full, n.Symbol, n.Short, n.Qualified} {
			if len(s) > maxNameBytes || !utf8.ValidString(s) {
				t.Fatalf("%q gives %d bytes, valid UTF-8: %v", raw, len(s), utf8.ValidString(s))
			}
		}
		if n.Symbol != "" && n.Symbol == n.Full {
			t.Fatalf("%q: symbol and name are the same", raw)
		}
		if !strings.HasSuffix(n.Qualified, n.Short) {
			t.Fatalf("%q: %q does not end in %q", raw, n.Qualified, n.Short)
		}
	})
}
