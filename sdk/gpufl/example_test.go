// SPDX-License-Identifier: Apache-2.0

package gpufl_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/gpuflight/gpuflight/sdk/gpufl"
)

// A program records from Init to shutdown. Without a GPU it runs unchanged.
func Example() {
	ctx := context.Background()
	shutdown, err := gpufl.Init(ctx)
	if err != nil {
		log.Fatal(err) // a setting is invalid; a missing GPU is not an error
	}
	defer func() {
		if err := shutdown(ctx); err != nil {
			log.Print(err) // it names the data that was not sent
		}
	}()

	ctx, scope := gpufl.Scope(ctx, "train_step", gpufl.Attr("step", 12))
	defer scope.End()
	train(ctx)
}

// The reason why nothing is recorded is a stable word.
func ExampleCurrentStatus() {
	os.Setenv("GPUFLIGHT_DISABLED", "true")
	defer os.Unsetenv("GPUFLIGHT_DISABLED")
	shutdown, err := gpufl.Init(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	status := gpufl.CurrentStatus()
	fmt.Println(status.Recording, status.Reason)
	fmt.Println(shutdown(context.Background()))
	fmt.Println(gpufl.CurrentStatus().Reason)
	// Output:
	// false disabled
	// <nil>
	// not_initialized
}

// Do ends the scope when the function returns, and records its error.
func ExampleDo() {
	err := gpufl.Do(context.Background(), "forward", func(ctx context.Context) error {
		train(ctx)
		return nil
	}, attribute.Int("layers", 12))
	fmt.Println(err)
	// Output: <nil>
}

// The application has a MeterProvider with a reader of its own, for example for Prometheus.
func ExampleWithMeterProvider() {
	ctx := context.Background()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	defer func() { _ = meters.Shutdown(ctx) }()
	shutdown, err := gpufl.Init(ctx, gpufl.WithMeterProvider(meters))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = shutdown(ctx) }() // before that of the provider
	train(ctx)
}

// A window shows what kernels wait for.
func ExampleDeepWindow() {
	ctx := context.Background()
	shutdown, err := gpufl.Init(ctx, gpufl.WithDeepWindows())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = shutdown(ctx) }()
	go train(ctx)
	window, err := gpufl.DeepWindow(ctx, 2*time.Second)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(window.Status)
}

func train(context.Context) {}
