// SPDX-License-Identifier: Apache-2.0

package gpufl

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/deep"
	"github.com/gpuflight/gpuflight/internal/recording/recorder"
	"github.com/gpuflight/gpuflight/semconv"
)

// Option is a setting made in code. It wins over the environment.
type Option func(*options) error

type options struct {
	settings recorder.Settings
	deep     deep.Config
	profiles bool
	provider trace.TracerProvider
	global   bool
	meters   metric.MeterProvider
	loggers  log.LoggerProvider
	logger   *slog.Logger
}

// WithTracerProvider makes scopes spans of the given provider. Without it they are spans of the
// global one (otel.GetTracerProvider) if one has been set before Init, and else of one that Init
// makes for scopes alone. Spans of device work always go to the OTLP endpoint: they have the
// device's times and ids of their own, which the API of a provider cannot express.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(o *options) error {
		if p == nil {
			return errors.New("WithTracerProvider: the provider is nil")
		}
		o.provider = p
		return nil
	}
}

// WithGlobalTracerProvider lets Init set the TracerProvider that it makes for scopes as the global one,
// so that instrumentation such as otelhttp uses it too. It does nothing if a global one has been set
// before, or with [WithTracerProvider]. Without this option Init sets no global.
func WithGlobalTracerProvider() Option {
	return func(o *options) error {
		o.global = true
		return nil
	}
}

// WithMeterProvider makes the recording's sums and gauges asynchronous instruments of the given
// provider, with its resource and readers. They have the values of the last
// GPUFLIGHT_METRIC_INTERVAL (10s) and, after shutdown, the final ones until the next Init: shut the
// provider down after the recording. Histograms still go to the OTLP endpoint, since the API has no
// asynchronous ones.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(o *options) error {
		if p == nil {
			return errors.New("WithMeterProvider: the provider is nil")
		}
		o.meters = p
		return nil
	}
}

// WithLoggerProvider sends the recording's log records through the given provider: the cuda.capture
// log at the end, NVTX marks and the results of deep windows. Shut the provider down after the
// recording. Without it they go to the OTLP endpoint.
func WithLoggerProvider(p log.LoggerProvider) Option {
	return func(o *options) error {
		if p == nil {
			return errors.New("WithLoggerProvider: the provider is nil")
		}
		o.loggers = p
		return nil
	}
}

// WithResource adds attributes to the resource of everything that Init sends. Give it what the
// application's own TracerProvider has and the environment does not say, such as service.name.
func WithResource(attributes ...attribute.KeyValue) Option {
	return func(o *options) error {
		for _, kv := range attributes {
			if !kv.Valid() {
				return fmt.Errorf("WithResource: the attribute %q has no key or no value", kv.Key)
			}
			setResource(&o.settings, resourceAttr(kv))
		}
		return nil
	}
}

// WithMaxSpansPerSecond limits the spans of device work (GPUFLIGHT_MAX_SPANS_PER_SECOND): above it
// the longest and a fair share of every kernel name are kept, and the rest is in the metrics only.
// 0 makes no such spans at all.
func WithMaxSpansPerSecond(n int) Option {
	return func(o *options) error {
		if n < 0 {
			return fmt.Errorf("WithMaxSpansPerSecond: %d is below 0", n)
		}
		o.settings.MaxSpansPerSecond = n
		if n == 0 {
			o.settings.MaxSpansPerSecond = -1 // in the recorder's settings 0 is the default
		}
		return nil
	}
}

// WithKinds says what to record, in the words of GPUFLIGHT_KINDS: either all of it ("kernel",
// "memcpy"), or changes to the default ("+sync", "-memset").
func WithKinds(kinds ...string) Option {
	return func(o *options) error {
		set, err := recorder.ParseKinds(strings.Join(kinds, ","))
		if err != nil {
			return fmt.Errorf("WithKinds: %w", err)
		}
		o.settings.Kinds = set
		return nil
	}
}

