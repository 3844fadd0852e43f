// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fleet_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/testing/testsink"
	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/fleet/broker"
	"github.com/gpuflight/gpuflight/test/fleet/certificates"
)

var (
	kafka     = process.Binary{Env: "GPUFLIGHT_KAFKA", Path: ".tools/kafka/kafka", Make: "make .tools/kafka/kafka"}
	versitygw = process.Binary{Env: "GPUFLIGHT_VERSITYGW", Path: ".tools/versitygw", Make: "make .tools/versitygw"}
)

// findKafka returns the launcher. scripts/kafka needs Java, or a way to fetch it.
func findKafka(t *testing.T) string {
	t.Helper()
	return kafka.FindFetched(t, "no mvn here to fetch Kafka with", "mvn")
}

// kafkaServer is a broker that can be killed and restarted.
type kafkaServer struct {
	t *testing.T
	broker.Broker
	// command precedes the launcher, for another network or another clock.
	command []string
	process *process.Process
}

// template is the folder of a formatted broker that was never started. All brokers copy it, because
// formatting starts a Java process.
var template struct {
	sync.Mutex
	*broker.Broker
}

func formatted(t *testing.T) broker.Broker {
	t.Helper()
	template.Lock()
	defer template.Unlock()
	if template.Broker == nil {
		dir, err := os.MkdirTemp(scratch, "kafka-")
		require.NoError(t, err)
		b := broker.Broker{Launcher: findKafka(t), Dir: dir, Address: process.FreePort(t), Controller: process.FreePort(t)}
		require.NoError(t, b.Format(t.Context()))
		template.Broker = &b
	}
	return *template.Broker
}

// launchKafka starts a broker on a host's address with additional settings and a preceding command.
// It does not wait until the broker is ready.
func launchKafka(t *testing.T, host string, properties map[string]string, command ...string) *kafkaServer {
	t.Helper()
	k := &kafkaServer{t: t, command: command, Broker: broker.Broker{
		Launcher: findKafka(t), Dir: t.TempDir(), Address: freePort(t, host), Controller: process.FreePort(t), Properties: properties,
	}}
	require.NoError(t, k.FormatLike(formatted(t)))
	k.launch()
	return k
}

func (k *kafkaServer) launch() {
	k.t.Helper()
	// Java's second compiler costs more than it gains for a broker that runs for a minute.
	args := append(k.command[:len(k.command):len(k.command)], k.Launcher, "-XX:TieredStopAtLevel=1")
	args = append(args, k.Arguments()...)
	k.process = process.Start(k.t, args[0], args[1:]...)
}

// wait returns when the broker is ready.
func (k *kafkaServer) wait() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(k.t, k.Wait(ctx), "%s", k.process.Output())
}

// start restarts the broker after kill and returns when it is ready.
func (k *kafkaServer) start() {
	k.t.Helper()
	k.launch()
	k.wait()
}

// kill ends the broker by SIGKILL.
func (k *kafkaServer) kill() { k.process.Kill() }

// freePort is process.FreePort for another of this machine's addresses.
func freePort(t *testing.T, host string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(process.FreePort(t))
	require.NoError(t, err)
	return net.JoinHostPort(host, port)
}

// s3Server is an S3 server with one bucket.
type s3Server struct {
	t      *testing.T
	url    string
	client *s3.Client
}

const (
	bucket    = "gpuflight"
	accessKey = "test-access"
	secretKey = "test-secret-of-some-length"
)

