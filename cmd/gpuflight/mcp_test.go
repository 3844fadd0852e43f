// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMCP_Bounded(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	text, err := bounded(object{"n": int64(1<<62 - 1), "names": []string{long, "a<b>"}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"n": 4611686018427387903, "names": ["`+strings.Repeat("ä", mcpMaxText-1)+`…", "a<b>"]}`, string(text))
	assert.Contains(t, string(text), "a<b>")
	assert.Contains(t, string(text), "4611686018427387903")

	_, err = bounded(make([]string, mcpMaxAnswer))
	assert.ErrorContains(t, err, "use a smaller limit")
	_, err = bounded(object{"text": make([]string, mcpMaxAnswer), leftOutName: leftOut{"x": 1}})
	assert.ErrorContains(t, err, "use a smaller limit")
}

// TestMCP_LeftOut shortens answers whose lists are too long: first those inside others, and never those of texts or
// numbers.
func TestMCP_LeftOut(t *testing.T) {
	rows := func(n int, row object) (list []object) {
		for range n {
			list = append(list, row)
		}
		return list
	}
	row := object{"name": strings.Repeat("x", 200), "path": []string{"a", "b", "c"}, "grid": []int{1, 2, 3}}
	whole, err := json.Marshal(row)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		answer        object
		devices, rows int
		left          leftOut
	}{
		"nothing":      {object{"devices": rows(3, object{"rows": rows(4, row)})}, 3, 4, nil},
		"inner lists":  {object{"devices": rows(20, object{"rows": rows(40, row)}), leftOutName: leftOut{"gaps": 2, "rows": 7}}, 20, 12, leftOut{"gaps": 2, "rows": 7 + 20*28}},
		"all lists":    {object{"devices": rows(1000, object{"rows": rows(4, row)})}, 50, 1, leftOut{"rows": 3000, "devices": 950}},
		"a long outer": {object{"devices": rows(1000, object{"rows": []object{}, "name": row["name"]})}, 50, 0, leftOut{"devices": 950}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := bounded(tt.answer)
			require.NoError(t, err)
			assert.LessOrEqual(t, len(text), mcpMaxAnswer)
			var answer struct {
				Devices []struct{ Rows []json.RawMessage }
				Left    leftOut `json:"left_out"`
			}
			require.NoError(t, json.Unmarshal(text, &answer))
			assert.Equal(t, tt.left, answer.Left)
			require.Len(t, answer.Devices, tt.devices)
			for _, d := range answer.Devices {
				require.Len(t, d.Rows, tt.rows)
				for _, r := range d.Rows {
					assert.JSONEq(t, string(whole), string(r))
				}
			}
		})
	}
}

func TestMCP_Limits(t *testing.T) {
	for n, want := range map[int]int{-1: 10, 0: 10, 7: 7, 51: 50} {
		assert.Equal(t, want, limitOf(n))
	}
}
