// SPDX-License-Identifier: Apache-2.0

package gpuflgen

// Summary describes exactly what is on disk after a session: every complete line, and the sums that
// a reader must compute. It does not count a line that a crash truncated.
type Summary struct {
	Layout Layout `json:"layout"`
	App    string `json:"app"`
	// Sessions has the order of writing.
	Sessions []Session `json:"sessions"`
	// Lines and Bytes are totals over all files. Bytes counts uncompressed data including newlines.
	Lines int64 `json:"lines"`
	Bytes int64 `json:"bytes"`
	// Channels has the total over all files of each channel.
	Channels map[string]ChannelTotal `json:"channels"`
	// Records counts lines by record type. A record that is written to all channels counts once in
	// each.
	Records map[string]int64 `json:"records"`
	// Rows counts the entries of all records, by the Row constants. A row that is written to all
	// channels counts once.
	Rows map[string]int64 `json:"rows"`

	// KernelNanos is the sum of all kernels' device time in ns; CopyNanos is that of all copies.
	KernelNanos int64 `json:"kernel_ns"`
	CopyNanos   int64 `json:"copy_ns"`
	// CopyBytes, SetBytes and AllocBytes are sums over copies, memory sets and allocations.
	CopyBytes  int64 `json:"copy_bytes"`
	SetBytes   int64 `json:"set_bytes"`
	AllocBytes int64 `json:"alloc_bytes"`
	// Kernels is by the name in the log. KernelsByScope is by the launching scope's path
	// ("epoch|train_step|forward", or "global" outside all scopes), even if the log does not
	// contain it.
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
	// Clean reports whether the session ended with its shutdown record.
	Clean bool `json:"clean"`
}

// ChannelTotal is the total of one channel's files.
type ChannelTotal struct {
	Lines int64 `json:"lines"`
	Bytes int64 `json:"bytes"`
	// Rotations counts the files completed by size, age or [Writer.Rotate].
	Rotations int64 `json:"rotations"`
}

// KernelTotal is the total of one kernel name.
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