// startS3 starts the server, with TLS if certificates are given.
func startS3(t *testing.T, tls ...certificates.Folder) *s3Server {
	t.Helper()
	path := versitygw.Find(t)
	address, dir := process.FreePort(t), t.TempDir()
	s := &s3Server{t: t, url: "http://" + address}
	arguments := []string{"--access", accessKey, "--secret", secretKey, "--port", address, "--quiet"}
	client := http.DefaultClient
	for _, c := range tls {
		_, port, _ := strings.Cut(address, ":")
		s.url = "https://localhost:" + port
		arguments = append(arguments, "--cert", c.Path("server.pem"), "--key", c.Path("server.key"))
		client = c.Client(t)
	}
	p := process.Start(t, path, append(arguments, "posix", "--nometa", dir)...)
	t.Cleanup(func() { p.Stop(20 * time.Second) })
	s.client = s3.New(s3.Options{
		BaseEndpoint: aws.String(s.url), Region: "us-east-1", UsePathStyle: true, HTTPClient: client,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
	process.Eventually(t, time.Minute, "the S3 server answers", func() bool {
		require.True(t, p.Running(), "the S3 server ended: %s", p.Output())
		_, err := s.client.ListBuckets(t.Context(), &s3.ListBucketsInput{})
		return err == nil
	})
	_, err := s.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucket)})
	require.NoError(t, err)
	return s
}

// object is one object of the archive.
type object struct {
	key  string
	body []byte
}

// stored fetches all objects as they are stored.
func (s *s3Server) stored() (out []object) {
	s.t.Helper()
	pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(s.t.Context())
		require.NoError(s.t, err)
		for _, o := range page.Contents {
			got, err := s.client.GetObject(s.t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: o.Key})
			require.NoError(s.t, err)
			body, err := io.ReadAll(got.Body)
			require.NoError(s.t, err, *o.Key)
			require.NoError(s.t, got.Body.Close())
			out = append(out, object{*o.Key, body})
		}
	}
	return out
}

// objects fetches all objects, decompressed.
func (s *s3Server) objects() []object {
	s.t.Helper()
	out := s.stored()
	for i, o := range out {
		plain, err := gzip.NewReader(bytes.NewReader(o.body))
		require.NoError(s.t, err, o.key)
		out[i].body, err = io.ReadAll(plain)
		require.NoError(s.t, err, o.key)
	}
	return out
}

// sync copies all objects into a folder, as `aws s3 sync` does, and returns the folder.
func (s *s3Server) sync() string {
	s.t.Helper()
	dir := s.t.TempDir()
	for _, o := range s.stored() {
		path := filepath.Join(dir, filepath.FromSlash(o.key))
		require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(s.t, os.WriteFile(path, o.body, 0o600))
	}
	return dir
}

// readJaeger adds all spans of a service in Jaeger to a store.
func readJaeger(t *testing.T, store *testsink.Store, api, service string) {
	t.Helper()
	query := url.Values{
		"query.service_name":   {service},
		"query.start_time_min": {"2020-01-01T00:00:00Z"},
		"query.start_time_max": {"2100-01-01T00:00:00Z"},
		"query.num_traces":     {"100000"},
	}
	status, body, err := get(t.Context(), api+"/api/v3/traces?"+query.Encode())
	require.NoError(t, err)
	if status == http.StatusNotFound {
		return
	}
	require.Equal(t, http.StatusOK, status, "%.500s", body)
	var answer struct {
		Result json.RawMessage `json:"result"`
	}
	require.NoError(t, json.Unmarshal(body, &answer))
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(answer.Result)
	require.NoError(t, err)
	store.AddTraces(td)
}

func get(ctx context.Context, url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// keyPattern is the documented form of keys in config/archive.yaml.
var keyPattern = regexp.MustCompile(`^otlp/year=\d{4}/month=\d{2}/day=\d{2}/hour=\d{2}/(traces|logs|metrics)_[0-9a-f-]{36}\.json\.gz$`)

// signal returns the signal of an object by its key.
func signal(t *testing.T, key string) string {
	t.Helper()
	m := keyPattern.FindStringSubmatch(key)
	require.NotNil(t, m, "key %s", key)
	return m[1]
}

// decode adds an object of the archive to a store.
func decode(t *testing.T, store *testsink.Store, signal string, body []byte) {
	t.Helper()
	switch signal {
	case "traces":
		td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(body)
		require.NoError(t, err)
		store.AddTraces(td)
	case "logs":
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(body)
		require.NoError(t, err)
		store.AddLogs(ld)
	case "metrics":
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(body)
		require.NoError(t, err)
		store.AddMetrics(md)
	default:
		t.Fatalf("signal %q", signal)
	}
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	text, err := json.MarshalIndent(v, "", "  ") // which is YAML too
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}
