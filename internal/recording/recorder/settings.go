// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/gpuflight/gpuflight/cupti"
	"github.com/gpuflight/gpuflight/internal/bytesize"
	"github.com/gpuflight/gpuflight/internal/gpuevent"
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
	Kinds      cupti.Kinds
	GraphNodes bool
	// Stacks is GPUFLIGHT_STACKS.
	Stacks      bool
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
	// ShutdownTimeout is GPUFLIGHT_SHUTDOWN_TIMEOUT. DrainTimeout is GPUFLIGHT_DRAIN_TIMEOUT: the end
	// of a recording may take so long while its endpoint accepts data. 0 means ShutdownTimeout.
	ShutdownTimeout, DrainTimeout time.Duration
	// LogLevel is GPUFLIGHT_LOG_LEVEL (debug, info, warn, error, off). The default is warn; off is
	// above all levels.
	LogLevel slog.Level
	// SummaryDir is the folder for the Summary, or "" for none.
	SummaryDir string
}

// LogOff is above the level of every message.
const LogOff = slog.Level(math.MaxInt32)

// Table returns the settings that users make. Reading it changes s.
func (s *Settings) Table() []settings.Setting {
	const most = math.MaxInt32
	return []settings.Setting{
		{Variable: "GPUFLIGHT_DISABLED", Set: settings.To(&s.Disabled, settings.Bool)},
		{
			Variable: "GPUFLIGHT_KINDS", Set: settings.To(&s.Kinds, ParseKinds), Flag: "kinds",
			Help: "`list` of kinds to record, or changes such as +sync,-memset; there are " + strings.Join(KindNames(^cupti.Kinds(0)), ", ") + "; causes adds what the causes of idle time need",
		},
		{
			Variable: "GPUFLIGHT_GRAPH_NODES", Set: settings.To(&s.GraphNodes, settings.Bool), Flag: "graph-nodes", Switch: true,
			Help: "record each kernel of a CUDA graph instead of each launch of the graph",
		},
		{
			Variable: "GPUFLIGHT_STACKS", Set: settings.To(&s.Stacks, settings.Bool), Flag: "stacks", Switch: true,
			Help: "sample the Python lines that launch work and that run while the GPU is idle",
		},
		{Variable: "GPUFLIGHT_CUPTI", Set: settings.To(&s.Library, settings.Text)},
		{Variable: "GPUFLIGHT_BUFFER_SIZE", Set: settings.To(&s.BufferBytes, parseBufferSize)},
		{
			Variable: "GPUFLIGHT_MAX_SPANS_PER_SECOND", Set: settings.To(&s.MaxSpansPerSecond, parseMaxSpans), Flag: "max-spans",
			Help: "`limit` of spans of device work per second and process, 0 for no spans; metrics include the omitted work (default: unlimited)",
		},
		{Variable: "GPUFLIGHT_MAX_SPANS_PER_TRACE", Set: settings.To(&s.MaxSpansPerTrace, settings.Int(2, most))},
		{Variable: "GPUFLIGHT_KERNELS_ONLY", Set: settings.To(&s.KernelsOnly, settings.Bool)},
		{
			Variable: "GPUFLIGHT_INCLUDE", Set: settings.To(&s.Include, settings.List), Flag: "include",
			Help: "create spans only for kernels that match one of these `globs`, separated by commas",
		},
		{
			Variable: "GPUFLIGHT_EXCLUDE", Set: settings.To(&s.Exclude, settings.List), Flag: "exclude",
			Help: "create no spans for kernels that match one of these `globs`",
		},
		{
			Variable: "GPUFLIGHT_MIN_DURATION", Set: settings.To(&s.MinDuration, settings.Duration(0)), Flag: "min-duration",
			Help: "create no spans for device work shorter than this `duration` (example: 5us)",
		},
		{Variable: "GPUFLIGHT_FLUSH_INTERVAL", Set: settings.To(&s.FlushInterval, settings.Duration(time.Millisecond))},
		{Variable: "GPUFLIGHT_METRIC_INTERVAL", Set: settings.To(&s.MetricInterval, settings.Duration(time.Millisecond))},
		{
			Variable: budgetVariable, Set: settings.To(&s.OverheadBudget, settings.Share), Flag: "overhead-budget",
			Help: "`share` of the program's time that recording may cost: records in time slices; cannot be combined with deep profiling (example: 2%)",
		},
		{Variable: "GPUFLIGHT_SHUTDOWN_TIMEOUT", Set: settings.To(&s.ShutdownTimeout, settings.Duration(0))},
		{Variable: "GPUFLIGHT_DRAIN_TIMEOUT", Set: settings.To(&s.DrainTimeout, settings.Duration(0))},
		{Variable: "GPUFLIGHT_LOG_LEVEL", Set: settings.To(&s.LogLevel, parseLevel)},
		{Variable: "GPUFLIGHT_SUMMARY_DIR", Set: settings.To(&s.SummaryDir, settings.Text)},
		{Variable: "TRACEPARENT", Set: func(v string) error {
			s.Parent, s.ParentSampled, s.HasParent = ParseTraceparent(v)
			return nil
		}},
		{Variable: "OTEL_RESOURCE_ATTRIBUTES", Set: s.setResource},
		{
			// It takes precedence over service.name of OTEL_RESOURCE_ATTRIBUTES, so it comes later.
			Variable: "OTEL_SERVICE_NAME", Set: settings.To(&s.ServiceName, settings.Text), Flag: "service",
			Help: "service.name, a `name` (default: OTEL_SERVICE_NAME)",
		},
	}
}

