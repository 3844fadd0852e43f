// SPDX-License-Identifier: Apache-2.0

// Package process reads the identity of a process from /proc: its name, its container and pod, and
// its id in its own PID namespace. All fields are best effort: a process that has ended, or that
// may not be read, has only its id.
package process

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuflight/gpuflight/internal/procfs"
)

// maxCache bounds the cached processes.
const maxCache = 16 << 10

// Info describes a process. Unknown fields are empty or 0.
type Info struct {
	PID int
	// VPID is the id in the innermost PID namespace, or 0 if that is the namespace of PID.
	VPID        int
	Name        string
	ContainerID string
	PodUID      string
}

// Reader reads /proc below a root. It caches the constant facts of a process. It is safe for
// concurrent use.
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

// Process returns the known facts of a process.
func (r *Reader) Process(pid int) Info {
	dir := filepath.Join(r.proc, strconv.Itoa(pid))
	stat, ok := procfs.ParseStat(procfs.ReadFile(filepath.Join(dir, "stat")))
	if !ok {
		return Info{PID: pid}
	}
	// Process ids are reused. Together with the start time they are unique.
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
		clear(r.cache) // rare, and cheaper than tracking which processes have ended
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
