// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/recording/settings"
)

// Signal is a kind of telemetry.
type Signal uint8

// The signals.
const (
	Traces Signal = iota
	Logs
	Metrics
	// Profiles is a signal in development. Endpoints need not support it, and it is sent only if
	// Settings.Profiles is set.
	Profiles
	numSignals
)

// String returns the signal's name in the specification.
func (s Signal) String() string { return [...]string{"traces", "logs", "metrics", "profiles"}[s] }

// Path returns the signal's path below the base URL of an HTTP endpoint.
func (s Signal) Path() string {
	if s == Profiles {
		return "v1development/profiles"
	}
	return "v1/" + s.String()
}

// Protocol is the transport of requests.
type Protocol string

// The protocols, spelled as OTEL_EXPORTER_OTLP_PROTOCOL spells them.
const (
	GRPC Protocol = "grpc"
	HTTP Protocol = "http/protobuf"
)

// Defaults of the specification (OpenTelemetry Protocol Exporter, 1.47).
const (
	defaultTimeout = 10 * time.Second
	defaultGRPC    = "http://localhost:4317"
	defaultHTTP    = "http://localhost:4318"
)

// Endpoint is the destination of one signal.
type Endpoint struct {
	// Off disables the signal.
	Off      bool
	Protocol Protocol
	// URL has scheme and host, and for HTTP the path of the signal. The scheme selects TLS.
	URL *url.URL
	// Headers are sent with each request. They may hold secrets and are never printed.
	Headers map[string]string
	// Timeout bounds one attempt.
	Timeout time.Duration
	Gzip    bool
	// CertificateFile has the authorities to trust instead of the system's. ClientCertificateFile
	// and ClientKeyFile are for mutual TLS. All are PEM files; "" means none.
	CertificateFile, ClientCertificateFile, ClientKeyFile string
}

// Settings configures the destinations. FromEnv creates it.
type Settings struct {
	Signals [numSignals]Endpoint
	// Profiles enables the profiles signal.
	Profiles bool
	// File is a path that receives all data instead of the network, if it is not "". Names that
	// end in .gz or .zst select compression.
	File string
	// QueueBytes bounds the queue of spans, in bytes of OTLP; the default is 64 MiB. The queues of
	// logs, metrics and profiles have a quarter of it each. A queue uses about three times as much
	// memory.
	QueueBytes int
	// RequestBytes is the size above which a request is split. The default is 3 MiB, since gRPC
	// servers reject 4 MiB by default.
	RequestBytes int
	// RetryFor bounds the retries of one request while its endpoint is unreachable. The default is
	// 5 minutes.
	RetryFor time.Duration
}

// The variables that have flags of gpuflight trace which change others.
const (
	EndpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	ProtocolVariable = "OTEL_EXPORTER_OTLP_PROTOCOL"
	OutputVariable   = "GPUFLIGHT_OUTPUT"
)

// Table returns the settings that users make, except for the other standard variables of OTLP.
// Reading it changes s.
func (s *Settings) Table() []settings.Setting {
	return []settings.Setting{
		{
			Variable: EndpointVariable, Flag: "endpoint",
			Help: "`URL` of the collector (default: OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318)",
		},
		{
			Variable: ProtocolVariable, Flag: "protocol",
			Help: "`protocol` of the collector: http/protobuf or grpc (default: OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf)",
		},
		{
			Variable: OutputVariable, Set: settings.To(&s.File, settings.Text), Flag: "output",
			Help: "write OTLP as JSON lines to `file` and send nothing; .gz and .zst are compressed; --force replaces an earlier recording",
		},
		{
			Variable: "GPUFLIGHT_PROFILES", Set: settings.To(&s.Profiles, settings.Bool), Flag: "profiles", Switch: true,
			Help: "also send deep windows as profiles, a signal in development that not every collector accepts",
		},
	}
}

