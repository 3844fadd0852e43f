// SPDX-License-Identifier: Apache-2.0

//go:build linux

package compose_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestTheCollectorsConfigurationsAreValid validates the files that a service names, in their order and
// with the service's variables.
func TestTheCollectorsConfigurationsAreValid(t *testing.T) {
	binary := process.Collector.Find(t)
	for name, s := range compose(t).collectors(t) {
		arguments := []string{"validate"}
		for _, config := range s.configs(t) {
			arguments = append(arguments, "--config", config)
		}
		validate := func(extra ...string) ([]byte, error) {
			cmd := exec.CommandContext(t.Context(), binary, append(arguments, extra...)...)
			cmd.Env = os.Environ()
			for key, value := range s.Environment {
				cmd.Env = append(cmd.Env, key+"="+value)
			}
			return cmd.CombinedOutput()
		}
		out, err := validate()
		require.NoError(t, err, "%s: %s", name, out)
		// The configuration is really read.
		out, err = validate("--config", "yaml:extensions::health_check::no_such_key: 1")
		require.Error(t, err, name)
		assert.Contains(t, string(out), "no_such_key", name)
	}
}

func TestPrometheusTakesItsConfiguration(t *testing.T) {
	prometheus := process.Binary{Env: "GPUFLIGHT_PROMETHEUS", Path: ".tools/prometheus", Make: "make .tools/prometheus"}
	binary := prometheus.FindFetched(t, "no prometheus here, and no apt-get to fetch it with", "prometheus", "apt-get")
	promtool := filepath.Join(filepath.Dir(binary), "promtool")
	if _, err := os.Stat(promtool); err != nil {
		t.Skipf("no promtool beside Prometheus: %v", err)
	}
	s := compose(t).Services["prometheus"]
	file, ok := strings.CutPrefix(s.Command[0], "--config.file=")
	require.True(t, ok, s.Command[0])
	out, err := exec.CommandContext(t.Context(), promtool, "check", "config", s.onHost(t, file)).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestGrafanaFindsItsDataSourcesAndDashboard(t *testing.T) {
	c := compose(t).Services
	grafana := c["grafana"]
	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool `yaml:"isDefault"`
			JSONData                     struct {
				TimeInterval string `yaml:"timeInterval"`
			} `yaml:"jsonData"`
		}
	}
	load(t, grafana.onHost(t, "/etc/grafana/provisioning/datasources/gpuflight.yaml"), true, &sources)
	types := map[string]string{}
	defaults := 0
	for _, d := range sources.Datasources {
		types[d.UID] = d.Type
		// Each is named after the service that it asks; TestPortsThatAreNamedAreListenedOn has the port.
		host, _, err := net.SplitHostPort(strings.TrimPrefix(d.URL, "http://"))
		require.NoError(t, err)
		assert.Contains(t, c, host)
		assert.Equal(t, d.Type, host)
		if d.IsDefault {
			defaults++
			assert.Equal(t, "prometheus", d.Type)
		}
	}
	assert.Equal(t, map[string]string{"prometheus": "prometheus"}, types)
	assert.Equal(t, 1, defaults)

	var providers struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}
	load(t, grafana.onHost(t, "/etc/grafana/provisioning/dashboards/gpuflight.yaml"), true, &providers)
	require.Len(t, providers.Providers, 1)
	home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	assert.Equal(t, providers.Providers[0].Options.Path, path.Dir(home))

	var dashboard struct {
		UID        string
		Templating struct{ List []struct{ Name, Type string } }
	}
	require.NoError(t, json.Unmarshal([]byte(text(t, grafana.onHost(t, home))), &dashboard))
	require.NotEmpty(t, dashboard.Templating.List)
	// The dashboard takes any data source of the type; the one here is it.
	assert.Equal(t, "datasource", dashboard.Templating.List[0].Type)
}
