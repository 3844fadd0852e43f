// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/bytesize"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/internal/recording/budget"
	"github.com/gpuflight/gpuflight/internal/recording/settings"
	"github.com/gpuflight/gpuflight/semconv"
)

// DefaultShutdownTimeout bounds how long a program waits for the recorder at its end.
const DefaultShutdownTimeout = 5 * time.Second

// Settings are the settings in the environment. The SDK and the injection library share them.
type Settings struct {
	// Disabled is GPUFLIGHT_DISABLED.
	Disabled bool
	// Kinds, GraphNodes, Library and BufferBytes are fields of cupti.Config. Their variables are
	// GPUFLIGHT_KINDS, GPUFLIGHT_GRAPH_NODES, GPUFLIGHT_CUPTI and GPUFLIGHT_BUFFER_SIZE (0 if
	// unset).
	Kinds       cupti.Kinds
	GraphNodes  bool
	Library     string
	BufferBytes int
	// ServiceName is OTEL_SERVICE_NAME or service.name of OTEL_RESOURCE_ATTRIBUTES, or "".
	// InstanceID is service.instance.id of OTEL_RESOURCE_ATTRIBUTES if it is a UUID. Resource holds
	// the other attributes.
	ServiceName, InstanceID string
	Resource                []gpuevent.Attr
	// Parent is TRACEPARENT if HasParent is set. As the standard requires, an invalid one is
	// ignored.
	Parent        gpuevent.Ref
	HasParent     bool
	ParentSampled bool
	// As in Config; 0 and nil if unset.
	MaxSpansPerSecond, MaxSpansPerTrace        int
	KernelsOnly                                bool
	Include, Exclude                           []string
	MinDuration, FlushInterval, MetricInterval time.Duration
	// OverheadBudget is GPUFLIGHT_OVERHEAD_BUDGET, or 0.
	OverheadBudget float64
	// ShutdownTimeout is GPUFLIGHT_SHUTDOWN_TIMEOUT.
	ShutdownTimeout time.Duration
	// LogLevel is GPUFLIGHT_LOG_LEVEL (debug, info, warn, error, off). The default is warn; off is
	// above all levels.
	LogLevel slog.Level
	// SummaryDir is the folder for the Summary, or "" for none.
	SummaryDir string
}

// LogOff is above the level of every message.
const LogOff = slog.Level(math.MaxInt32)

// SettingsFromEnv reads the settings with getenv, which must behave like os.Getenv: "" means unset.
// The error names each variable with an invalid value and its valid values. The returned Settings
// are usable even then: invalid variables have their defaults.
func SettingsFromEnv(getenv func(string) string) (Settings, error) {
	r := envReader{settings.Reader{Getenv: getenv}}
	s := Settings{
		Disabled:          r.Bool("GPUFLIGHT_DISABLED"),
		GraphNodes:        r.Bool("GPUFLIGHT_GRAPH_NODES"),
		Library:           getenv("GPUFLIGHT_CUPTI"),
		BufferBytes:       r.bufferSize("GPUFLIGHT_BUFFER_SIZE"),
		Kinds:             r.kinds("GPUFLIGHT_KINDS"),
		MaxSpansPerSecond: r.Int("GPUFLIGHT_MAX_SPANS_PER_SECOND", -1),
		MaxSpansPerTrace:  r.Int("GPUFLIGHT_MAX_SPANS_PER_TRACE", 2),
		KernelsOnly:       r.Bool("GPUFLIGHT_KERNELS_ONLY"),
		Include:           list(getenv("GPUFLIGHT_INCLUDE")),
		Exclude:           list(getenv("GPUFLIGHT_EXCLUDE")),
		MinDuration:       r.Duration("GPUFLIGHT_MIN_DURATION", 0, 0),
		FlushInterval:     r.Duration("GPUFLIGHT_FLUSH_INTERVAL", time.Millisecond, 0),
		MetricInterval:    r.Duration("GPUFLIGHT_METRIC_INTERVAL", time.Millisecond, 0),
		OverheadBudget:    r.budget("GPUFLIGHT_OVERHEAD_BUDGET"),
		ShutdownTimeout:   r.Duration("GPUFLIGHT_SHUTDOWN_TIMEOUT", 0, DefaultShutdownTimeout),
		LogLevel:          r.level("GPUFLIGHT_LOG_LEVEL"),
		SummaryDir:        getenv("GPUFLIGHT_SUMMARY_DIR"),
	}
	if n, err := strconv.Atoi(getenv("GPUFLIGHT_MAX_SPANS_PER_SECOND")); err == nil && n == 0 {
		s.MaxSpansPerSecond = -1 // none; 0 in Config means the default
	}
	s.Parent, s.ParentSampled, s.HasParent = ParseTraceparent(getenv("TRACEPARENT"))
	attributes, err := ParseResource(getenv("OTEL_RESOURCE_ATTRIBUTES"))
	if err != nil {
		r.Fail(err)
	}
	for _, a := range attributes {
		switch {
		case a.Key == semconv.ServiceName:
			s.ServiceName = a.Str
		case a.Key == semconv.ServiceInstanceID && IsUUID(a.Str):
			s.InstanceID = a.Str
		case a.Key == semconv.ServiceInstanceID:
			// All ids are derived from the instance id. Another id than a UUID cannot replace it,
			// and two ids would contradict each other.
		default:
			s.Resource = append(s.Resource, a)
		}
	}
	if name := getenv("OTEL_SERVICE_NAME"); name != "" {
		s.ServiceName = name
	}
	return s, r.Err()
}

