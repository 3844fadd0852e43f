// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package probe

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func lostOf(p *Process) map[string]uint64 { return p.Lost }

func refused(s *Snapshot) map[uint32]uint64 { return s.Losses.Users }

func tracedLosses(tr *Trace) map[int32]uint64 { return tr.Losses().Processes }

func knowsNamespaces(p *Probe) bool { return p.offsets["cred_offset"] != 0 }

// table returns a reader without the kernel's maps.
func table() reader {
	return newReader(nil, 1, "", Options{}.withDefaults())
}

// nameRecord is struct name as in the ring.
func nameRecord(run, handle uint64, user uint32, name string) []byte {
	raw := make([]byte, nameTextStart+256)
	binary.NativeEndian.PutUint64(raw, run)
	binary.NativeEndian.PutUint64(raw[8:], handle)
	binary.NativeEndian.PutUint32(raw[24:], user)
	copy(raw[nameTextStart:], name)
	return raw
}

func TestReader_NamesOfManyProcesses(t *testing.T) {
	r := table()
	const hostile, asked = 100, 4096
	for run := range uint64(hostile) {
		for handle := range uint64(asked) {
			r.name(nameRecord(run+1, handle, 1, fmt.Sprintf("kernel%d", handle)))
		}
	}
	size := allNamesFactor * defaultNames
	assert.Equal(t, size/2, r.nameShares.Len(), "a user has half of the table")
	assert.EqualValues(t, hostile*asked-size/2, r.evicted)
	const victim = 1000
	for handle := range uint64(asked) {
		r.name(nameRecord(victim, handle, 2, fmt.Sprintf("victim%d", handle)))
	}
	for handle := range uint64(asked) {
		assert.Equal(t, fmt.Sprintf("victim%d", handle), r.nameOf(victim, handle))
	}
	for run := range uint64(hostile) {
		r.forgetNames(run + 1)
	}
	assert.Equal(t, asked, r.nameShares.Len())
	r.forgetNames(victim)
	assert.Zero(t, r.nameShares.Len())
	assert.Empty(t, r.names)
}

func launchLines(run uint64, n int) []line {
	lines := make([]line, n)
	for i := range lines {
		lines[i] = line{cudaSumKey{Run: run, Handle: uint64(i) + 1, Kind: uint8(cudaSumKindSUM_LAUNCH)}, cudaSum{Calls: 2}}
	}
	return lines
}

func TestReader_SumsFromBeforeExec(t *testing.T) {
	r := table()
	launches := func(id ProcessID) (named, other uint64) {
		for k, s := range r.kept[id].lines {
			if cudaSumKind(k.Kind) == cudaSumKindSUM_OTHER {
				other += s.Calls
			} else {
				named += s.Calls
			}
		}
		return named, other
	}
	const hostile, each = 100, 5000
	var all uint64
	for pid := range int32(hostile) {
		id := ProcessID{PID: pid + 1}
		r.keep(id, 1, Identity{}, launchLines(uint64(pid), each))
		named, other := launches(id)
		assert.EqualValues(t, 2*each, named+other, "the number of launches is exact")
		all += named
	}
	assert.EqualValues(t, 2*allKeptLines/2, all, "a user has half of the table")
	victim := ProcessID{PID: 1000}
	r.keep(victim, 2, Identity{}, launchLines(1000, 4000))
	named, other := launches(victim)
	assert.EqualValues(t, 8000, named)
	assert.Zero(t, other)

	copies := []line{{cudaSumKey{Run: 7, Kind: uint8(cudaSumKindSUM_COPY)}, cudaSum{Calls: 3}}}
	r.keep(ProcessID{PID: 1}, 1, Identity{}, copies)
	p := process(ProcessID{PID: 1}, kept(&r, ProcessID{PID: 1}), 0, r.nameOf)
	assert.Equal(t, map[string]uint64{"sums": 3}, p.Lost)
}

func kept(r *reader, id ProcessID) (lines []line) {
	for k, s := range r.kept[id].lines {
		lines = append(lines, line{k, s})
	}
	return lines
}

func TestReader_KernelsOfProcessesThatEnded(t *testing.T) {
	r := table()
	const hostile, each = 50, 1000
	for pid := range int32(hostile) {
		p := process(ProcessID{PID: pid + 1}, launchLines(1, each), 0, r.nameOf)
		p.User = 1
		r.end(p)
	}
	p := process(ProcessID{PID: 1000}, launchLines(1, each), 0, r.nameOf)
	p.User = 2
	r.end(p)
	assert.Equal(t, allEndedLaunches/2+each, r.endedLaunches.Len())
	assert.Len(t, r.ended[ProcessID{PID: 1000}].Launches, each)
	for pid := range int32(hostile) {
		got := r.ended[ProcessID{PID: pid + 1}]
		all, _ := launched(&got)
		assert.EqualValues(t, 2*each, all)
	}
	assert.Len(t, r.ended[ProcessID{PID: hostile}].Launches, 1, "those beyond the share are one")
}
