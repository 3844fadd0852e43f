# SPDX-License-Identifier: Apache-2.0
"""The part of the (fake) CUDA driver that these programs use."""

import ctypes


class GPU:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")  # it gives up the interpreter's lock, as PyTorch does
        self.check(self.cuda.cuInit(0))
        context, self.module = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(self.module), b"image"))

    def check(self, result):
        if result != 0:
            raise RuntimeError(f"the driver returns {result}")

    def launch(self, name, n=1):
        function = ctypes.c_void_p()
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), self.module, name.encode()))
        for _ in range(n):
            self.check(self.cuda.cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, None, None, None))
