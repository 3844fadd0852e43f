// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/semconv"
)

// idleService is the service under which the connector books idle time.
const idleService = "_idle"

// metrics reads the collector's Prometheus exporter.
type metrics struct {
	url string
}

// usage is what the gpu_usage connector has summed up over all devices.
type usage struct {
	devices []string
	// busy is the time in which a kernel ran, observed all time that is accounted for.
	busy, observed time.Duration
	// time is the device time by operation, launches the number of kernels.
	time     []operationTime
	launches int64
	// cost is by service, idle time last; without prices there is none.
	currency string
	cost     []serviceCost
}

type operationTime struct {
	operation string
	time      time.Duration
}

type serviceCost struct {
	service string
	cost    float64
}

// read scrapes once. Before the first export the usage is empty; that is no error.
func (m metrics) read(ctx context.Context) (usage, error) {
	var u usage
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url, http.NoBody)
	if err != nil {
		return u, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return u, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return u, err
	}
	if resp.StatusCode != http.StatusOK {
		return u, fmt.Errorf("the collector's metrics: %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return parseUsage(string(text))
}

// Names in Prometheus are those of OpenTelemetry with underscores, the unit and, for a counter,
// "total".
var (
	busySeries     = seriesName(semconv.MetricGPUCUDABusyTime, "seconds_total")
	observedSeries = seriesName(semconv.MetricGPUCUDAObservedTime, "seconds_total")
	timeSeries     = seriesName(semconv.MetricGPUCUDATime, "seconds_total")
	launchSeries   = seriesName(semconv.MetricGPUCUDAKernelLaunchCalls, "total")
	nodeSeries     = seriesName(semconv.MetricGPUCUDAGraphNodeLaunches, "total")
	costSeries     = seriesName(semconv.MetricGPUCUDACost, "total")
)

func seriesName(metric, suffix string) string { return labelName(metric) + "_" + suffix }

func labelName(attribute string) string { return strings.ReplaceAll(attribute, ".", "_") }

// parseUsage sums up an exposition in Prometheus' text format.
func parseUsage(text string) (usage, error) {
	var u usage
	devices := map[string]string{}
	times := map[string]time.Duration{}
	costs := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, labels, v, err := parseSeries(line)
		if err != nil {
			return usage{}, fmt.Errorf("the collector's metrics: %w: %q", err, line)
		}
		switch name {
		case busySeries:
			u.busy += nanoseconds(v)
			devices[labels[labelName(semconv.HWID)]] = labels[labelName(semconv.HWName)]
		case observedSeries:
			u.observed += nanoseconds(v)
		case timeSeries:
			times[labels[labelName(semconv.CUDAOperation)]] += nanoseconds(v)
		case launchSeries, nodeSeries:
			u.launches += int64(v)
		case costSeries:
			costs[labels[labelName(semconv.ServiceName)]] += v
			u.currency = labels[labelName(semconv.CUDACostCurrency)]
		}
	}
	for _, id := range sortedKeys(devices) {
		u.devices = append(u.devices, strings.TrimSpace(devices[id]+" "+id))
	}
	for _, operation := range sortedKeys(times) {
		u.time = append(u.time, operationTime{operation, times[operation]})
	}
	for _, service := range sortedKeys(costs) {
		if service != idleService {
			u.cost = append(u.cost, serviceCost{service, costs[service]})
		}
	}
	if idle, ok := costs[idleService]; ok {
		u.cost = append(u.cost, serviceCost{idleService, idle})
	}
	return u, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// nanoseconds undoes the division by which a sum of nanoseconds became seconds. It is exact as
// long as a sum stays under some weeks.
func nanoseconds(seconds float64) time.Duration { return time.Duration(math.Round(seconds * 1e9)) }

var errSeries = errors.New("not a series")

// parseSeries takes one line of the text format apart: name{label="value",...} value [timestamp].
func parseSeries(line string) (name string, labels map[string]string, v float64, err error) {
	end := strings.IndexAny(line, "{ ")
	if end <= 0 {
		return "", nil, 0, errSeries
	}
	name, line = line[:end], line[end:]
	labels = map[string]string{}
	if line[0] == '{' {
		for line = line[1:]; ; line = strings.TrimPrefix(line, ",") {
			if rest, ok := strings.CutPrefix(line, "}"); ok {
				line = rest
				break
			}
			key, rest, ok := strings.Cut(line, "=")
			if !ok {
				return "", nil, 0, errSeries
			}
			// The format escapes as Go does, but for fewer characters.
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				return "", nil, 0, errSeries
			}
			if labels[key], err = strconv.Unquote(quoted); err != nil {
				return "", nil, 0, errSeries
			}
			line = rest[len(quoted):]
		}
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return "", nil, 0, errSeries
	}
	if v, err = strconv.ParseFloat(fields[0], 64); err != nil {
		return "", nil, 0, errSeries
	}
	return name, labels, v, nil
}

// of returns the device time of one operation.
func (u *usage) of(operation string) time.Duration {
	for _, t := range u.time {
		if t.operation == operation {
			return t.time
		}
	}
	return 0
}

// print writes the usage.
func (u *usage) print(w io.Writer) {
	for _, name := range u.devices {
		fmt.Fprintf(w, "device    %s\n", name)
	}
	share := 0.0
	if u.observed > 0 {
		share = 100 * float64(u.busy) / float64(u.observed)
	}
	fmt.Fprintf(w, "busy      %s of %s (%.1f %%): kernels that overlap count once\n", milliseconds(u.busy), milliseconds(u.observed), share)
	fmt.Fprint(w, "used      ")
	for i, t := range u.time {
		if i > 0 {
			fmt.Fprint(w, ", ")
		}
		fmt.Fprintf(w, "%s %s", t.operation, milliseconds(t.time))
	}
	fmt.Fprintln(w, ": kernels that overlap count each")
	if len(u.cost) == 0 {
		return
	}
	sum := 0.0
	fmt.Fprint(w, "cost      ")
	for i, c := range u.cost {
		if i > 0 {
			fmt.Fprint(w, ", ")
		}
		fmt.Fprintf(w, "%s %.6f %s", c.service, c.cost, u.currency)
		sum += c.cost
	}
	if u.observed > 0 {
		fmt.Fprintf(w, ": %.2f %s an hour", sum/u.observed.Hours(), u.currency)
	}
	fmt.Fprintln(w)
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d)/1e6) }
