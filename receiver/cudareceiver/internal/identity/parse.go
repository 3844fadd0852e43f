// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"net/url"
	"strconv"
	"strings"
)

const (
	// maxAttributes bounds the attributes of a resource, maxValue the bytes of a key or a value.
	maxAttributes = 32
	maxValue      = 256
)

// splitZero is a bufio.SplitFunc of strings that end with a zero byte. What follows the last one was
// cut off, and is dropped.
func splitZero(data []byte, _ bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

// clean returns s as valid UTF-8, "" if it is too long to be a name.
func clean(s string) string {
	if len(s) > maxValue {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
}

// parseAttributes takes OTEL_RESOURCE_ATTRIBUTES apart: key=value, separated by commas, values
// percent-encoded. As OpenTelemetry's specification wants it, a list with an error in it is none.
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

// parseStat returns the name and the start time, in ticks since boot, of /proc/PID/stat. The name
// stands in parentheses and may hold any byte, a parenthesis among them: it ends at the last one.
func parseStat(s string) (name string, ticks uint64, ok bool) {
	begin, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if begin < 0 || end < begin {
		return "", 0, false
	}
	fields := strings.Fields(s[end+1:])
	// proc(5): the state is field 3 and stands first here, the start time is field 22.
	if len(fields) < 20 {
		return "", 0, false
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return "", 0, false
	}
	return strings.ToValidUTF8(s[begin+1:end], "\uFFFD"), ticks, true
}

// parseNSpid returns the last id of the line NSpid of /proc/PID/status if it has several, else 0.
func parseNSpid(s string) int32 {
	for line := range strings.Lines(s) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		ids := strings.Fields(rest)
		if len(ids) < 2 {
			return 0
		}
		n, err := strconv.ParseInt(ids[len(ids)-1], 10, 32)
		if err != nil || n < 0 {
			return 0
		}
		return int32(n)
	}
	return 0
}

// cgroupPath returns the path in the unified hierarchy, else the first of /proc/PID/cgroup.
func cgroupPath(text string) string {
	first := ""
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		// A machine with both versions has the unified hierarchy too, with all processes at its root.
		if parts[0] == "0" && parts[1] == "" && parts[2] != "/" {
			return parts[2]
		}
		if first == "" || first == "/" {
			first = parts[2]
		}
	}
	return first
}

// parseCgroup finds a container's id and a pod's UID in the text of /proc/PID/cgroup, version 1 or
// 2, as Docker, containerd, CRI-O and Podman lay it out; "" for what is not there. The innermost
// container counts.
func parseCgroup(text string) (container, pod string) {
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path; the path may hold colons itself.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var c, p string
		for segment := range strings.SplitSeq(parts[2], "/") {
			if id := containerID(segment); id != "" {
				c = id
			}
			if id := podUID(segment); id != "" {
				p = id
			}
		}
		if container == "" {
			container = c
		}
		if pod == "" {
			pod = p
		}
	}
	return container, pod
}

// containerID takes docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, the
// bare ID, and containerd's slice:cri-containerd:ID. An ID is 64 hexadecimal digits.
func containerID(segment string) string {
	s := strings.TrimSuffix(segment, ".scope")
	// The process that watches over a container is not in it.
	if strings.HasPrefix(s, "libpod-conmon-") || strings.HasPrefix(s, "crio-conmon-") {
		return ""
	}
	if i := strings.LastIndexAny(s, "-:"); i >= 0 {
		s = s[i+1:]
	}
	if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return ""
	}
	return s
}

// podUID takes podUID, and kubepods-burstable-podUID.slice, in which systemd's escape made the
// dashes of the UID underscores.
func podUID(segment string) string {
	// containerd without systemd's paths writes slice:cri-containerd:ID as one segment.
	s, _, _ := strings.Cut(segment, ":")
	s = strings.TrimSuffix(s, ".slice")
	if i := strings.LastIndex(s, "-pod"); i >= 0 && strings.HasPrefix(s, "kubepods") {
		s = s[i+1:]
	}
	s, ok := strings.CutPrefix(s, "pod")
	if !ok {
		return ""
	}
	s = strings.ReplaceAll(s, "_", "-")
	// Static pods have the 32 digits of a hash in place of a UUID.
	if (len(s) != 36 || strings.Count(s, "-") != 4) && (len(s) != 32 || strings.Contains(s, "-")) {
		return ""
	}
	if strings.Trim(s, "-0123456789abcdef") != "" {
		return ""
	}
	return s
}
