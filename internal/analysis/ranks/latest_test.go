// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuflight/gpuflight/internal/store"
)

// The sessions are the newest first. Names are of the run and the rank.
func TestLatest(t *testing.T) {
	session := func(id, rank, size string) store.SessionInfo {
		return store.SessionInfo{ID: id, Rank: rank, RankSize: size}
	}
	for _, tt := range []struct {
		name string
		list []store.SessionInfo
		want []string
	}{
		{"none", nil, nil},
		{"a run again", []store.SessionInfo{session("b1", "1", "2"), session("b0", "0", "2"), session("a1", "1", "2"), session("a0", "0", "2")}, []string{"b1", "b0"}},
		{"a run with fewer ranks", []store.SessionInfo{session("b0", "0", "2"), session("b1", "1", "2"), session("a3", "3", "4"), session("a2", "2", "4"), session("a0", "0", "4")}, []string{"b0", "b1"}},
		{"a run with more ranks", []store.SessionInfo{session("b2", "2", "3"), session("b0", "0", "3"), session("b1", "1", "3"), session("a1", "1", "2")}, []string{"b2", "b0", "b1"}},
		{"another number of ranks", []store.SessionInfo{session("b0", "0", "4"), session("a1", "1", "2"), session("a0", "0", "2")}, []string{"b0"}},
		{"unknown size", []store.SessionInfo{session("a3", "3", ""), session("a0", "0", "")}, []string{"a3", "a0"}},
		{"no ranks", []store.SessionInfo{session("x", "", ""), session("y", "", "")}, []string{"x", "y"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, s := range Latest(tt.list) {
				got = append(got, s.ID)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}
