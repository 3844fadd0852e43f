// SPDX-License-Identifier: Apache-2.0

// Command vectoradd adds vectors on the GPU and checks the sums, with every step in a scope. It shows
// the two calls that a Go program needs to be recorded.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpuflight/gpuflight/examples/internal/cuda"
	"github.com/gpuflight/gpuflight/sdk/gpufl"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var w work
	flags := flag.NewFlagSet("vectoradd", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&w.Elements, "n", 1<<20, "elements of each vector; a multiple of 512")
	flags.IntVar(&w.Launches, "launches", 100, "launches of vector_add, in each thread")
	flags.IntVar(&w.Threads, "threads", 1, "threads that work side by side, each with two streams")
	flags.IntVar(&w.Graphs, "graph", 0, "launches of a CUDA graph of 4 kernels, in each thread")
	flags.IntVar(&w.Empty, "empty", 0, "launches of an empty kernel, outside of every scope")
	asJSON := flags.Bool("json", false, "print what was launched as JSON")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := w.valid(); err != nil {
		fmt.Fprintln(stderr, "vectoradd:", err)
		return 2
	}

	shutdown, err := gpufl.Init(ctx)
	if err != nil {
		fmt.Fprintln(stderr, "vectoradd:", err)
		return 2
	}
	defer func() {
		// Not ctx: after ctrl-C there is still something to send.
		if err := shutdown(context.Background()); err != nil {
			fmt.Fprintln(stderr, "vectoradd: not everything was sent:", err)
		}
	}()

	began := time.Now()
	report, err := w.do(ctx)
	report.Seconds = time.Since(began).Seconds()
	switch {
	case errors.Is(err, cuda.ErrUnavailable):
		fmt.Fprintln(stderr, "vectoradd: this example needs an NVIDIA GPU and its driver:", err)
		return 1
	case err != nil:
		fmt.Fprintln(stderr, "vectoradd:", err)
	}
	if *asJSON {
		if e := json.NewEncoder(stdout).Encode(report); e != nil {
			fmt.Fprintln(stderr, "vectoradd:", e)
			return 1
		}
	} else if err == nil {
		report.print(stdout)
	}
	if err != nil {
		return 1
	}
	return 0
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %d threads, every sum is right, %.3f s\n", r.Device, len(r.Workers), r.Seconds)
	for _, k := range []string{"vector_add", "reverse_blocks", "nothing"} {
		if n := r.Kernels[k]; n > 0 {
			fmt.Fprintf(w, "%8d launches of %s\n", n, k)
		}
	}
	for _, kind := range []string{"HtoD", "DtoH"} {
		fmt.Fprintf(w, "%8d copies %s, %d bytes\n", r.Copies[kind].Count, kind, r.Copies[kind].Bytes)
	}
	if r.Recording.Recording {
		fmt.Fprintln(w, "recorded by", r.Recording.Library)
	} else {
		fmt.Fprintln(w, "not recorded:", r.Recording.Detail)
	}
}
