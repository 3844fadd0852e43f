// SPDX-License-Identifier: Apache-2.0

package distribution_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

var cli = process.Binary{Env: "GPUFLIGHT_CLI", Path: "bin/gpuflight", Make: "make build"}

// viewLimit is several times the duration of a test on two idle cores.
const viewLimit = 2 * time.Minute

// viewRun is a gpuflight view with its own port and a temporary folder.
type viewRun struct {
	cmd  *exec.Cmd
	out  process.Output
	temp string
	ui   string
	done chan error
}

// startView runs gpuflight view. The CLI and the Collector are in one folder, as users have them.
func startView(t *testing.T, paths ...string) *viewRun {
	t.Helper()
	bin := t.TempDir()
	require.NoError(t, os.Symlink(collector.Find(t), filepath.Join(bin, "otelcol-gpuflight")))
	text, err := os.ReadFile(cli.Find(t))
	require.NoError(t, err)
	copied := filepath.Join(bin, "gpuflight")
	require.NoError(t, os.WriteFile(copied, text, 0o700))
	temp, err := os.MkdirTemp("", "view")
	require.NoError(t, err)
	v := &viewRun{temp: temp, ui: process.FreePort(t), done: make(chan error, 1)}
	v.cmd = exec.Command(copied, append([]string{"view", "--listen", v.ui}, paths...)...)
	v.cmd.Env = append(os.Environ(), "TMPDIR="+v.temp)
	v.cmd.Stdout, v.cmd.Stderr = &v.out, &v.out
	require.NoError(t, v.cmd.Start())
	go func() { v.done <- v.cmd.Wait() }()
	t.Cleanup(func() {
		_ = v.cmd.Process.Kill()
		// The Collector ends a moment later and may still write.
		process.Eventually(t, viewLimit, "the temporary folder is removed", func() bool { return os.RemoveAll(temp) == nil })
		if t.Failed() {
			t.Logf("the output of gpuflight view:\n%s", v.out.String())
		}
	})
	return v
}

func (v *viewRun) await(t *testing.T) error {
	t.Helper()
	select {
	case err := <-v.done:
		return err
	case <-time.After(viewLimit):
		t.Fatalf("gpuflight view still runs after %v", viewLimit)
		return nil
	}
}

func (v *viewRun) awaitAddress(t *testing.T) {
	t.Helper()
	process.Eventually(t, viewLimit, "gpuflight view has printed the address", func() bool {
		select {
		case err := <-v.done:
			t.Fatalf("gpuflight view ended: %v", err)
		default:
		}
		return strings.Contains(v.out.String(), "http://")
	})
}

func (v *viewRun) portIsFree(t *testing.T) {
	t.Helper()
	process.Eventually(t, viewLimit, "the UI's port is free again", func() bool {
		l, err := net.Listen("tcp", v.ui)
		return err == nil && l.Close() == nil
	})
}

func (v *viewRun) get(t *testing.T, path string, answer any) {
	t.Helper()
	resp, err := http.Get("http://" + v.ui + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(answer))
}

func TestView_Recordings(t *testing.T) {
	v := startView(t, filepath.Join(process.Root(t), "examples", "recordings"))
	v.awaitAddress(t)
	assert.Equal(t, "4 sessions with 5,458 kernels. Open the UI, or press ctrl-C to end it:\n\n  http://"+v.ui+"\n\n", v.out.String())

	var answer struct {
		Sessions []struct {
			Service    string
			Operations map[string]int64
			Counts     map[string]int64
			KernelNs   int64 `json:"kernel_ns"`
		}
	}
	v.get(t, "/api/v1/sessions", &answer)
	kernels, nanos := map[string]int64{}, int64(0)
	for _, s := range answer.Sessions {
		kernels[s.Service] = s.Operations["kernel"]
		nanos += s.KernelNs
		if s.Service == "cupy" {
			assert.Equal(t, map[string]int64{"logs": 7, "ops": 2, "points": 201, "samples": 34500, "spans": 63}, s.Counts)
		}
	}
	assert.Equal(t, map[string]int64{"cupy": 0, "httpserver": 395, "pytorch": 4859, "vectoradd": 204}, kernels)
	assert.Equal(t, int64(25_346_528), nanos)

	require.NoError(t, v.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, v.await(t))
	v.portIsFree(t)
	files, err := os.ReadDir(v.temp)
	require.NoError(t, err)
	assert.Empty(t, files)
}

