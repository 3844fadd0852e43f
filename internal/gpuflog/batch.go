// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"math"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// column is a known column of a batch; see columnByName.
type column uint8

const (
	colUnknown column = iota
	colDt
	colKernelID
	colStream
	colDuration
	colCorr
	colDynShared
	colNumRegs
	colHasDetails
	colExternalKind
	colExternalID
	colBytes
	colCopyKind
	colScopeInstance
	colNameID
	colEventType
	colDepth
	colRepeat
	colWarmup
	colOriginalStart
	colDevice
	colFunctionID
	colPCOffset
	colMetricID
	colMetricValue
	colStallReason
	colSampleKind
	colScopeNameID
	colSourceFileID
	colSourceLine
	colSampleIndex
	colValue
	colSyncType
	colEventID
	colContextID
	colMemoryOp
	colMemoryKind
	colAddress
	colGPUUtil
	colMemUtil
	colTempC
	colPowerMW
	colUsedMiB
	colTotalMiB
	colClockSM
	colFanPct
	colTempMem
	colTempJunction
	colVoltageMV
	colEnergyUJ
	colClockMem
	colPCIeBps
	colECCCorrected
	colECCUncorrected
	colCPUx100
	colRAMUsed
	colRAMTotal
	numColumns
)

var columnByName = map[string]column{
	"dt_ns": colDt, "kernel_id": colKernelID, "stream_id": colStream, "duration_ns": colDuration,
	"corr_id": colCorr, "dyn_shared": colDynShared, "num_regs": colNumRegs,
	"has_details": colHasDetails, "external_kind": colExternalKind, "external_id": colExternalID,
	"bytes": colBytes, "copy_kind": colCopyKind, "scope_instance_id": colScopeInstance,
	"name_id": colNameID, "event_type": colEventType, "depth": colDepth, "repeat": colRepeat,
	"warmup": colWarmup, "original_start_ns": colOriginalStart, "device_id": colDevice,
	"function_id": colFunctionID, "pc_offset": colPCOffset, "metric_id": colMetricID,
	"metric_value": colMetricValue, "stall_reason": colStallReason, "sample_kind": colSampleKind,
	"scope_name_id": colScopeNameID, "source_file_id": colSourceFileID,
	"source_line": colSourceLine, "sample_index": colSampleIndex, "value": colValue,
	"sync_type": colSyncType, "event_id": colEventID, "context_id": colContextID,
	"memory_op": colMemoryOp, "memory_kind": colMemoryKind, "address": colAddress,
	"gpu_util": colGPUUtil, "mem_util": colMemUtil, "temp_c": colTempC, "power_mw": colPowerMW,
	"used_mib": colUsedMiB, "total_mib": colTotalMiB, "clock_sm": colClockSM,
	"fan_speed_pct": colFanPct, "temp_mem_c": colTempMem, "temp_junction_c": colTempJunction,
	"voltage_mv": colVoltageMV, "energy_uj": colEnergyUJ, "clock_mem": colClockMem,
	"pcie_bw_bps": colPCIeBps, "ecc_corrected": colECCCorrected,
	"ecc_uncorrected": colECCUncorrected, "cpu_pct_x100": colCPUx100, "ram_used_mib": colRAMUsed,
	"ram_total_mib": colRAMTotal,
}

// columnCache keeps the last columns array: batches of a type repeat theirs byte for byte.
type columnCache struct {
	raw   [4]string
	cols  [4][]column
	evict int
}

// parse returns the columns of an array of names, nil if it is not one.
func (c *columnCache) parse(raw []byte) []column {
	for i := range c.raw {
		if c.cols[i] != nil && string(raw) == c.raw[i] {
			return c.cols[i]
		}
	}
	s := scanner{b: raw}
	if !s.enter('[') {
		return nil
	}
	cols := []column{}
	for first := true; ; first = false {
		member, ok := s.more(first, ']')
		if !ok {
			return nil
		}
		if !member {
			break
		}
		name, ok := s.str()
		if !ok {
			return nil
		}
		cols = append(cols, columnByName[string(name)])
	}
	if len(raw) < 4096 {
		c.raw[c.evict], c.cols[c.evict] = string(raw), cols
		c.evict = (c.evict + 1) % len(c.raw)
	}
	return cols
}

// batch is the envelope of a batch record (format document, section 4.1).
type batch struct {
	id   int64
	base int64
	// hostname and address are host_metric_batch's own.
	hostname, address []byte
	columns           []column
	rows              scanner
	row               row
	index             int64
}

// row is one row of a batch: cells by column. A cell whose column the batch does not have, or that
// had no number, is not set.
type row struct {
	v   [numColumns]int64
	f   float64 // of colValue
	has [numColumns]bool
}

func (r *row) get(c column) int64 { return r.v[c] }

// opt returns a cell that may be missing.
func (r *row) opt(c column) gpuevent.Int { return gpuevent.Int{V: r.v[c], OK: r.has[c]} }

// optPos returns a cell whose zero, or 2^32-1 (CUPTI's invalid id), means unknown.
func (r *row) optPos(c column) gpuevent.Int {
	v := r.v[c]
	return gpuevent.Int{V: v, OK: r.has[c] && v != 0 && v != math.MaxUint32}
}

// optID returns a cell of which only 2^32-1 means unknown.
func (r *row) optID(c column) gpuevent.Int {
	v := r.v[c]
	return gpuevent.Int{V: v, OK: r.has[c] && v != math.MaxUint32}
}

