// SPDX-License-Identifier: Apache-2.0

package semconv

// Origin says where a name comes from.
type Origin uint8

const (
	// OpenTelemetry: the OpenTelemetry semantic conventions.
	OpenTelemetry Origin = iota
	// OBI: OpenTelemetry eBPF Instrumentation, as it emits the name today.
	OBI
	// Extension: this project.
	Extension
)

// String returns the origin in words.
func (o Origin) String() string {
	switch o {
	case OpenTelemetry:
		return "OpenTelemetry"
	case OBI:
		return "OBI"
	case Extension:
		return "extension ✚"
	default:
		return "invalid"
	}
}

// Type is the type of an attribute's value.
type Type string

// The types, spelled as in OpenTelemetry's registry.
const (
	String  Type = "string"
	Int     Type = "int"
	Double  Type = "double"
	Bool    Type = "boolean"
	Strings Type = "string[]"
	Ints    Type = "int[]"
)

// Instrument is the kind of a metric.
type Instrument string

// The instruments. A counter is a monotonic cumulative sum, an updowncounter a non-monotonic one.
const (
	Gauge                Instrument = "gauge"
	Counter              Instrument = "counter"
	UpDownCounter        Instrument = "updowncounter"
	Histogram            Instrument = "histogram"
	ExponentialHistogram Instrument = "exponential histogram"
)

// Attribute describes one attribute.
type Attribute struct {
	Name   string
	Type   Type
	Unit   string // UCUM, "" for none
	Origin Origin
	// On lists where the attribute occurs: "resource", or kinds of spans. A kind is a value of
	// cuda.operation; "device" means all spans of device work. Metrics and events list their own
	// attributes.
	On    []string
	Brief string
	// Values are all the values, where they are a closed set.
	Values []string
}

// Metric describes one metric.
type Metric struct {
	Name       string
	Instrument Instrument
	Unit       string // UCUM
	Origin     Origin
	Attributes []string
	Brief      string
}

// Event describes one kind of log record, by its event name.
type Event struct {
	Name       string
	Origin     Origin
	Attributes []string
	Brief      string
}

// DeviceSpans are the values of cuda.operation on spans of device work: what "device" in
// [Attribute.On] stands for.
var DeviceSpans = []string{"kernel", "memcpy", "memset", "synchronize", "malloc", "free", "graph"}
