// SPDX-License-Identifier: Apache-2.0

//go:build linux

package storage_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// damages are possible effects of a power failure, a failing disk or a person on a bbolt file. All
// except the last destroy the header or the tree.
var damages = []struct {
	name string
	do   func(b []byte) []byte
}{
	{"truncated to 0", func([]byte) []byte { return nil }},
	{"truncated to half", func(b []byte) []byte { return b[:len(b)/2] }},
	{"truncated to an odd size", func(b []byte) []byte { return b[:len(b)/3|1] }},
	{"header zeroed", func(b []byte) []byte { clear(b[:2*os.Getpagesize()]); return b }},
	{"garbage", func(b []byte) []byte { return bytes.Repeat([]byte("garbage!"), len(b)/8) }},
	{"wrong magic", func(b []byte) []byte { b[16]++; b[os.Getpagesize()+16]++; return b }},
	{"page zeroed", func(b []byte) []byte {
		p := os.Getpagesize()
		for at := 2 * p; at < len(b); at += p {
			if b[at+8] == 1 || b[at+8] == 2 { // a branch or a leaf
				clear(b[at : at+p])
			}
		}
		return b
	}},
}

// shipped lists the configurations with a storage, with the receivers that need no other server.
var shipped = map[string][]string{
	"agent.yaml": {"gpuflog", "otlp"}, "archive.yaml": {"otlp"}, "gateway.yaml": {"otlp"},
	"gpuflog-http.yaml": {"gpuflog"}, "kafka.yaml": {"otlp"}, "jaeger.yaml": nil, "local.yaml": nil, "prometheus.yaml": nil,
}

// collector runs a shipped configuration with its own ports. It replaces receivers that need
// another server.
type collector struct {
	t       *testing.T
	state   string
	args    []string
	process *process.Process
}

func newCollector(t *testing.T, config string) *collector {
	t.Helper()
	path := filepath.Join(process.Root(t), "config", config)
	state := filepath.Join(t.TempDir(), "state")
	_, port, _ := strings.Cut(process.FreePort(t), ":")
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("token"), 0o600))
	args := []string{
		"GPUFLIGHT_STATE=" + state, "GPUFLIGHT_LOGS=" + t.TempDir(), "GPUFLIGHT_METRICS_PORT=" + port, "GPUFLIGHT_PROMETHEUS_PORT=0",
		"AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY=b", "AWS_EC2_METADATA_DISABLED=true", "GPUFLIGHT_OTLP_INSECURE=true", "GPUFLIGHT_OTLP_ENDPOINT=127.0.0.1:4317",
		"GPUFLIGHT_TOKEN_FILE=" + token, "GPUFLIGHT_RECORDINGS=" + t.TempDir(), process.Collector.Find(t),
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, name := range []string{"LISTEN", "LISTEN_HTTP", "HEALTH", "HTTP", "PROMETHEUS"} {
		args = append([]string{"GPUFLIGHT_" + name + "=" + process.FreePort(t)}, args...)
	}
	args = append(args, "--config", path)
	if receivers := shipped[config]; receivers != nil {
		overlay := filepath.Join(t.TempDir(), "overlay.json")
		b, err := json.Marshal(only(text, receivers))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(overlay, b, 0o600))
		args = append(args, "--config", overlay)
	}
	return &collector{t: t, state: state, args: args}
}

func (c *collector) run() *process.Process {
	c.t.Helper()
	c.process = process.Start(c.t, "/usr/bin/env", c.args...)
	c.process.WaitOutput(process.Ready, 2*time.Minute)
	return c.process
}

// files returns the files of the storage.
func (c *collector) files() (sound, aside []string) {
	c.t.Helper()
	entries, err := os.ReadDir(c.state)
	require.NoError(c.t, err)
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		path := filepath.Join(c.state, e.Name())
		if strings.HasSuffix(path, ".damaged") {
			aside = append(aside, path)
		} else {
			sound = append(sound, path)
		}
	}
	return sound, aside
}

// TestShippedConfigs_DamagedState damages each storage file of each configuration. The Collector
// must start, report it, and keep the damaged file.
func TestShippedConfigs_DamagedState(t *testing.T) {
	process.Collector.Find(t)
	i := 0
	for config := range shipped {
		t.Run(config, func(t *testing.T) {
			c := newCollector(t, config)
			c.run().Stop(time.Minute)
			sound, aside := c.files()
			require.NotEmpty(t, sound)
			require.Empty(t, aside)
			tries := damages
			if config != "jaeger.yaml" && os.Getenv("GPUFLIGHT_SOAK") == "" {
				i++
				tries = damages[i%len(damages):][:1]
			}
			for _, damage := range tries {
				t.Run(damage.name, func(t *testing.T) {
					c.t = t
					want := map[string]bool{}
					for _, path := range sound {
						b, err := os.ReadFile(path)
						require.NoError(t, err)
						b = damage.do(b)
						require.NoError(t, os.WriteFile(path, b, 0o600))
						want[string(b)] = true
					}
					p := c.run()
					p.Stop(time.Minute)
					said := strings.Count(p.Output(), "state is damaged and was set aside")
					assert.Equal(t, len(sound), said, "warnings")
					_, aside := c.files()
					require.Len(t, aside, len(sound))
					for _, path := range aside {
						b, err := os.ReadFile(path)
						require.NoError(t, err)
						assert.True(t, want[string(b)], "%s has changed", path)
						require.NoError(t, os.Remove(path))
					}
				})
			}
		})
	}
}

