// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/gpuflight/gpuflight/internal/testing/cuptitest"
)

// childVariable makes a test do its child's part.
const childVariable = "GPUFLIGHT_TEST_CHILD"

// child runs this test in a process of its own, with the fake GPU. It returns nil in that process.
func child(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Getenv(childVariable) == t.Name() {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), cuptitest.Environment(cuptitest.Build(t))...)
	cmd.Env = append(cmd.Env, childVariable+"="+t.Name())
	return cmd
}

// skipWithChild skips a test whose child skipped it, for example without cgo.
func skipWithChild(t *testing.T, output []byte) {
	t.Helper()
	if bytes.Contains(output, []byte("--- SKIP")) {
		t.Skip("the child skipped it")
	}
}

// busy launches forever, in scopes.
func busy(t *testing.T, gpu *cuptitest.Fake) {
	for range 4 {
		go func() {
			for {
				_ = Do(t.Context(), "step", func(context.Context) error { gpu.Launch("k", 10); return nil })
			}
		}()
	}
	time.Sleep(300 * time.Millisecond) // flushes go on too
}

// A program that ends without shutdown ends as it would without us.
func TestExitWithoutShutdown(t *testing.T) {
	cmd := child(t)
	if cmd == nil {
		gpu, _ := recordOn(t)
		busy(t, gpu)
		os.Exit(7)
	}
	out, err := cmd.CombinedOutput()
	skipWithChild(t, out)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, string(out))
	assert.Equal(t, 7, exit.ExitCode(), string(out))
}

func TestSignalsAreUntouched(t *testing.T) {
	cmd := child(t)
	if cmd == nil {
		gpu, _ := recordOn(t)
		busy(t, gpu)
		_, _ = os.Stdout.WriteString("ready\n")
		select {}
	}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	var before []byte
	for lines.Scan() && !strings.HasSuffix(lines.Text(), "ready") {
		before = append(before, lines.Bytes()...)
	}
	defer func() { _ = cmd.Wait() }() // if the test ends before it waits itself
	skipWithChild(t, before)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for lines.Scan() {
	}
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	assert.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal())
}

// A provider that the program set before Init is the one of scopes.
func TestScopesAreSpansOfTheGlobalProvider(t *testing.T) {
	if cmd := child(t); cmd != nil {
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	spans := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	gpu, stop := recordOn(t)
	_, scope := Scope(t.Context(), "step")
	gpu.Launch("k", 3)
	scope.End()
	recorded := stop()
	require.Len(t, spans.Ended(), 1)
	id := [8]byte(spans.Ended()[0].SpanContext().SpanID())
	assert.Equal(t, 3, kernels(recorded)[id], "kernels hang under the program's own span")
	for _, s := range recorded {
		assert.NotEqual(t, "step", s.Name(), "which is the program's to send")
	}
}

// An endpoint that takes connections and says nothing costs no more than was allowed.
func TestShutdownKeepsItsBound(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+silent.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "GPUFLIGHT_SHUTDOWN_TIMEOUT", "300ms",
			"OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
		shutdown, err := Init(t.Context())
		require.NoError(t, err)
		_, scope := Scope(t.Context(), "step")
		scope.End()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.ErrorContains(t, shutdown(ctx), "were not sent")
		require.NoError(t, ctx.Err(), "the bound is that of the settings")
		cancel()
		assert.Equal(t, "not_initialized", CurrentStatus().Reason)
	}
}

func TestInitAfterItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Init(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrInitialized)
}
