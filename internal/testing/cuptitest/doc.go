// SPDX-License-Identifier: Apache-2.0

// Package cuptitest gives tests a fake GPU: a libcuda.so.1 without a device and a libcupti.so.13
// that records what the fake driver is asked to do. They are C (in fake), compiled with cc once for
// each version of their source, and opened by whoever looks for the real ones.
//
// [Libraries] is all that most tests need. Environment variables change what the fakes do, also in
// child processes. In the process of the test, [Fake.Control] does the same. The variables and
// their defaults are:
//
//	FAKE_CUDA_DEVICES (1)
//	FAKE_CUDA_DRIVER (13000)
//	FAKE_CUDA_LAZY=1          insists on cuInit; 2: answers as if nobody had called it
//	FAKE_CUDA_MIG=1
//	FAKE_CUDA_SYNCHRONIZE_US  how long to wait for a context takes (0)
//	FAKE_CUPTI_VERSION        (130001)
//	FAKE_CUPTI_REFUSE         a CUptiResult for cuptiSubscribe
//	FAKE_CUPTI_CONTROL        what [Fake.Control] sets: drop=1,start_ms=5
//	FAKE_CUPTI_REPLAY         a file of GPUFLIGHT_DEEP_DUMP, whose figures windows yield
//
// The fake driver calls InitializeInjection of CUDA_INJECTION64_PATH in cuInit, as the real one does.
//
// A process has one fake, whichever tests it runs: tests that use it must not be parallel.
package cuptitest