func TestView_Killed(t *testing.T) {
	v := startView(t, filepath.Join(process.Root(t), "examples", "recordings", "vectoradd.otlp.jsonl.gz"))
	v.awaitAddress(t)
	require.NoError(t, v.cmd.Process.Kill())
	require.Error(t, v.await(t))
	v.portIsFree(t) // the Collector has ended too
}

func TestView_Errors(t *testing.T) {
	damaged := filepath.Join(t.TempDir(), "damaged.otlp.jsonl")
	require.NoError(t, os.WriteFile(damaged, []byte("not OTLP\n"), 0o600))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	used := l.Addr().String()
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"missing file", []string{"missing.otlp.jsonl"}, []string{"gpuflight view: missing.otlp.jsonl: no such file or directory\n"}},
		{"no session", []string{damaged}, []string{damaged, "gpuflight view: the files contain no session\n"}},
		{"port in use", []string{"--listen", used, damaged}, []string{"cannot listen on " + used, "choose another address with --listen\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := startView(t, tt.args...)
			var exit *exec.ExitError
			require.ErrorAs(t, v.await(t), &exit)
			assert.Equal(t, 1, exit.Sys().(syscall.WaitStatus).ExitStatus())
			for _, want := range tt.want {
				assert.Contains(t, v.out.String(), want)
			}
			files, err := os.ReadDir(v.temp)
			require.NoError(t, err)
			assert.Empty(t, files)
		})
	}
}

// TestSessions runs gpuflight sessions against a running gpuflight view.
func TestSessions(t *testing.T) {
	v := startView(t, filepath.Join(process.Root(t), "examples", "recordings"))
	v.awaitAddress(t)
	sessions := func(code int, args ...string) string {
		t.Helper()
		cmd := exec.Command(cli.Find(t), append([]string{"sessions", "--url", "http://" + v.ui}, args...)...)
		out, err := cmd.CombinedOutput()
		if code == 0 {
			require.NoError(t, err, "%s", out)
		} else {
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "%s", out)
			require.Equal(t, code, exit.ExitCode(), "%s", out)
		}
		return string(out)
	}
	assert.Regexp(t, `^ID +APPLICATION +HOST +STARTED +DURATION +KERNELS +KERNEL TIME +SIZE +STATE\n`+
		`([0-9a-f-]{36} +\w+ .*\n){4}$`, sessions(0, "list"))
	row := regexp.MustCompile(`\n([0-9a-f-]{36}) +vectoradd +gpu-host +2026-11-2\d \d\d:\d\d:\d\d +282ms +204 +467µs `).FindStringSubmatch(sessions(0, "list", "VECTOR"))
	require.NotNil(t, row)
	id := row[1]

	shown := sessions(0, "show", id[:8])
	t.Log(shown)
	assert.Contains(t, shown, "session:      "+id+"\n")
	assert.Regexp(t, `\nduration: +282.\d\dms\n(\w+: +\d+\n)*kernel: +204\n(\w+: +\d+\n)*kernel time: +466.90µs\n`, shown)
	assert.Contains(t, shown, "\npage:         http://"+v.ui+"/sessions/"+id+"\n\nTOTAL ")
	assert.Equal(t, "pinned "+id+"\n", sessions(0, "pin", id[:8]))
	assert.Regexp(t, `pinned\n$`, sessions(0, "list", id))
	assert.Equal(t, "unpinned "+id+"\n", sessions(0, "unpin", id))

	file := filepath.Join(t.TempDir(), "one.duckdb")
	assert.Contains(t, sessions(0, "export", id[:8], file), "exported "+id+" to "+file+", ")
	assert.Contains(t, sessions(1, "export", id, file), "file exists")
	assert.Equal(t, "deleted "+id+"\n", sessions(0, "delete", id))
	assert.Equal(t, "no sessions\n", sessions(0, "list", id))
	assert.Equal(t, "gpuflight sessions: no session has an id that begins with \""+id+"\"\n", sessions(1, "delete", id))
	assert.Equal(t, "imported "+id+"\n", sessions(0, "import", file))
	assert.Regexp(t, ` 204 +467µs `, sessions(0, "list", id))
	assert.Contains(t, sessions(1, "import", cli.Find(t)), "import "+cli.Find(t)+": the Collector rejected the request: ")
	assert.Contains(t, sessions(2, "show"), "use list, show, pin, unpin, baselines, baseline, delete-baseline, delete, export or import")

	other := startView(t, file)
	other.awaitAddress(t)
	assert.Contains(t, other.out.String(), "1 session with 204 kernels.")
}
