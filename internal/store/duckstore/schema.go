// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import "strings"

// version is a version of the tables of a segment. A released one does not change. A statement names the
// segment {db}.
type version struct {
	schema  string   // creates the tables
	migrate []string // changes a segment of the version before
}

// versions has all versions. The first one is version 1. To add one, append a copy of the changed schema,
// and keep a file of the version before in testdata (see TestMigrate_Kept).
var versions = []version{
	{schema: schema1},
	{schema: schema2, migrate: []string{
		"CREATE TABLE {db}.old AS FROM {db}.scope_sums", "DROP TABLE {db}.scope_sums", scopeSums2,
		"INSERT INTO {db}.scope_sums SELECT 0, 0, parent, true, 0, kernels, kernel_ns, queue_ns, copies, copy_ns, first_ns, last_ns FROM {db}.old",
		"DROP TABLE {db}.old", "INSERT INTO {db}.meta VALUES ('" + staleChains + "', '1')",
	}},
	{schema: schema3, migrate: []string{
		"CREATE TABLE {db}.old AS FROM {db}.stats", "DROP TABLE {db}.stats", stats3, "INSERT INTO {db}.stats SELECT *, 0 FROM {db}.old",
		"DROP TABLE {db}.old", stacks3, "INSERT INTO {db}.meta VALUES ('" + coarse + "', '1')",
	}},
	{schema: schema4, migrate: []string{topOps4}},
	{schema: schema5, migrate: []string{"DROP TABLE {db}.top_ops", topOps5}},
}

// schema5 has the first operations of each path, too.
var schema5 = strings.Replace(schema4, topOps4, topOps5, 1)

var topOps5 = strings.Replace(topOps4, "queue_from_launch BOOLEAN)", "queue_from_launch BOOLEAN, grp BIGINT)", 1) +
	`CREATE TABLE {db}.top_groups (id BIGINT, kind UTINYINT, chain UINTEGER, scope_path VARCHAR, dur_ns BIGINT, queue_ns BIGINT);
`

// schema4 has copies of the first operations by duration and by queue time (see top.go).
var schema4 = schema3 + topOps4

const topOps4 = `CREATE TABLE {db}.top_ops (start_ns BIGINT, dur_ns BIGINT, span UBIGINT, lane UINTEGER, shape UINTEGER,
  place UINTEGER, stack UINTEGER, origin UINTEGER, extra UINTEGER, launch_lead_ns BIGINT,
  launch_dur_ns BIGINT, queue_ns BIGINT, correlation BIGINT, bytes BIGINT, address BIGINT,
  estimated BOOLEAN, queue_from_launch BOOLEAN);
`

// schema3 sums up operations by chains, kernels by host stacks, and the timeline by a finer level. Folds has
// the patterns of names that have one path together (see store.Folds).
var schema3 = strings.Replace(schema2, stats1, stats3, 1) + stacks3

// coarse is the property of a segment of an earlier version, which lacks what version 3 has for its rows.
const coarse = "coarse"

// schema2 sums up scopes by their chains, with what was launched below them.
var schema2 = strings.Replace(schema1, scopeSums1, scopeSums2, 1)

const (
	scopeSums1 = `CREATE TABLE {db}.scope_sums (parent UBIGINT, kernels BIGINT, kernel_ns BIGINT, queue_ns BIGINT, copies BIGINT,
  copy_ns BIGINT, first_ns BIGINT, last_ns BIGINT);`
	scopeSums2 = `CREATE TABLE {db}.scope_sums (chain UINTEGER, start_ns BIGINT, span UBIGINT, own BOOLEAN, wall_ns BIGINT,
  kernels BIGINT, kernel_ns BIGINT, queue_ns BIGINT, copies BIGINT, copy_ns BIGINT, first_ns BIGINT, last_ns BIGINT);`
	stats1 = `CREATE TABLE {db}.stats (site UINTEGER, shape UINTEGER, lane UINTEGER, bucket USMALLINT, n BIGINT, sum_ns BIGINT,
  max_ns BIGINT, queue_ns BIGINT, bytes BIGINT);`
	stats3 = `CREATE TABLE {db}.stats (site UINTEGER, shape UINTEGER, lane UINTEGER, bucket USMALLINT, n BIGINT, sum_ns BIGINT,
  max_ns BIGINT, queue_ns BIGINT, bytes BIGINT, chain UINTEGER);`
	stacks3 = `
CREATE TABLE {db}.stack_sums (site UINTEGER, chain UINTEGER, stack UINTEGER, shape UINTEGER, n BIGINT, sum_ns BIGINT);
CREATE TABLE {db}.folds (pattern VARCHAR);
`
)

