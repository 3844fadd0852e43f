# SPDX-License-Identifier: Apache-2.0
#
# A program that launches from known lines: the name of a kernel is the function and the line that
# launch it. It launches through ctypes, which releases the GIL as PyTorch does. The arguments are the
# functions that it calls.
import atexit
import ctypes
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ROUNDS = 20


class Kernel(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                ("rest", ctypes.c_uint64 * 8)]


kernels = {}


def kernel(line=0):
    """Returns the kernel of the calling function and line."""
    f = sys._getframe(1)
    name = f"{f.f_code.co_name}_{line or f.f_lineno}"
    if name not in kernels:
        kernels[name] = Kernel(name.encode(), (4, 1, 1), (128, 1, 1))
    return kernels[name]


cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
launch = cuda.fake_launch
launch.argtypes = [ctypes.POINTER(Kernel)]


class Tensor:
    """Operators that launch without a frame of their own, as those of PyTorch."""

    __matmul__ = __add__ = __getitem__ = launch


def call():
    launch(kernel())


def operators():
    t = Tensor()
    k = kernel(); t @ k
    n = len("the next call")
    k = kernel(); t + k
    k = kernel(); t[k]
    return n


def lines():
    launch(
        kernel(sys._getframe().f_lineno - 1),
    )
    launch(kernel()); launch(kernel())


class Module:
    def __call__(self):
        return self.forward()

    def forward(self):
        for _ in range(2):
            launch(kernel())
        return [launch(kernel()) for _ in range(2)]


def generator():
    launch(kernel())
    yield
    launch(kernel())


def raises():
    try:
        launch(kernel())
        raise ValueError("mine")
    except ValueError:
        launch(kernel())
        try:
            {}["missing"]
        finally:
            launch(kernel())


def rounds(n=ROUNDS):
    module = Module()
    for _ in range(n):
        call()
        operators()
        lines()
        module()
        list(generator())
        try:
            raises()
        except KeyError as e:
            assert e.args == ("missing",)
        else:
            raise AssertionError("the exception is lost")
        time.sleep(0.003)


def workers():
    # Threads and a pool launch concurrently with the main thread.
    threads = [threading.Thread(target=rounds) for _ in range(3)]
    for t in threads:
        t.start()
    with ThreadPoolExecutor(2) as pool:
        for f in [pool.submit(rounds, 5) for _ in range(4)]:
            f.result()
    for t in threads:
        t.join()


def foreign():
    # Threads without Python, as those of a backward pass, launch while the main thread waits.
    cuda.fake_run(4, ctypes.c_uint64(2000), b"foreign")


def prepare():
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        sum(range(100))


def late():
    for _ in range(3):
        launch(kernel())
        prepare()
    for _ in range(3):
        launch(kernel())
        time.sleep(0.1)
    launch(kernel())


def forks():
    # Children run what is registered for the exit, end without it, or run another program.
    for child in (lambda: sys.exit(4), lambda: os._exit(4), lambda: os.execvp("sh", ["sh", "-c", "exit 4"])):
        rounds(5)
        pid = os.fork()
        if pid == 0:
            launches.clear()
            child()
        assert os.waitpid(pid, 0)[1] == 4 << 8
    rounds(5)


def daemons():
    # Threads still launch while the interpreter ends.
    def endless():
        while True:
            launch(kernel())

    for _ in range(4):
        threading.Thread(target=endless, daemon=True).start()
    rounds(10)


def holds():
    # Nobody can read the frames of a thread that keeps the GIL.
    keeps = ctypes.PyDLL("libcuda.so.1").fake_launch
    keeps.argtypes = [ctypes.POINTER(Kernel)]
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        keeps(kernel())


def audited():
    # A hook in Python runs in the midst of each sample.
    sys.addaudithook(lambda event, args: sum(range(50)) if event == "sys._current_frames" else None)
    rounds()


def garbage():
    # Finalizers run on the threads of the program only.
    threads = set()

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            threads.add(threading.get_ident())

    def work():
        for _ in range(20):
            for _ in range(1000):
                Cycle()
            rounds(1)

    t = threading.Thread(target=work)
    t.start()
    work()
    t.join()
    assert threads <= {threading.get_ident(), t.ident}, threads


class Last:
    """Launches when the interpreter has ended nearly everything else."""

    def __del__(self):
        for launch in launches:
            launch(kernel())


launches = [launch]
last = Last()
atexit.register(lambda: [launch(kernel()) for launch in launches])
for function in sys.argv[1:]:
    globals()[function]()
print("done")