// WithDeepWindows allows deep windows, by [DeepWindow] and by gpuflight deep, as GPUFLIGHT_DEEP=1
// does. The images of modules are then kept in memory, at most 256 MiB of them.
func WithDeepWindows() Option {
	return func(o *options) error {
		o.deep.Enabled = true
		return nil
	}
}

// WithProfiles sends deep windows as profiles too, as GPUFLIGHT_PROFILES=1 does. The signal is in
// development: an endpoint that does not know it costs one warning.
func WithProfiles() Option {
	return func(o *options) error {
		o.profiles = true
		return nil
	}
}

// WithLogger sets where the SDK reports its own problems. The default is standard error, from
// GPUFLIGHT_LOG_LEVEL (warn) on.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) error {
		if l == nil {
			return errors.New("WithLogger: the logger is nil")
		}
		o.logger = l
		return nil
	}
}

// Attr is an attribute of any basic type: strings, booleans, integers, floats, and slices of
// string, int, int64, float64 and bool. Other values are written as fmt.Sprint writes them.
func Attr(key string, value any) attribute.KeyValue {
	switch v := value.(type) {
	case string:
		return attribute.String(key, v)
	case bool:
		return attribute.Bool(key, v)
	case int:
		return attribute.Int(key, v)
	case int8:
		return attribute.Int64(key, int64(v))
	case int16:
		return attribute.Int64(key, int64(v))
	case int32:
		return attribute.Int64(key, int64(v))
	case int64:
		return attribute.Int64(key, v)
	case uint8:
		return attribute.Int64(key, int64(v))
	case uint16:
		return attribute.Int64(key, int64(v))
	case uint32:
		return attribute.Int64(key, int64(v))
	case float32:
		return attribute.Float64(key, float64(v))
	case float64:
		return attribute.Float64(key, v)
	case []string:
		return attribute.StringSlice(key, v)
	case []int:
		return attribute.IntSlice(key, v)
	case []int64:
		return attribute.Int64Slice(key, v)
	case []float64:
		return attribute.Float64Slice(key, v)
	case []bool:
		return attribute.BoolSlice(key, v)
	case uint, uint64, uintptr:
		return unsigned(key, value)
	default:
		return attribute.String(key, fmt.Sprint(value))
	}
}

// unsigned writes what fits as an integer and else as text, which loses no digit.
func unsigned(key string, value any) attribute.KeyValue {
	var n uint64
	switch v := value.(type) {
	case uint:
		n = uint64(v)
	case uint64:
		n = v
	case uintptr:
		n = uint64(v)
	}
	if n > 1<<63-1 {
		return attribute.String(key, fmt.Sprint(n))
	}
	return attribute.Int64(key, int64(n))
}

// setResource puts an attribute where the settings have it.
func setResource(s *recorder.Settings, a gpuevent.Attr) {
	if a.Key == semconv.ServiceName && a.Kind == gpuevent.AttrString {
		s.ServiceName = a.Str
		return
	}
	if a.Key == semconv.ServiceInstanceID {
		// The session's id is a UUID, from which all others are derived. What is none cannot be it,
		// and two would contradict.
		if recorder.IsUUID(a.Str) {
			s.InstanceID = a.Str
		}
		return
	}
	for i := range s.Resource {
		if s.Resource[i].Key == a.Key {
			s.Resource[i] = a
			return
		}
	}
	s.Resource = append(s.Resource, a)
}

// resourceAttr converts an attribute of a resource.
func resourceAttr(kv attribute.KeyValue) gpuevent.Attr {
	key := string(kv.Key)
	switch kv.Value.Type() {
	case attribute.BOOL:
		return gpuevent.B(key, kv.Value.AsBool())
	case attribute.INT64:
		return gpuevent.I(key, kv.Value.AsInt64())
	case attribute.FLOAT64:
		return gpuevent.F(key, kv.Value.AsFloat64())
	case attribute.STRINGSLICE:
		return gpuevent.Strs(key, kv.Value.AsStringSlice())
	default:
		return gpuevent.Str(key, kv.Value.String())
	}
}