// FromEnv reads the standard variables OTEL_EXPORTER_OTLP_*, for all signals and for each one:
// ENDPOINT, PROTOCOL, HEADERS, TIMEOUT in milliseconds, COMPRESSION, CERTIFICATE,
// CLIENT_CERTIFICATE, CLIENT_KEY and INSECURE. It also reads
// OTEL_{TRACES,LOGS,METRICS,PROFILES}_EXPORTER, OTEL_SDK_DISABLED, GPUFLIGHT_PROFILES (true or
// false, the default) and GPUFLIGHT_OUTPUT (a file).
//
// An error names the variable and the permitted values. An endpoint without a scheme uses TLS,
// unless it is on this host or INSECURE is true.
func FromEnv(getenv func(string) string) (Settings, error) {
	var s Settings
	disabled, err := boolean("OTEL_SDK_DISABLED", getenv("OTEL_SDK_DISABLED"))
	if err != nil {
		return Settings{}, err
	}
	for signal := range numSignals {
		e, err := endpointFromEnv(signal, getenv)
		if err != nil {
			return Settings{}, err
		}
		e.Off = e.Off || disabled
		s.Signals[signal] = e
	}
	if err := settings.Read(s.Table(), getenv); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// Sends reports whether a signal is sent.
func (s *Settings) Sends(signal Signal) bool {
	return !s.Signals[signal].Off && (signal != Profiles || s.Profiles)
}

// Off reports whether no signal is sent.
func (s *Settings) Off() bool {
	for signal := range numSignals {
		if s.Sends(signal) {
			return false
		}
	}
	return true
}

func endpointFromEnv(signal Signal, getenv func(string) string) (Endpoint, error) {
	upper := strings.ToUpper(signal.String())
	// lookup returns the value of the signal's own variable or of the common one, and the name of
	// that variable.
	lookup := func(name string) (variable, value string) {
		variable = "OTEL_EXPORTER_OTLP_" + upper + "_" + name
		if v := strings.TrimSpace(getenv(variable)); v != "" {
			return variable, v
		}
		variable = "OTEL_EXPORTER_OTLP_" + name
		return variable, strings.TrimSpace(getenv(variable))
	}
	e := Endpoint{Protocol: HTTP, Timeout: defaultTimeout}
	e.Off = !exports(getenv("OTEL_" + upper + "_EXPORTER"))

	switch variable, v := lookup("PROTOCOL"); Protocol(v) {
	case "":
	case GRPC, HTTP:
		e.Protocol = Protocol(v)
	default:
		return e, settings.Wrong(variable, "%q is not supported: set %s or %s", v, GRPC, HTTP)
	}
	variable, v := lookup("INSECURE")
	insecure, err := boolean(variable, v)
	if err != nil {
		return e, err
	}
	if e.URL, err = endpointURL(signal, e.Protocol, insecure, lookup); err != nil {
		return e, err
	}
	if variable, v = lookup("HEADERS"); v != "" {
		if e.Headers, err = headers(v); err != nil {
			return e, settings.Wrong(variable, "%v", err)
		}
	}
	if variable, v = lookup("TIMEOUT"); v != "" {
		ms, err := strconv.ParseUint(v, 10, 31)
		if err != nil || ms == 0 {
			return e, settings.Wrong(variable, "%q is not a number of milliseconds above 0", v)
		}
		e.Timeout = time.Duration(ms) * time.Millisecond
	}
	switch variable, v = lookup("COMPRESSION"); v {
	case "", "none":
	case "gzip":
		e.Gzip = true
	default:
		return e, settings.Wrong(variable, "%q is not supported: set gzip or none", v)
	}
	_, e.CertificateFile = lookup("CERTIFICATE")
	_, e.ClientCertificateFile = lookup("CLIENT_CERTIFICATE")
	_, e.ClientKeyFile = lookup("CLIENT_KEY")
	if (e.ClientCertificateFile == "") != (e.ClientKeyFile == "") {
		return e, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY (%s): set both or none", signal)
	}
	return e, nil
}

// exports reports whether a list of exporters contains OTLP, which is also the default.
func exports(list string) bool {
	if strings.TrimSpace(list) == "" {
		return true
	}
	for _, v := range strings.Split(list, ",") {
		// OpenTelemetry Python also has a name for each protocol.
		switch strings.TrimSpace(v) {
		case "otlp", "otlp_proto_http", "otlp_proto_grpc":
			return true
		}
	}
	return false
}

func boolean(variable, v string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, settings.Wrong(variable, "%q is neither true nor false", v)
}

func endpointURL(signal Signal, protocol Protocol, insecure bool, lookup func(string) (string, string)) (*url.URL, error) {
	variable, v := lookup("ENDPOINT")
	own := variable != EndpointVariable
	if v == "" {
		v = defaultHTTP
		if protocol == GRPC {
			v = defaultGRPC
		}
	}
	if !strings.Contains(v, "://") {
		scheme := "https://"
		if insecure || isLoopback(v) {
			scheme = "http://"
		}
		v = scheme + v
	}
	u, err := url.Parse(v)
	if err != nil {
		// The parser's error repeats the text, which may contain a password.
		return nil, settings.Wrong(variable, "not a URL such as http://localhost:4318")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, settings.Wrong(variable, "%q is not a URL such as http://localhost:4318", u.Redacted())
	}
	if protocol == HTTP && !own {
		u = u.JoinPath(signal.Path())
	}
	return u, nil
}

func isLoopback(hostport string) bool {
	host, _, _ := strings.Cut(hostport, "/")
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// headers parses key=value,key=value with percent-encoded values. The format is W3C Baggage without
// properties, as the specification says. Errors never repeat a value.
func headers(list string) (map[string]string, error) {
	m := map[string]string{}
	for _, pair := range strings.Split(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		k = strings.ToLower(strings.TrimSpace(k))
		if !ok || !isToken(k) {
			return nil, fmt.Errorf("entry %d is not of the form name=value", len(m)+1)
		}
		value, err := url.PathUnescape(strings.TrimSpace(v))
		if err != nil {
			return nil, fmt.Errorf("the value of %s is not percent-encoded", k)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, fmt.Errorf("the value of %s has characters that a header cannot have", k)
		}
		m[k] = value
	}
	return m, nil
}

// isToken reports whether s can be the name of a header (RFC 9110, token).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

// String returns the signal's destination, without secrets.
func (e Endpoint) String() string {
	if e.Off || e.URL == nil {
		return "nowhere"
	}
	return e.URL.Redacted() + " (" + string(e.Protocol) + ")"
}

// GoString returns String, so that no print format shows a header.
func (e Endpoint) GoString() string { return e.String() }
