// SPDX-License-Identifier: Apache-2.0

package clickstore

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	schema "github.com/gpuflight/gpuflight/config/clickhouse"
)

// TestCheckTables_Lacking takes a table or a column away.
func TestCheckTables_Lacking(t *testing.T) {
	types := map[string]map[string]string{}
	for _, statement := range statements(schema.GPU) {
		m := createTable.FindStringSubmatch(statement)
		require.NotNil(t, m, statement)
		types[m[1]] = map[string]string{}
		for _, c := range column.FindAllStringSubmatch(m[2], -1) {
			types[m[1]][c[1]] = "String"
		}
	}
	assert.ElementsMatch(t, allTables(), slices.Collect(maps.Keys(types)))
	assert.Len(t, types["gpu_ops"], 23)
	assert.NotContains(t, types["gpu_ops"], "INDEX")
	assert.Contains(t, types["gpu_logs"], "UID")
	require.NoError(t, checkTables(types))
	delete(types["gpu_spans"], "EndNs")
	require.EqualError(t, checkTables(types), "table gpu_spans of another build lacks the column EndNs: configure a new database")
	delete(types, "gpu_spans")
	require.EqualError(t, checkTables(types), "table gpu_spans does not exist: run config/clickhouse/gpu.sql or set create_schema")
}