// TestStorage_DamagedInUse tests the limit: bbolt reads a damaged file in its own goroutines, so
// the process may crash. The next start must work.
func TestStorage_DamagedInUse(t *testing.T) {
	c := newCollector(t, "jaeger.yaml")
	p := c.run()
	sound, _ := c.files()
	for _, path := range sound {
		require.NoError(t, os.Truncate(path, int64(2*os.Getpagesize())))
	}
	p.Kill()
	p = c.run()
	_, aside := c.files()
	assert.Len(t, aside, len(sound))
	p.Stop(time.Minute)
}

// TestStorage_SecondCollector starts a second Collector on the storage of the first.
func TestStorage_SecondCollector(t *testing.T) {
	c := newCollector(t, "jaeger.yaml")
	first := c.run()
	sound, _ := c.files()
	second := newCollector(t, "jaeger.yaml")
	second.args = append([]string{}, second.args...)
	for i, a := range second.args {
		if strings.HasPrefix(a, "GPUFLIGHT_STATE=") {
			second.args[i] = "GPUFLIGHT_STATE=" + c.state
		}
	}
	begin := time.Now()
	out, code := fails(t, second.args)
	t.Logf("failed after %v", time.Since(begin))
	assert.Equal(t, 1, code)
	last := lastLine(out)
	assert.Contains(t, last, "lock "+c.state)
	assert.Contains(t, last, "in use by another Collector")
	assert.Contains(t, last, "give each Collector a storage directory of its own")
	assert.NotContains(t, out, "goroutine ")
	now, aside := c.files()
	assert.Equal(t, sound, now)
	assert.Empty(t, aside, "a file in use is not damaged")
	first.Stop(time.Minute)
}

// fails runs a Collector that must exit within half a minute.
func fails(t *testing.T, args []string) (out string, code int) {
	t.Helper()
	b, err := exec.Command("/usr/bin/timeout", append([]string{"30", "/usr/bin/env"}, args...)...).CombinedOutput()
	require.Error(t, err, "it must fail: %s", b)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, fmt.Sprint(err))
	return string(b), exit.ExitCode()
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], "cannot start pipelines") || strings.HasPrefix(lines[i], "Error: ") {
			return lines[i]
		}
	}
	return ""
}

// TestStorage_UnusableDirectory runs the Collector as a user without access to the directory of its
// storage.
func TestStorage_UnusableDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to run the Collector as another user")
	}
	const nobody = "65534"
	for _, c := range []struct {
		name    string
		prepare func(state string)
		want    string
	}{
		{"read-only", func(state string) { chmod(t, state, 0o555) }, "make directory STATE writable for uid 65534"},
		{"another user's", func(state string) { chmod(t, state, 0o700) }, "permission denied"},
		{"another user's file", func(state string) {
			chmod(t, state, 0o777)
			require.NoError(t, os.WriteFile(filepath.Join(state, "receiver_gpuflog_"), nil, 0o600))
		}, "make directory STATE writable for uid 65534"},
	} {
		t.Run(c.name, func(t *testing.T) {
			collector := newCollector(t, "jaeger.yaml")
			require.NoError(t, os.MkdirAll(collector.state, 0o700))
			for dir := filepath.Dir(collector.state); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
				chmod(t, dir, 0o755)
			}
			c.prepare(collector.state)
			for _, a := range collector.args {
				if path, ok := strings.CutPrefix(a, "GPUFLIGHT_LOGS="); ok {
					chmod(t, path, 0o755)
					chmod(t, filepath.Dir(path), 0o755)
				}
			}
			// The user may have no access to the path of the binary.
			b, err := os.ReadFile(process.Collector.Find(t))
			require.NoError(t, err)
			bin := filepath.Join(filepath.Dir(collector.state), "otelcol")
			require.NoError(t, os.WriteFile(bin, b, 0o755))
			config := filepath.Join(filepath.Dir(collector.state), "jaeger.yaml")
			text, err := os.ReadFile(filepath.Join(process.Root(t), "config", "jaeger.yaml"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(config, text, 0o644))
			var env []string
			for _, a := range collector.args {
				if strings.HasPrefix(a, "GPUFLIGHT_") {
					env = append(env, a)
				}
			}
			args := append([]string{"setpriv", "--reuid", nobody, "--regid", nobody, "--clear-groups", "/usr/bin/env"}, env...)
			out, code := fails(t, append(args, bin, "--config", config))
			assert.Equal(t, 1, code)
			assert.Contains(t, out, strings.ReplaceAll(c.want, "STATE", collector.state))
			assert.Contains(t, out, collector.state)
			assert.NotContains(t, out, "goroutine ")
		})
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.Chmod(path, mode))
}