// schemaVersion returns the version that this build writes.
func schemaVersion() int { return len(versions) }

func currentSchema() string { return versions[len(versions)-1].schema }

// schema1 creates the tables of version 1. docs/internals/schema.md has the meaning of each column.
//
// Attributes and bodies are encoded as package store documents. Traces and UIDs are 16 bytes. A NULL
// is an unknown value, and a dictionary id 0 is the empty entry, which is not stored. A double that
// is -0 or NaN has its bits in double_bits.
//
// If queue_from_launch, the queue time is launch_lead_ns - launch_dur_ns and queue_ns is NULL. It nearly
// always is, and saves 2.7 bytes a kernel.
//
// paths has the ids of lists of names of scopes that answers had. The key is each name after its length
// and a colon.
//
// The tables from sites on are rollups. Each transaction adds rows, and readers sum them. A site is
// what a place has for the tree of scopes. A chain is what a span has for it (see chains.go), and the row
// with the largest seq is its content. A bin of lod has the busy time of operations that are not
// long at its level; long_ops has the others. Row top_* is the longest operation that starts in the
// bin, if n is not 0. The rows of summaries sum up transactions. The writer extends gap_bins and gaps
// now and then (see extendGaps).
const schema1 = `
CREATE TABLE {db}.meta (key VARCHAR, value VARCHAR);
CREATE TABLE {db}.origins (id UINTEGER, key UBIGINT, resource BLOB, resource_schema_url VARCHAR,
  scope_name VARCHAR, scope_version VARCHAR, scope_attrs BLOB, scope_schema_url VARCHAR);
CREATE TABLE {db}.extras (id UINTEGER, key UBIGINT, attrs BLOB);
CREATE TABLE {db}.lanes (id UINTEGER, key UBIGINT, device VARCHAR, device_index BIGINT, context BIGINT,
  stream BIGINT, class UTINYINT);
CREATE TABLE {db}.shapes (id UINTEGER, key UBIGINT, operation UTINYINT, name VARCHAR, full_name VARCHAR,
  symbol VARCHAR, grid BIGINT[], block BIGINT[], cluster BIGINT[], registers BIGINT,
  shared_static BIGINT, shared_dynamic BIGINT, shared_executed BIGINT, local_memory BIGINT, attrs BLOB);
CREATE TABLE {db}.places (id UINTEGER, key UBIGINT, trace BLOB, parent UBIGINT, scope_name VARCHAR,
  scope_path VARCHAR, inferred BOOLEAN);
CREATE TABLE {db}.stacks (id UINTEGER, key UBIGINT, text VARCHAR);
CREATE TABLE {db}.series (id UINTEGER, key UBIGINT, metric VARCHAR, unit VARCHAR, description VARCHAR,
  type UTINYINT, temporality UTINYINT, monotonic BOOLEAN, attrs BLOB, origin UINTEGER);
CREATE TABLE {db}.ops (start_ns BIGINT, dur_ns BIGINT, span UBIGINT, lane UINTEGER, shape UINTEGER,
  place UINTEGER, stack UINTEGER, origin UINTEGER, extra UINTEGER, launch_lead_ns BIGINT,
  launch_dur_ns BIGINT, queue_ns BIGINT, correlation BIGINT, bytes BIGINT, address BIGINT,
  estimated BOOLEAN, queue_from_launch BOOLEAN);
CREATE TABLE {db}.spans (start_ns BIGINT, end_ns BIGINT, trace BLOB, span UBIGINT, parent UBIGINT,
  kind UTINYINT, status UTINYINT, status_message VARCHAR, name VARCHAR, trace_state VARCHAR,
  flags UINTEGER, operation VARCHAR, origin UINTEGER, attrs BLOB, events BLOB, links BLOB,
  dropped_attrs UINTEGER, dropped_events UINTEGER, dropped_links UINTEGER, chain UINTEGER);
CREATE TABLE {db}.samples (time_ns BIGINT, uid BLOB, kind UTINYINT, what VARCHAR, value UBIGINT,
  kernel VARCHAR, function VARCHAR, file VARCHAR, line BIGINT, pc BIGINT, trace BLOB, span UBIGINT,
  device VARCHAR, device_index BIGINT, correlation BIGINT, origin UINTEGER, extra UINTEGER);
CREATE TABLE {db}.logs (time_ns BIGINT, observed_ns BIGINT, uid BLOB, severity UTINYINT,
  severity_text VARCHAR, event VARCHAR, body BLOB, trace BLOB, span UBIGINT, flags UINTEGER,
  origin UINTEGER, attrs BLOB, dropped_attrs UINTEGER);
CREATE TABLE {db}.points (time_ns BIGINT, series UINTEGER, start_ns BIGINT, flags UINTEGER,
  int_value BIGINT, double_value DOUBLE, double_bits UBIGINT, data BLOB, exemplars BLOB);
CREATE TABLE {db}.sites (id UINTEGER, key UBIGINT, parent UBIGINT, scope_name VARCHAR, scope_path VARCHAR);
CREATE TABLE {db}.paths (id UINTEGER, key BLOB);
CREATE TABLE {db}.chains (id UINTEGER, seq BIGINT, anchor UBIGINT, key BLOB, depth UTINYINT, state UTINYINT);
CREATE TABLE {db}.span_sums (chain UINTEGER, bucket USMALLINT, n BIGINT, wall_ns BIGINT);
CREATE TABLE {db}.lod (level UTINYINT, bin BIGINT, lane UINTEGER, n BIGINT, busy_ns BIGINT, top_ns BIGINT,
  top_shape UINTEGER, top_key UBIGINT, top_start BIGINT);
CREATE TABLE {db}.long_ops (level UTINYINT, start_ns BIGINT, end_ns BIGINT, lane UINTEGER);
` + stats1 + `
` + scopeSums1 + `
CREATE TABLE {db}.lane_sums (lane UINTEGER, n BIGINT, busy_ns BIGINT, first_ns BIGINT, last_ns BIGINT);
CREATE TABLE {db}.gap_bins (device VARCHAR, from_bin BIGINT, bin BIGINT, n BIGINT, sum_ns BIGINT, least_ns BIGINT,
  before_ns BIGINT, before_dur BIGINT, reach_ns BIGINT, reach_dur BIGINT);
CREATE TABLE {db}.gaps (device VARCHAR, bin BIGINT, from_bin BIGINT, start_ns BIGINT, end_ns BIGINT, before_start BIGINT, before UBIGINT,
  after UBIGINT, after_shape UINTEGER);
CREATE TABLE {db}.summaries (first_ns BIGINT, last_ns BIGINT, counts BIGINT[], newest BIGINT[], kinds BIGINT[],
  kind_counts BIGINT[], kernel_ns BIGINT, ended BOOLEAN, resource_ns BIGINT, origin UINTEGER);
`

var dictTables = [...]string{"origins", "extras", "lanes", "shapes", "places", "stacks", "series", "sites"}

var rollupTables = [...]string{"chains", "span_sums", "lod", "long_ops", "stats", "stack_sums", "scope_sums", "lane_sums", "gap_bins", "gaps", "summaries", "folds", "top_ops", "top_groups"}

// pathTable has ids of paths. It is neither a dictionary nor a rollup.
const pathTable = "paths"

var rowTables = [...]string{"ops", "spans", "samples", "logs", "points"}

// timeColumn returns the column that selects the segment of a row.
func timeColumn(table string) string {
	if table == "ops" || table == "spans" {
		return "start_ns"
	}
	return "time_ns"
}

// quote returns a string literal. DuckDB binds no parameters in ATTACH and SET.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
