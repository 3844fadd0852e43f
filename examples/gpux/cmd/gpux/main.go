// SPDX-License-Identifier: Apache-2.0

// Command gpux builds, runs, serves and inspects ONNX models that a gpux.yml describes. Each
// request is a trace that reaches down to the CUDA kernels that it launched.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/attribute"

	"github.com/gpuflight/gpuflight/examples/gpux/internal/engine"
	"github.com/gpuflight/gpuflight/examples/gpux/internal/ortlib"
	"github.com/gpuflight/gpuflight/sdk/gpufl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errUsage marks a mistake in the command line, which exits with 2.
var errUsage = errors.New("usage")

type usageError struct{ error }

func (usageError) Is(target error) bool { return target == errUsage }

func run(ctx context.Context, args []string, in io.Reader, out, stderr io.Writer) int {
	a := &app{in: in, out: out, err: stderr}
	root := &cobra.Command{
		Use: "gpux", Short: "Build, run, serve and inspect ONNX models",
		Version: "0.2.0", SilenceErrors: true, SilenceUsage: true,
	}
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&a.library, "ort-lib", "", "library of ONNX Runtime (default: GPUX_ORT_LIB, then the one that gpux runtime install installed, then the system's)")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(a.build(), a.run(), a.bench(), a.serve(), a.inspect(), a.pull(), a.list(), a.remove(), a.runtime())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "gpux:", err)
		if errors.Is(err, errUsage) {
			return 2
		}
		return 1
	}
	return 0
}

// app is what the commands share.
type app struct {
	in       io.Reader
	out, err io.Writer
	library  string
}

// one requires one argument.
func one(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("name one %s", what)}
		}
		return nil
	}
}

// open loads ONNX Runtime and returns where it is.
func (a *app) open() (ortlib.Found, error) {
	found, err := ortlib.Find(a.library)
	if err != nil {
		return found, err
	}
	return found, engine.Open(found.Path)
}

// record starts the recording of GPU work, as the service of this name. Settings of the environment,
// such as OTEL_SERVICE_NAME, take precedence.
func record(ctx context.Context, name, version string) (shutdown func(context.Context) error, err error) {
	options := []gpufl.Option{gpufl.WithGlobalTracerProvider()} // for otelhttp
	if os.Getenv("OTEL_SERVICE_NAME") == "" && !strings.Contains(os.Getenv("OTEL_RESOURCE_ATTRIBUTES"), "service.name=") {
		options = append(options, gpufl.WithResource(attribute.String("service.name", name), attribute.String("service.version", version)))
	}
	return gpufl.Init(ctx, options...)
}

// printf writes to the output. What cannot be written there cannot be reported.
func (a *app) printf(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }

// warn writes a line to the error output.
func (a *app) warn(format string, args ...any) {
	_, _ = fmt.Fprintf(a.err, "gpux: "+format+"\n", args...)
}
