// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// network is a second machine behind a router, made of two network namespaces:
//
//	this host ── router ── agent
//
// A router that does not forward drops packets silently in both directions, as a broken network
// does. Addresses and routes on both ends stay the same.
type network struct {
	t             *testing.T
	router, agent string
	// host is this host's address on the link to the router.
	host string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("network namespaces need ip: %v", err)
	}
	// 198.18.0.0/15 is reserved for network tests (RFC 2544). This uses sixteen addresses of its
	// first half.
	id := rand.IntN(4096)
	base := func(n int) string { return fmt.Sprintf("198.18.%d.%d", id/16, id%16*16+n) }
	n := &network{t: t, host: base(1)}
	n.router, n.agent = fmt.Sprintf("gpuflight-r%d", id), fmt.Sprintf("gpuflight-a%d", id)
	near, far, last, end := fmt.Sprintf("gfh%d", id), fmt.Sprintf("gfr%d", id), fmt.Sprintf("gfs%d", id), fmt.Sprintf("gfa%d", id)
	t.Cleanup(func() {
		// Deleting one end removes a pair of links. A namespace ends with its last process.
		for _, ns := range []string{n.router, n.agent} {
			_ = exec.Command("ip", "netns", "del", ns).Run()
		}
	})
	if out, err := exec.CommandContext(t.Context(), "ip", "netns", "add", n.router).CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %v: %s", err, out)
	}
	for _, command := range []string{
		"netns add " + n.agent,
		"link add " + near + " type veth peer name " + far + " netns " + n.router,
		"addr add " + base(1) + "/30 dev " + near,
		"link set " + near + " up",
		"-n " + n.router + " addr add " + base(2) + "/30 dev " + far,
		"-n " + n.router + " link set " + far + " up",
		"-n " + n.router + " link add " + last + " type veth peer name " + end + " netns " + n.agent,
		"-n " + n.router + " addr add " + base(5) + "/30 dev " + last,
		"-n " + n.router + " link set " + last + " up",
		"-n " + n.agent + " addr add " + base(6) + "/30 dev " + end,
		"-n " + n.agent + " link set " + end + " up",
		"-n " + n.agent + " link set lo up",
		"-n " + n.agent + " route add default via " + base(5),
		"route add " + base(4) + "/30 via " + base(2),
	} {
		out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(command)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", command, out)
	}
	n.forward(true)
	return n
}

// forward lets packets pass, or drops them.
func (n *network) forward(pass bool) {
	n.t.Helper()
	value := "0"
	if pass {
		value = "1"
	}
	out, err := exec.CommandContext(n.t.Context(), "ip", "netns", "exec", n.router,
		"sh", "-c", "echo "+value+" > /proc/sys/net/ipv4/ip_forward").CombinedOutput()
	require.NoError(n.t, err, "%s", out)
}

// command precedes a program that runs on the agent's machine.
func (n *network) command() []string { return []string{"ip", "netns", "exec", n.agent} }

func TestNetwork_BrokerUnreachable(t *testing.T) {
	parallel(t)
	network := newNetwork(t)
	f := newFleetWith(t, pick(most, 400_000), func() *kafkaServer { return launchKafka(t, network.host, nil) })
	f.agent.command = network.command()
	f.gateway.run()
	f.agent.run()
	f.share(0.1)
	network.forward(false)
	// What has reached the broker continues.
	require.True(t, f.store.Settle(4*time.Second, time.Minute, nil), "spans keep coming through a network that is cut")
	cut := f.store.Distinct().Spans
	require.Less(t, cut, f.want.Distinct().Spans, "it must come in the middle of the work")
	time.Sleep(pick(8*time.Second, 2*time.Minute))
	assert.Equal(t, cut, f.store.Distinct().Spans, "nothing passes a network that is cut")
	network.forward(true)
	t.Logf("cut with %d spans at the backend", cut)
	f.finish()
}

// clock is the wall clock of one program.
type clock struct {
	t    *testing.T
	file string
	lib  string
}

func newClock(t *testing.T) *clock {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("the clock of a program is set by a library, which needs a C compiler: %v", err)
	}
	dir := t.TempDir()
	c := &clock{t: t, file: filepath.Join(dir, "offset"), lib: filepath.Join(dir, "clock.so")}
	out, err := exec.CommandContext(t.Context(), cc, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-o", c.lib, filepath.Join("testdata", "clock.c"), "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)
	c.set(0)
	// Verify the library; otherwise the test would show nothing.
	c.set(1000 * time.Hour)
	seconds, err := exec.CommandContext(t.Context(), "env", append(c.command()[1:], "date", "+%s")...).Output()
	require.NoError(t, err)
	there, err := strconv.ParseInt(strings.TrimSpace(string(seconds)), 10, 64)
	require.NoError(t, err)
	require.InDelta(t, time.Now().Add(1000*time.Hour).Unix(), there, 60)
	c.set(0)
	return c
}

// set changes the offset of the clock immediately.
func (c *clock) set(offset time.Duration) {
	c.t.Helper()
	next := c.file + ".next"
	require.NoError(c.t, os.WriteFile(next, fmt.Appendf(nil, "%d\n", int64(offset.Seconds())), 0o600))
	require.NoError(c.t, os.Rename(next, c.file))
}

// command precedes a program that uses this clock.
func (c *clock) command() []string {
	return []string{"/usr/bin/env", "CLOCK_FILE=" + c.file, "LD_PRELOAD=" + c.lib}
}

// TestClock_Jumps moves the broker's clock back and forth by hours while records arrive. Agent and
// gateway read the machine's clock, which a test cannot set. Only record timestamps are shared with
// the broker, so the difference of the clocks is what matters.
func TestClock_Jumps(t *testing.T) {
	parallel(t)
	c := newClock(t)
	f := newFleetWith(t, pick(most, 400_000), func() *kafkaServer { return launchKafka(t, "127.0.0.1", nil, c.command()...) })
	f.gateway.run()
	f.agent.run()
	for i, offset := range []time.Duration{-3 * time.Hour, 5 * time.Hour, -24 * time.Hour} {
		f.share(0.1 + 0.2*float64(i))
		c.set(offset)
		t.Logf("the broker's clock is off by %v with %d spans at the backend", offset, f.store.Distinct().Spans)
	}
	f.finish()
}

// TestClock_FutureRecordsRejected shows why docs/deploying.md requires topics with the broker's
// time. By default Kafka rejects records an hour or more ahead of its clock, and the exporter drops
// them. The drops are counted.
func TestClock_FutureRecordsRejected(t *testing.T) {
	parallel(t)
	c := newClock(t)
	c.set(-3 * time.Hour)
	f := newFleetWith(t, few, func() *kafkaServer {
		return launchKafka(t, "127.0.0.1", map[string]string{"log.message.timestamp.type": "CreateTime"}, c.command()...)
	})
	f.gateway.run()
	f.agent.run()
	spans := float64(f.want.Distinct().Spans)
	process.Eventually(t, 2*time.Minute, "the loss is counted", func() bool {
		return f.agent.total("otelcol_exporter_send_failed_spans", "") == spans
	})
	assert.Zero(t, f.store.Counts().Spans)
	f.agent.stop()
	f.gateway.stop()
}
