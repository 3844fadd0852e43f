// SPDX-License-Identifier: Apache-2.0

// Package procfs tells from /proc who a process is: its name, its container and pod, and its id in
// its own PID namespace. All of it is best effort: a process that has ended, or that may not be
// looked at, has only its id. It knows nothing of GPUs.
package procfs

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxFile bounds what is read of one file; a cgroup file of thirty v1 hierarchies has 5 KiB.
	maxFile = 64 << 10
	// maxCache bounds the processes that are remembered.
	maxCache = 16 << 10
)

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
	start string
}

// New returns a Reader of root/proc.
func New(root string) *Reader {
	return &Reader{proc: filepath.Join(root, "proc"), cache: map[int]entry{}}
}

// Process returns what is known of a process.
func (r *Reader) Process(pid int) Info {
	dir := filepath.Join(r.proc, strconv.Itoa(pid))
	name, start, ok := parseStat(readFile(filepath.Join(dir, "stat")))
	if !ok {
		return Info{PID: pid}
	}
	// A process id comes again; together with the start time it does not.
	r.mu.Lock()
	e, known := r.cache[pid]
	r.mu.Unlock()
	if known && e.start == start && e.info.Name == name {
		return e.info
	}
	info := Info{PID: pid, Name: name}
	info.ContainerID, info.PodUID = ParseCgroup(string(readFile(filepath.Join(dir, "cgroup"))))
	info.VPID = parseNSpid(readFile(filepath.Join(dir, "status")))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCache {
		clear(r.cache) // cheaper than to know who has ended, and rare
	}
	r.cache[pid] = entry{info: info, start: start}
	return info
}

// BootTime returns when the machine started, or the zero time where /proc does not say.
func (r *Reader) BootTime() time.Time {
	for line := range strings.Lines(string(readFile(filepath.Join(r.proc, "stat")))) {
		if rest, ok := strings.CutPrefix(line, "btime "); ok {
			if s, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); err == nil && s > 0 {
				return time.Unix(s, 0)
			}
		}
	}
	return time.Time{}
}

// readFile returns up to maxFile bytes, nil on errors.
func readFile(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil
	}
	return b
}

// parseStat returns the name and the start time of /proc/PID/stat. The name stands in parentheses
// and may hold any byte, a parenthesis among them: it ends at the last one.
func parseStat(b []byte) (name, start string, ok bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return "", "", false
	}
	fields := strings.Fields(string(b[end+1:]))
	// proc(5): the state is field 3 and stands first here, the start time is field 22.
	if len(fields) < 20 {
		return "", "", false
	}
	return strings.ToValidUTF8(string(b[open+1:end]), "\uFFFD"), fields[19], true
}

// parseNSpid returns the last id of the line NSpid of /proc/PID/status if it has several.
func parseNSpid(b []byte) int {
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		ids := strings.Fields(rest)
		if len(ids) < 2 {
			return 0
		}
		n, err := strconv.Atoi(ids[len(ids)-1])
		if err != nil || n < 0 {
			return 0
		}
		return n
	}
	return 0
}

// ParseCgroup finds a container's id and a pod's UID in the text of /proc/PID/cgroup, version 1 or
// 2, as Docker, containerd, CRI-O and Podman lay it out; "" for what is not there. The innermost
// container counts.
func ParseCgroup(text string) (container, pod string) {
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path; the path may hold colons itself.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var c, p string
		for segment := range strings.SplitSeq(parts[2], "/") {
			if id := containerID(segment); id != "" {
				c = id
			}
			if id := podUID(segment); id != "" {
				p = id
			}
		}
		if container == "" {
			container = c
		}
		if pod == "" {
			pod = p
		}
	}
	return container, pod
}

// containerID takes docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, the
// bare ID, and containerd's slice:cri-containerd:ID. An ID is 64 hexadecimal digits.
func containerID(segment string) string {
	s := strings.TrimSuffix(segment, ".scope")
	if i := strings.LastIndexAny(s, "-:"); i >= 0 {
		s = s[i+1:]
	}
	if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return ""
	}
	return s
}

// podUID takes podUID, and kubepods-burstable-podUID.slice, in which systemd's escape made the
// dashes of the UID underscores.
func podUID(segment string) string {
	s := strings.TrimSuffix(segment, ".slice")
	if i := strings.LastIndex(s, "-pod"); i >= 0 && strings.HasPrefix(s, "kubepods") {
		s = s[i+1:]
	}
	s, ok := strings.CutPrefix(s, "pod")
	if !ok {
		return ""
	}
	s = strings.ReplaceAll(s, "_", "-")
	// Static pods have the 32 digits of a hash in place of a UUID.
	if (len(s) != 36 || strings.Count(s, "-") != 4) && (len(s) != 32 || strings.Contains(s, "-")) {
		return ""
	}
	if strings.Trim(s, "-0123456789abcdef") != "" {
		return ""
	}
	return s
}
