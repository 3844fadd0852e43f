// SPDX-License-Identifier: Apache-2.0

package gpuflgen

import "math"

// kernelSpec is a kernel of the catalogue.
type kernelSpec struct {
	// short is the plain function name; compact sessions use it as the whole name.
	short string
	// name is what CUPTI reports, usually demangled. symbol is the mangled name of the kernels that
	// come with source (see sources).
	name, symbol string
	// micros is the median duration; spread is the sigma of its logarithm.
	micros, spread float64
	block          [3]int64
	// gridLo and gridHi bound the number of blocks.
	gridLo, gridHi int64
	regs           int64
	// staticShared and dynShared are bytes per block. local is the bytes of spilled registers per
	// thread.
	staticShared, dynShared, local int64
}

const (
	elementwise = "void at::native::vectorized_elementwise_kernel<"
	unrolled    = "void at::native::unrolled_elementwise_kernel<"
	foreach     = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
)

func ew(short, functor, args string, micros float64) kernelSpec {
	return kernelSpec{
		short: short, name: elementwise + functor + ", std::array<char*, " + args + "ul> >(int, " + functor[3:] + ", std::array<char*, " + args + "ul>)",
		micros: micros, spread: 0.12, block: [3]int64{128, 1, 1}, gridLo: 256, gridHi: 8192, regs: 32,
	}
}

func gemm(short, name string, micros float64, dynShared int64) kernelSpec {
	return kernelSpec{
		short: short, name: name, micros: micros, spread: 0.08, block: [3]int64{384, 1, 1},
		gridLo: 64, gridHi: 132, regs: 168, dynShared: dynShared,
	}
}

