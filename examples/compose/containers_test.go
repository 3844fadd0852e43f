// SPDX-License-Identifier: Apache-2.0

//go:build linux

package compose_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// project names the containers of the test, so that it touches no others.
const project = "gpuflight-test"

// ids is the set of the spans that a store has.
func ids(store *testsink.Store) map[testsink.SpanKey]bool {
	out := map[testsink.SpanKey]bool{}
	for _, s := range store.Spans() {
		out[s.SpanKey] = true
	}
	return out
}

// add adds the spans of a compressed file of OTLP in JSON, one request per line. It returns the number
// of spans of each session; spans of programs that are not recorded have none.
func add(t *testing.T, store *testsink.Store, packed io.Reader) map[string]int {
	t.Helper()
	sessions := map[string]int{}
	plain, err := gzip.NewReader(packed)
	require.NoError(t, err)
	for lines := bufio.NewReader(plain); ; {
		line, err := lines.ReadBytes('\n')
		if bytes.HasPrefix(line, []byte(`{"resourceSpans"`)) {
			td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)
			require.NoError(t, err)
			store.AddTraces(td)
			for _, rs := range td.ResourceSpans().All() {
				if id, ok := rs.Resource().Attributes().Get("service.instance.id"); ok {
					for _, ss := range rs.ScopeSpans().All() {
						sessions[id.Str()] += ss.Spans().Len()
					}
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return sessions
		}
		require.NoError(t, err)
	}
}

// cupy is the session of examples/recordings/cupy, which is in GPU Flight's format. It has 63 scopes
// and 2 allocations.
const (
	cupy      = "26ab1ffc-33b1-49a3-9790-f25781e8bd51"
	cupySpans = 63 + 2
)

// recorded returns the set of the OTLP spans in examples/recordings, and the number of spans in each
// session, cupy included.
func recorded(t *testing.T) (map[testsink.SpanKey]bool, map[string]int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "recordings", "*.otlp.jsonl.gz"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	store, sessions := testsink.NewStore(), map[string]int{}
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		maps.Copy(sessions, add(t, store, f))
		require.NoError(t, f.Close())
	}
	require.Greater(t, store.Distinct().Spans, 1000)
	sessions[cupy] = cupySpans
	return ids(store), sessions
}

// containers is compose.yaml on free ports, with images that are built on this machine.
type containers struct {
	t       *testing.T
	environ []string
	file    string
	ports   map[string]string // published port → the test's address
}

// command runs a program and returns its standard output.
func (c *containers) command(limit time.Duration, name string, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Env = c.environ
	cmd.Dir = root
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, &errs)
	}
	return out.String(), nil
}

// newContainers builds the images. It skips the test with the reason if containers are not possible.
func newContainers(t *testing.T) *containers {
	t.Helper()
	if testing.Short() {
		t.Skip("builds images and starts ten containers")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("the local images are for amd64")
	}
	for _, name := range []string{"podman", "podman-compose", "runc", "apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("containers are not possible here: no %s on PATH", name)
		}
	}
	for _, file := range []string{"bin/otelcol-gpuflight", "bin/gpuflight", "bin/libgpuflight.so", "bin/libgpuflight-recorder.so",
		".tools/versitygw", ".tools/prometheus", ".tools/kafka/libs"} {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			process.Missing(t, err.Error()+": build it with make")
		}
	}
	// crun needs cgroups v2, and systemd may not run.
	settings := filepath.Join(t.TempDir(), "containers.conf")
	require.NoError(t, os.WriteFile(settings, []byte(`[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
`), 0o600))
	c := &containers{t: t, environ: append(os.Environ(), "CONTAINERS_CONF="+settings), ports: map[string]string{}}
	if out, err := c.command(5*time.Minute, "scripts/local-images"); err != nil {
		t.Skipf("containers are not possible here: no images: %v: %s", err, out)
	}
	if out, err := c.command(time.Minute, "podman", "run", "--rm", "localhost/gpuflight/shell", "/bin/true"); err != nil {
		t.Skipf("containers are not possible here: %v: %s", err, out)
	}

	// The same file with absolute paths and free ports.
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	file := regexp.MustCompile(`127\.0\.0\.1:(\d+):\d+"`).ReplaceAllStringFunc(text(t, "compose.yaml"), func(published string) string {
		parts := strings.Split(published, ":")
		c.ports[parts[1]] = process.FreePort(t)
		return c.ports[parts[1]] + ":" + parts[2]
	})
	require.Len(t, c.ports, 7)
	file = strings.NewReplacer("../../config", filepath.Join(here, "../../config"), "../recordings", filepath.Join(here, "../recordings"),
		"../grafana", filepath.Join(here, "../grafana"), "- ./", "- "+here+"/", `["./`, `["`+here+"/").Replace(file)
	c.file = filepath.Join(t.TempDir(), "compose.yaml")
	require.NoError(t, os.WriteFile(c.file, []byte(file), 0o600))
	return c
}

func (c *containers) compose(arguments ...string) error {
	_, err := c.command(5*time.Minute, "podman-compose", append([]string{"--project-name", project, "--file", c.file}, arguments...)...)
	return err
}

