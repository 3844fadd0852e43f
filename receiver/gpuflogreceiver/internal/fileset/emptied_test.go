// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// TestStream_EmptiedLiveFile simulates a recorder of C2 (release 1.2.1 on an H200). It compresses
// the live file into the next log file, and truncates and continues the same file. The log file
// appears before or just after the truncation. Any combination of scans, with one restart, must
// deliver each byte once.
func TestStream_EmptiedLiveFile(t *testing.T) {
	line := func(i int) string { return fmt.Sprintf("{\"line\":%d,\"pad\":\"%0100d\"}\n", i, i) }
	const stages = 9
	step := 7
	if os.Getenv("GPUFLIGHT_SOAK") != "" {
		step = 1
	}
	for _, publishFirst := range []bool{true, false} {
		for polls := 0; polls < 1<<stages; polls += step {
			restart := polls % (stages + 1) // some stage or none
			dir := t.TempDir()
			live := filepath.Join(dir, ".tmp", "device.log")
			write(t, live, "")
			c := newConsumer(t, Config{Include: []string{dir}})
			c.poll(0)
			time.Sleep(5 * time.Millisecond)
			n := 0
			poll := func() {
				if polls&(1<<n) != 0 {
					c.poll(100 * time.Millisecond)
					// The folder's time distinguishes listings, and changes with the kernel's clock
					// tick.
					time.Sleep(5 * time.Millisecond)
				}
				if n == restart {
					c.restart()
				}
				n++
			}
			want, content := "", ""
			add := func(i int) {
				appendTo(t, live, line(i))
				content += line(i)
				want += line(i)
				poll()
			}
			cut := func(number int) {
				data := gz(t, content)
				publish := func() {
					part := filepath.Join(dir, ".tmp", "device.gz.part")
					write(t, part, data)
					must(t, os.Rename(part, filepath.Join(dir, fmt.Sprintf("device.%d.log.gz", number))))
					poll()
				}
				empty := func() {
					must(t, os.Truncate(live, 0))
					poll()
				}
				if publishFirst {
					publish()
					empty()
				} else {
					empty()
					publish()
				}
				content = ""
			}
			add(1)
			add(2)
			cut(1)
			add(3)
			add(4)
			cut(2)
			must(t, os.RemoveAll(filepath.Join(dir, ".tmp")))
			poll()
			c.settle()
			if t.Failed() || string(c.got["dir:"+dir][gpuflog.Device]) != want {
				t.Logf("looked at %09b, restarted at %d, published first: %v", polls, restart, publishFirst)
			}
			c.want("dir:"+dir, gpuflog.Device, want)
			c.wantProblems()
			c.reread()
			must(t, c.set.Close())
		}
	}
}