// catalogue lists the kernels of a transformer's training on a current GPU: matrix products,
// attention, normalization, elementwise work, reductions, the fused optimizer and the collectives.
// Names follow the style of their libraries. Some are longer than 255 bytes, as template names are.
var catalogue = []kernelSpec{
	gemm("gemm_qkv_f16", "nvjet_sm90_hsh_192x192_64x4_2x1_v_bz_coopB_bias_TNN", 42, 213204),
	gemm("gemm_proj_f16", "nvjet_sm90_hsh_128x64_64x8_1x2_h_bz_bias_TNN", 17, 205012),
	gemm("gemm_fc1_f16", "nvjet_sm90_hsh_192x128_64x5_1x2_h_bz_coopB_bias_TNT", 55, 213204),
	gemm("gemm_fc2_f16", "nvjet_sm90_hsh_96x128_64x7_2x1_v_bz_bias_TNN", 51, 205012),
	gemm("gemm_dgrad_a", "nvjet_sm90_hsh_192x128_64x5_1x2_h_bz_coopB_NNT", 58, 213204),
	gemm("gemm_dgrad_b", "nvjet_sm90_hsh_96x128_64x6_2x1_v_bz_NNN", 46, 180436),
	gemm("gemm_wgrad_a", "nvjet_sm90_hsh_64x64_64x13_4x2_h_bz_NTT", 61, 221396),
	gemm("gemm_wgrad_b", "nvjet_sm90_hsh_192x96_64x5_1x2_h_bz_NTT", 49, 205012),
	gemm("gemm_head_f16", "nvjet_sm90_hsh_128x128_64x6_2x4_h_bz_NTT", 210, 213204),
	{
		short:  "cutlass_gemm",
		name:   "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x1_tn_align8>(cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_64x1_tn_align8::Params)",
		micros: 12, spread: 0.15, block: [3]int64{32, 1, 1}, gridLo: 64, gridHi: 512, regs: 128, staticShared: 8448,
	},
	{
		short:  "cutlass_tf32",
		name:   "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4::Params)",
		micros: 33, spread: 0.1, block: [3]int64{128, 1, 1}, gridLo: 32, gridHi: 264, regs: 230, dynShared: 81920,
	},
	{
		short: "cublas_splitk", name: "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half, true, false, false>(cublasLt::cublasSplitKParams<float>, float const*, __half const*, __half*, float*, float const*, float const*, __half const*, float const*, float*, void*, long, float*, int*)",
		micros: 4.5, spread: 0.12, block: [3]int64{32, 16, 1}, gridLo: 16, gridHi: 256, regs: 44,
	},
	{
		short:  "flash_fwd",
		name:   "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::half_t> >, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
		micros: 74, spread: 0.1, block: [3]int64{128, 1, 1}, gridLo: 96, gridHi: 768, regs: 255, dynShared: 49152,
	},
	{
		short:  "flash_bwd",
		name:   "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::half_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 8, cutlass::half_t> >, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)",
		micros: 168, spread: 0.1, block: [3]int64{256, 1, 1}, gridLo: 96, gridHi: 768, regs: 255, dynShared: 147456, local: 16,
	},
	{
		short:  "flash_bwd_dot",
		name:   "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::half_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 8, cutlass::half_t> > >(pytorch_flash::Flash_bwd_params)",
		micros: 8, spread: 0.12, block: [3]int64{256, 1, 1}, gridLo: 96, gridHi: 768, regs: 40,
	},
	{
		short: "softmax_fwd", name: "void (anonymous namespace)::softmax_warp_forward<c10::Half, float, float, 7, false, false>(float*, c10::Half const*, int, int, int, bool const*, int, bool)",
		micros: 11, spread: 0.1, block: [3]int64{32, 4, 1}, gridLo: 512, gridHi: 4096, regs: 32,
	},
	{
		short: "softmax_bwd", name: "void (anonymous namespace)::softmax_warp_backward<float, c10::Half, float, 7, false, false>(c10::Half*, float const*, float const*, int, int, int, bool const*)",
		micros: 14, spread: 0.1, block: [3]int64{32, 4, 1}, gridLo: 512, gridHi: 4096, regs: 40,
	},
	{
		short: "log_softmax_fwd", name: "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)",
		micros: 96, spread: 0.08, block: [3]int64{1024, 1, 1}, gridLo: 1024, gridHi: 8192, regs: 40, dynShared: 128,
	},
	{
		short: "log_softmax_bwd", name: "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, float, float, float, at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue>(float*, float const*, float const*, long)",
		micros: 121, spread: 0.08, block: [3]int64{1024, 1, 1}, gridLo: 1024, gridHi: 8192, regs: 38, dynShared: 128,
	},
	{
		short: "layer_norm_fwd", name: "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float const*, float const*, float const*, float*, float*, float*)",
		micros: 8.2, spread: 0.1, block: [3]int64{32, 4, 1}, gridLo: 1024, gridHi: 8192, regs: 39, dynShared: 24,
	},
	{
		short: "layer_norm_dx", name: "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float, float, false>(float const*, float const*, float const*, float const*, float const*, float*, int)",
		micros: 15, spread: 0.1, block: [3]int64{128, 1, 1}, gridLo: 1024, gridHi: 8192, regs: 40, dynShared: 16,
	},
	{
		short: "layer_norm_dgb", name: "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 32u, 256u, false, true, false>(long, long, float const*, float const*, float const*, float const*, float*, float*)",
		micros: 19, spread: 0.1, block: [3]int64{32, 32, 1}, gridLo: 24, gridHi: 192, regs: 32, staticShared: 8448,
	},
	ew("gelu_fwd", "8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#3}::operator()() const::{lambda(c10::Half)#1}", "2", 9.4),
	ew("gelu_bwd", "8, at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#3}::operator()() const::{lambda(c10::Half, c10::Half)#1}", "3", 13),
	ew("add_f32", "4, at::native::CUDAFunctor_add<float>", "3", 5.6),
	ew("add_f16", "8, at::native::CUDAFunctor_add<c10::Half>", "3", 4.1),
	ew("fill_f32", "4, at::native::FillFunctor<float>", "1", 2.2),
	ew("fill_i32", "4, at::native::FillFunctor<int>", "1", 1.3),
	ew("mul_f32", "4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >", "3", 5.9),
	ew("mul_scalar_f16", "8, at::native::AUnaryFunctor<c10::Half, c10::Half, c10::Half, at::native::binary_internal::MulFunctor<float> >", "2", 4.4),
	ew("cast_f16", "8, at::native::float16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}", "2", 3.9),
	ew("reciprocal_f64", "2, at::native::reciprocal_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#1}::operator()() const::{lambda(double)#1}", "2", 1.2),
	{
		short: "cast_f32", name: unrolled + "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>)",
		micros: 5.2, spread: 0.12, block: [3]int64{128, 1, 1}, gridLo: 256, gridHi: 8192, regs: 34,
	},
	{
		short: "add_mixed", name: unrolled + "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4, TrivialOffsetCalculator<2, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, TrivialOffsetCalculator<2, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1>)",
		micros: 6.8, spread: 0.12, block: [3]int64{128, 1, 1}, gridLo: 256, gridHi: 8192, regs: 40,
	},
	{
		short: "copy_strided", name: "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#10}::operator()() const::{lambda(c10::Half)#1}>(at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::Half)#1} const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::Half)#1}>(at::TensorIteratorBase&)::{lambda(int)#1})",
		micros: 7.7, spread: 0.12, block: [3]int64{128, 1, 1}, gridLo: 256, gridHi: 8192, regs: 18,
	},
	{
		short: "dropout_fwd", name: "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::Half, float, unsigned int, 1, 8, bool>(at::cuda::detail::TensorInfo<c10::Half const, unsigned int>, at::cuda::detail::TensorInfo<c10::Half, unsigned int>, at::cuda::detail::TensorInfo<bool, unsigned int>, unsigned int, float, at::PhiloxCudaState)",
		micros: 10.5, spread: 0.1, block: [3]int64{256, 1, 1}, gridLo: 264, gridHi: 1056, regs: 48,
	},
	ew("dropout_bwd", "4, at::native::(anonymous namespace)::masked_scale_kernel<bool, c10::Half, float>(at::Tensor&, at::Tensor const&, at::Tensor const&, float)::{lambda(c10::Half, bool)#1}", "3", 6.1),
	{
		short: "embedding_fwd", name: "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
		micros: 6.3, spread: 0.1, block: [3]int64{192, 1, 1}, gridLo: 1024, gridHi: 8192, regs: 32,
	},
	{
		short: "embedding_bwd", name: "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long const*, float const*, float*, int, long, int)",
		micros: 88, spread: 0.1, block: [3]int64{32, 32, 1}, gridLo: 24, gridHi: 96, regs: 32, dynShared: 8448,
	},
	{
		short: "arange", name: "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{lambda(long)#1}>(int, at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{lambda(long)#1}, long*)",
		micros: 1.2, spread: 0.1, block: [3]int64{64, 1, 1}, gridLo: 1, gridHi: 16, regs: 16,
	},
	{
		short: "nll_loss_fwd", name: "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float const*, long const*, float const*, bool, long, long, long, long)",
		micros: 6, spread: 0.1, block: [3]int64{32, 1, 1}, gridLo: 1, gridHi: 1, regs: 31, staticShared: 256,
	},
	{
		short: "nll_loss_bwd", name: "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*, float const*, long const*, float const*, float const*, bool, int, int, long, long)",
		micros: 4.6, spread: 0.1, block: [3]int64{32, 1, 1}, gridLo: 1, gridHi: 1, regs: 22,
	},
	{
		short: "reduce_sum_f16", name: "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::Half, at::native::func_wrapper_t<c10::Half, at::native::sum_functor<c10::Half, float, c10::Half>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::Half, 4, 4> >(at::native::ReduceOp<c10::Half, at::native::func_wrapper_t<c10::Half, at::native::sum_functor<c10::Half, float, c10::Half>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::Half, 4, 4>)",
		micros: 9.9, spread: 0.12, block: [3]int64{32, 4, 1}, gridLo: 24, gridHi: 192, regs: 56, staticShared: 16,
	},
	{
		short: "reduce_norm", name: "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float>, unsigned int, float, 4, 4>)",
		micros: 3.8, spread: 0.12, block: [3]int64{512, 1, 1}, gridLo: 1, gridHi: 4, regs: 32, staticShared: 16,
	},
	{
		short: "unscale_grads", name: foreach + "TensorListMetadata<1>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 1, 1, 0>, at::native::amp_unscale_op(float*, float const*)::{lambda(float)#1}>(at::native::(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 1, 1, 0>, at::native::amp_unscale_op(float*, float const*)::{lambda(float)#1})",
		micros: 43, spread: 0.06, block: [3]int64{512, 1, 1}, gridLo: 160, gridHi: 320, regs: 32,
	},
	{
		short: "adam_lerp", name: foreach + "TensorListMetadata<2>, at::native::(anonymous namespace)::TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>, float)",
		micros: 52, spread: 0.06, block: [3]int64{512, 1, 1}, gridLo: 160, gridHi: 320, regs: 34,
	},
	{
		short: "adam_addcmul", name: foreach + "TensorListMetadata<3>, at::native::(anonymous namespace)::PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<3>, at::native::(anonymous namespace)::PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float>, float)",
		micros: 61, spread: 0.06, block: [3]int64{512, 1, 1}, gridLo: 160, gridHi: 320, regs: 34,
	},
	{
		short: "adam_sqrt", name: foreach + "TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt<float> >(at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt<float>)",
		micros: 43, spread: 0.06, block: [3]int64{512, 1, 1}, gridLo: 160, gridHi: 320, regs: 32,
	},
	{
		short: "adam_addcdiv", name: foreach + "TensorListScalarListMetadata<float, 3>, at::native::(anonymous namespace)::PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides<float> >(at::native::(anonymous namespace)::TensorListScalarListMetadata<float, 3>, at::native::(anonymous namespace)::PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides<float>)",
		micros: 79, spread: 0.06, block: [3]int64{512, 1, 1}, gridLo: 160, gridHi: 320, regs: 32,
	},
	{
		short: "amp_update", name: "at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)",
		micros: 1.4, spread: 0.08, block: [3]int64{1, 1, 1}, gridLo: 1, gridHi: 1, regs: 16,
	},
	{
		short: "nccl_allreduce", name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
		micros: 185, spread: 0.35, block: [3]int64{544, 1, 1}, gridLo: 16, gridHi: 24, regs: 96, staticShared: 36224,
	},
	{
		short: "nccl_allgather", name: "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
		micros: 92, spread: 0.35, block: [3]int64{544, 1, 1}, gridLo: 16, gridHi: 24, regs: 96, staticShared: 36224,
	},
	{
		short: "rope_fwd", name: "minigpt::rope_forward(float const*, float*, int)", symbol: "_ZN7minigpt12rope_forwardEPKfPfi",
		micros: 6.6, spread: 0.1, block: [3]int64{256, 1, 1}, gridLo: 512, gridHi: 2048, regs: 28,
	},
	{
		short: "rope_bwd", name: "minigpt::rope_backward(float const*, float*, int)", symbol: "_ZN7minigpt13rope_backwardEPKfPfi",
		micros: 7.1, spread: 0.1, block: [3]int64{256, 1, 1}, gridLo: 512, gridHi: 2048, regs: 30,
	},
}

