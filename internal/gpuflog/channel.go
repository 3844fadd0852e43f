// SPDX-License-Identifier: Apache-2.0

package gpuflog

// ChannelNamed returns the channel of a name as it stands in file names.
func ChannelNamed(name string) (Channel, bool) {
	for ch, n := range channelNames {
		if n == name {
			return Channel(ch), true
		}
	}
	return 0, false
}

// ChannelOf returns the channel into which the recorder writes a record type (format document,
// section 4.2). It is false for types that stand in every channel and for unknown ones.
func ChannelOf(recordType string) (Channel, bool) {
	t, ok := recordByName[recordType]
	if !ok {
		return 0, false
	}
	switch t {
	case recKernelEvent, recMemcpyEvent, recMemsetEvent, recKernelBatch, recKernelDetail, recMemcpyBatch,
		recSassConfig, recKernelPerfMetric:
		return Device, true
	case recScopeBegin, recScopeEnd, recProfileSample, recPerfMetric, recScopeBatch, recSampleBatch,
		recPMConfig, recPMBatch, recSyncBatch, recMemoryBatch, recNVTX, recGraphLaunch, recGraphNode,
		recSignature, recDeepWindow, recDeepRule, recCounterQuality:
		return Scope, true
	case recSystemStart, recSystemStop, recSystemSample, recDeviceBatch, recHostBatch:
		return System, true
	case recSource, recCubin, recPTX:
		return Sass, true
	}
	return 0, false
}

// TypeOf returns the record type that a line names, "" if it is not an object that names one.
func TypeOf(line []byte) string {
	typ, _, ok := identify(line)
	if !ok {
		return ""
	}
	return text(typ)
}

// SessionOf returns the session that a line names, "" if it is not an object that names one.
func SessionOf(line []byte) string {
	s := scanner{b: line}
	if !s.enter('{') {
		return ""
	}
	for first := true; ; first = false {
		member, ok := s.more(first, '}')
		if !ok || !member {
			return ""
		}
		key, ok := s.key()
		if !ok {
			return ""
		}
		if string(key) == "session_id" {
			id, ok := s.str()
			if !ok {
				return ""
			}
			return text(id)
		}
		if !s.skip() {
			return ""
		}
	}
}

// LinesRejected returns how many lines were rejected as a whole so far: what is malformed, names no
// session or is too old. Lines of an unknown type are not among them: they are whole, and newer
// recorders may write them.
func (d *Decoder) LinesRejected() uint64 {
	return d.stats.Rejects[Malformed] + d.stats.Rejects[MissingField] + d.stats.Rejects[TooOld]
}
