// SPDX-License-Identifier: Apache-2.0

// Package clickhouse has the tables of the store on ClickHouse.
package clickhouse

import _ "embed" // gpu.sql

// GPU is gpu.sql: statements that end with ";" and comments that begin with "--".
//
//go:embed gpu.sql
var GPU string
