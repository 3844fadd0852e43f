// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/duckstore"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/semconv"
)

// load is processes that send kernels at once.
type load struct {
	sessions, rate int // rate is the kernels that a session sends each second
	duration       time.Duration
	kernels        []int64 // that each session sent
	retried        atomic.Int64
	longest        atomic.Int64 // time of a delivery
}

// kernelNs is the duration of each kernel.
const kernelNs = 1000

// kernelTraces returns the kernels [from, to) of a session.
func kernelTraces(session int, from, to int64) ptrace.Traces {
	td := ptrace.NewTraces()
	rs := td.ResourceSpans().AppendEmpty()
	rs.Resource().Attributes().PutStr(semconv.ServiceInstanceID, fmt.Sprint("session-", session))
	rs.Resource().Attributes().PutStr("service.name", "load")
	spans := rs.ScopeSpans().AppendEmpty().Spans()
	spans.EnsureCapacity(int(to - from))
	for i := from; i < to; i++ {
		s := spans.AppendEmpty()
		var id [8]byte
		binary.BigEndian.PutUint64(id[:], uint64(session)<<32|uint64(i+1))
		s.SetSpanID(id)
		s.SetKind(ptrace.SpanKindInternal)
		s.SetTraceID([16]byte{1, byte(session), byte(i / 1000)})
		s.SetName(fmt.Sprint("kernel_", i%50))
		s.SetStartTimestamp(pcommon.Timestamp(1_710_000_000e9 + i*5e6))
		s.SetEndTimestamp(s.StartTimestamp() + kernelNs)
		a := s.Attributes()
		a.PutStr(semconv.CUDAOperation, semconv.CUDAOperationKernel)
		a.PutStr(semconv.CUDAKernelName, fmt.Sprintf("void kernel_%d<float>(float*)", i%50))
		a.PutStr(semconv.HWID, "GPU-0")
		a.PutInt(semconv.CUDAStreamID, i%4)
		a.PutStr(semconv.CUDAScopeName, fmt.Sprint("layer", i%10))
	}
	return td
}

// limit returns the most kernels of a delivery: those of two seconds. It is below the 4 MiB of gRPC.
func (l *load) limit() int64 { return int64(min(2*l.rate, 10_000)) }

// run sends from all sessions. A delivery that fails is sent again.
func (l *load) run(t *testing.T, address string) {
	l.kernels = make([]int64, l.sessions)
	var conns []*grpc.ClientConn
	for range 8 {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		conns = append(conns, conn)
	}
	begin := time.Now()
	var done sync.WaitGroup
	for i := range l.sessions {
		client := ptraceotlp.NewGRPCClient(conns[i%len(conns)])
		done.Go(func() {
			time.Sleep(time.Duration(i) * time.Second / time.Duration(l.sessions))
			for sent := int64(0); ; {
				now := min(time.Since(begin), l.duration)
				due := int64(now.Seconds() * float64(l.rate))
				for sent < due {
					n := min(sent+l.limit(), due)
					l.deliver(t, client, kernelTraces(i, sent, n))
					sent = n
				}
				l.kernels[i] = sent
				if now == l.duration {
					return
				}
				time.Sleep(time.Second)
			}
		})
	}
	done.Wait()
}

func (l *load) deliver(t *testing.T, client ptraceotlp.GRPCClient, td ptrace.Traces) {
	request := ptraceotlp.NewExportRequestFromTraces(td)
	for {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := client.Export(ctx, request)
		cancel()
		if took := int64(time.Since(begin)); took > l.longest.Load() {
			l.longest.Store(took)
		}
		if err == nil || t.Context().Err() != nil {
			return
		}
		l.retried.Add(1)
		time.Sleep(time.Second)
	}
}

// sessions runs a Collector under a load, and compares the store with what the load sent. It returns the
// CPU time that the Collector needed, and its largest resident size in bytes.
func sessions(t *testing.T, l *load) (cpu time.Duration, memory int64) {
	c := newCollector(t, t.TempDir())
	c.args = c.args[:len(c.args)-2] // without the overlay
	p := c.start()
	before := cpuOf(t, p)
	l.run(t, c.address())
	cpu, memory = cpuOf(t, p)-before, peakOf(t, p)
	p.Stop(time.Minute)
	ctx := t.Context()
	s, err := duckstore.Open(ctx, duckstore.Config{Directory: filepath.Join(c.state, "store")})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close(ctx)) }()
	t.Logf("%d sessions, %d kernels/s each: %.2f of a core, %d MB, %d deliveries repeated, the longest took %v; %d rows wait in the journal",
		l.sessions, l.rate, cpu.Seconds()/l.duration.Seconds(), memory>>20, l.retried.Load(), time.Duration(l.longest.Load()), s.Stats().Waiting)
	for i, n := range l.kernels {
		info, err := s.Session(ctx, "", fmt.Sprint("session-", i))
		require.NoError(t, err)
		assert.Equal(t, n, info.Counts["ops"], "session %d", i)
		assert.Equal(t, n*kernelNs, info.KernelNs, "session %d", i)
		stats, err := s.Kernels(ctx, store.KernelQuery{Session: info.ID, Group: store.GroupName})
		require.NoError(t, err)
		var sum int64
		for _, k := range stats {
			sum += k.Count
		}
		assert.Equal(t, n, sum, "rollups of session %d", i)
	}
	return cpu, memory
}

func cpuOf(t *testing.T, p *process.Process) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	require.NoError(t, err)
	_, rest, _ := bytes.Cut(b, []byte(") "))
	fields := strings.Fields(string(rest))
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

func peakOf(t *testing.T, p *process.Process) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(b), "VmHWM:")
	require.True(t, ok)
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	return n << 10
}

// TestStore_Sessions writes 200 sessions at once for a minute. With GPUFLIGHT_SOAK=1, or a duration in it, it
// writes for 10 minutes or for that time, and compares the CPU time with that of the same rows in 4 sessions.
// Commits of many sessions may take a tenth of a core more.
func TestStore_Sessions(t *testing.T) {
	many := &load{sessions: 200, rate: 200, duration: time.Minute}
	text := os.Getenv("GPUFLIGHT_SOAK")
	if text != "" {
		var err error
		if many.duration, err = time.ParseDuration(text); err != nil {
			many.duration = 10 * time.Minute
		}
	}
	cpu, memory := sessions(t, many)
	if text == "" {
		return
	}
	few := &load{sessions: 4, rate: many.sessions * many.rate / 4, duration: many.duration / 10}
	base, _ := sessions(t, few)
	more := cpu.Seconds()/many.duration.Seconds() - base.Seconds()/few.duration.Seconds()
	t.Logf("commits of %d sessions take %.3f of a core more than those of %d", many.sessions, more, few.sessions)
	assert.Less(t, more, 0.1)
	assert.Less(t, memory, int64(1<<30))
}
