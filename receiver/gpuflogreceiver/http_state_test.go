// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/collector/storageclient"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
	"github.com/gpuflight/gpuflight/internal/varint"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
)

func sumOf(i int) (s ingest.Sum) {
	copy(s[:], strconv.Itoa(i))
	return s
}

func TestChunkTable_Encoding(t *testing.T) {
	table := &chunkTable{}
	for i := range 5 {
		w := table.get(chunkKey{sum: sumOf(i), channel: gpuflog.Scope, known: i%2 == 0})
		w.place = ingest.Place{Line: int64(i), Offset: int64(100 * i)}
		w.accepted, w.rejected, w.refused, w.header = 1, 2, 3, 4
	}
	d := decoder{varint.Reader{Rest: table.append(nil)}}
	got := d.windows()
	require.True(t, d.OK())
	assert.Empty(t, d.Rest)
	assert.Equal(t, table, got)
	for n := range table.append(nil) { // cut off anywhere
		d := decoder{varint.Reader{Rest: table.append(nil)[:n]}}
		d.windows()
		assert.False(t, d.OK(), "of %d bytes", n)
	}
}

func TestChunkTable_Bound(t *testing.T) {
	table := &chunkTable{}
	for i := range maxWindows + 10 {
		table.get(chunkKey{sum: sumOf(i)}).accepted = int64(i)
	}
	assert.Len(t, table.m, maxWindows)
	assert.Len(t, table.order, maxWindows)
	assert.EqualValues(t, maxWindows+9, table.get(chunkKey{sum: sumOf(maxWindows + 9)}).accepted)
	assert.Zero(t, table.get(chunkKey{sum: sumOf(3)}).accepted, "the oldest are forgotten")
}

func TestFinished_Bound(t *testing.T) {
	f := newFinished()
	dropped := 0
	for i := range maxFinished + 7 {
		table := &chunkTable{}
		table.get(chunkKey{sum: sumOf(i)})
		dropped += len(f.put(sessionID(i), table))
	}
	assert.Equal(t, 7, dropped)
	assert.Nil(t, f.take(sessionID(6)))
	assert.NotNil(t, f.take(sessionID(7)))
	assert.Nil(t, f.take(sessionID(7)))
	large := &chunkTable{}
	for i := range maxWindows {
		large.get(chunkKey{sum: sumOf(i)})
	}
	for i := range 6 {
		f.put(sessionID(i), large)
	}
	assert.LessOrEqual(t, f.windows, maxFinishedWindows)
	assert.Len(t, f.order, maxFinishedWindows/maxWindows)
}

// TestStore_DamagedSession damages the stored form of one of two sessions.
func TestStore_DamagedSession(t *testing.T) {
	mem := &memory{m: map[string][]byte{}}
	r, url := serve(t, newExact(), mem, nil)
	window := func(i int) message {
		return stream(t, sessionID(i), joined(jobStart(sessionID(i)), hosts(sessionID(i), 1)))
	}
	for i := range 3 {
		require.Equal(t, http.StatusOK, send(t, url, window(i)).status)
	}
	r.stop()
	mem.m[intakeKey(sessionID(0), "s")] = []byte("damaged")
	stored := storageclient.Checked(mem)
	key := intakeKey(sessionID(1), "s")
	whole, err := stored.Get(t.Context(), key)
	require.NoError(t, err)
	parse(t, whole, sessionID(1)).state[0] = 77 // another version's
	require.NoError(t, stored.Set(t.Context(), key, whole))
	e := newExact()
	r, url = serve(t, e, mem, nil)
	assert.Equal(t, 1, r.logs.FilterMessageSnippet("stored HTTP sessions are invalid").Len())
	assert.EqualValues(t, 2, r.sum("otelcol_receiver_gpuflog_rejects", "checkpoint"))
	for i := range 3 {
		assert.Equal(t, http.StatusOK, send(t, url, window(i)).status)
	}
	assert.EqualValues(t, 2, r.sum("otelcol_receiver_gpuflog_http_windows", "new"))
	assert.EqualValues(t, 1, r.sum("otelcol_receiver_gpuflog_http_windows", "repeated"))
	assert.Equal(t, 2, e.count("point ", "system.cpu.utilization"))
	r.stop()
	r, _ = serve(t, newExact(), mem, nil)
	assert.Zero(t, r.logs.FilterMessageSnippet("stored HTTP sessions are invalid").Len(), "it was stored again")
	r.stop()
}

// parse returns a stored session whose parts are in b.
func parse(t *testing.T, b []byte, id string) storedSession {
	t.Helper()
	s, err := parseStored(b, id)
	require.NoError(t, err)
	return s
}