// The launches of one training step, by short name, in order.
var (
	embedOps    = []string{"arange", "embedding_fwd", "embedding_fwd", "add_f32", "dropout_fwd"}
	forwardOps  = []string{"layer_norm_fwd", "cast_f16", "gemm_qkv_f16", "copy_strided", "rope_fwd", "flash_fwd", "gemm_proj_f16", "dropout_fwd", "add_mixed", "layer_norm_fwd", "cast_f16", "gemm_fc1_f16", "gelu_fwd", "gemm_fc2_f16", "dropout_fwd", "add_mixed"}
	headOps     = []string{"layer_norm_fwd", "cast_f16", "gemm_head_f16", "cast_f32", "log_softmax_fwd", "nll_loss_fwd"}
	headGradOps = []string{"fill_f32", "nll_loss_bwd", "log_softmax_bwd", "mul_f32", "cutlass_tf32", "gemm_head_f16"}
	backwardOps = []string{"dropout_bwd", "gemm_dgrad_a", "gemm_wgrad_a", "reduce_sum_f16", "gelu_bwd", "gemm_dgrad_b", "gemm_wgrad_b", "cublas_splitk", "layer_norm_dx", "layer_norm_dgb", "add_f32", "dropout_bwd", "cutlass_gemm", "flash_bwd_dot", "flash_bwd", "rope_bwd", "add_f16", "mul_scalar_f16"}
	embedGrad   = []string{"embedding_bwd", "softmax_bwd", "add_f32"}
	optimizeOps = []string{"fill_i32", "unscale_grads", "reduce_norm", "reciprocal_f64", "adam_lerp", "adam_addcmul", "adam_sqrt", "adam_addcdiv", "amp_update"}
	validateOps = []string{"softmax_fwd", "nccl_allgather"}
)

