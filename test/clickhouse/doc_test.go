// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package clickhouse_test runs config/clickhouse.yaml and the tables of config/clickhouse against
// ClickHouse's real engine: the Collector's exporter writes into it through a front that speaks
// ClickHouse's HTTP interface (package front). What is in the tables is compared with what was sent, value
// by value, and the figures of views and of the queries that the documentation offers with figures
// computed here from what was sent.
package clickhouse_test
