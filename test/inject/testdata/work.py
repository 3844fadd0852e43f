# SPDX-License-Identifier: Apache-2.0
#
# A program that uses the (fake) driver as a CUDA program does, and then does what its first argument
# says. It knows nothing of being recorded: its output and its end must be the same with and without.
import ctypes
import faulthandler
import multiprocessing
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time


class GPU:
    """One context of the driver, and kernels by name."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check(self.cuda.cuInit(0))
        self.context = ctypes.c_void_p()
        self.check(self.cuda.cuCtxCreate_v2(ctypes.byref(self.context), 0, 0))
        self.module = ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(self.module), b"image"))

    def check(self, result):
        if result != 0:
            raise RuntimeError(f"driver says {result}")

    def launch(self, name, n):
        function = ctypes.c_void_p()
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), self.module, name.encode()))
        for _ in range(n):
            self.check(self.cuda.cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, None, None, None))

    def copy(self, size):
        memory = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
        data = (ctypes.c_char * size)()
        self.check(self.cuda.cuMemcpyHtoD_v2(memory, data, ctypes.c_size_t(size)))


def dispositions(path="/proc/self/status"):
    with open(path) as f:
        return [line.strip() for line in f if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]


def plain(gpu):
    gpu.launch("gemm", 1000)
    gpu.launch("relu", 500)
    gpu.copy(1 << 20)
    print("done")


def segv(gpu):
    gpu.launch("gemm", 10)
    sys.stdout.flush()
    ctypes.string_at(0)


def faults(gpu):
    faulthandler.enable()
    sys.stdout.flush()
    ctypes.string_at(0)


def abort(gpu):
    sys.stdout.flush()
    os.abort()


def term(gpu):
    gpu.launch("gemm", 10)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def interrupt(gpu):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt:
        print("interrupted")


def interrupt_dies(gpu):
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def pipe(gpu):
    # As most programs have it; Python ignores it by itself.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    r, w = os.pipe()
    os.close(r)
    sys.stdout.flush()
    os.write(w, b"nobody reads this")


def pipe_ignored(gpu):
    r, w = os.pipe()
    os.close(r)
    try:
        os.write(w, b"nobody reads this")
    except BrokenPipeError:
        print("broken pipe")


def lasting(gpu):
    # Long enough for several exports, and ended by the first SIGPIPE that a thread of its own gets.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    end = time.time() + 1.5
    while time.time() < end:
        gpu.launch("gemm", 100)
        time.sleep(0.01)
    print("lasted")


def leave(gpu):
    gpu.launch("gemm", 10)
    print("leaving", flush=True)
    os._exit(7)


def code(gpu):
    gpu.launch("gemm", 10)
    print("nine")
    sys.exit(9)


def uncaught(gpu):
    raise ValueError("mine")


def alarms(gpu):
    count = 0
    threads = set()

    def on_alarm(signum, frame):
        nonlocal count
        count += 1
        threads.add(threading.get_ident())

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    end = time.time() + 30
    while count < 1000 and time.time() < end:
        gpu.launch("gemm", 20)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(count >= 1000, threads == {threading.get_ident()})


def timer_left(gpu):
    # Fires, and kills, some time after the end: the end must not take until then.
    gpu.launch("gemm", 10)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print("over")
    signal.setitimer(signal.ITIMER_REAL, 0.7)


def fork_exec(gpu):
    gpu.launch("gemm", 10)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", "echo from the child; exit 3"])
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def fork_exit(gpu):
    # Runs all that is registered for the exit, in the child too.
    gpu.launch("gemm", 10)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        print("child", gpu.cuda.cuInit(0))
        sys.exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def fork_busy(gpu):
    # Children come while other threads are in the driver.
    over = threading.Event()

    def ask():
        n = ctypes.c_int()
        while not over.is_set():
            gpu.cuda.cuDeviceGetCount(ctypes.byref(n))
            gpu.cuda.cuInit(0)
            gpu.launch("gemm", 1)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for t in threads:
        t.start()
    codes = set()
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            os._exit(4 + gpu.cuda.cuInit(0))
        codes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    over.set()
    for t in threads:
        t.join()
    print(codes)


def worker(n):
    return n * n


def pool(gpu):
    gpu.launch("gemm", 10)
    with multiprocessing.get_context("fork").Pool(4) as p:
        print(sum(p.map(worker, range(1000))))


def spawned(n):
    gpu = GPU()
    gpu.launch("spawned", n)


def spawn(gpu):
    gpu.launch("gemm", 10)
    processes = [multiprocessing.get_context("spawn").Process(target=spawned, args=(100,)) for _ in range(3)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    print([p.exitcode for p in processes])


def children(gpu):
    for i in range(3):
        print(subprocess.run([sys.executable, __file__, "code"], capture_output=True, text=True).returncode)


def threads(gpu):
    def work():
        gpu.launch("gemm", 250)

    all = [threading.Thread(target=work) for _ in range(8)]
    for t in all:
        t.start()
    for t in all:
        t.join()
    print("joined")


def environment(gpu):
    # What gpuflight adds is the library's; nothing else may differ, and nothing when the library came.
    ours = ("GPUFLIGHT_", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "TRACEPARENT", "OTEL_")
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    print(sorted((k, v) for k, v in os.environ.items() if not k.startswith(ours)))
    print(all(getenv(k.encode()) == v.encode() for k, v in os.environ.items()))


def wait(gpu):
    # For signals from outside: says which came.
    def on(signum, frame):
        print(signal.Signals(signum).name, flush=True)

    for s in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGQUIT):
        signal.signal(s, on)
    gpu.launch("gemm", 10)
    print("ready", flush=True)
    while True:
        time.sleep(0.05)


def armed():
    """How much of the (fake) engines is armed in this process."""
    control = ctypes.CDLL(os.environ["GPUFLIGHT_CUPTI"]).fake_control
    control.restype = ctypes.c_int64
    return control(b"armed", ctypes.c_int64(0))


def until(condition):
    end = time.time() + 50
    while not condition():
        if time.time() > end:
            sys.exit("what was waited for has not come")
        time.sleep(0.002)


def inside(gpu):
    """A module of real code, and the wait for an engine that looks at it."""
    with open(os.environ["WORK_IMAGE"], "rb") as f:
        image = f.read()
    assert gpu.cuda.fake_module_load(image, ctypes.c_size_t(len(image))) != 0
    until(lambda: gpu.launch("plain", 1) or armed() > 0)


def window(gpu):
    inside(gpu)
    until(lambda: armed() == 0)
    gpu.launch("plain", 20)
    print("windowed")


def window_exit(gpu):
    inside(gpu)
    print("ending in a window")


def window_code(gpu):
    inside(gpu)
    sys.exit(9)


def window_leave(gpu):
    inside(gpu)
    print("leaving in a window", flush=True)
    os._exit(7)


def window_segv(gpu):
    inside(gpu)
    sys.stdout.flush()
    ctypes.string_at(0)


def window_term(gpu):
    inside(gpu)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def window_fork(gpu):
    # Children of a program in a window: one that goes on, one that runs another program.
    inside(gpu)
    sys.stdout.flush()
    for child in (lambda: sys.exit(4), lambda: os.execvp("sh", ["sh", "-c", "exit 3"])):
        pid = os.fork()
        if pid == 0:
            gpu.cuda.cuInit(0)
            child()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print("armed", armed() > 0)


def window_signal(gpu):
    # The signal would kill if nobody took it.
    with open(os.environ["WORK_IMAGE"], "rb") as f:
        image = f.read()
    assert gpu.cuda.fake_module_load(image, ctypes.c_size_t(len(image))) != 0
    until(lambda: os.kill(os.getpid(), signal.SIGUSR2) or gpu.launch("plain", 1) or armed() > 0)
    until(lambda: armed() == 0)
    print("windowed")


def window_asked(gpu):
    # Until somebody has asked for a window.
    print(os.getpid(), flush=True)
    window(gpu)


def window_refused(gpu):
    # Until somebody closes the standard input.
    print(os.getpid(), flush=True)
    gpu.launch("plain", 10)
    sys.stdin.read()
    print("over")


def window_told(gpu):
    # Does what it is told, a line each, until somebody closes the standard input: "capture" and "captured" begin and
    # end the capture of a graph, "hold" and "held" the loading of a module that takes its time, "NAME VALUE" sets the (fake) CUPTI, "? NAME" asks it.
    control = ctypes.CDLL(os.environ["GPUFLIGHT_CUPTI"]).fake_control
    control.restype = ctypes.c_int64
    with open(os.environ["WORK_IMAGE"], "rb") as f:
        image = f.read()
    assert gpu.cuda.fake_module_load(image, ctypes.c_size_t(len(image))) != 0
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.check(gpu.cuda.cuStreamCreate(ctypes.byref(stream), 0))
    gpu.launch("plain", 10)
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["capture"]:
                gpu.check(gpu.cuda.cuStreamBeginCapture_v2(stream, 0))
            case ["captured"]:
                gpu.check(gpu.cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
            case ["hold"]:
                control(b"hold", ctypes.c_int64(1))
                loading = threading.Thread(target=gpu.cuda.fake_module_load, args=(b"slow to load", ctypes.c_size_t(12)), daemon=True)
                loading.start()
                until(lambda: control(b"held", ctypes.c_int64(0)) > 0)
                print("armed", armed(), flush=True)
                continue
            case ["held"]:
                control(b"hold", ctypes.c_int64(0))
                loading.join()
            case ["?", name]:
                print(control(name.encode(), ctypes.c_int64(0)), flush=True)
                continue
            case [name, value]:
                assert control(name.encode(), ctypes.c_int64(int(value))) >= 0
        gpu.launch("plain", 1)
        print("armed", armed(), flush=True)
    gpu.launch("plain", 10)
    print("over")


class Ranges:
    """Ranges of NVTX, as a program has them whose NVTX has loaded an injection library: nvtxRangePushA and nvtxRangePop
    are pointers in a table that the library fills."""

    MODULE_CORE, PUSH_A, POP, SIZE = 1, 9, 11, 16

    def __init__(self):
        pointer = ctypes.sizeof(ctypes.c_void_p)
        self.functions = (ctypes.c_void_p * self.SIZE)()
        self.table = (ctypes.c_void_p * self.SIZE)(*(ctypes.addressof(self.functions) + i * pointer for i in range(self.SIZE)))

        def module(number, table, size):
            size[0] = self.SIZE
            table[0] = ctypes.addressof(self.table)
            return number == self.MODULE_CORE

        self.module = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint))(module)
        self.callbacks = (ctypes.c_void_p * 2)(2 * pointer, ctypes.cast(self.module, ctypes.c_void_p))
        self.export = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda _: ctypes.addressof(self.callbacks))
        assert ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"]).InitializeInjectionNvtx2(self.export) == 1
        self.push = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)(self.functions[self.PUSH_A])
        self.pop = ctypes.CFUNCTYPE(ctypes.c_int)(self.functions[self.POP])


def window_steps(gpu):
    # Steps of 20 ms, and of 200 ms once there is a line on the standard input, until that is closed.
    ranges = Ranges()

    def step(seconds):
        ranges.push(b"train_step")
        gpu.launch("plain", 1)
        time.sleep(seconds)
        ranges.pop()

    print(os.getpid(), flush=True)
    seconds = 0.02
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                break
            seconds = 0.2
        step(seconds)
    print("over")


def steady(gpu):
    # 12,000 launches a second until there is a line on the standard input.
    function = ctypes.c_void_p()
    gpu.check(gpu.cuda.cuModuleGetFunction(ctypes.byref(function), gpu.module, b"plain"))
    print(os.getpid(), flush=True)
    began, n = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], max(0, n / 12000 - (time.monotonic() - began)))[0]:
        for _ in range(400):
            gpu.check(gpu.cuda.cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, None, None, None))
        n += 400
    print("over")


def window_heap(gpu):
    # Launches all the time, with 10,000 holes in its heap that are of no use to it. Says how many pieces of up to 1 KiB are free for
    # each line on the standard input, until that is closed.
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
    with open(os.environ["WORK_IMAGE"], "rb") as f:
        image = f.read()
    assert gpu.cuda.fake_module_load(image, ctypes.c_size_t(len(image))) != 0
    pieces = [libc.malloc(ctypes.c_size_t(56)) for _ in range(20000)]
    for i in range(0, len(pieces), 2):
        libc.free(ctypes.c_void_p(pieces[i]))

    def free_pieces():
        with tempfile.NamedTemporaryFile() as f:
            stream = ctypes.c_void_p(libc.fopen(f.name.encode(), b"w"))
            libc.malloc_info(0, stream)
            libc.fclose(stream)
            main_arena = f.read().decode().partition('<heap nr="0">')[2].partition("</heap>")[0]
        return sum(int(count) for to, count in re.findall(r'<size from="\d+" to="(\d+)" total="\d+" count="(\d+)"', main_arena) if int(to) <= 1024)

    print(os.getpid(), flush=True)
    while True:
        gpu.launch("plain", 1)
        if select.select([sys.stdin], [], [], 0.002)[0]:
            if not sys.stdin.readline():
                break
            print(free_pieces(), flush=True)


def window_late(gpu):
    # A program that takes its time before it uses the GPU.
    gpu.check(gpu.cuda.cuCtxDestroy_v2(gpu.context))
    time.sleep(1)
    gpu.check(gpu.cuda.cuCtxCreate_v2(ctypes.byref(gpu.context), 0, 0))
    window(gpu)


def window_contextless(gpu):
    # Until somebody closes the standard input, without a context.
    gpu.check(gpu.cuda.cuCtxDestroy_v2(gpu.context))
    print(os.getpid(), flush=True)
    sys.stdin.read()
    print("over")


def main():
    # Fewer files than there could be, so that a limit that is raised is seen.
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    before, limits = dispositions(), resource.getrlimit(resource.RLIMIT_NOFILE)
    gpu = GPU()
    after, limits_after = dispositions(), resource.getrlimit(resource.RLIMIT_NOFILE)
    # 33 is the C library's own, which it takes with the first thread.
    mask = ~(1 << 32)
    same = [[l.split()[0], int(l.split()[1], 16) & mask] for l in before] == [
        [l.split()[0], int(l.split()[1], 16) & mask] for l in after]
    print("signals", "kept" if same else f"changed: {before} {after}")
    print("limits", "kept" if limits == limits_after else f"changed: {limits} {limits_after}")
    globals()[sys.argv[1]](gpu)


if __name__ == "__main__":
    main()
