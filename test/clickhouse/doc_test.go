// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package clickhouse_test runs config/clickhouse.yaml and the tables of config/clickhouse against
// ClickHouse's real engine. The Collector's exporter writes through a server of ClickHouse's HTTP
// interface (package front). The tests compare the tables with the sent data, value by value. They
// compare the results of views and documented queries with values computed here.
package clickhouse_test
