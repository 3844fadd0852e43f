// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/replay"
	"github.com/gpuflight/gpuflight/internal/testing/testsink"
)

// asCommand makes the test's program be gpuflight itself, so that a test can kill it.
const asCommand = "GPUFLIGHT_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// otlpFile writes messages of 10 spans each, numbered from first, as lines.
func otlpFile(t *testing.T, path string, first, messages int) {
	t.Helper()
	var b bytes.Buffer
	for m := range messages {
		td := ptrace.NewTraces()
		spans := td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans()
		for i := range 10 {
			n := first + 10*m + i
			s := spans.AppendEmpty()
			s.SetName("kernel")
			s.SetTraceID([16]byte{1, byte(n >> 16), byte(n >> 8), byte(n)})
			s.SetSpanID([8]byte{2, byte(n >> 16), byte(n >> 8), byte(n)})
			s.SetStartTimestamp(1)
			s.SetEndTimestamp(2)
		}
		line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func replaySink(t *testing.T) (*testsink.Store, *testsink.Server) {
	t.Helper()
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_TRACES_EXPORTER", "GPUFLIGHT_OUTPUT"} {
		t.Setenv(name, "")
	}
	store := testsink.NewStore()
	server, err := testsink.Listen(store, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return store, server
}

func TestReplayCommand(t *testing.T) {
	store, server := replaySink(t)
	dir := t.TempDir()
	otlpFile(t, filepath.Join(dir, "a.json"), 0, 5)
	to := []string{"replay", "--endpoint", "http://" + server.Endpoint(), "--protocol", "grpc"}

	code, stdout, stderr := command("replay", "--dry-run", dir)
	if code != 0 || !strings.Contains(stdout, "would be sent: 50 spans, 0 log records, 0 data points, in 1 batch\n") || len(store.Spans()) != 0 {
		t.Errorf("dry run: %d %s %s, %d spans were sent", code, stdout, stderr, len(store.Spans()))
	}

	state := filepath.Join(dir, "state.json") // in the folder, under a name that is read otherwise
	code, stdout, stderr = command(append(to, "--resume", state, "--batch", "10", dir)...)
	if code != 0 || !strings.Contains(stdout, "1 object read") || !strings.Contains(stdout, "sent: 50 spans, 0 log records, 0 data points, in 5 batches\n") {
		t.Errorf("replay: %d %s %s", code, stdout, stderr)
	}
	if n := len(store.Spans()); n != 50 {
		t.Errorf("%d spans came, want 50", n)
	}
	code, stdout, stderr = command(append(to, "--resume", state, dir)...)
	if code != 0 || !strings.Contains(stdout, "sent: 0 spans") || !strings.Contains(stdout, "not read: 1 sent_before\n") {
		t.Errorf("replay again: %d %s %s", code, stdout, stderr)
	}

	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.json"), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = command(append(to, dir)...)
	if code != 1 || !strings.Contains(stdout, "sent: 50 spans") || !strings.Contains(stdout, "problems: 1 malformed\n") ||
		!strings.Contains(stderr, "b.json at byte 0: malformed: neither JSON nor protobuf") || !strings.Contains(stderr, "not everything was sent: 1 malformed") {
		t.Errorf("replay of a bad object: %d %s %s", code, stdout, stderr)
	}

	server.SetMode(testsink.Invalid)
	code, _, stderr = command(append(to, "--resume", filepath.Join(dir, "s2"), dir)...)
	if code != 1 || !strings.Contains(stderr, "test sink: invalid") || !strings.Contains(stderr, "The same command goes on from here") {
		t.Errorf("replay to one that refuses: %d %s", code, stderr)
	}
	server.SetMode(testsink.Unavailable)
	code, _, stderr = command(append(to, "--retry-for", "100ms", dir)...)
	if code != 1 || !strings.Contains(stderr, "given up after 100ms") {
		t.Errorf("replay to nobody: %d %s", code, stderr)
	}
}

func TestReplayKeepsToTheRate(t *testing.T) {
	_, server := replaySink(t)
	file := filepath.Join(t.TempDir(), "a.json")
	otlpFile(t, file, 0, 6)
	began := time.Now()
	// 6 batches of 10: the first goes at once, each other 200 ms later.
	code, _, stderr := command("replay", "--endpoint", "http://"+server.Endpoint(), "--protocol", "grpc", "--rate", "50", "--batch", "10", file)
	if took := time.Since(began); code != 0 || took < time.Second {
		t.Errorf("%d after %v: %s", code, took, stderr)
	}
}

// TestReplayGoesOnAfterKill kills gpuflight by SIGKILL again and again, each time a little later, until one
// run comes to the end. Every span must have come, and of each run at most one batch twice.
func TestReplayGoesOnAfterKill(t *testing.T) {
	store, server := replaySink(t)
	dir := t.TempDir()
	const files, messages, batch = 6, 20, 50
	for i := range files {
		otlpFile(t, filepath.Join(dir, fmt.Sprintf("%d.json", i)), 10*messages*i, messages)
	}
	state := filepath.Join(t.TempDir(), "state")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	kills := 0
	for wait := 40 * time.Millisecond; ; wait += 15 * time.Millisecond {
		cmd := exec.Command(exe, "replay", "--endpoint", "http://"+server.Endpoint(), "--protocol", "grpc",
			"--resume", state, "--batch", fmt.Sprint(batch), "--rate", "2000", dir)
		cmd.Env = append(os.Environ(), asCommand+"=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		if err == nil {
			break
		}
		if cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("it ended by itself: %v: %s", err, out.String())
		}
		if kills++; kills > 200 {
			t.Fatal("it never comes to its end")
		}
	}
	spans := store.Spans()
	if len(spans) != files*messages*10 {
		t.Errorf("%d distinct spans came, want %d", len(spans), files*messages*10)
	}
	twice := 0
	for _, s := range spans {
		twice += s.Count - 1
	}
	t.Logf("killed %d times, %d spans came twice", kills, twice)
	if kills == 0 || twice > kills*batch {
		t.Errorf("killed %d times, %d spans came again", kills, twice)
	}
}

func TestReplayFlags(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"nothing", nil, 2, "nothing to replay"},
		{"negative rate", []string{"--rate", "-1", dir}, 2, "--rate -1: use 0 or more"},
		{"no batch", []string{"--batch", "0", dir}, 2, "--batch 0: use 1 or more"},
		{"bad time", []string{"--from", "yesterday", dir}, 2, `--from: "yesterday": use a time`},
		{"times the wrong way", []string{"--from", "2026-08-08", "--to", "2026-08-07", dir}, 2, "--from is not before --to"},
		{"bad zone", []string{"--partition-zone", "Mars/Olympus", dir}, 2, "--partition-zone: unknown time zone"},
		{"dry and resumed", []string{"--dry-run", "--resume", "x", dir}, 2, "give one of them"},
		{"too large a message", []string{"--max-message", "2GiB", dir}, 2, "use 1 to 1GiB"},
		{"a missing folder", []string{"--dry-run", filepath.Join(dir, "x")}, 1, "no such file"},
		{"nothing in it", []string{"--dry-run", dir}, 1, "no archived telemetry is there"},
		{"a bad protocol", []string{"--protocol", "smtp", dir}, 2, "OTEL_EXPORTER_OTLP_PROTOCOL"},
	} {
		code, stdout, stderr := command(append([]string{"replay"}, tc.args...)...)
		if code != tc.code || !strings.Contains(stderr, tc.stderr) {
			t.Errorf("%s: %d, %s%s", tc.name, code, stdout, stderr)
		}
	}
	code, stdout, _ := command("replay", "--help")
	if code != 0 || !strings.Contains(stdout, "gpuflight replay --dry-run archive") || !strings.Contains(stdout, "-partition-zone zone") {
		t.Errorf("help: %d %s", code, stdout)
	}
}

func TestReplayProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, false)
	now := time.Unix(1000, 0)
	p.now, p.began, p.shown = func() time.Time { return now }, now, now
	p.update(replay.Counts{Spans: 5})
	if out.Len() != 0 {
		t.Errorf("too early: %q", out.String())
	}
	now = now.Add(lineEvery)
	p.update(replay.Counts{Objects: 2, Spans: 100, Skipped: map[string]int{"other_name": 1}})
	if got, want := out.String(), "gpuflight replay: 3 objects, 100 spans, 0 log records, 0 data points, 10/s\n"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}

	out.Reset()
	p.terminal, p.every, p.objects = true, barEvery, 4
	now = now.Add(lineEvery)
	p.update(replay.Counts{Objects: 1, Spans: 100})
	if got, want := out.String(), "\r\033[K[######..................]  25% of 4 objects, 1 object, 100 spans, 0 log records, 0 data points, 5/s"; got != want {
		t.Errorf("bar %q, want %q", got, want)
	}
	out.Reset()
	for range maxReplayProblems + 3 {
		p.problem(replay.Problem{Object: "x", Reason: "malformed", Detail: "y"})
	}
	p.end()
	if s := out.String(); !strings.HasPrefix(s, "\r\033[Kgpuflight replay: x at byte 0: malformed: y\n") || !strings.HasSuffix(s, "gpuflight replay: and 3 more problems\n") ||
		strings.Count(s, "\n") != maxReplayProblems+1 {
		t.Errorf("problems %q", s)
	}
}
