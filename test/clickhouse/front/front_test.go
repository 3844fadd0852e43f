// SPDX-License-Identifier: Apache-2.0

//go:build linux

package front_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// launcher returns the launcher of scripts/chdb. It needs a Python with pip, on x86-64.
func launcher(t *testing.T) string {
	t.Helper()
	return process.Chdb.FindFetched(t, "no Python with pip here to fetch ClickHouse's engine with", "pip3")
}

func engine(t *testing.T, dir string) *front.Engine {
	t.Helper()
	e, err := front.Start(launcher(t), dir)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	return e
}

func serve(t *testing.T) *front.Server {
	t.Helper()
	s := &front.Server{Engine: engine(t, t.TempDir()), User: "writer", Password: "se:cret"}
	require.NoError(t, s.Listen(""))
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// open connects as the exporter does.
func open(t *testing.T, s *front.Server, parameters string) clickhouse.Conn {
	t.Helper()
	u, err := url.Parse(s.URL() + "/?" + parameters)
	require.NoError(t, err)
	u.User = url.UserPassword(s.User, s.Password)
	options, err := clickhouse.ParseDSN(u.String())
	require.NoError(t, err)
	c, err := clickhouse.Open(options)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// row has a column of each type that the exporter's tables have.
type row struct {
	Time  time.Time         `ch:"Time"`
	At    time.Time         `ch:"At"`
	Name  string            `ch:"Name"`
	Low   string            `ch:"Low"`
	Small uint8             `ch:"Small"`
	Large uint64            `ch:"Large"`
	Value float64           `ch:"Value"`
	Words []string          `ch:"Words"`
	Map   map[string]string `ch:"Map"`
}

const table = `CREATE TABLE things (Time DateTime64(9), At DateTime, Name String, Low LowCardinality(String), Small UInt8, Large UInt64,
	Value Float64, Words Array(LowCardinality(String)), Map Map(LowCardinality(String), String)) ENGINE = MergeTree ORDER BY Large`

func TestServer_DriverRoundTrip(t *testing.T) {
	s := serve(t)
	for _, compression := range []string{"none", "lz4", "zstd"} {
		t.Run(compression, func(t *testing.T) {
			c := open(t, s, "compress="+compression+"&async_insert=true&wait_for_async_insert=1")
			ctx := t.Context()
			require.NoError(t, c.Ping(ctx))
			version, err := c.ServerVersion()
			require.NoError(t, err)
			assert.GreaterOrEqual(t, version.Version.Major, uint64(26))
			require.NoError(t, c.Exec(ctx, "DROP TABLE IF EXISTS things"))
			require.NoError(t, c.Exec(ctx, table))

			at := time.Unix(1795305600, 123456789).UTC()
			var want []row
			for i := range uint64(3000) {
				want = append(want, row{
					Time: at.Add(time.Duration(i) * time.Nanosecond), At: at.Truncate(time.Second), Name: strings.Repeat("é\x00", int(i%3)),
					Low: []string{"a", "b", ""}[i%3], Small: uint8(i), Large: 1<<64 - 1 - i, Value: float64(i) / 3,
					Words: []string{"x", "y", "x"}[:i%4%3], Map: map[string]string{"k": "v", "l": ""},
				})
			}
			batch, err := c.PrepareBatch(ctx, "INSERT INTO things (Time, At, Name, Low, Small, Large, Value, Words, Map) VALUES (?)")
			require.NoError(t, err)
			for i := range want {
				require.NoError(t, batch.AppendStruct(&want[i]))
			}
			require.NoError(t, batch.Send())

			var got []row
			require.NoError(t, c.Select(ctx, &got, "SELECT * FROM things ORDER BY Large DESC"))
			require.Len(t, got, len(want))
			for i := range got {
				got[i].Time, got[i].At = got[i].Time.UTC(), got[i].At.UTC()
				if got[i].Words == nil {
					got[i].Words = []string{}
				}
			}
			assert.Equal(t, want, got)
		})
	}
	assert.Equal(t, int64(3), s.Inserts())
	assert.Zero(t, s.Refused())
}

// request sends a statement without a driver.
func request(t *testing.T, s *front.Server, parameters url.Values, body string) (status int, answer string, header http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/?"+parameters.Encode(), strings.NewReader(body))
	require.NoError(t, err)
	req.SetBasicAuth(s.User, s.Password)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text), resp.Header
}

func TestServer_SettingsPerRequest(t *testing.T) {
	s := serve(t)
	ask := "SELECT getSetting('max_threads'), currentDatabase()"
	status, before, _ := request(t, s, nil, ask)
	require.Equal(t, http.StatusOK, status, before)
	require.NotContains(t, before, "3\t")
	status, _, _ = request(t, s, nil, "CREATE DATABASE `it``s`")
	require.Equal(t, http.StatusOK, status)
	status, answer, _ := request(t, s, url.Values{"max_threads": {"3"}, "database": {"it`s"}}, ask)
	assert.Equal(t, http.StatusOK, status, answer)
	assert.Equal(t, "3\tit`s\n", answer)
	_, after, _ := request(t, s, nil, ask)
	assert.Equal(t, before, after)

	status, answer, header := request(t, s, url.Values{"no_such_setting": {"3"}}, ask)
	assert.Equal(t, http.StatusInternalServerError, status)
	assert.Contains(t, answer, "no_such_setting")
	assert.Equal(t, "115", header.Get("X-ClickHouse-Exception-Code"))
	_, after, _ = request(t, s, nil, ask)
	assert.Equal(t, before, after)
}

func TestServer_BadRequests(t *testing.T) {
	s := serve(t)
	status, answer, _ := request(t, s, nil, table)
	require.Equal(t, http.StatusOK, status, answer)
	insert := "INSERT INTO things (Large) FORMAT Native"
	for _, c := range []struct {
		name       string
		parameters url.Values
		body, code string
	}{
		{"no SQL", nil, "SELEC 1", "62"},
		{"no table", nil, "SELECT * FROM nothing", "60"},
		{"data for a SELECT", url.Values{"query": {"SELECT 1"}}, "x", "36"},
		{"data without a format", url.Values{"query": {"INSERT INTO things"}}, "x", "36"},
		{"no block", url.Values{"query": {insert}}, "no block", "33"},
		{"no compressed block", url.Values{"query": {insert}, "decompress": {"1"}}, strings.Repeat("no block", 10), "36"},
		{"half a compressed block", url.Values{"query": {insert}, "decompress": {"1"}}, strings.Repeat("\x00", 16) + "\x82\x19\x00\x00\x00\x10\x00\x00\x00", "36"},
		{"half a block", url.Values{"query": {insert}}, "\x01\x02\x05Large\x06UInt64\x01\x02\x03", "33"},
		{"no revision", url.Values{"client_protocol_version": {"new"}, "default_format": {"Native"}}, "SELECT 1", "36"},
		{"a parameter of another type", url.Values{"param_x": {"one"}}, "SELECT {x:UInt8}", "457"},
	} {
		before := s.Refused()
		status, answer, header := request(t, s, c.parameters, c.body)
		assert.Equal(t, http.StatusInternalServerError, status, c.name)
		assert.Equal(t, c.code, header.Get("X-ClickHouse-Exception-Code"), "%s: %s", c.name, answer)
		assert.Equal(t, before+1, s.Refused(), c.name)
	}
	_, answer, _ = request(t, s, nil, "SELECT count() FROM things")
	assert.Equal(t, "0\n", answer)
	status, answer, _ = request(t, s, url.Values{"query": {insert}}, "\x01\x01\x05Large\x06UInt64\x07\x00\x00\x00\x00\x00\x00\x00")
	assert.Equal(t, http.StatusOK, status, answer)
	_, answer, _ = request(t, s, url.Values{"query": {"SELECT Large FROM things FORMAT JSONEachRow"}}, "")
	assert.Equal(t, "{\"Large\":7}\n", answer)
	_, answer, _ = request(t, s, url.Values{"param_x": {"it's {y:String}"}}, "SELECT {x:String}")
	assert.Equal(t, "it\\'s {y:String}\n", answer)
}

func TestServer_WrongCredentials(t *testing.T) {
	s := serve(t)
	for _, password := range []string{"", "se:cre", "secret"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL(), strings.NewReader("CREATE DATABASE mine"))
		require.NoError(t, err)
		req.Header.Set("X-ClickHouse-User", s.User)
		req.Header.Set("X-ClickHouse-Key", password)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		assert.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusForbidden, resp.StatusCode)
	}
	_, answer, _ := request(t, s, nil, "SELECT count() FROM system.databases WHERE name = 'mine'")
	assert.Equal(t, "0\n", answer)
}

