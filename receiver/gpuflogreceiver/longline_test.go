// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
)

// longRows is the number of rows of lineOfManyRows. Each has three data points; 32,768 points fill
// a batch.
const longRows = 40_000

// lineOfManyRows is a line that fills several batches.
func lineOfManyRows(session string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"version":1,"type":"host_metric_batch","session_id":"%s","hostname":"node-a","ip_addr":"192.0.2.7","batch_id":1,"base_time_ns":%d,"columns":["dt_ns","cpu_pct_x100","ram_used_mib","ram_total_mib"],"rows":[`, session, startNs)
	for i := range longRows {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "[%d,3746,20480,65536]", i)
	}
	b.WriteString("]}")
	return b.String()
}

// refusing returns an answer function and the number of deliveries so far. The function returns err
// for deliveries first to last, counted from 1.
func refusing(first, last int64, err error) (answer func() error, calls *atomic.Int64) {
	calls = new(atomic.Int64)
	return func() error {
		if n := calls.Add(1); n >= first && n <= last {
			return err
		}
		return nil
	}, calls
}

// longFile writes a session whose system channel is a line of many rows.
func longFile(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), testSession)
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "device.log"), []byte(jobStart(testSession)+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "system.log"), []byte(jobStart(testSession)+"\n"+lineOfManyRows(testSession)+"\n"), 0o600))
	return dir
}

// once checks that each point of the long line arrived exactly once.
func once(t *testing.T, e *exact) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	points := 0
	for it, n := range e.items {
		if strings.HasPrefix(it, "point ") {
			points++
			if n != 1 {
				t.Fatalf("came %d times: %s", n, it)
			}
		}
	}
	assert.Equal(t, 3*longRows, points)
}

func TestLongLine_TransientRefusal(t *testing.T) {
	t.Run("window over HTTP", func(t *testing.T) {
		for _, m := range []*memory{nil, {m: map[string][]byte{}}} {
			t.Run(fmt.Sprint("storage ", m != nil), func(t *testing.T) {
				e := newExact()
				r, url := serve(t, e, m, nil)
				answer, calls := refusing(2, 4, errors.New("not now"))
				e.say(answer)
				w := stream(t, testSession, joined(jobStart(testSession), lineOfManyRows(testSession)))
				for status := 0; status != http.StatusOK; {
					status = send(t, url, w).status
					require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusTooManyRequests}, status)
				}
				r.stop()
				assert.Greater(t, calls.Load(), int64(4))
				once(t, e)
			})
		}
	})
	t.Run("single line over HTTP", func(t *testing.T) {
		e := newExact()
		r, url := serve(t, e, nil, nil)
		answer, _ := refusing(2, 4, errors.New("not now"))
		e.say(answer)
		for status := 0; status != http.StatusOK; {
			status = send(t, url, enveloped(t, "system", lineOfManyRows(testSession))).status
			require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusTooManyRequests}, status)
		}
		r.stop()
		once(t, e)
	})
	t.Run("file", func(t *testing.T) {
		e := newExact()
		answer, _ := refusing(2, 4, errors.New("not now"))
		e.say(answer)
		dir := longFile(t)
		r := startWith(t, e, nil, func(c *Config) { c.Include = []string{dir} })
		eventually(t, "all points", func() bool { return e.size() >= 3*longRows })
		r.stop()
		once(t, e)
	})
}

// TestLongLine_PermanentRefusal: the part that is refused is counted, and the rest comes.
func TestLongLine_PermanentRefusal(t *testing.T) {
	for _, way := range []string{"file", "HTTP"} {
		t.Run(way, func(t *testing.T) {
			e := newExact()
			answer, _ := refusing(2, 2, consumererror.NewPermanent(errors.New("no")))
			e.say(answer)
			var r *running
			if way == "file" {
				dir := longFile(t)
				r = startWith(t, e, nil, func(c *Config) { c.Include = []string{dir} })
			} else {
				var url string
				r, url = serve(t, e, nil, nil)
				send(t, url, stream(t, testSession, joined(jobStart(testSession), lineOfManyRows(testSession))))
			}
			dropped := func() int64 { return r.sum("otelcol_receiver_gpuflog_dropped", "") }
			eventually(t, "each point is delivered or counted", func() bool {
				return dropped() > 0 && int64(e.points())+dropped() >= 3*longRows
			})
			lost := dropped()
			r.stop()
			assert.EqualValues(t, 3*longRows, int64(e.points())+lost)
			assert.Less(t, lost, int64(3*longRows/2), "one part of several")
		})
	}
}

// TestLongLine_Restart stops the receiver in the middle of the line. With storage, nothing is lost.
func TestLongLine_Restart(t *testing.T) {
	e, m := newExact(), &memory{m: map[string][]byte{}}
	answer, calls := refusing(2, 1<<40, errors.New("not now"))
	e.say(answer)
	dir := longFile(t)
	change := func(c *Config) { c.Include = []string{dir} }
	r := startWith(t, e, m, change)
	eventually(t, "a refusal in the middle", func() bool { return calls.Load() >= 2 })
	r.stop()
	before := e.points()
	assert.Positive(t, before)
	assert.Less(t, before, 3*longRows)
	e.say(nil)
	r = startWith(t, e, m, change)
	eventually(t, "all points", func() bool { return e.points() >= 3*longRows })
	r.stop()
	assert.Equal(t, 3*longRows, e.points(), "all, and none differs when it is delivered again")
}

// points returns how many different data points came.
func (e *exact) points() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for it := range e.items {
		if strings.HasPrefix(it, "point ") {
			n++
		}
	}
	return n
}
