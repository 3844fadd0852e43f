// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package compose_test checks this folder and the Dockerfile. It checks that files exist where other
// files name them, and that the programs accept their configurations. Where containers are possible, it
// starts compose.yaml.
package compose_test

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// service has all keys that compose.yaml uses: one that is not here is an error.
type service struct {
	Build       *struct{ Context, Dockerfile string }
	Image       string
	Restart     string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	Entrypoint  []string
	Command     []string
	Environment map[string]string
	Volumes     []string
	Ports       []string
	Healthcheck *struct {
		Test              []string
		Interval, Timeout string
		Retries           int
	}
	DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
}

type composition struct {
	Name      string
	Collector yaml.Node `yaml:"x-collector"`
	Services  map[string]service
	Volumes   map[string]struct{}
}

// load reads a YAML file of this folder. Where known is set, a key that into does not have is an error.
func load(t *testing.T, name string, known bool, into any) {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	d := yaml.NewDecoder(f)
	d.KnownFields(known)
	require.NoError(t, d.Decode(into), name)
}

func compose(t *testing.T) composition {
	t.Helper()
	var c composition
	load(t, "compose.yaml", true, &c)
	require.Len(t, c.Services, 11)
	return c
}

// mount is one line of volumes.
type mount struct {
	source, target string
	named, written bool
}

// interpolated matches a variable with a default, as compose reads it.
var interpolated = regexp.MustCompile(`\$\{\w+:-([^}]*)\}`)

func (s service) mounts(t *testing.T) (out []mount) {
	t.Helper()
	for _, line := range s.Volumes {
		parts := strings.Split(interpolated.ReplaceAllString(line, "$1"), ":")
		require.GreaterOrEqual(t, len(parts), 2, line)
		m := mount{source: parts[0], target: parts[1], named: !strings.HasPrefix(parts[0], "."), written: len(parts) == 2}
		if !m.written {
			require.Equal(t, "ro", parts[2], line)
		}
		out = append(out, m)
	}
	return out
}

// onHost turns a path in the container into that of the file on the host.
func (s service) onHost(t *testing.T, path string) string {
	t.Helper()
	for _, m := range s.mounts(t) {
		if rest, ok := strings.CutPrefix(path, m.target); ok && !m.named {
			return filepath.Join(m.source, rest)
		}
	}
	require.Fail(t, "nothing is mounted there", path)
	return ""
}

// configs are the Collector's configuration files, on the host.
func (s service) configs(t *testing.T) (out []string) {
	t.Helper()
	for i, arg := range s.Command {
		if i > 0 && s.Command[i-1] == "--config" {
			out = append(out, s.onHost(t, arg))
		}
	}
	return out
}

// collectors are the services that run the image of the Dockerfile.
func (c composition) collectors(t *testing.T) map[string]service {
	t.Helper()
	out := map[string]service{}
	for name, s := range c.Services {
		if s.Build != nil {
			out[name] = s
		}
	}
	delete(out, "keys") // it runs gpuflight
	require.Len(t, out, 4)
	return out
}

func TestWhatIsMountedExists(t *testing.T) {
	c := compose(t)
	used := map[string]bool{}
	for name, s := range c.Services {
		for _, m := range s.mounts(t) {
			if m.named {
				assert.Contains(t, c.Volumes, m.source, name)
				assert.True(t, m.written, "%s: %s", name, m.source)
				assert.False(t, used[m.source] && m.source != "gateway", "%s is mounted twice", m.source)
				used[m.source] = true
				continue
			}
			_, err := os.Stat(m.source)
			require.NoError(t, err, name)
			assert.False(t, m.written, "%s may write to %s", name, m.source)
		}
	}
	assert.Len(t, used, len(c.Volumes), "a volume that nobody uses")
}

