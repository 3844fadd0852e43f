// SPDX-License-Identifier: Apache-2.0

package cudareceiver

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpuflight/gpuflight/internal/hostinfo"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/fair"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/identity"
	"github.com/gpuflight/gpuflight/receiver/cudareceiver/internal/probe"
	"github.com/gpuflight/gpuflight/semconv"
)

// processes converts snapshots of one probe to metrics. It is not safe for concurrent use.
type processes struct {
	cfg   *Config
	who   *describer
	known map[probe.ProcessID]*process
	// shares has the processes with series.
	shares *fair.Table[probe.ProcessID]
	// began is the start of the probe. The sums of a new process start at since: the time of the
	// last snapshot, or began while skipped processes may be admitted later.
	began, since pcommon.Timestamp
}

// processesFactor is the ratio of the limit for all users to max_processes, which is the limit for
// a single user: see package fair.
const processesFactor = 2

// process is one process with, or without, series.
type process struct {
	excluded bool
	user     uint32
	resource pcommon.Resource
	start    pcommon.Timestamp
	kernels  *kernels
	seen     bool
}

// counts has the processes of one snapshot by outcome. Lost processes have ended while they were
// dropped. They are included for the last time.
type counts struct{ reported, excluded, dropped, lost int64 }

func newProcesses(cfg *Config, began time.Time) *processes {
	start := pcommon.NewTimestampFromTime(began)
	return &processes{
		cfg: cfg, who: newDescriber(cfg), known: map[probe.ProcessID]*process{},
		shares: fair.New[probe.ProcessID](processesFactor * cfg.MaxProcesses), began: start, since: start,
	}
}

// metrics returns the sums of all selected processes. For a process that has ended they are the
// last ones.
func (ps *processes) metrics(s *probe.Snapshot) (pmetric.Metrics, counts) {
	md := pmetric.NewMetrics()
	now := pcommon.NewTimestampFromTime(s.Time)
	var n counts
	for _, p := range ps.known {
		p.seen = false
	}
	for i := range s.Processes {
		sums := &s.Processes[i]
		p := ps.known[sums.ID]
		if p == nil {
			if !ps.shares.Take(sums.User, sums.ID) {
				n.dropped++
				if sums.Ended {
					n.lost++
				}
				continue
			}
			p = ps.admit(sums)
			p.user = sums.User
			ps.known[sums.ID] = p
			if p.excluded {
				ps.shares.Drop(p.user, sums.ID)
			}
		}
		p.seen = !sums.Ended
		if p.excluded {
			n.excluded++
			continue
		}
		n.reported++
		p.kernels.update(sums.Launches, now)
		w := &writer{metrics: pmetric.NewMetricSlice(), start: p.start, now: now}
		w.process(sums, p.kernels)
		if w.metrics.Len() == 0 {
			continue // known by an event, but without a counted call
		}
		rm := md.ResourceMetrics().AppendEmpty()
		rm.SetSchemaUrl(semconv.SchemaURL)
		p.resource.CopyTo(rm.Resource())
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.SetSchemaUrl(semconv.SchemaURL)
		sm.Scope().SetName(semconv.ScopeName)
		w.metrics.MoveAndAppendTo(sm.Metrics())
	}
	for id, p := range ps.known {
		if !p.seen {
			ps.shares.Drop(p.user, id)
			delete(ps.known, id)
		}
	}
	ps.since = now
	if n.dropped > 0 {
		ps.since = ps.began
	}
	return md, n
}

// admit decides about a new process.
func (ps *processes) admit(sums *probe.Process) *process {
	id := sums.ID
	who, _ := ps.who.reader.Process(id.PID, id.Start, identity.Known(sums.Identity))
	if !ps.cfg.selects(&who) {
		return &process{excluded: true}
	}
	return &process{
		resource: ps.who.resource(id, &who), start: ps.since,
		kernels: newKernels(ps.cfg.TopKernels, ps.cfg.StripTemplates, ps.since),
	}
}

// describer identifies processes. It is safe for concurrent use.
type describer struct {
	reader *identity.Reader
	host   hostinfo.Host
	root   string
	boot   string // identifies one boot of the machine
}

func newDescriber(cfg *Config) *describer {
	boot, _ := os.ReadFile(filepath.Join(cfg.RootPath, "proc/sys/kernel/random/boot_id"))
	return &describer{reader: identity.New(cfg.RootPath), host: hostinfo.Read(cfg.RootPath, cfg.HostName), root: cfg.RootPath, boot: strings.TrimSpace(string(boot))}
}

// resource returns the resource of a process.
func (d *describer) resource(id probe.ProcessID, who *identity.Process) pcommon.Resource {
	resource := pcommon.NewResource()
	a := resource.Attributes()
	a.PutStr(semconv.ServiceInstanceID, d.instance(id))
	// The process's own description comes first: observed values override it.
	for _, x := range who.Attributes {
		a.PutStr(x.Key, x.Value)
	}
	putKnown(a, semconv.ServiceName, who.ServiceName)
	a.PutInt(semconv.ProcessPID, int64(id.PID))
	if who.VPID != 0 {
		a.PutInt(semconv.ProcessVpid, int64(who.VPID))
	}
	putKnown(a, semconv.ProcessExecutableName, who.Executable)
	putKnown(a, semconv.ContainerID, who.ContainerID)
	putKnown(a, semconv.K8sPodUID, who.PodUID)
	// Read again for each process: a driver may be updated while the Collector runs.
	putKnown(a, semconv.HWDriverVersion, hostinfo.DriverVersion(d.root))
	a.PutStr(semconv.TelemetrySDKName, semconv.EBPFObserver)
	d.host.Put(a)
	return resource
}

// instance returns an id in the form of a UUID that no other process has, on any machine. Stores
// without process ids would otherwise merge two processes of a service. A restart of the Collector
// does not change the id.
func (d *describer) instance(id probe.ProcessID) string {
	h := sha256.New()
	_, _ = h.Write([]byte(d.host.Name + "\x00" + d.boot + "\x00"))
	b := binary.LittleEndian.AppendUint32(nil, uint32(id.PID))
	_, _ = h.Write(binary.LittleEndian.AppendUint64(b, id.Start))
	u := uuid.UUID(h.Sum(nil)[:16])
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // RFC 9562, version 8: any content
	return u.String()
}

func putKnown(a pcommon.Map, key, value string) {
	if value != "" {
		a.PutStr(key, value)
	}
}
