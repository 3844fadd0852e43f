// SPDX-License-Identifier: Apache-2.0

// Package clickstore is a store on a ClickHouse server, with the tables of config/clickhouse/gpu.sql.
// Several processes can write to it and read from it at once.
//
// Rows have the identity of package store as their sorting key, and the engine replaces equal ones, so
// a row that is delivered twice is stored once. Readers use FINAL. A write counts a duplicate as
// written. ClickHouse has no transactions over tables: after a failed write some rows of a Batch may
// be stored, and the sender delivers it again.
//
// Seal computes rollups from the rows. A session that got rows after sealing is answered from rows.
// Every rollup belongs to one seal, so a reader never mixes two.
//
// Export and Import need DuckDB and are not supported.
package clickstore