const budgetVariable = "GPUFLIGHT_OVERHEAD_BUDGET"

// SettingsFromEnv reads the settings. getenv works like os.Getenv: "" means not set. The error names
// each variable with an invalid value and the permitted values. Those settings have their defaults,
// and the others are valid.
func SettingsFromEnv(getenv func(string) string) (Settings, error) {
	s := Settings{Kinds: cupti.DefaultKinds, ShutdownTimeout: DefaultShutdownTimeout, LogLevel: slog.LevelWarn}
	err := settings.Read(s.Table(), getenv)
	return s, err
}

func (s *Settings) setResource(text string) error {
	attributes, err := ParseResource(text)
	for _, a := range attributes {
		switch {
		case a.Key == semconv.ServiceName:
			s.ServiceName = a.Str
		case a.Key == semconv.ServiceInstanceID && IsUUID(a.Str):
			s.InstanceID = a.Str
		case a.Key == semconv.ServiceInstanceID:
			// Other ids are derived from the UUID, so any other id is ignored.
		default:
			s.Resource = append(s.Resource, a)
		}
	}
	return err
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
		MaxBacklog: s.Collector().Buffers / 2,
	}
}

// CheckWindows returns an error if deep windows are allowed and there is an overhead budget.
// Windows require contexts and modules from the start, and a detached CUPTI does not report them.
func (s *Settings) CheckWindows(allowed bool) error {
	if allowed && s.OverheadBudget != 0 {
		return &settings.Error{Variable: budgetVariable, Problem: " and deep profiling (GPUFLIGHT_DEEP) exclude each other: remove one of them"}
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
	c := cupti.Config{Library: s.Library, Kinds: s.Kinds, GraphNodes: s.GraphNodes, BufferBytes: s.BufferBytes, Stacks: s.Stacks}
	c.Detachable = s.OverheadBudget != 0
	if s.BufferBytes > 0 {
		c.Buffers = allBuffers / s.BufferBytes
	}
	return c
}

// Unlimited is the value of GPUFLIGHT_MAX_SPANS_PER_SECOND for no limit.
const Unlimited = "unlimited"

func parseMaxSpans(v string) (int, error) {
	if v == Unlimited {
		return math.MaxInt32, nil
	}
	n, err := settings.ZeroIsNone(settings.Int(-1, math.MaxInt32))(v)
	if err != nil {
		return 0, settings.Want("a whole number of 0 to 2147483647, or " + Unlimited)
	}
	return n, nil
}

func parseLevel(v string) (slog.Level, error) {
	switch strings.ToLower(v) {
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "error":
		return slog.LevelError, nil
	case "off", "none":
		return LogOff, nil
	}
	return 0, settings.Want("debug, info, warn, error or off")
}

func parseBufferSize(v string) (int, error) {
	n, err := bytesize.Parse(v)
	if err != nil || n < minBuffer || n > maxBuffer {
		return 0, settings.Want("a size of " + bytesize.Format(minBuffer) + " to " + bytesize.Format(maxBuffer))
	}
	return int(n), nil
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

// causeKinds is what the causes of idle time need in addition to the default (docs/causes.md). The word
// "causes" means them.
var causeKinds = cupti.KindsOf(cupti.KindRuntimeAPI, cupti.KindDriverAPI, cupti.KindSync, cupti.KindMemory)

const causesWord = "causes"

// ParseKinds parses a comma-separated list of kinds. The list has either all requested kinds
// ("kernel,memcpy") or changes to the default ("+runtime,-memset"). "" is the default, and "causes" is
// "+runtime,+driver,+sync,+memory".
func ParseKinds(text string) (cupti.Kinds, error) {
	words, _ := settings.List(text)
	if len(words) == 0 {
		return cupti.DefaultKinds, nil
	}
	if len(words) == 1 && strings.EqualFold(words[0], causesWord) {
		words[0] = "+" + causesWord
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
			return 0, fmt.Errorf("%q is not a kind of record: valid kinds are %s", name, strings.Join(append(KindNames(^cupti.Kinds(0)), causesWord), ", "))
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
	if word == causesWord {
		return causeKinds, true
	}
	for _, k := range kindWords {
		if k.word == word {
			return k.kinds, true
		}
	}
	return 0, false
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
	pairs, _ := settings.List(text)
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		k, errKey := url.PathUnescape(key)
		v, errValue := url.PathUnescape(value)
		if !found || k == "" || errKey != nil || errValue != nil || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, fmt.Errorf("%q is not percent-encoded key=value: the variable is ignored", pair)
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
