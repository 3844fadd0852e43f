# SPDX-License-Identifier: Apache-2.0
"""The same processors for two that are compared.

A processor of a virtual machine is often half of a core, and how fast it is depends on what the host runs on the other half: 10 % and
more between two processors of one machine, and not the same ones an hour later. Two processes that are compared have to meet
the same processors, or the comparison is of those.
"""
import os
import threading


def threads(pid):
    """The threads of a process that exist: their ids and names."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm") as f:
                yield int(thread), f.read().strip()
        except (FileNotFoundError, ProcessLookupError):
            pass


def role(pid, thread, name):
    """main and autograd for the threads of a training that launch, else the thread's name."""
    return "main" if thread == pid else "autograd" if name.startswith("pt_autograd_") else name


def spent(pid):
    """What each thread of a process has taken, by (role, id in the process): seconds of its own, of the kernel's, and page faults
    that needed no disk."""
    tick, found = os.sysconf("SC_CLK_TCK"), {}
    for thread, name in threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/stat") as f:
                fields = f.read().rpartition(")")[2].split()  # from the third on
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[role(pid, thread, name), thread - pid] = int(fields[11]) / tick, int(fields[12]) / tick, int(fields[7])
    return found


def put(thread, processors):
    try:
        os.sched_setaffinity(thread, processors)
    except ProcessLookupError:
        pass


def core(processor):
    """The processors that share its core, itself included. A virtual machine need not say; then it is taken for one of a pair."""
    found = {processor, processor ^ 1}
    try:
        with open(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") as f:
            text = f.read().strip()
    except OSError:
        return found
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def share(*pids):
    """Puts the launching threads of trainings, the main one and autograd's, on the same two cores, and all other threads elsewhere. It is for
    trainings that run in turn. False, with nothing done, where there are too few processors."""
    mine = os.sched_getaffinity(0)
    rest, chosen = set(mine), []
    for processor in sorted(mine, reverse=True):
        if processor in rest and len(chosen) < 2:
            chosen.append(processor)
            rest -= core(processor)
    if len(rest) < 4:
        return False
    own = {"main": {chosen[0]}, "autograd": {chosen[1]}}
    for pid in pids:
        for thread, name in threads(pid):
            put(thread, own.get(role(pid, thread, name), rest))
    return True


def parts(number):
    """The processors that we may use, in so many parts of the same size."""
    mine = sorted(os.sched_getaffinity(0))
    each = len(mine) // number
    return [mine[i * each:(i + 1) * each] for i in range(number)]


def descendants(pid):
    found = []
    for thread, _ in threads(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as f:
                children = [int(x) for x in f.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            found.append(child)
            try:
                found += descendants(child)
            except (FileNotFoundError, ProcessLookupError):
                pass
    return found


class Swapping:
    """While it is entered, our processes that run on one of two sets of processors change to the other every so many
    seconds. It is for trainings that run side by side."""

    def __init__(self, one, other, seconds=0.5):
        self.sets, self.seconds = (frozenset(one), frozenset(other)), seconds
        self.place = {}  # of the processes: an index of sets
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.wait(self.seconds):
            self.swap()

    def swap(self):
        for pid in descendants(os.getpid()):
            try:
                if pid not in self.place:
                    on = frozenset(os.sched_getaffinity(pid))
                    if on not in self.sets:
                        continue
                    self.place[pid] = self.sets.index(on)
                self.place[pid] = 1 - self.place[pid]
                for thread, _ in threads(pid):
                    put(thread, self.sets[self.place[pid]])
            except (FileNotFoundError, ProcessLookupError):
                continue

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
