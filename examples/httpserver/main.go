// SPDX-License-Identifier: Apache-2.0

// Command httpserver does GPU work for each HTTP request, and its traces show which request caused
// which kernels: request, scope, kernels.
//
//	GET /work?launches=5
//
// With -self-test it sends requests itself and prints what each must have in its trace.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

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
	flags := flag.NewFlagSet("httpserver", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:8080", "address to listen at")
	requests := flags.Int("self-test", 0, "send so many requests, print what each launched as JSON, and end")
	concurrency := flags.Int("concurrency", 16, "requests that -self-test has on the way at a time")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *requests < 0 || *concurrency < 1 {
		fmt.Fprintln(stderr, "httpserver: -self-test must not be below 0, and -concurrency not below 1")
		return 2
	}

	shutdown, err := gpufl.Init(ctx, gpufl.WithGlobalTracerProvider()) // for otelhttp
	if err != nil {
		fmt.Fprintln(stderr, "httpserver:", err)
		return 2
	}
	defer func() {
		if err := shutdown(context.Background()); err != nil {
			fmt.Fprintln(stderr, "httpserver: not everything was sent:", err)
		}
	}()
	// A caller's trace goes on here.
	otel.SetTextMapPropagator(propagation.TraceContext{})

	gpu, err := newWorker()
	if err != nil {
		if errors.Is(err, cuda.ErrUnavailable) {
			err = fmt.Errorf("this example needs an NVIDIA GPU and its driver: %w", err)
		}
		fmt.Fprintln(stderr, "httpserver:", err)
		return 1
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		fmt.Fprintln(stderr, "httpserver:", errors.Join(err, gpu.close()))
		return 1
	}
	if status := gpufl.CurrentStatus(); !status.Recording {
		fmt.Fprintln(stderr, "httpserver: not recorded:", status.Detail)
	}

	server := &http.Server{
		Handler:           otelhttp.NewHandler(handler(gpu), "server", otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + r.URL.Path })),
		ReadHeaderTimeout: 10 * time.Second,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	url := "http://" + listener.Addr().String() + "/work"
	if *requests > 0 {
		err = selfTest(ctx, url, *requests, *concurrency, stdout)
	} else {
		fmt.Fprintln(stderr, "httpserver: try", url+"?launches=5")
		select {
		case <-ctx.Done():
		case err = <-served:
		}
	}
	bound, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err = errors.Join(err, server.Shutdown(bound), gpu.close()); err != nil {
		fmt.Fprintln(stderr, "httpserver:", err)
		return 1
	}
	return 0
}

// selfTest sends requests for 1 to 7 launches each and prints what they answer.
func selfTest(ctx context.Context, url string, requests, concurrency int, to io.Writer) error {
	transport := &http.Transport{MaxIdleConnsPerHost: concurrency}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	answers, failed := make([]answer, requests), make([]error, requests)
	next := make(chan int)
	var senders sync.WaitGroup
	for range concurrency {
		senders.Go(func() {
			for i := range next {
				answers[i], failed[i] = ask(ctx, client, fmt.Sprintf("%s?launches=%d", url, i%7+1))
			}
		})
	}
	began := time.Now()
	for i := range requests {
		next <- i
	}
	close(next)
	senders.Wait()
	result := struct {
		Requests  []answer     `json:"requests"`
		Seconds   float64      `json:"seconds"`
		Recording gpufl.Status `json:"recording"`
	}{answers, time.Since(began).Seconds(), gpufl.CurrentStatus()}
	return errors.Join(errors.Join(failed...), json.NewEncoder(to).Encode(result))
}

func ask(ctx context.Context, client *http.Client, url string) (a answer, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return a, err
	}
	response, err := client.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500)) // for the message only
		return a, fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return a, json.NewDecoder(response.Body).Decode(&a)
}