// batch reads the envelope. ok is false for a malformed line; sess nil means that the batch was
// rejected for another reason. The rows are read by next.
func (d *Decoder) batch(r *record, b *batch) (sess *session, ok bool) {
	b.index = -1
	haveBase := false
	var rows []byte
	for {
		key, done, ok := r.next()
		if !ok {
			return nil, false
		}
		if done {
			break
		}
		switch string(key) {
		case "batch_id":
			b.id, _, ok = r.integer()
		case "base_time_ns":
			b.base, _, ok = r.integer()
			haveBase = ok
		case "columns":
			var raw []byte
			if raw, ok = r.raw(); ok {
				if b.columns = d.columns.parse(raw); b.columns == nil {
					return nil, false
				}
			}
		case "rows":
			r.space()
			if b.columns != nil && r.i < len(r.b) && r.b[r.i] == '[' && rowsEndLine(r.b[r.i:]) {
				// rows is the last key, as upstream writes it: no need to walk it twice.
				rows = r.b[r.i:]
				r.i = len(r.b) - 1
			} else {
				rows, ok = r.raw()
			}
		case "hostname":
			ok = r.strInto(&b.hostname)
		case "ip_addr":
			ok = r.strInto(&b.address)
		default:
			ok = r.field(key)
		}
		if !ok {
			return nil, false
		}
	}
	if b.columns == nil || rows == nil || !haveBase || b.base > maxTime || b.base < -maxTime {
		d.reject(MissingField, recordNames[r.typ]+" without columns, rows or base time")
		return nil, true
	}
	b.rows = scanner{b: rows}
	if !b.rows.enter('[') {
		return nil, false
	}
	b.row.has = [numColumns]bool{}
	if sess = d.owner(&r.head, 0); sess != nil && !b.skipTo(d.from) {
		d.reject(Malformed, "rows "+excerptAt(b.rows.b, b.rows.i))
		return nil, true
	}
	return sess, true
}

// skipTo steps over the rows before the given one.
func (b *batch) skipTo(row int64) bool {
	for ; b.index+1 < row; b.index++ {
		if member, ok := b.rows.more(b.index < 0, ']'); !ok || !member || !b.rows.skip() {
			return false
		}
	}
	return true
}

// rowsEndLine reports that b, which begins with an array, ends like a batch line.
func rowsEndLine(b []byte) bool {
	n := len(b)
	return n >= 3 && b[n-1] == '}' && b[n-2] == ']' && (b[n-3] == ']' || b[n-3] == '[')
}

// next reads the next row; false at the end. Rows that are not right are rejected and skipped.
func (b *batch) next(d *Decoder) bool {
	s := &b.rows
	for {
		if !d.room() {
			d.paused = b.index + 1
			return false
		}
		b.index++
		member, ok := s.more(b.index == 0, ']')
		if !ok {
			d.reject(Malformed, "rows "+excerptAt(s.b, s.i))
			return false
		}
		if !member {
			return false
		}
		start := s.i
		n, ok := b.cells(s)
		if ok && n == len(b.columns) {
			return true
		}
		s.i = start
		if !s.skip() {
			d.reject(Malformed, "rows "+excerptAt(s.b, s.i))
			return false
		}
		if ok {
			d.reject(RowLength, fmt.Sprintf("row %d has %d cells for %d columns", b.index, n, len(b.columns)))
		} else {
			d.reject(BadRow, "row "+excerpt(s.b[start:s.i]))
		}
	}
}

// cells reads one row into b.row. n is the number of its cells.
func (b *batch) cells(s *scanner) (n int, ok bool) {
	if !s.enter('[') {
		return 0, false
	}
	for ; ; n++ {
		member, ok := s.more(n == 0, ']')
		if !ok {
			return n, false
		}
		if !member {
			return n, true
		}
		col := colUnknown
		if n < len(b.columns) {
			col = b.columns[n]
		}
		switch col {
		case colUnknown:
			if !s.skip() {
				return n, false
			}
		case colValue:
			f, ok := s.number()
			if !ok {
				return n, false
			}
			b.row.f, b.row.has[colValue] = f, !math.IsNaN(f)
		default:
			v, big, ok := s.integer()
			if !ok || (big && col != colMetricValue && col != colAddress && col != colExternalID && col != colEnergyUJ) {
				return n, false
			}
			b.row.v[col], b.row.has[col] = v, true
		}
	}
}

// time returns the absolute time of the row; false if it is out of range.
func (b *batch) time(d *Decoder) (int64, bool) {
	dt := b.row.v[colDt]
	t := b.base + dt
	if !b.row.has[colDt] || dt > maxTime || dt < -maxTime || t < minTime || t > maxTime {
		d.reject(BadRow, fmt.Sprintf("row %d has no time", b.index))
		return 0, false
	}
	return t, true
}

// span returns the row's time and duration as start and end.
func (b *batch) span(d *Decoder) (start, end int64, ok bool) {
	start, ok = b.time(d)
	if !ok {
		return 0, 0, false
	}
	dur := b.row.v[colDuration]
	if dur < 0 || dur > maxTime-start {
		d.reject(BadRow, fmt.Sprintf("row %d has a duration of %d", b.index, dur))
		return 0, 0, false
	}
	return start, start + dur, true
}
