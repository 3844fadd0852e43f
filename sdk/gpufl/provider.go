// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"os"
	"path/filepath"
	"reflect"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/capture"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/semconv"
)

// The provider that Init makes exports through the same client as the device's spans. So the
// environment is read once, there is one connection and one bounded queue, and GPUFLIGHT_OUTPUT has
// everything in one file. This needs a small exporter of our own instead of OpenTelemetry's.

// queueSpans is the provider's queue if OTEL_BSP_MAX_QUEUE_SIZE does not say. The exporter behind
// it never waits, so it is there for bursts; the standard's 2,048 spans are 20 ms of a busy
// service.
const queueSpans = 1 << 14

// isUnset reports whether a provider is none that somebody chose: OpenTelemetry's default, or
// the one that an earlier Init made. It is called with starting held.
func isUnset(p trace.TracerProvider) bool {
	if own, ok := p.(*sdktrace.TracerProvider); ok && made != nil && own == made {
		return true
	}
	// The default has no name outside its package, and asking it for a span would make one.
	t := reflect.TypeOf(p)
	return t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

// identify completes the settings with what the provider's resource and the session's must both
// have.
func identify(s *recorder.Settings) {
	if s.ServiceName == "" {
		s.ServiceName = semconv.UnknownService
		if exe, err := os.Executable(); err == nil {
			s.ServiceName += ":" + filepath.Base(exe)
		}
	}
	for _, a := range []gpuevent.Attr{
		gpuevent.Str(semconv.TelemetrySDKName, "opentelemetry"),
		gpuevent.Str(semconv.TelemetrySDKLanguage, "go"),
		gpuevent.Str(semconv.TelemetrySDKVersion, sdk.Version()),
	} {
		setResource(s, a)
	}
}

// newProvider makes a provider with the capture's resource. Sampling and batching are as OTEL_…
// says.
func newProvider(c *capture.Capture) *sdktrace.TracerProvider {
	var batch []sdktrace.BatchSpanProcessorOption
	if os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE") == "" {
		batch = append(batch, sdktrace.WithMaxQueueSize(queueSpans))
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithResource(resourceOf(c.Config())),
		sdktrace.WithBatcher(exporter{c.Client()}, batch...),
	)
}

// resourceOf is the session's resource, but for the device.
func resourceOf(cfg recorder.Config) *resource.Resource {
	kvs := []attribute.KeyValue{
		attribute.String(semconv.ServiceName, cfg.ServiceName),
		attribute.String(semconv.ServiceInstanceID, cfg.InstanceID),
		attribute.Int(semconv.ProcessPID, cfg.PID),
	}
	if cfg.HostName != "" {
		kvs = append(kvs, attribute.String(semconv.HostName, cfg.HostName))
	}
	for _, a := range cfg.Resource {
		key := attribute.Key(a.Key)
		switch a.Kind {
		case gpuevent.AttrInt:
			kvs = append(kvs, key.Int64(a.Int))
		case gpuevent.AttrFloat:
			kvs = append(kvs, key.Float64(a.Float))
		case gpuevent.AttrBool:
			kvs = append(kvs, key.Bool(a.Bool))
		case gpuevent.AttrStrings:
			kvs = append(kvs, key.StringSlice(a.Strings))
		default:
			kvs = append(kvs, key.String(a.Str))
		}
	}
	return resource.NewSchemaless(kvs...)
}
