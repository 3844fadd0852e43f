// SPDX-License-Identifier: Apache-2.0

package semconv_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuflight/gpuflight/semconv"
	"github.com/gpuflight/gpuflight/semconv/internal/render"
)

func TestGeneratedFilesAreCurrent(t *testing.T) {
	files, err := render.Files()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 4 {
		t.Fatalf("%d generated files, want 4", len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil {
			t.Errorf("%v; run go generate ./semconv", err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is stale; run go generate ./semconv", name)
		}
	}
}

func TestNamesAreUniqueAndWellFormed(t *testing.T) {
	wellFormed := regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`)
	consts := map[string]string{}
	check := func(goName, name, brief string) {
		t.Helper()
		if !wellFormed.MatchString(name) {
			t.Errorf("%q is not a dotted lower-case name", name)
		}
		if other, ok := consts[goName]; ok {
			t.Errorf("%q and %q are both called %s in Go", name, other, goName)
		}
		consts[goName] = name
		if !strings.HasSuffix(brief, ".") && !strings.HasSuffix(brief, "…") {
			t.Errorf("%s: description %q is not a sentence", name, brief)
		}
	}
	for _, a := range semconv.Attributes {
		check(render.Name(a.Name), a.Name, a.Brief)
	}
	for _, m := range semconv.Metrics {
		check("Metric"+render.Name(m.Name), m.Name, m.Brief)
	}
	for _, e := range semconv.Events {
		check("Event"+render.Name(e.Name), e.Name, e.Brief)
	}
	// OpenTelemetry's rule: an attribute is never the namespace of another.
	for _, a := range semconv.Attributes {
		for _, b := range semconv.Attributes {
			if strings.HasPrefix(b.Name, a.Name+".") {
				t.Errorf("attribute %s is also the namespace of %s", a.Name, b.Name)
			}
		}
	}
}

func TestMetricsAndEventsUseRegisteredAttributes(t *testing.T) {
	known := map[string]bool{}
	for _, a := range semconv.Attributes {
		known[a.Name] = true
	}
	check := func(owner string, names []string) {
		t.Helper()
		seen := map[string]bool{}
		for _, n := range names {
			if !known[n] {
				t.Errorf("%s: attribute %s is not registered", owner, n)
			}
			if seen[n] {
				t.Errorf("%s: attribute %s twice", owner, n)
			}
			seen[n] = true
		}
	}
	for _, m := range semconv.Metrics {
		check(m.Name, m.Attributes)
	}
	for _, e := range semconv.Events {
		check(e.Name, e.Attributes)
	}
	check("data points of devices", semconv.DevicePoint)
}

func TestPlacesOfAttributesExist(t *testing.T) {
	i := slices.IndexFunc(semconv.Attributes, func(a semconv.Attribute) bool { return a.Name == semconv.CUDAOperation })
	places := append([]string{"resource", "device", "log"}, semconv.Attributes[i].Values...)
	for _, d := range semconv.DeviceSpans {
		if !slices.Contains(places, d) {
			t.Errorf("%s is not a value of %s", d, semconv.CUDAOperation)
		}
	}
	used := map[string]bool{}
	for _, m := range semconv.Metrics {
		for _, a := range m.Attributes {
			used[a] = true
		}
	}
	for _, e := range semconv.Events {
		for _, a := range e.Attributes {
			used[a] = true
		}
	}
	for _, a := range semconv.Attributes {
		for _, on := range a.On {
			if !slices.Contains(places, on) {
				t.Errorf("%s is on %q, which is neither a kind of span nor the resource", a.Name, on)
			}
		}
		if len(a.On) == 0 && !used[a.Name] && !slices.Contains(reserved, a.Name) {
			t.Errorf("%s is nowhere", a.Name)
		}
	}
}

// reserved are names that the conventions list for components to come, without a fixed place.
var reserved = []string{semconv.HWModel}

func TestConstantsOfKnownNames(t *testing.T) {
	for got, want := range map[string]string{
		semconv.CUDAStreamID:                  "cuda.stream.id",
		semconv.CUDAKernelRegistersPerThread:  "cuda.kernel.registers_per_thread",
		semconv.HWGPUClockDomainSM:            "sm",
		semconv.CUDAOperationMemcpy:           "memcpy",
		semconv.CUDALaunchStartTimeUnixNano:   "cuda.launch.start_time_unix_nano",
		semconv.MetricHWGPUIOThroughput:       "hw.gpu.io.throughput",
		semconv.EventCUDAPCSample:             "cuda.pc_sample",
		semconv.EventGPUXID:                   "gpu.xid",
		semconv.CUDAMetricValueOverflow:       "cuda.metric.value_overflow",
		semconv.MetricHWFanSpeedRatio:         "hw.fan.speed_ratio",
		semconv.SystemMemoryStateUsed:         "used",
		semconv.MetricGPUCUDAKernelDuration:   "gpu.cuda.kernel.duration",
		semconv.CUDAOccupancyActiveWarpsPerSM: "cuda.occupancy.active_warps_per_sm",
	} {
		if got != want {
			t.Errorf("constant is %q, want %q", got, want)
		}
	}
}

func TestPackageImportsNothing(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		checked++
		if len(f.Imports) > 0 {
			t.Errorf("%s imports %s", name, f.Imports[0].Path.Value)
		}
	}
	if checked < 5 {
		t.Errorf("looked at %d files only", checked)
	}
}