// up starts services. Podman before 4.6 cannot start a service that depends on one which has ended, so
// there are no dependencies: each service retries until the others are ready.
func (c *containers) up(services ...string) {
	c.t.Helper()
	c.t.Cleanup(func() {
		if c.t.Failed() {
			for _, s := range services {
				log, _ := c.command(time.Minute, "sh", "-c", "podman logs --tail 20 "+project+"_"+s+"_1 2>&1")
				c.t.Logf("%s: %s", s, log)
			}
		}
		down := c.compose("down", "--volumes", "--timeout", "20")
		left, err := c.command(time.Minute, "podman", "ps", "--all", "--quiet", "--filter", "label=io.podman.compose.project="+project)
		require.NoError(c.t, err)
		assert.Empty(c.t, strings.Fields(left), "down left containers: %v", down)
		for _, id := range strings.Fields(left) {
			_, _ = c.command(time.Minute, "podman", "rm", "--force", id)
		}
	})
	require.NoError(c.t, c.compose(append([]string{"up", "--detach", "--no-build", "--no-deps"}, services...)...))
}

// get returns the body of an answer with status 200, otherwise "".
func get(t *testing.T, url, key string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// sessions returns the number of spans of each session in an answer of the query API.
func sessions(t *testing.T, answer string) map[string]int {
	t.Helper()
	if answer == "" {
		return nil
	}
	var list struct {
		Sessions []struct {
			ID     string
			Counts struct{ Ops, Spans int }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &list), answer)
	out := map[string]int{}
	for _, s := range list.Sessions {
		out[s.ID] = s.Counts.Ops + s.Counts.Spans
	}
	return out
}

// TestCompose_Up brings compose.yaml up in containers and expects each span of the recordings in the
// store, in ClickHouse's engine and in the bucket. Grafana is not there.
func TestCompose_Up(t *testing.T) {
	c := newContainers(t)
	want, wantSessions := recorded(t)
	services := []string{"keys", "kafka", "topics", "s3", "prometheus", "agent", "gateway", "archive"}

	// The image clickhouse-server is a relay to this port.
	environment := compose(t).Services["clickhouse"].Environment
	clickhouse := true
	if _, err := os.Stat(filepath.Join(root, ".tools/chdb/chdb")); err != nil {
		clickhouse = false
		t.Logf("without ClickHouse's engine: %v", err)
	} else {
		engine, err := front.Start(process.Chdb.Find(t), t.TempDir())
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, engine.Close()) })
		server := &http.Server{
			Handler:           &front.Server{Engine: engine, User: environment["CLICKHOUSE_USER"], Password: environment["CLICKHOUSE_PASSWORD"]},
			ReadHeaderTimeout: time.Minute,
		}
		// Containers reach the host at the address of their bridge.
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":18123")
		require.NoError(t, err)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		services = append(services, "clickhouse", "tables")
	}
	c.up(services...)

	var key string
	process.Eventually(t, time.Minute, "the service keys has printed a key", func() bool {
		log, err := c.command(time.Minute, "podman", "logs", project+"_keys_1")
		key = regexp.MustCompile(`gpfl_[\w-]+`).FindString(log)
		return err == nil && key != ""
	})
	ui := "http://" + c.ports["8686"] + "/api/v1/sessions"
	began := time.Now()
	process.Eventually(t, 3*time.Minute, "the store has all spans", func() bool {
		return maps.Equal(wantSessions, sessions(t, get(t, ui, key)))
	})
	t.Logf("%d spans of %d sessions are stored after %s", len(want)+cupySpans, len(wantSessions), time.Since(began).Round(time.Second))
	assert.Empty(t, get(t, ui, ""), "the UI is open without a key")

	bucket := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + c.ports["7070"]), Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("gpuflight", "only-on-loopback", ""),
	})
	var archived map[testsink.SpanKey]bool
	process.Eventually(t, 2*time.Minute, "the archive has all spans", func() bool {
		store := testsink.NewStore()
		list, err := bucket.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String("gpuflight")})
		if err != nil {
			return false
		}
		for _, object := range list.Contents {
			if strings.Contains(*object.Key, "/traces_") {
				got, err := bucket.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("gpuflight"), Key: object.Key})
				require.NoError(t, err)
				add(t, store, got.Body)
				require.NoError(t, got.Body.Close())
			}
		}
		archived = ids(store)
		return len(archived) >= len(want)+cupySpans
	})
	assert.Len(t, archived, len(want)+cupySpans)
	assert.Subset(t, archived, want)

	if clickhouse {
		process.Eventually(t, 3*time.Minute, "ClickHouse has all spans", func() bool {
			answer, err := c.command(time.Minute, "podman", "exec", project+"_tables_1", "/usr/local/bin/wget", "-q", "-O", "-", "http://127.0.0.1:8686/api/v1/sessions")
			return err == nil && maps.Equal(wantSessions, sessions(t, answer))
		})
	}

	process.Eventually(t, 2*time.Minute, "Prometheus has the usage of the devices", func() bool {
		return strings.Contains(get(t, "http://"+c.ports["9090"]+"/api/v1/query?query=gpu_cuda_time_seconds_total", ""), `"cuda_device_sm_count":"132"`)
	})

	// A program of the host.
	const span = `{"resourceSpans":[{"resource":{"attributes":[{"key":"service.instance.id","value":{"stringValue":"0c0ffee0-0000-4000-8000-000000000001"}}]},
		"scopeSpans":[{"spans":[{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174","name":"step","kind":1,
		"startTimeUnixNano":"1764000000000000000","endTimeUnixNano":"1764000001000000000"}]}]}]}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.ports["4318"]+"/v1/traces", strings.NewReader(span))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusOK, response.StatusCode)
	process.Eventually(t, time.Minute, "the store has the program's session", func() bool {
		return sessions(t, get(t, ui, key))["0c0ffee0-0000-4000-8000-000000000001"] == 1
	})
}