// launchShape holds the launch parameters that a kernel determines, except its grid.
type launchShape struct {
	occupancy, regOccupancy, sharedOccupancy, warpOccupancy, blockOccupancy float64
	limiter                                                                 string
	activeBlocks, sharedExecuted, cacheConfig                               int64
}

// The limits of one multiprocessor of the simulated GPU (compute capability 9.0).
const (
	smWarps          = 64
	smBlocks         = 32
	smRegisters      = 65536
	smSharedBytes    = 228 << 10
	reservedShared   = 1 << 10
	registerUnit     = 256
	carveOutUnit     = 16 << 10
	smCount          = 132
	localPoolBytes   = 155713536
	minCarveOutBytes = 32 << 10
)

// shape computes the theoretical occupancy by the CUDA occupancy rules. Warps, registers (allocated
// per warp in units of 256), shared memory and block slots limit the resident blocks.
func (k *kernelSpec) shape() launchShape {
	threads := k.block[0] * k.block[1] * k.block[2]
	warps := (threads + 31) / 32
	byWarps := smWarps / warps
	warpRegs := (k.regs*32 + registerUnit - 1) / registerUnit * registerUnit
	byRegs := smRegisters / warpRegs / warps
	shared := k.staticShared + k.dynShared
	bySharedLimit := int64(math.MaxInt32)
	if shared > 0 {
		bySharedLimit = smSharedBytes / (shared + reservedShared)
	}
	active := min(byWarps, byRegs, bySharedLimit, smBlocks)
	ratio := func(blocks int64) float64 { return min(1, float64(blocks*warps)/smWarps) }
	s := launchShape{
		occupancy: ratio(active), regOccupancy: ratio(byRegs), sharedOccupancy: ratio(bySharedLimit),
		warpOccupancy: ratio(byWarps), blockOccupancy: ratio(smBlocks), activeBlocks: active,
	}
	switch s.occupancy {
	case s.warpOccupancy:
		s.limiter = "warps"
	case s.regOccupancy:
		s.limiter = "registers"
	case s.sharedOccupancy:
		s.limiter = "shared_mem"
	default:
		s.limiter = "blocks"
	}
	need := active * (shared + reservedShared)
	s.sharedExecuted = max(minCarveOutBytes, (need+carveOutUnit-1)/carveOutUnit*carveOutUnit)
	if s.sharedExecuted > 100<<10 {
		s.sharedExecuted, s.cacheConfig = smSharedBytes, 1
	}
	return s
}