func TestEachServiceHasAHealthCheckOrEnds(t *testing.T) {
	c := compose(t)
	for name, s := range c.Services {
		for on, d := range s.DependsOn {
			require.Contains(t, c.Services, on, name)
			ends := on == "topics" || on == "keys"
			assert.Equal(t, map[bool]string{true: "service_completed_successfully", false: "service_healthy"}[ends], d.Condition,
				"%s waits for %s", name, on)
		}
		switch {
		case s.Build != nil: // the Dockerfile's
			assert.Nil(t, s.Healthcheck, name)
		case name == "topics":
			assert.Nil(t, s.Healthcheck, name)
		default:
			require.NotNil(t, s.Healthcheck, name)
			assert.Equal(t, "CMD", s.Healthcheck.Test[0], name)
			assert.Positive(t, s.Healthcheck.Retries, name)
		}
	}
}

func TestTheCollectorsHaveNoRights(t *testing.T) {
	for name, s := range compose(t).collectors(t) {
		assert.Equal(t, []string{"ALL"}, s.CapDrop, name)
		assert.Equal(t, []string{"no-new-privileges:true"}, s.SecurityOpt, name)
		assert.True(t, s.ReadOnly, name)
	}
}

// variable matches a variable of the Collector's configuration with its default, if it has one.
var variable = regexp.MustCompile(`\$\{env:(\w+)(?::-([^}]*))?\}`)

// TestOnlyVariablesThatAreReadAreSet: one with a typing error would be ignored.
func TestOnlyVariablesThatAreReadAreSet(t *testing.T) {
	for name, s := range compose(t).collectors(t) {
		defaults := map[string]string{}
		for _, path := range s.configs(t) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, m := range variable.FindAllStringSubmatch(string(text), -1) {
				defaults[m[1]] = m[2]
			}
		}
		for key := range s.Environment {
			if !strings.HasPrefix(key, "AWS_") {
				assert.Contains(t, defaults, key, name)
			}
		}
		// Volumes lie where the files look.
		for _, m := range s.mounts(t) {
			if m.named {
				assert.Equal(t, defaults["GPUFLIGHT_STATE"], m.target, name)
			}
		}
		assert.NotContains(t, s.Environment, "GPUFLIGHT_STATE", name)
		assert.NotContains(t, s.Environment, "GPUFLIGHT_HEALTH", "the Dockerfile's check asks the default")
	}
}

// listeners returns the ports on which a service listens; true for those that other containers reach.
func listeners(t *testing.T, name string, s service) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	add := func(address string) {
		host, port, err := net.SplitHostPort(address)
		require.NoError(t, err, "%s: %s", name, address)
		out[port] = out[port] || !net.ParseIP(host).IsLoopback()
	}
	switch name {
	case "kafka":
		for _, one := range strings.Split(s.Environment["KAFKA_LISTENERS"], ",") {
			_, address, ok := strings.Cut(one, "://")
			require.True(t, ok, one)
			add(address)
		}
	case "s3":
		add(s.Environment["VGW_PORT"])
	// Defaults of the images.
	case "clickhouse":
		out["9000"], out["8123"] = true, true
	case "prometheus":
		out["9090"] = true
	case "grafana":
		out["3000"] = true
	case "topics", "keys":
	default:
		require.NotNil(t, s.Build, "unknown ports of %s", name)
		for _, path := range s.configs(t) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			set := variable.ReplaceAllStringFunc(string(text), func(v string) string {
				m := variable.FindStringSubmatch(v)
				if value, ok := s.Environment[m[1]]; ok {
					return value
				}
				return m[2]
			})
			// Endpoints of exporters to others name a service, and are no address to listen on.
			for _, m := range regexp.MustCompile(`(?m)^[^#\n]*\bendpoint: *"?(0\.0\.0\.0|127\.0\.0\.1):(\d+)`).FindAllStringSubmatch(set, -1) {
				add(net.JoinHostPort(m[1], m[2]))
			}
			if m := regexp.MustCompile(`prometheus:\n +host: (\S+)\n +port: (\d+)`).FindStringSubmatch(set); m != nil {
				add(net.JoinHostPort(m[1], m[2]))
			}
		}
		require.Contains(t, out, "13133", "%s: no health check found", name)
	}
	return out
}

