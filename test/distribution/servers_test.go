// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// printed returns a configuration with all defaults, as the Collector prints it. Further settings
// follow the file.
func printed(t *testing.T, path string, more ...string) string {
	t.Helper()
	args := append([]string{"print-config"}, configArgs(path)...)
	for _, m := range more {
		args = append(args, "--config", m)
	}
	return string(run(t, t.TempDir(), collector.Find(t), args...))
}

// TestHTTPServers_Timeouts checks every HTTP server of the shipped configurations, found by a
// setting that only servers have.
func TestHTTPServers_Timeouts(t *testing.T) {
	found := 0
	for _, path := range configs(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var root any
			require.NoError(t, yaml.Unmarshal([]byte(printed(t, path)), &root))
			servers(root, "", func(where string, server map[string]any) {
				found++
				timeouts := []string{"read_header_timeout", "write_timeout", "idle_timeout"}
				// The others read no bodies.
				if strings.Contains(where, "/receivers/") || strings.Contains(where, "/health_check") {
					timeouts = append(timeouts, "read_timeout")
				}
				for _, key := range timeouts {
					text, _ := server[key].(string)
					d, err := time.ParseDuration(text)
					assert.True(t, err == nil && d > 0 && d <= 5*time.Minute, "%s: %s is %q", where, key, text)
				}
			})
		})
	}
	assert.GreaterOrEqual(t, found, 10, "has the name of the setting changed?")
}

// servers calls visit for each mapping that configures an HTTP server.
func servers(node any, where string, visit func(where string, server map[string]any)) {
	switch n := node.(type) {
	case map[string]any:
		if _, ok := n["read_header_timeout"]; ok {
			visit(where, n)
		}
		for key, child := range n {
			servers(child, where+"/"+key, visit)
		}
	case []any:
		for _, child := range n {
			servers(child, where, visit)
		}
	}
}

// TestEffectiveConfigs_Loopback walks each configuration with all defaults. Every address in it,
// under whatever name, is on loopback unless its variable is set.
func TestEffectiveConfigs_Loopback(t *testing.T) {
	t.Setenv("GPUFLIGHT_OTLP_ENDPOINT", "127.0.0.1:4317") // has no default
	for _, path := range configs(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var root yaml.Node
			require.NoError(t, yaml.Unmarshal([]byte(printed(t, path)), &root))
			found := 0
			walk(&root, func(key, value string) {
				host, ok := address(value)
				switch {
				case key == "host":
					host = value
				case !ok:
					return
				}
				found++
				assert.True(t, host == "localhost" || net.ParseIP(host).IsLoopback(), "%s: %s is not on loopback", key, value)
			})
			assert.Positive(t, found)
		})
	}
	for value, want := range map[string]string{
		"0.0.0.0:4317": "0.0.0.0", "http://a.example:7070/x": "a.example", "[::]:1": "::", ":4317": "", "tcp://h:9000": "h",
	} {
		host, ok := address(value)
		assert.True(t, ok, value)
		assert.Equal(t, want, host)
	}
	for _, value := range []string{"200ms", "", "/var/log/gpuflight", "a: b", "x:y"} {
		_, ok := address(value)
		assert.False(t, ok, value)
	}
}

// address returns the host of a value that is an address with a port, or the URL of one.
func address(value string) (host string, ok bool) {
	if _, after, isURL := strings.Cut(value, "://"); isURL {
		value, _, _ = strings.Cut(after, "/")
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return "", false
	}
	_, err = net.LookupPort("tcp", port)
	return host, err == nil && port[0] >= '0' && port[0] <= '9'
}

// TestSecrets_NotPrinted gives the Collector secrets and a configuration that it refuses, and reads
// what it prints.
func TestSecrets_NotPrinted(t *testing.T) {
	root := process.Root(t)
	const secret = "s3cret-of-this-test"
	for name, c := range map[string]struct {
		config   string
		settings string
	}{
		"token":      {"gpuflog-http.yaml", "yaml:extensions::bearertokenauth: {filename: '', token: " + secret + "}"},
		"ClickHouse": {"clickhouse.yaml", "yaml:extensions::gpu_storage::backends::default::clickhouse::password: " + secret},
		"contrib":    {"clickhouse/contrib.yaml", "yaml:exporters::clickhouse::password: " + secret},
		"header":     {"agent.yaml", "yaml:exporters::otlp_grpc/once::headers: {authorization: " + secret + "}"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(root, "config", c.config)
			out := printed(t, path, c.settings)
			assert.NotContains(t, out, secret)
			assert.Contains(t, out, "[REDACTED]")
			args := append([]string{"validate"}, configArgs(path)...)
			refused, err := exec.CommandContext(t.Context(), collector.Find(t), append(args, "--config", c.settings, "--config", "yaml:no_such_section: 1")...).CombinedOutput()
			require.Error(t, err)
			assert.NotContains(t, string(refused), secret)
		})
	}
	t.Run("Kafka", func(t *testing.T) {
		out := printed(t, filepath.Join(root, "config", "kafka.yaml"),
			"yaml:exporters::kafka/files::auth::sasl: {mechanism: PLAIN, username: u, password: "+secret+"}")
		page, err := os.ReadFile(filepath.Join(root, "docs", "deploying.md"))
		require.NoError(t, err)
		// contrib 0.158 keeps it as a plain string.
		assert.Equal(t, strings.Contains(out, secret), strings.Contains(string(page), "`otelcol-gpuflight print-config` prints this password"))
	})
}
