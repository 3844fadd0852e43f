// SPDX-License-Identifier: Apache-2.0

package gpuflgen

// Summary is exactly what lies on disk after a session: every complete line, and the sums that a
// reader should arrive at. A line torn by a crash is not in it.
type Summary struct {
	Layout Layout `json:"layout"`
	App    string `json:"app"`
	// Sessions are in the order they were written.
	Sessions []Session `json:"sessions"`
	// Lines and Bytes are over all files, Bytes before compression and with newlines.
	Lines int64 `json:"lines"`
	Bytes int64 `json:"bytes"`
	// Channels has one entry for each channel's files together.
	Channels map[string]ChannelTotal `json:"channels"`
	// Records counts lines by record type. A record that goes to all channels counts once in each.
	Records map[string]int64 `json:"records"`
	// Rows counts what the records tell of, by the Row constants. Rows written to all channels count
	// once.
	Rows map[string]int64 `json:"rows"`

	// KernelNanos is the sum of all kernels' device time, CopyNanos of all copies', in ns.
	KernelNanos int64 `json:"kernel_ns"`
	CopyNanos   int64 `json:"copy_ns"`
	// CopyBytes, SetBytes and AllocBytes are sums over copies, memory sets and allocations.
	CopyBytes  int64 `json:"copy_bytes"`
	SetBytes   int64 `json:"set_bytes"`
	AllocBytes int64 `json:"alloc_bytes"`
	// Kernels is by the name in the log, KernelsByScope by scope path ("epoch|train_step|forward",
	// "global" outside of any) — the launching scope, whether the log names it or not.
	Kernels        map[string]KernelTotal `json:"kernels"`
	KernelsByScope map[string]int64       `json:"kernels_by_scope"`
}

// The kinds of rows in [Summary.Rows].
const (
	RowKernel       = "kernel"
	RowKernelDetail = "kernel_detail"
	RowCopy         = "memcpy"
	RowSet          = "memset"
	RowSync         = "sync"
	RowAlloc        = "alloc"
	RowFree         = "free"
	RowScopeBegin   = "scope_begin"
	RowScopeEnd     = "scope_end"
	RowPCSample     = "pc_sample"
	RowSASSMetric   = "sass_metric"
	RowISAMap       = "isa_map"
	RowDeviceMetric = "device_metric"
	RowHostMetric   = "host_metric"
)

// Session is one session of the summary. Times are Unix nanoseconds.
type Session struct {
	ID            string `json:"session_id"`
	PID           int    `json:"pid"`
	StartUnixNano int64  `json:"start_unix_nano"`
	EndUnixNano   int64  `json:"end_unix_nano"`
	// Clean says that the session ended with its shutdown record.
	Clean bool `json:"clean"`
}

// ChannelTotal is what one channel's files hold together.
type ChannelTotal struct {
	Lines int64 `json:"lines"`
	Bytes int64 `json:"bytes"`
	// Rotations counts the files cut by size, age or [Writer.Rotate].
	Rotations int64 `json:"rotations"`
}

// KernelTotal is what one kernel name amounts to.
type KernelTotal struct {
	Count int64 `json:"count"`
	Nanos int64 `json:"ns"`
}

func newSummary(c Config) Summary {
	return Summary{
		Layout: c.Layout, App: c.App,
		Channels:       map[string]ChannelTotal{},
		Records:        map[string]int64{},
		Rows:           map[string]int64{},
		Kernels:        map[string]KernelTotal{},
		KernelsByScope: map[string]int64{},
	}
}

// add merges a later session's summary into s.
func (s *Summary) add(o Summary) {
	s.Sessions = append(s.Sessions, o.Sessions...)
	s.Lines += o.Lines
	s.Bytes += o.Bytes
	for k, v := range o.Channels {
		t := s.Channels[k]
		t.Lines += v.Lines
		t.Bytes += v.Bytes
		t.Rotations += v.Rotations
		s.Channels[k] = t
	}
	for k, v := range o.Records {
		s.Records[k] += v
	}
	for k, v := range o.Rows {
		s.Rows[k] += v
	}
	s.KernelNanos += o.KernelNanos
	s.CopyNanos += o.CopyNanos
	s.CopyBytes += o.CopyBytes
	s.SetBytes += o.SetBytes
	s.AllocBytes += o.AllocBytes
	for k, v := range o.Kernels {
		t := s.Kernels[k]
		t.Count += v.Count
		t.Nanos += v.Nanos
		s.Kernels[k] = t
	}
	for k, v := range o.KernelsByScope {
		s.KernelsByScope[k] += v
	}
}
