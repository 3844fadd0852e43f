// SPDX-License-Identifier: Apache-2.0

// Package procfs parses files of /proc for receivers that report per process: name and start, resource
// usage, id in its own PID namespace, container and pod. It takes texts and does no I/O.
//
// All functions are safe for concurrent use.
package procfs

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// maxFile bounds what is read of one file; a cgroup file of thirty v1 hierarchies has 5 KiB.
const maxFile = 64 << 10

// TickNanoseconds is the resolution of Stat's times: USER_HZ is 100 on amd64 and arm64.
const TickNanoseconds = 10_000_000

// ReadFile returns up to 64 KiB of a file, nil if it cannot be read: the process has ended, or may not be looked at.
func ReadFile(name string) []byte {
	f, err := os.Open(name)
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

// Stat is of /proc/PID/stat, as proc(5) describes it.
type Stat struct {
	// Name is that of the thread group, cut at 15 bytes by the kernel; bytes that are no UTF-8 are replaced.
	Name string
	// State is R, S, D, Z, …; Threads the number of threads.
	State   byte
	Threads int
	// Start is when the process began, in ticks since boot. The kernel reuses process ids, but not with
	// the same start.
	Start uint64
	// Faults is the number of minor page faults, Processor the CPU time in user and kernel mode. They
	// are those of the process, or of the thread if the file is a thread's.
	Faults    uint64
	Processor time.Duration
}

// ParseStat parses the text of /proc/PID/stat and reports whether it is valid. The name is in
// parentheses and may have any byte, also parentheses: it ends at the last one.
func ParseStat(text []byte) (Stat, bool) {
	s := string(text)
	begin, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if begin < 0 || end < begin {
		return Stat{}, false
	}
	// The state is field 3 and stands first here.
	const state, faults, user, kernel, threads, start = 0, 7, 11, 12, 17, 19
	fields := strings.Fields(s[end+1:])
	if len(fields) <= start {
		return Stat{}, false
	}
	var numbers [start + 1]uint64
	for _, i := range [...]int{faults, user, kernel, threads, start} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return Stat{}, false
		}
		numbers[i] = n
	}
	return Stat{
		Name: strings.ToValidUTF8(s[begin+1:end], "\uFFFD"), State: fields[state][0],
		Threads: int(numbers[threads]), Start: numbers[start], Faults: numbers[faults],
		Processor: time.Duration(numbers[user]+numbers[kernel]) * TickNanoseconds,
	}, true
}

// ParseVPID returns the process's id in its innermost PID namespace, from the text of /proc/PID/status: the last id of
// the line NSpid if it has several, else 0.
func ParseVPID(status []byte) int32 {
	for line := range strings.Lines(string(status)) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		ids := strings.Fields(rest)
		if len(ids) < 2 {
			return 0
		}
		n, err := strconv.ParseInt(ids[len(ids)-1], 10, 32)
		if err != nil || n < 0 {
			return 0
		}
		return int32(n)
	}
	return 0
}

// UnknownUser is the user id of a process that has none that is known.
const UnknownUser = ^uint32(0)

// ParseUID returns the process's real user id from the text of /proc/PID/status, else UnknownUser. The owner of
// /proc/PID does not do: the kernel shows root there for a process that made itself not dumpable.
func ParseUID(status []byte) uint32 {
	for line := range strings.Lines(string(status)) {
		rest, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		ids := strings.Fields(rest)
		if len(ids) == 0 {
			return UnknownUser
		}
		n, err := strconv.ParseUint(ids[0], 10, 32)
		if err != nil {
			return UnknownUser
		}
		return uint32(n)
	}
	return UnknownUser
}

// ParseCgroup returns a container's id and a pod's UID from the text of /proc/PID/cgroup, version 1 or
// 2; "" for what is missing. It supports the layouts of Docker, containerd, CRI-O and Podman. With
// nested containers it returns the innermost one.
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
	// The process that watches over a container is not in it.
	if strings.HasPrefix(s, "libpod-conmon-") || strings.HasPrefix(s, "crio-conmon-") {
		return ""
	}
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
	// containerd without systemd's paths writes slice:cri-containerd:ID as one segment.
	s, _, _ := strings.Cut(segment, ":")
	s = strings.TrimSuffix(s, ".slice")
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
