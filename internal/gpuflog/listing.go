// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"fmt"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
	"github.com/gpuflight/gpuflight/semconv"
)

// sourceFile decodes source_file_content (format document, section 4.8).
func (d *Decoder) sourceFile(r *record) bool {
	var id gpuevent.Int
	var body []byte
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "source_file_id":
			ok = r.intInto(&id)
		case "lines":
			ok = array(r, func() bool {
				b, ok := r.scanner.str()
				body = append(append(body, b...), '\n')
				return ok
			})
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, 0)
	if s == nil {
		return true
	}
	var attrs attrList
	attrs.int(semconv.CUDASourceID, id)
	if file, ok := s.dicts.lookup(dictSource, id.V); ok {
		attrs.str(semconv.CodeFilePath, file)
	}
	s.textRecord(d, semconv.EventCUDASource, text(body), attrs)
	return true
}

// listing decodes cubin_disassembly and ptx_disassembly: the text of one function.
func (d *Decoder) listing(r *record) bool {
	var crc int64
	hasCRC := false
	var function, arch, ptx, body []byte
	if !r.fields(func(key []byte) (ok bool) {
		switch string(key) {
		case "cubin_crc":
			crc, _, ok = r.integer()
			hasCRC = ok
		case "function_name":
			ok = r.strInto(&function)
		case "arch":
			ok = r.strInto(&arch)
		case "ptx":
			ptx, ok = r.scanner.str()
		case "entries":
			ok = array(r, func() bool {
				var pc, count gpuevent.Int
				var sass []byte
				ok := object(r, func(key []byte) bool {
					switch string(key) {
					case "pc":
						return r.intInto(&pc)
					case "sass":
						return r.strInto(&sass)
					case "count":
						return r.intInto(&count)
					}
					return r.skip()
				})
				// One instruction a line, behind its offset; ×n where upstream folded n alike into one.
				body = fmt.Appendf(body, "%04x  %s", pc.V, sass)
				if count.V > 1 {
					body = append(strconv.AppendInt(append(body, "  ×"...), count.V, 10), '\n')
				} else {
					body = append(body, '\n')
				}
				return ok
			})
		default:
			ok = r.field(key)
		}
		return ok
	}) {
		return false
	}
	s := d.owner(&r.head, 0)
	if s == nil {
		return true
	}
	var attrs attrList
	kind := semconv.CUDAListingKindSASS
	if r.typ == recPTX {
		kind, body = semconv.CUDAListingKindPTX, ptx
	}
	attrs.str(semconv.CUDAListingKind, kind)
	if len(function) > 0 {
		n := d.name(function)
		attrs.str(semconv.CUDAKernelName, n.Full)
		attrs.str(semconv.CUDAKernelSymbol, n.Symbol)
	}
	if hasCRC {
		attrs.str(semconv.CUDACubinCRC, strconv.FormatUint(uint64(crc), 10))
	}
	attrs.str(semconv.CUDAListingArchitecture, text(arch))
	s.textRecord(d, semconv.EventCUDASASSListing, text(body), attrs)
	return true
}

// textRecord sends a long text as one or more log records.
func (s *session) textRecord(d *Decoder, event, body string, attrs attrList) {
	d.out.Text(s.ev, &gpuevent.Record{
		Ref: s.logRef(), UID: d.uids.next(s.key), TimeNs: s.timeIn(d.channel), Event: event, Attrs: attrs,
	}, body)
}
