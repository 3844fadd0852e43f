// SPDX-License-Identifier: Apache-2.0

// Package cuptitest gives tests a fake GPU: a libcuda.so.1 without a device and a libcupti.so.13
// that records what the fake driver is asked to do. They are C (in fake), compiled with cc once for
// each version of their source, and opened by whoever looks for the real ones.
//
// [Libraries] is all that most tests need. What the fakes do differently is told by environment
// variables, which work in child processes too: FAKE_CUDA_DEVICES (1), FAKE_CUDA_DRIVER (13000),
// FAKE_CUDA_LAZY=1 (insists on cuInit; 2: answers as if nobody had called it), FAKE_CUDA_MIG=1,
// FAKE_CUDA_SYNCHRONIZE_US (0: how long to wait for a context takes), FAKE_CUPTI_VERSION (130001),
// FAKE_CUPTI_REFUSE (a CUptiResult for cuptiSubscribe), FAKE_CUPTI_CONTROL (what [Fake.Control]
// sets: drop=1,start_ms=5) and FAKE_CUPTI_REPLAY (a file whose figures windows yield: what
// GPUFLIGHT_DEEP_DUMP kept, as in testdata); or, in the test's own process, by [Fake.Control]. The
// fake driver calls InitializeInjection of CUDA_INJECTION64_PATH in cuInit, as the real one does.
//
// A process has one fake, whichever tests it runs: tests that use it must not be parallel.
package cuptitest
