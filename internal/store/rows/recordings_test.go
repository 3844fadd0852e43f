// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

const recordings = "../../testing/testdata/logs"

// recording is what the decoder of GPU Flight's logs makes of one session or flat log.
type recording struct {
	name    string
	traces  ptrace.Traces
	logs    plog.Logs
	metrics pmetric.Metrics
}

var (
	fileName = regexp.MustCompile(`^(?:(.+)\.)?(device|scope|system|sass)(?:\.(\d+))?\.log(\.gz)?$`)
	channels = map[string]gpuflog.Channel{
		"device": gpuflog.Device, "scope": gpuflog.Scope, "system": gpuflog.System, "sass": gpuflog.Sass,
	}
)

// readRecordings decodes the recordings whose folder matches the pattern.
func readRecordings(tb testing.TB, pattern string) []recording {
	tb.Helper()
	type file struct {
		path  string
		order int
	}
	files := map[string]*[gpuflog.NumChannels][]file{}
	flat := map[string]bool{}
	require.NoError(tb, filepath.WalkDir(recordings, func(path string, e os.DirEntry, err error) error {
		m := fileName.FindStringSubmatch(e.Name())
		if err != nil || m == nil {
			return err
		}
		key := filepath.Join(filepath.Dir(path), m[1])
		if ok, _ := regexp.MatchString(pattern, key); !ok {
			return nil
		}
		if files[key] == nil {
			files[key] = &[gpuflog.NumChannels][]file{}
		}
		n, _ := strconv.Atoi(m[3])
		if m[1] != "" { // 1 is the newest rotated file, and the live file is newer
			n, flat[key] = -n, true
		}
		ch := channels[m[2]]
		files[key][ch] = append(files[key][ch], file{path, n})
		return nil
	}))
	require.NotEmpty(tb, files)
	var all []recording
	for _, key := range slices.Sorted(maps.Keys(files)) {
		d := gpuflog.NewDecoder(gpuflog.Options{KernelNameInPath: flat[key]})
		out := gpuevent.NewBatch(gpuevent.Signals{Traces: true, Logs: true, Metrics: true})
		now := int64(2e18)
		for _, ch := range []gpuflog.Channel{gpuflog.System, gpuflog.Sass, gpuflog.Scope, gpuflog.Device} {
			fs := files[key][ch]
			slices.SortFunc(fs, func(a, b file) int { return a.order - b.order })
			var data []byte
			for _, f := range fs {
				data = append(data, read(tb, f.path)...)
			}
			d.Feed(ch, data, 0, now, out)
		}
		d.EndStep(gpuflog.Step{Now: now + 3e9, AtEnd: [gpuflog.NumChannels]bool{true, true, true, true}, Quiet: 3 * time.Second}, out)
		r := recording{name: key[len(recordings)+1:]}
		r.traces, r.logs, r.metrics = out.Take()
		all = append(all, r)
	}
	return all
}

func read(tb testing.TB, path string) []byte {
	b, err := os.ReadFile(path)
	require.NoError(tb, err)
	if filepath.Ext(path) == ".gz" {
		z, err := gzip.NewReader(bytes.NewReader(b))
		require.NoError(tb, err)
		b, err = io.ReadAll(z)
		require.NoError(tb, err)
	}
	return b
}