func TestServer_LostAnswer(t *testing.T) {
	s := serve(t)
	c := open(t, s, "compress=lz4")
	ctx := t.Context()
	require.NoError(t, c.Exec(ctx, "CREATE TABLE n (N UInt64) ENGINE = MergeTree ORDER BY N"))
	send := func() error {
		batch, err := c.PrepareBatch(ctx, "INSERT INTO n (N)")
		require.NoError(t, err)
		require.NoError(t, batch.Append(uint64(1)))
		return batch.Send()
	}
	s.LoseAnswers(1)
	assert.Error(t, send())
	assert.Zero(t, s.Unanswered())
	assert.NoError(t, send())
	var n uint64
	require.NoError(t, c.QueryRow(ctx, "SELECT count() FROM n").Scan(&n))
	assert.Equal(t, uint64(2), n)
}

func TestEngine_Killed(t *testing.T) {
	dir := t.TempDir()
	e, err := front.Start(launcher(t), dir)
	require.NoError(t, err)
	run := func(e *front.Engine, sql string) string {
		t.Helper()
		out, err := e.Run(t.Context(), front.Statement{SQL: sql, Format: "TabSeparated"}, nil)
		require.NoError(t, err)
		return string(out)
	}
	run(e, "CREATE TABLE n (N UInt64) ENGINE = MergeTree ORDER BY N; INSERT INTO n SELECT number FROM numbers(1000)")
	e.Kill()
	_, err = e.Run(t.Context(), front.Statement{SQL: "SELECT 1", Format: "TabSeparated"}, nil)
	require.Error(t, err)
	exception := (*front.Exception)(nil)
	assert.NotErrorAs(t, err, &exception)
	require.NoError(t, e.Close())

	e = engine(t, dir)
	assert.Equal(t, "1000\n", run(e, "SELECT count() FROM n"))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = e.Run(cancelled, front.Statement{SQL: "DROP TABLE n", Format: "TabSeparated"}, nil)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, "1000\n", run(e, "SELECT count() FROM n"))
}

func TestEngine_StartFails(t *testing.T) {
	dir := t.TempDir()
	broken := dir + "/launcher"
	require.NoError(t, os.WriteFile(broken, []byte("#!/bin/sh\necho no engine in here >&2\nexit 3\n"), 0o700))
	_, err := front.Start(broken, dir)
	require.Error(t, err)
	assert.Contains(t, err.Error(), "no engine in here")
}
