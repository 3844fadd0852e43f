// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wall is a clock whose wall time can be set. Its monotonic time continues, as in time.Now.
type wall struct{ off atomic.Int64 }

func (w *wall) set(d time.Duration) { w.off.Store(int64(d / time.Second)) }

func (w *wall) now() time.Time {
	t := time.Now()
	// The seconds of the wall clock are in bits 30 and above of the first word.
	*(*uint64)(unsafe.Pointer(&t)) += uint64(w.off.Load()) << 30
	return t
}

func TestClockJump_TheTestsClock(t *testing.T) {
	w := &wall{}
	a := w.now()
	w.set(-24 * time.Hour)
	b := w.now()
	require.GreaterOrEqual(t, b.Sub(a), time.Duration(0))
	require.Less(t, b.Sub(a), time.Hour)
	require.InDelta(t, -24*3600, b.Unix()-a.Unix(), 60)
}

// TestFiles_ClockJump changes the clock by a day while a group is idle. Its last line without
// newline is still read after tailWait, and session_timeout does not close the group.
func TestFiles_ClockJump(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.device.log")
			require.NoError(t, os.WriteFile(path, []byte(line(1)+"\n"+line(2)), 0o600))
			w, s := &wall{}, newSink()
			r := startAt(t, w.now, s, nil, func(c *Config) { c.Include = []string{dir} })
			eventually(t, "the whole line", func() bool { return s.count("kernel") == 1 })
			w.set(by)
			require.Eventually(t, func() bool { return s.count("kernel") == 2 }, 30*time.Second, 10*time.Millisecond,
				"the line without newline")
			time.Sleep(300 * time.Millisecond)
			for _, sp := range s.distinct() {
				assert.False(t, strings.Contains(sp, "cuda.operation:session") && !strings.Contains(sp, "cuda.session.window"),
					"the session was closed: %s", sp)
			}
			r.stop()
		})
	}
}
