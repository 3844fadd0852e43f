// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

func configs(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(process.Root(t), "config", "*.yaml"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(paths), 2)
	return append(paths, filepath.Join(process.Root(t), "config", "clickhouse", "contrib.yaml"))
}

// after has the files that are used after others, not alone.
var after = map[string][]string{
	"agent-prometheus.yaml": {"agent.yaml"},
	"forward.yaml":          {"gateway.yaml"}, "sampling.yaml": {"gateway.yaml", "forward.yaml"}, "contrib.yaml": {"../clickhouse.yaml"},
}

// configArgs returns the arguments for a configuration and those before it.
func configArgs(path string) []string {
	var args []string
	for _, name := range after[filepath.Base(path)] {
		args = append(args, "--config", filepath.Join(filepath.Dir(path), name))
	}
	return append(args, "--config", path)
}

func TestConfigs_Valid(t *testing.T) {
	binary := collector.Find(t)
	for _, path := range configs(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			dir := t.TempDir()
			run(t, dir, binary, append([]string{"validate"}, configArgs(path)...)...)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, left, "validating must not make anything")
		})
	}
}

// TestGateway_Store starts the gateway with each value of GPUFLIGHT_STORE.
func TestGateway_Store(t *testing.T) {
	binary, path := collector.Find(t), filepath.Join(process.Root(t), "config", "gateway.yaml")
	start := func(t *testing.T, state string, env ...string) *process.Process {
		_, port, _ := strings.Cut(process.FreePort(t), ":")
		for _, name := range []string{"LISTEN", "LISTEN_HTTP", "UI", "HEALTH"} {
			env = append(env, "GPUFLIGHT_"+name+"="+process.FreePort(t))
		}
		// Kafka is not part of this test.
		overlay := filepath.Join(t.TempDir(), "overlay.yaml")
		require.NoError(t, os.WriteFile(overlay, []byte("service: {pipelines: {traces: {receivers: [otlp]}, metrics: {receivers: [otlp, gpu_usage]}, logs: {receivers: [otlp]}}}\n"), 0o600))
		args := append(env, "GPUFLIGHT_STATE="+state, "GPUFLIGHT_METRICS_PORT="+port, binary, "--config", path, "--config", overlay)
		return process.Start(t, "/usr/bin/env", args...)
	}
	t.Run("default", func(t *testing.T) {
		state := t.TempDir()
		p := start(t, state)
		p.WaitOutput(process.Ready, time.Minute)
		assert.FileExists(t, filepath.Join(state, "store", "lock"))
		p.Stop(time.Minute)
	})
	t.Run("clickhouse", func(t *testing.T) {
		state := t.TempDir()
		p := start(t, state, "GPUFLIGHT_STORE=clickhouse", "GPUFLIGHT_CLICKHOUSE=tcp://127.0.0.1:1")
		p.WaitOutput("backend default: create tables: temporarily unavailable: dial tcp 127.0.0.1:1", time.Minute)
		assert.NoDirExists(t, filepath.Join(state, "store"))
	})
	t.Run("unknown", func(t *testing.T) {
		p := start(t, t.TempDir(), "GPUFLIGHT_STORE=sqlite")
		p.WaitOutput(`references extension "gpu_storage/sqlite" which is not configured`, time.Minute)
	})
}

// TestValidate_UnknownSettings verifies that the test above can fail.
func TestValidate_UnknownSettings(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(process.Root(t), "config", "local.yaml"))
	require.NoError(t, err)
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	require.NoError(t, os.WriteFile(wrong, []byte(strings.Replace(string(text), "    include:", "    includes:", 1)), 0o600))
	out, err := exec.CommandContext(t.Context(), collector.Find(t), "validate", "--config", wrong).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "includes")
}

// TestConfigs_Loopback checks every address in the shipped configurations, with the variables at
// their defaults.
func TestConfigs_Loopback(t *testing.T) {
	withDefault := regexp.MustCompile(`\$\{env:\w+:-([^}]*)\}`)
	for _, path := range configs(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			var root yaml.Node
			// This variable is required.
			text = bytes.ReplaceAll(text, []byte("${env:GPUFLIGHT_OTLP_ENDPOINT}"), []byte("127.0.0.1:1"))
			require.NoError(t, yaml.Unmarshal(withDefault.ReplaceAll(text, []byte("$1")), &root))
			found := 0
			walk(&root, func(key, value string) {
				var host string
				switch key {
				case "endpoint", "brokers":
					// Some are URLs.
					if _, after, ok := strings.Cut(value, "://"); ok {
						value, _, _ = strings.Cut(after, "/")
					}
					var err error
					host, _, err = net.SplitHostPort(value)
					require.NoError(t, err, value)
				case "host":
					host = value
				default:
					return
				}
				found++
				assert.True(t, net.ParseIP(host).IsLoopback(), "%s: %s is not on loopback", key, value)
			})
			assert.Positive(t, found, "no address found: has the way they are written changed?")
		})
	}
}

// walk calls visit for each key of a mapping that has a scalar as its value, and for each scalar of
// a list.
func walk(n *yaml.Node, visit func(key, value string)) {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			switch value := n.Content[i+1]; value.Kind {
			case yaml.ScalarNode:
				visit(n.Content[i].Value, value.Value)
			case yaml.SequenceNode:
				for _, one := range value.Content {
					if one.Kind == yaml.ScalarNode {
						visit(n.Content[i].Value, one.Value)
					}
				}
			}
		}
	}
	for _, child := range n.Content {
		walk(child, visit)
	}
}

// TestDeployingBlocks_Valid validates the settings of docs/deploying.md on top of the
// configurations that their first line names.
func TestDeployingBlocks_Valid(t *testing.T) {
	binary, root := collector.Find(t), process.Root(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "deploying.md"))
	require.NoError(t, err)
	for name, value := range map[string]string{
		"GPUFLIGHT_KAFKA_USER": "user", "GPUFLIGHT_KAFKA_PASSWORD": "password",
	} {
		t.Setenv(name, value)
	}
	file := regexp.MustCompile(`[a-z-]+\.yaml`)
	variable := regexp.MustCompile(`(GPUFLIGHT_\w+)=(\S+)`)
	found := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```yaml\n(# ([a-z0-9-]+\\.yaml), after (.*?)\n.*?)```").FindAllStringSubmatch(string(page), -1) {
		for _, base := range file.FindAllString(m[3], -1) {
			found[m[2]]++
			t.Run(m[2]+" after "+base, func(t *testing.T) {
				for _, v := range variable.FindAllStringSubmatch(m[3], -1) {
					t.Setenv(v[1], v[2])
				}
				settings := filepath.Join(t.TempDir(), m[2])
				validate := func(text string) (string, error) {
					require.NoError(t, os.WriteFile(settings, []byte(text), 0o600))
					out, err := exec.CommandContext(t.Context(), binary, "validate",
						"--config", filepath.Join(root, "config", base), "--config", settings).CombinedOutput()
					return string(out), err
				}
				out, err := validate(m[1])
				require.NoError(t, err, out)
				out, err = validate(strings.Replace(m[1], "ca_file", "ca_files", 1))
				require.Error(t, err, "an unknown setting passes")
				assert.Contains(t, out, "ca_files")
			})
		}
	}
	assert.Equal(t, map[string]int{
		"gateway-tls.yaml": 1, "agent-tls.yaml": 1, "http-tls.yaml": 1,
		"kafka-tls.yaml": 1, "kafka-reader-tls.yaml": 3, "clickhouse-tls.yaml": 1,
	}, found)
}