// Config returns a recorder's configuration with the settings. [DetectProcess] fills in the fields
// of the process: PID, HostName, Command and their attributes.
func (s *Settings) Config() Config {
	return Config{
		ServiceName: s.ServiceName, InstanceID: s.InstanceID, Resource: s.Resource,
		Parent: s.Parent, HasParent: s.HasParent, ParentSampled: s.ParentSampled,
		MaxSpansPerSecond: s.MaxSpansPerSecond, MaxSpansPerTrace: s.MaxSpansPerTrace,
		KernelsOnly: s.KernelsOnly, Include: s.Include, Exclude: s.Exclude, MinDuration: s.MinDuration,
		FlushInterval: s.FlushInterval, MetricInterval: s.MetricInterval,
		Asked: s.Kinds, OverheadBudget: s.OverheadBudget,
	}
}

// CheckWindows returns an error if deep windows are allowed and there is an overhead budget.
// Windows require contexts and modules from the start, and a detached CUPTI does not report them.
func (s *Settings) CheckWindows(allowed bool) error {
	if allowed && s.OverheadBudget != 0 {
		return &settings.Error{Variable: "GPUFLIGHT_OVERHEAD_BUDGET", Problem: " and deep profiling (GPUFLIGHT_DEEP) exclude each other: remove one of them"}
	}
	return nil
}

// Valid buffer sizes are minBuffer to maxBuffer bytes. allBuffers is the size of all buffers, as by
// default.
const (
	minBuffer  = 256 << 10
	maxBuffer  = 64 << 20
	allBuffers = 256 << 20
)

// Collector returns the collector's configuration with the settings.
func (s *Settings) Collector() cupti.Config {
	c := cupti.Config{Library: s.Library, Kinds: s.Kinds, GraphNodes: s.GraphNodes, BufferBytes: s.BufferBytes}
	c.Detachable = s.OverheadBudget != 0
	if s.BufferBytes > 0 {
		c.Buffers = allBuffers / s.BufferBytes
	}
	return c
}

// envReader reads the values that only the recorder has.
type envReader struct{ settings.Reader }

func (r *envReader) level(name string) slog.Level {
	switch v := r.Getenv(name); strings.ToLower(v) {
	case "", "warn", "warning":
		return slog.LevelWarn
	case "debug":
		return slog.LevelDebug
	case "info":
		return slog.LevelInfo
	case "error":
		return slog.LevelError
	case "off", "none":
		return LogOff
	default:
		r.Bad(name, v, "debug, info, warn, error or off")
		return slog.LevelWarn
	}
}

func (r *envReader) bufferSize(name string) int {
	v := r.Getenv(name)
	if v == "" {
		return 0
	}
	n, err := bytesize.Parse(v)
	if err != nil || n < minBuffer || n > maxBuffer {
		r.Bad(name, v, "a size of "+bytesize.Format(minBuffer)+" to "+bytesize.Format(maxBuffer))
		return 0
	}
	return int(n)
}

func (r *envReader) budget(name string) float64 {
	v := r.Getenv(name)
	if v == "" {
		return 0
	}
	b, err := budget.Parse(v)
	if err != nil {
		r.Bad(name, v, "a share of the program's time, such as 2% or 0.02")
		return 0
	}
	return b
}

func (r *envReader) kinds(name string) cupti.Kinds {
	kinds, err := ParseKinds(r.Getenv(name))
	if err != nil {
		r.Fail(settings.Wrong(name, "%v", err))
		return cupti.DefaultKinds
	}
	return kinds
}