// source is a kernel with source text and disassembly. PC samples refer to these kernels only.
type source struct {
	kernel string // short name
	file   string
	crc    uint64
	// lines is the file's text; sass holds the instructions. line[i] is the source line of sass[i].
	lines []string
	sass  []string
	line  []int64
}

var sources = []source{
	{
		kernel: "rope_fwd", file: "/src/minigpt/rope.cu", crc: 2773021953,
		lines: ropeSource,
		sass:  []string{"LDC R1, c[0x0][0x28]", "S2R R0, SR_TID.X", "S2UR UR4, SR_CTAID.X", "LDC R5, c[0x0][RZ]", "IMAD R5, R5, UR4, R0", "ISETP.GE.AND P0, PT, R5, UR5, PT", "@P0 EXIT", "LDG.E.64 R2, desc[UR6][R2.64]", "MUFU.SIN R8, R7", "MUFU.COS R9, R7", "FMUL.FTZ R10, R3, R8", "FFMA.FTZ R10, R2, R9, -R10", "FMUL.FTZ R11, R2, R8", "FFMA.FTZ R11, R3, R9, R11", "STG.E.64 desc[UR6][R4.64], R10", "EXIT"},
		line:  []int64{5, 6, 6, 6, 6, 7, 7, 9, 10, 10, 11, 11, 12, 12, 11, 13},
	},
	{
		kernel: "rope_bwd", file: "/src/minigpt/rope.cu", crc: 2773021953,
		lines: ropeSource,
		sass:  []string{"LDC R1, c[0x0][0x28]", "S2R R0, SR_TID.X", "S2UR UR4, SR_CTAID.X", "LDC R5, c[0x0][RZ]", "IMAD R5, R5, UR4, R0", "ISETP.GE.AND P0, PT, R5, UR5, PT", "@P0 EXIT", "LDG.E.64 R2, desc[UR6][R2.64]", "MUFU.SIN R8, R7", "MUFU.COS R9, R7", "FFMA.FTZ R10, R2, R9, R3", "FFMA.FTZ R11, R3, R9, -R2", "STG.E.64 desc[UR6][R4.64], R10", "EXIT"},
		line:  []int64{15, 16, 16, 16, 16, 17, 17, 19, 20, 20, 21, 22, 21, 23},
	},
}

