// SPDX-License-Identifier: Apache-2.0

// Package identity reads from /proc what identifies a process. That is its executable, its container
// and pod, its id in its own PID namespace, and its parent span in TRACEPARENT. It is also its names in
// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
//
// All of it is best effort: a process that has ended, or that may not be read, has only its id. The
// package does not depend on CUDA, keeps no state and logs nothing. It keeps no other environment
// variables.
package identity

import (
	"bufio"
	"cmp"
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
	// maxEnviron bounds the bytes that are read of an environment. The kernel allows several MiB;
	// job schedulers pass up to about 100 KiB.
	maxEnviron = 1 << 20
	// environLimit bounds the time for reading an environment, which normally takes microseconds.
	// The environment lies in the memory of the process. The process can map a file there that its
	// own program serves and never answers.
	environLimit = 500 * time.Millisecond
)

// Process describes a process. Unknown fields are empty or 0.
type Process struct {
	PID int32
	// VPID is the id in the innermost PID namespace, or 0 if that is the namespace of the machine.
	VPID int32
	// Executable is the file name without its folders.
	Executable string
	// Cgroup is the path in the unified hierarchy, or in the first hierarchy of version 1.
	Cgroup      string
	ContainerID string
	PodUID      string
	// ServiceName is OTEL_SERVICE_NAME, or service.name of OTEL_RESOURCE_ATTRIBUTES.
	ServiceName string
	// Attributes are the other attributes of OTEL_RESOURCE_ATTRIBUTES, in the given order.
	Attributes []Attribute
	// TraceParent is the value of TRACEPARENT, which is not validated.
	TraceParent string
}

// Known is what is known of a process without /proc. Fields may be empty.
type Known struct {
	// Executable is the file name without its folders.
	Executable string
	// Cgroup has control groups in the form of /proc/PID/cgroup. A path has no leading slash if only
	// its innermost part is known.
	Cgroup string
}

// Attribute is a resource attribute.
type Attribute struct{ Key, Value string }

// Reader reads /proc below a root. It is safe for concurrent use.
type Reader struct {
	proc string
	dog  watchdog.Watchdog[uint32] // by user id
}

// environ holds the variables that are read from an environment.
type environ struct {
	service    string
	attributes []Attribute
	parent     string
}

// New returns a Reader of root/proc.
func New(root string) *Reader { return &Reader{proc: filepath.Join(root, "proc")} }

// Process describes the process with this id that started start nanoseconds after boot. If that
// process has ended, even if its id has been reused, Process returns false and sets only the id and
// what is known. What /proc says comes first, because a process may change its control group.
func (r *Reader) Process(pid int32, start uint64, known Known) (Process, bool) {
	dir := filepath.Join(r.proc, strconv.Itoa(int(pid)))
	name, ok := r.same(dir, start)
	if !ok {
		return known.process(pid), false
	}
	p := Process{PID: pid, Executable: cmp.Or(executable(dir), known.Executable, name)}
	p.setCgroup(cmp.Or(string(procfs.ReadFile(filepath.Join(dir, "cgroup"))), known.Cgroup))
	status := procfs.ReadFile(filepath.Join(dir, "status"))
	p.VPID = procfs.ParseVPID(status)
	// A variable that cannot be read stays empty.
	e, _ := watchdog.Run(context.Background(), &r.dog, func() uint32 { return procfs.ParseUID(status) }, environLimit,
		func() environ { return readEnviron(filepath.Join(dir, "environ")) }, nil)
	p.ServiceName, p.Attributes, p.TraceParent = e.service, e.attributes, e.parent
	// The process may have ended, and its id may have been reused, while its files were read.
	if _, ok := r.same(dir, start); !ok {
		return known.process(pid), false
	}
	return p, true
}

// process describes a process that has ended.
func (k Known) process(pid int32) Process {
	p := Process{PID: pid, Executable: k.Executable}
	p.setCgroup(k.Cgroup)
	return p
}

// setCgroup sets the fields that the text of /proc/PID/cgroup has.
func (p *Process) setCgroup(text string) {
	p.Cgroup = cgroupPath(text)
	p.ContainerID, p.PodUID = procfs.ParseCgroup(text)
}

// same returns the name of the process at dir if that process started at start.
func (r *Reader) same(dir string, start uint64) (name string, ok bool) {
	s, ok := procfs.ParseStat(procfs.ReadFile(filepath.Join(dir, "stat")))
	return s.Name, ok && s.Start == start/procfs.TickNanoseconds
}

// executable returns the name of the executable, or "" if the link may not be read.
func executable(dir string) string {
	link, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil || link == "" {
		return ""
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
