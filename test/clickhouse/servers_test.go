// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clickhouse_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// Credentials that the exporter must send.
const (
	user     = "writer"
	password = "no-one else's"
)

// database is an engine and its server.
type database struct {
	t     *testing.T
	dir   string
	name  string
	front *front.Server
	// configs are the Collector's configurations below config.
	configs []string
	// ui and metrics are the addresses of the Collector's UI and of its metrics.
	ui, metrics string
}

// start starts an engine with the tables of contrib's exporter in the given database; "" selects the
// default.
func start(t *testing.T, name string) *database {
	t.Helper()
	d := startEmpty(t, name)
	d.configs = append(d.configs, filepath.Join("clickhouse", "contrib.yaml"))
	d.tables()
	return d
}

// startEmpty starts an engine without tables.
func startEmpty(t *testing.T, name string) *database {
	t.Helper()
	d := &database{t: t, dir: t.TempDir(), name: name, configs: []string{"clickhouse.yaml"}}
	d.front = &front.Server{Engine: d.engine(), User: user, Password: password}
	t.Cleanup(func() { assert.NoError(t, d.front.Engine.Close()) })
	if name != "" {
		d.in("", "CREATE DATABASE "+name)
	}
	d.listen()
	t.Cleanup(func() { assert.NoError(t, d.front.Close()) })
	return d
}

func (d *database) engine() *front.Engine {
	d.t.Helper()
	e, err := front.Start(process.Chdb.FindFetched(d.t, "no Python with pip here to fetch ClickHouse's engine with", "pip3"), d.dir)
	require.NoError(d.t, err)
	return e
}

// listen starts the server, at its previous address if it had one.
func (d *database) listen() {
	d.t.Helper()
	require.NoError(d.t, d.front.Listen(""))
}

// tables runs the files of config/clickhouse in the order of config/clickhouse/contrib.yaml.
func (d *database) tables() {
	d.t.Helper()
	dir := filepath.Join(process.Root(d.t), "config", "clickhouse")
	files, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	require.NoError(d.t, err)
	names := []string{"spans.sql", "kernels.sql"}
	require.Len(d.t, files, len(names)+1, "a file that no test runs; the store runs gpu.sql")
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(d.t, err)
		d.run(string(text))
	}
}

// keep removes the times to live from the tables, because recordings are old.
func (d *database) keep() {
	d.t.Helper()
	d.run("ALTER TABLE otel_traces REMOVE TTL; ALTER TABLE kernels REMOVE TTL")
}

// run runs statements in the database.
func (d *database) run(sql string) {
	d.t.Helper()
	d.in(d.name, sql)
}

func (d *database) in(database, sql string) []byte {
	d.t.Helper()
	out, err := d.front.Engine.Run(d.t.Context(), front.Statement{SQL: sql, Format: "JSONEachRow", Database: database}, nil)
	require.NoError(d.t, err, sql)
	return out
}

// query reads the result of a SELECT into structs whose fields have the names of the columns.
func query[T any](d *database, sql string) []T {
	d.t.Helper()
	return decode[T](d.t, d.in(d.name, sql))
}

func decode[T any](t *testing.T, lines []byte) (rows []T) {
	t.Helper()
	for line := range bytes.Lines(lines) {
		var row T
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&row), "%s", line)
		rows = append(rows, row)
	}
	return rows
}

// one reads a single value, under the name "n".
func one[T any](d *database, sql string) T {
	d.t.Helper()
	rows := query[struct{ N T }](d, sql)
	require.Len(d.t, rows, 1, sql)
	return rows[0].N
}

// crash kills the engine and starts another on its tables.
func (d *database) crash() {
	d.t.Helper()
	require.NoError(d.t, d.front.Close())
	d.front.Engine.Kill()
	require.NoError(d.t, d.front.Engine.Close())
	d.front.Engine = d.engine()
}

// collect runs the Collector with the configurations and an optional overlay, and returns when all
// components run.
func (d *database) collect(env map[string]string, overlay map[string]any) *process.Process {
	d.t.Helper()
	p := d.command(env, overlay)
	p.WaitOutput(process.Ready, time.Minute)
	return p
}

// command is collect without waiting.
func (d *database) command(env map[string]string, overlay map[string]any) *process.Process {
	d.t.Helper()
	binary := process.Collector.Find(d.t)
	d.ui, d.metrics = process.FreePort(d.t), process.FreePort(d.t)
	_, port, _ := strings.Cut(d.metrics, ":")
	args := []string{
		"GPUFLIGHT_CLICKHOUSE=" + d.front.URL(), "GPUFLIGHT_CLICKHOUSE_USER=" + user, "GPUFLIGHT_CLICKHOUSE_PASSWORD=" + password,
		"GPUFLIGHT_HEALTH=" + process.FreePort(d.t), "GPUFLIGHT_METRICS_PORT=" + port, "GPUFLIGHT_UI=" + d.ui,
	}
	if d.name != "" {
		args = append(args, "GPUFLIGHT_CLICKHOUSE_DATABASE="+d.name)
	}
	for k, v := range env {
		args = append(args, k+"="+v)
	}
	args = append(args, binary)
	for _, name := range d.configs {
		args = append(args, "--config", filepath.Join(process.Root(d.t), "config", name))
	}
	if overlay != nil {
		text, err := json.Marshal(overlay) // which is YAML too
		require.NoError(d.t, err)
		path := filepath.Join(d.t.TempDir(), "overlay.yaml")
		require.NoError(d.t, os.WriteFile(path, text, 0o600))
		args = append(args, "--config", path)
	}
	return process.Start(d.t, "/usr/bin/env", args...)
}

// overOTLP is an overlay that replaces the Kafka receiver by an OTLP receiver, so that a test knows
// when a request is complete.
func overOTLP(address string) map[string]any {
	from := map[string]any{"receivers": []string{"otlp"}}
	return map[string]any{
		"receivers": map[string]any{"otlp": map[string]any{"protocols": map[string]any{
			"grpc": map[string]any{"endpoint": address, "max_recv_msg_size_mib": 64},
		}}},
		"service": map[string]any{"pipelines": map[string]any{"traces": from, "logs": from, "metrics": from}},
	}
}