var ropeSource = []string{
	"// rotary position embedding",
	"#include \"rope.cuh\"",
	"",
	"namespace minigpt {",
	"__global__ void rope_forward(const float* x, float* y, int n) {",
	"  int i = blockIdx.x * blockDim.x + threadIdx.x;",
	"  if (i >= n) return;",
	"",
	"  float2 v = load(x, i);",
	"  float2 r = rotation(i);",
	"  y[2 * i] = v.x * r.y - v.y * r.x;",
	"  y[2 * i + 1] = v.y * r.y + v.x * r.x;",
	"}",
	"",
	"__global__ void rope_backward(const float* dy, float* dx, int n) {",
	"  int i = blockIdx.x * blockDim.x + threadIdx.x;",
	"  if (i >= n) return;",
	"",
	"  float2 v = load(dy, i);",
	"  float2 r = rotation(i);",
	"  dx[2 * i] = v.x * r.y + v.y * r.x;",
	"  dx[2 * i + 1] = v.y * r.y - v.x * r.x;",
	"}",
	"}  // namespace minigpt",
}

// stallReasons lists the stall reasons by CUPTI's names, with their index on the simulated device.
var stallReasons = []struct {
	index int64
	name  string
}{
	{7, "smsp__pcsamp_warps_issue_stalled_long_scoreboard"},
	{10, "smsp__pcsamp_warps_issue_stalled_math_pipe_throttle"},
	{17, "smsp__pcsamp_warps_issue_stalled_wait"},
	{15, "smsp__pcsamp_warps_issue_stalled_short_scoreboard_not_issued"},
	{14, "smsp__pcsamp_warps_issue_stalled_selected"},
}

var sassMetrics = []string{"smsp__sass_inst_executed", "smsp__sass_thread_inst_executed", "smsp__sass_sectors_mem_global", "smsp__sass_sectors_mem_global_ideal"}

// skippedMetric is a metric that the simulated device does not support.
const skippedMetric = "smsp__sass_sectors_mem_global_op_ld_ideal"

const isaMapMetric = "isa_inst_present"

// frames are the host frames that stacks consist of: a mix of interpreter and framework frames.
var frames = []string{
	"_PyEval_EvalFrameDefault",
	"_PyObject_MakeTpCall",
	"_PyObject_Call_Prepend",
	"PyObject_Vectorcall",
	"PyNumber_MatrixMultiply",
	"at::_ops::linear::call(at::Tensor const&, at::Tensor const&, std::optional<at::Tensor> const&)",
	"at::_ops::matmul::call(at::Tensor const&, at::Tensor const&)",
	"at::_ops::addmm::redispatch(c10::DispatchKeySet, at::Tensor const&, at::Tensor const&, at::Tensor const&, c10::Scalar const&, c10::Scalar const&)",
	"at::_ops::copy_::call(at::Tensor&, at::Tensor const&, bool)",
	"at::_ops::_to_copy::redispatch(c10::DispatchKeySet, at::Tensor const&, std::optional<c10::ScalarType>, std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>, bool, std::optional<c10::MemoryFormat>)",
	"at::autocast::cached_cast(c10::ScalarType, at::Tensor const&, c10::DeviceType)",
	"at::_ops::gelu::call(at::Tensor const&, c10::basic_string_view<char>)",
	"at::_ops::native_layer_norm::call(at::Tensor const&, c10::ArrayRef<c10::SymInt>, std::optional<at::Tensor> const&, std::optional<at::Tensor> const&, double)",
	"torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, torch::autograd::Node*, torch::autograd::InputBuffer&, std::shared_ptr<torch::autograd::ReadyQueue> const&)",
	"torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)",
	"c10d::ProcessGroupNCCL::allreduce(std::vector<at::Tensor, std::allocator<at::Tensor> >&, c10d::AllreduceOptions const&)",
}
