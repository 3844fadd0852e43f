// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"net/url"
	"strings"
)

const (
	// maxAttributes bounds the attributes of a resource; maxValue bounds the bytes of a key or a
	// value.
	maxAttributes = 32
	maxValue      = 256
)

// splitZero is a bufio.SplitFunc for strings that end with a zero byte. It drops bytes after the
// last zero byte, which belong to a truncated string.
func splitZero(data []byte, _ bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

// clean returns s as valid UTF-8, or "" if s is too long.
func clean(s string) string {
	if len(s) > maxValue {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
}

// parseAttributes parses OTEL_RESOURCE_ATTRIBUTES: key=value, separated by commas, with
// percent-encoded values. The OpenTelemetry specification requires that a list with an error is
// discarded.
func parseAttributes(list string) []Attribute {
	var out []Attribute
	for pair := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		key = clean(key)
		if !ok || err != nil || key == "" {
			return nil
		}
		if value = clean(value); value != "" && len(out) < maxAttributes {
			out = append(out, Attribute{Key: key, Value: value})
		}
	}
	return out
}

// cgroupPath returns the path in the unified hierarchy, or else the first path of /proc/PID/cgroup.
func cgroupPath(text string) string {
	first := ""
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		// A machine with both versions also has the unified hierarchy, with all processes at its
		// root.
		if parts[0] == "0" && parts[1] == "" && parts[2] != "/" {
			return parts[2]
		}
		if first == "" || first == "/" {
			first = parts[2]
		}
	}
	return first
}
