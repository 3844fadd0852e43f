// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command nvml measures the CPU time of one scrape of the nvml receiver, with one device and with
// eight. It uses a fake NVML, so the result is the receiver's own work, from dlopen'd functions to
// pdata. It includes the fake's check of its control file at each call. All groups of calls are
// enabled, and the slow one is due at every scrape.
//
// The exit status is 1 if a scrape of eight devices exceeds the limit of CPU time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver"
	"github.com/gpuflight/gpuflight/receiver/nvmlreceiver/nvmltest"
)

func main() {
	duration := flag.Duration("duration", 3*time.Second, "time to measure for each number of devices")
	most := flag.Duration("most", 20*time.Millisecond, "bound on the CPU time of a scrape of eight devices")
	flag.Parse()
	if err := run(*duration, *most); err != nil {
		fmt.Fprintln(os.Stderr, "nvml:", err)
		os.Exit(1)
	}
}

func run(duration, most time.Duration) error {
	library, err := nvmltest.Build()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nvmlbench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	control := filepath.Join(dir, "control")
	if err := os.Setenv(nvmltest.Env, control); err != nil {
		return err
	}
	var last time.Duration
	for _, devices := range []int{1, 8} {
		values := map[string]string{"count": strconv.Itoa(devices)}
		for i := range devices {
			maps.Copy(values, nvmltest.H200(i))
		}
		if err := nvmltest.New(control).Set(values); err != nil {
			return err
		}
		if last, err = measure(library, devices, duration); err != nil {
			return err
		}
	}
	if last > most {
		return fmt.Errorf("a scrape of eight devices takes %v of CPU time, above %v", last, most)
	}
	return nil
}

// measure prints and returns the CPU time of a scrape.
func measure(library string, devices int, duration time.Duration) (time.Duration, error) {
	const interval = 20 * time.Millisecond
	f := nvmlreceiver.NewFactory()
	cfg := f.CreateDefaultConfig()
	conf := confmap.NewFromStringMap(map[string]any{
		"library_path": library, "collection_interval": interval.String(), "timeout": interval.String(), "initial_delay": "0s",
		"groups": map[string]any{"slow": map[string]any{"interval": "0s"}},
	})
	if err := conf.Unmarshal(cfg); err != nil {
		return 0, err
	}
	var scrapes, points atomic.Int64
	sink, err := consumer.NewMetrics(func(_ context.Context, m pmetric.Metrics) error {
		scrapes.Add(1)
		points.Store(int64(m.DataPointCount()))
		return nil
	})
	if err != nil {
		return 0, err
	}
	set := receiver.Settings{ID: component.NewID(f.Type()), TelemetrySettings: component.TelemetrySettings{
		Logger: zap.NewNop(), MeterProvider: noop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider(),
	}}
	r, err := f.CreateMetrics(context.Background(), set, cfg, sink)
	if err != nil {
		return 0, err
	}
	if err := r.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		return 0, err
	}
	// The first scrapes probe what the devices support.
	time.Sleep(10 * interval)
	before, began := scrapes.Load(), cpu()
	time.Sleep(duration)
	n, used := scrapes.Load()-before, cpu()-began
	if err := r.Shutdown(context.Background()); err != nil {
		return 0, err
	}
	if n == 0 || points.Load() < int64(20*devices) {
		return 0, errors.New("nothing was scraped")
	}
	each := used / time.Duration(n)
	fmt.Printf("nvml: %d device(s): %v CPU a scrape, %d points (%d scrapes)\n", devices, each.Round(time.Microsecond), points.Load(), n)
	return each, nil
}

// cpu is the CPU time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
