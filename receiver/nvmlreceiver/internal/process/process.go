// SPDX-License-Identifier: Apache-2.0

// Package process tells from /proc who a process is: its name, its container and pod, and its id in
// its own PID namespace. All of it is best effort: a process that has ended, or that may not be
// looked at, has only its id. It knows nothing of GPUs.
package process

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

// maxCache bounds the processes that are remembered.
const maxCache = 16 << 10

// Info describes a process. What is not known is empty or 0.
type Info struct {
	PID int
	// VPID is the id in the innermost PID namespace, 0 where the process is in no other than PID's.
	VPID        int
	Name        string
	ContainerID string
	PodUID      string
}

// Reader reads /proc below a root. It remembers what cannot change in the life of a process, and is
// safe for concurrent use.
type Reader struct {
	proc string

	mu    sync.Mutex
	cache map[int]entry
}

type entry struct {
	info  Info
	start uint64
}

// New returns a Reader of root/proc.
func New(root string) *Reader {
	return &Reader{proc: filepath.Join(root, "proc"), cache: map[int]entry{}}
}

// Process returns what is known of a process.
func (r *Reader) Process(pid int) Info {
	dir := filepath.Join(r.proc, strconv.Itoa(pid))
	stat, ok := procfs.ParseStat(procfs.ReadFile(filepath.Join(dir, "stat")))
	if !ok {
		return Info{PID: pid}
	}
	// A process id comes again; together with the start time it does not.
	r.mu.Lock()
	e, known := r.cache[pid]
	r.mu.Unlock()
	if known && e.start == stat.Start && e.info.Name == stat.Name {
		return e.info
	}
	info := Info{PID: pid, Name: stat.Name}
	info.ContainerID, info.PodUID = procfs.ParseCgroup(string(procfs.ReadFile(filepath.Join(dir, "cgroup"))))
	info.VPID = int(procfs.ParseVPID(procfs.ReadFile(filepath.Join(dir, "status"))))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCache {
		clear(r.cache) // cheaper than to know who has ended, and rare
	}
	r.cache[pid] = entry{info: info, start: stat.Start}
	return info
}

// BootTime returns when the machine started, or the zero time where /proc does not say.
func (r *Reader) BootTime() time.Time {
	for line := range strings.Lines(string(procfs.ReadFile(filepath.Join(r.proc, "stat")))) {
		if rest, ok := strings.CutPrefix(line, "btime "); ok {
			if s, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); err == nil && s > 0 {
				return time.Unix(s, 0)
			}
		}
	}
	return time.Time{}
}