// kindWords are the names of kinds in settings and telemetry, in order. External is absent, because
// it follows from scopes.
var kindWords = []struct {
	word  string
	kinds cupti.Kinds
}{
	{"kernel", cupti.KindsOf(cupti.KindKernel)},
	{"memcpy", cupti.KindsOf(cupti.KindMemcpy, cupti.KindMemcpyP2P)},
	{"memset", cupti.KindsOf(cupti.KindMemset)},
	{"memory", cupti.KindsOf(cupti.KindMemory)},
	{"sync", cupti.KindsOf(cupti.KindSync)},
	{"graph", cupti.KindsOf(cupti.KindGraph)},
	{"nvtx", cupti.KindsOf(cupti.KindNVTX)},
	{"runtime", cupti.KindsOf(cupti.KindRuntimeAPI)},
	{"driver", cupti.KindsOf(cupti.KindDriverAPI)},
	{"overhead", cupti.KindsOf(cupti.KindOverhead)},
}

// KindNames returns the names of the kinds in a set, in a fixed order. A name for several kinds is
// included if the set has one of them.
func KindNames(set cupti.Kinds) []string {
	var words []string
	for _, k := range kindWords {
		if set&k.kinds != 0 {
			words = append(words, k.word)
		}
	}
	return words
}

// ParseKinds parses a comma-separated list of kinds. The list has either all requested kinds
// ("kernel,memcpy") or changes to the default ("+runtime,-memset"). "" is the default.
func ParseKinds(text string) (cupti.Kinds, error) {
	words := list(text)
	if len(words) == 0 {
		return cupti.DefaultKinds, nil
	}
	var set cupti.Kinds
	relative := words[0][0] == '+' || words[0][0] == '-'
	if relative {
		set = cupti.DefaultKinds
	}
	for _, w := range words {
		sign := w[0]
		if (sign == '+' || sign == '-') != relative {
			return 0, fmt.Errorf("%q mixes a list of kinds with changes to the default: give every kind a sign, or none", text)
		}
		name := w
		if relative {
			name = w[1:]
		}
		kinds, ok := kindsByWord(strings.ToLower(name))
		if !ok {
			return 0, fmt.Errorf("%q is not a kind of record: valid kinds are %s", name, strings.Join(KindNames(^cupti.Kinds(0)), ", "))
		}
		if sign == '-' {
			set &^= kinds
		} else {
			set |= kinds
		}
	}
	return set | cupti.KindsOf(cupti.KindExternal), nil
}

func kindsByWord(word string) (cupti.Kinds, bool) {
	for _, k := range kindWords {
		if k.word == word {
			return k.kinds, true
		}
	}
	return 0, false
}

// list splits a list at its commas. It skips empty elements.
func list(text string) []string {
	var l []string
	for e := range strings.SplitSeq(text, ",") {
		if e = strings.TrimSpace(e); e != "" {
			l = append(l, e)
		}
	}
	return l
}

// ParseTraceparent parses a W3C traceparent. ok is false if it is malformed.
func ParseTraceparent(text string) (parent gpuevent.Ref, sampled, ok bool) {
	carrier := propagation.MapCarrier{"traceparent": text}
	c := oteltrace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	return gpuevent.Ref{Trace: gpuevent.TraceID(c.TraceID()), Span: gpuevent.SpanID(c.SpanID())}, c.IsSampled(), c.IsValid()
}

// Traceparent formats a reference for ParseTraceparent.
func Traceparent(r gpuevent.Ref, sampled bool) string {
	carrier := propagation.MapCarrier{}
	c := oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: oteltrace.TraceID(r.Trace), SpanID: oteltrace.SpanID(r.Span), TraceFlags: oteltrace.TraceFlags(0).WithSampled(sampled),
	})
	propagation.TraceContext{}.Inject(oteltrace.ContextWithSpanContext(context.Background(), c), carrier)
	return carrier["traceparent"]
}

// ParseResource parses OTEL_RESOURCE_ATTRIBUTES: comma-separated key=value pairs. Commas, equal
// signs and all other characters outside baggage-octet are percent-encoded. As the standard
// requires, one invalid pair discards them all.
func ParseResource(text string) ([]gpuevent.Attr, error) {
	var attributes []gpuevent.Attr
	for _, pair := range list(text) {
		key, value, found := strings.Cut(pair, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		k, errKey := url.PathUnescape(key)
		v, errValue := url.PathUnescape(value)
		if !found || k == "" || errKey != nil || errValue != nil || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, &settings.Error{Variable: "OTEL_RESOURCE_ATTRIBUTES", Problem: fmt.Sprintf(" has %q, which is not percent-encoded key=value: the variable is ignored", pair)}
		}
		at := -1
		for i := range attributes {
			if attributes[i].Key == k {
				at = i
			}
		}
		if at >= 0 {
			attributes[at].Str = v
		} else {
			attributes = append(attributes, gpuevent.Str(k, v))
		}
	}
	return attributes, nil
}