// TestPortsThatAreNamedAreListenedOn looks for SERVICE:PORT and 127.0.0.1:PORT in all that the services
// are given.
func TestPortsThatAreNamedAreListenedOn(t *testing.T) {
	c := compose(t)
	listens := map[string]map[string]bool{}
	for name, s := range c.Services {
		listens[name] = listeners(t, name, s)
	}
	address := regexp.MustCompile(`\b([a-z0-9]+|127\.0\.0\.1):(\d{2,5})\b`)
	others := map[string]int{}
	for name, s := range c.Services {
		texts := slices.Concat(s.Entrypoint, s.Command)
		for _, value := range s.Environment {
			texts = append(texts, value)
		}
		if s.Healthcheck != nil {
			texts = append(texts, s.Healthcheck.Test...)
		}
		for _, m := range s.mounts(t) {
			if m.source == "./prometheus.yml" || m.source == "./grafana/datasources.yaml" {
				text, err := os.ReadFile(m.source)
				require.NoError(t, err)
				texts = append(texts, string(text))
			}
		}
		for _, m := range address.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
			host, port := m[1], m[2]
			if host == "127.0.0.1" {
				assert.Contains(t, listens[name], port, "%s asks itself", name)
				continue
			}
			if _, ok := c.Services[host]; !ok {
				continue
			}
			assert.True(t, listens[host][port], "%s names %s:%s, which listens on %v", name, host, port, listens[host])
			others[host]++
		}
	}
	for _, host := range []string{"agent", "gateway", "kafka", "s3", "clickhouse", "prometheus"} {
		assert.Positive(t, others[host], "nobody names %s: has the way it is written changed?", host)
	}

	published := map[string]bool{}
	for name, s := range c.Services {
		for _, line := range s.Ports {
			parts := strings.Split(line, ":")
			require.Len(t, parts, 3, "%s: %s", name, line)
			assert.Equal(t, "127.0.0.1", parts[0], "%s: %s", name, line)
			assert.False(t, published[parts[1]], "%s is published twice", parts[1])
			published[parts[1]] = true
			assert.True(t, listens[name][parts[2]], "%s publishes %s and listens on %v", name, parts[2], listens[name])
		}
	}
	assert.Len(t, published, 7)
}

func TestCredentialsAndTheBucketAreThoseOfTheServers(t *testing.T) {
	c := compose(t).Services
	assert.Equal(t, c["s3"].Environment["ROOT_ACCESS_KEY"], c["archive"].Environment["AWS_ACCESS_KEY_ID"])
	assert.Equal(t, c["s3"].Environment["ROOT_SECRET_KEY"], c["archive"].Environment["AWS_SECRET_ACCESS_KEY"])
	s3 := c["s3"].mounts(t)
	require.Len(t, s3, 1)
	root := c["s3"].Command[len(c["s3"].Command)-1]
	assert.Equal(t, root+"/"+c["archive"].Environment["GPUFLIGHT_S3_BUCKET"], s3[0].target)

	for mine, its := range map[string]string{"GPUFLIGHT_CLICKHOUSE_USER": "CLICKHOUSE_USER", "GPUFLIGHT_CLICKHOUSE_PASSWORD": "CLICKHOUSE_PASSWORD"} {
		assert.NotEmpty(t, c["clickhouse"].Environment[its])
		assert.Equal(t, c["clickhouse"].Environment[its], c["tables"].Environment[mine])
	}
	// Statements go to the default database.
	assert.NotContains(t, c["clickhouse"].Environment, "CLICKHOUSE_DB")
	assert.NotContains(t, c["tables"].Environment, "GPUFLIGHT_CLICKHOUSE_DATABASE")
}

func TestTheTopicsAreThoseOfTheCollectors(t *testing.T) {
	c := compose(t).Services
	assert.Equal(t, c["kafka"].Image, c["topics"].Image)
	require.Len(t, c["topics"].Command, 1)
	m := regexp.MustCompile(`for topic in ([\w ]+);`).FindStringSubmatch(c["topics"].Command[0])
	require.NotNil(t, m)
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "kafka.yaml"))
	require.NoError(t, err)
	named := regexp.MustCompile(`\botlp_(?:spans|metrics|logs)\b`).FindAllString(string(text), -1)
	assert.ElementsMatch(t, strings.Fields(m[1]), named)
}
