// SPDX-License-Identifier: Apache-2.0

//go:build linux

package compose_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

// TestTheCollectorsConfigurationsAreValid: the files that a service names, in their order and with the
// service's variables.
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
		// And it is looked at: a file more with a key that nobody knows.
		out, err = validate("--config", "yaml:extensions::health_check::no_such_key: 1")
		require.Error(t, err, name)
		assert.Contains(t, string(out), "no_such_key", name)
	}
}

func TestJaegersConfigurationIsValid(t *testing.T) {
	binary := process.Jaeger.Find(t)
	s := compose(t).Services["jaeger"]
	require.Equal(t, "--config", s.Command[0])
	out, err := exec.CommandContext(t.Context(), binary, "validate", "--config", s.onHost(t, s.Command[1])).CombinedOutput()
	require.NoError(t, err, "%s", out)
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
				Exemplars    []struct {
					Name          string
					DatasourceUID string `yaml:"datasourceUid"`
				} `yaml:"exemplarTraceIdDestinations"`
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
	assert.Equal(t, map[string]string{"prometheus": "prometheus", "jaeger": "jaeger"}, types)
	assert.Equal(t, 1, defaults)
	for _, d := range sources.Datasources {
		for _, e := range d.JSONData.Exemplars {
			assert.Equal(t, "jaeger", types[e.DatasourceUID])
		}
	}

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

// TestTheS3ServerHasTheBucket runs the server as compose.yaml does, with a folder for the volume.
func TestTheS3ServerHasTheBucket(t *testing.T) {
	versitygw := process.Binary{Env: "GPUFLIGHT_VERSITYGW", Path: ".tools/versitygw", Make: "make .tools/versitygw"}
	binary := versitygw.Find(t)
	c := compose(t).Services
	server, archive := c["s3"], c["archive"]
	address := process.FreePort(t)
	for key, value := range server.Environment {
		t.Setenv(key, value)
	}
	t.Setenv("VGW_PORT", address)
	folder := t.TempDir()
	// What mounting the volume does.
	bucket := archive.Environment["GPUFLIGHT_S3_BUCKET"]
	require.NoError(t, os.Mkdir(filepath.Join(folder, bucket), 0o755))
	arguments := append(server.Command[:len(server.Command)-1:len(server.Command)-1], folder)
	p := process.Start(t, binary, arguments...)
	t.Cleanup(func() { p.Stop(20 * time.Second) })
	health := server.Healthcheck.Test[len(server.Healthcheck.Test)-1]
	_, rest, _ := strings.Cut(strings.TrimPrefix(health, "http://"), "/")
	process.Eventually(t, 30*time.Second, "the health check succeeds", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/"+rest, http.NoBody)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			require.True(t, p.Running(), "the S3 server ended: %s", p.Output())
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == http.StatusOK
	})

	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + address), Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(
			archive.Environment["AWS_ACCESS_KEY_ID"], archive.Environment["AWS_SECRET_ACCESS_KEY"], ""),
	})
	_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String("otlp/year=2026/object"), Body: bytes.NewReader([]byte("spans")),
	})
	require.NoError(t, err)
	got, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("otlp/year=2026/object")})
	require.NoError(t, err)
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	assert.Equal(t, "spans", string(body))
}
