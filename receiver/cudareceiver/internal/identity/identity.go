// SPDX-License-Identifier: Apache-2.0

// Package identity tells from /proc who a process is: its executable, its container and pod, its id
// in its own PID namespace, what it calls itself in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES,
// and the span that it is part of by TRACEPARENT. All of it is best effort: a process that has ended, or that may not be
// looked at, has only its id. It knows nothing of CUDA, remembers nothing and logs nothing; of a
// process's environment it keeps no other variables.
package identity

import (
	"bufio"
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/procfs"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/watchdog"
)

const (
	// maxEnviron bounds what is read of an environment. The kernel allows some MiB; job schedulers
	// pass 100 KiB at times.
	maxEnviron = 1 << 20
	// environLimit is how long reading an environment may take; it takes some microseconds. It lies in the process's
	// memory, which the process can replace by a file that its own program serves, and never does.
	environLimit = 500 * time.Millisecond
)

// Process describes a process. What is not known is empty or 0.
type Process struct {
	PID int32
	// VPID is the id in the innermost PID namespace, 0 where that is the machine's own.
	VPID int32
	// Executable is the file's name without its folders.
	Executable string
	// Cgroup is the path in the unified hierarchy, or in the first one of version 1.
	Cgroup      string
	ContainerID string
	PodUID      string
	// ServiceName is OTEL_SERVICE_NAME, or service.name of OTEL_RESOURCE_ATTRIBUTES.
	ServiceName string
	// Attributes are the others of OTEL_RESOURCE_ATTRIBUTES, in the order given.
	Attributes []Attribute
	// TraceParent is TRACEPARENT as it stands there, whether it is a valid one or not.
	TraceParent string
}

// Attribute is one attribute of a resource.
type Attribute struct{ Key, Value string }

// Reader reads /proc below a root. It is safe for concurrent use.
type Reader struct {
	proc string
	dog  watchdog.Watchdog[uint32] // by user id
}

// environ is what an environment says.
type environ struct {
	service    string
	attributes []Attribute
	parent     string
}

// New returns a Reader of root/proc.
func New(root string) *Reader { return &Reader{proc: filepath.Join(root, "proc")} }

// Process returns what is known of the process with this id that began start nanoseconds after boot.
// It reports false, and knows no more than the id, if that process has ended, even if another one
// has its id by now.
func (r *Reader) Process(pid int32, start uint64) (Process, bool) {
	dir := filepath.Join(r.proc, strconv.Itoa(int(pid)))
	name, ok := r.same(dir, start)
	if !ok {
		return Process{PID: pid}, false
	}
	p := Process{PID: pid, Executable: executable(dir, name)}
	cgroup := string(procfs.ReadFile(filepath.Join(dir, "cgroup")))
	p.Cgroup = cgroupPath(cgroup)
	p.ContainerID, p.PodUID = procfs.ParseCgroup(cgroup)
	status := procfs.ReadFile(filepath.Join(dir, "status"))
	p.VPID = procfs.ParseVPID(status)
	// What cannot be read is not known.
	e, _ := watchdog.Run(context.Background(), &r.dog, func() uint32 { return procfs.ParseUID(status) }, environLimit,
		func() environ { return readEnviron(filepath.Join(dir, "environ")) }, nil)
	p.ServiceName, p.Attributes, p.TraceParent = e.service, e.attributes, e.parent
	// The process may have ended, and its id be another's, while its files were read.
	if _, ok := r.same(dir, start); !ok {
		return Process{PID: pid}, false
	}
	return p, true
}

// same returns the name of the process at dir if it began at start.
func (r *Reader) same(dir string, start uint64) (name string, ok bool) {
	s, ok := procfs.ParseStat(procfs.ReadFile(filepath.Join(dir, "stat")))
	return s.Name, ok && s.Start == start/procfs.TickNanoseconds
}

// executable returns the name of the file that runs, or the thread group's name, cut at 15 bytes by
// the kernel, where the link may not be read.
func executable(dir, name string) string {
	link, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil || link == "" {
		return name
	}
	return strings.ToValidUTF8(path.Base(strings.TrimSuffix(link, " (deleted)")), "\uFFFD")
}

func readEnviron(path string) (e environ) {
	f, err := os.Open(path)
	if err != nil {
		return e
	}
	defer func() { _ = f.Close() }()
	e.service, e.attributes, e.parent = parseEnviron(io.LimitReader(f, maxEnviron))
	return e
}

// parseEnviron finds the three variables among KEY=VALUE strings that end with a zero byte.
func parseEnviron(r io.Reader) (service string, attributes []Attribute, parent string) {
	const name, resource, trace = "OTEL_SERVICE_NAME=", "OTEL_RESOURCE_ATTRIBUTES=", "TRACEPARENT="
	var list string
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 4096), maxEnviron+1)
	s.Split(splitZero)
	for s.Scan() {
		if v, ok := strings.CutPrefix(s.Text(), name); ok && service == "" {
			service = clean(v)
		} else if v, ok := strings.CutPrefix(s.Text(), resource); ok && list == "" {
			list = v
		} else if v, ok := strings.CutPrefix(s.Text(), trace); ok && parent == "" {
			parent = clean(v)
		}
	}
	for _, a := range parseAttributes(list) {
		if a.Key != "service.name" {
			attributes = append(attributes, a)
		} else if service == "" {
			service = a.Value
		}
	}
	return service, attributes, parent
}
