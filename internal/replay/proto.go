// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuflight/gpuflight/internal/recording/otlp"
)

// The three messages of OTLP nest alike: field 1 is a resource's telemetry, its field 2 that of a
// scope, and the field 2 of that an item (opentelemetry-proto 1.x, trace, logs, metrics .proto). Only
// the items differ.
const (
	fieldResource = 1
	fieldScope    = 2
	fieldItem     = 2
)

// signalOf tells traces, logs and metrics apart by the fields of the first item that tells; false if
// none does.
func signalOf(data []byte) (signal otlp.Signal, ok bool) {
	each(data, fieldResource, func(resource []byte) bool {
		return each(resource, fieldScope, func(scope []byte) bool {
			return each(scope, fieldItem, func(item []byte) bool {
				signal, ok = signalOfItem(item)
				return !ok
			})
		})
	})
	return signal, ok
}

// each calls f with each field of a number that has a length, until f returns false; it returns whether
// it came to the end.
func each(data []byte, number protowire.Number, f func([]byte) bool) bool {
	for len(data) > 0 {
		n, typ, size := protowire.ConsumeTag(data)
		if size < 0 {
			return true
		}
		data = data[size:]
		if n == number && typ == protowire.BytesType {
			value, size := protowire.ConsumeBytes(data)
			if size < 0 {
				return true
			}
			if !f(value) {
				return false
			}
			data = data[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, data); size < 0 {
			return true
		}
		data = data[size:]
	}
	return true
}

// signalOfItem knows an item by what only it can have: a span its times (7, 8), kind (6) or flags (16), a
// log record its times (1, 11), severity (2) or flags (8). Without any of these a metric has its name in
// field 1, a span ids of 16 and 8 bytes in fields 1 and 2, of which it would be a wonder if they were
// words, and a log record no field 1 of a length.
//
// The Collector writes fields from the last to the first, and empty ids as well.
func signalOfItem(item []byte) (otlp.Signal, bool) {
	var length [17]int // of fields that have one, and one more
	words := false
	for len(item) > 0 {
		n, typ, size := protowire.ConsumeTag(item)
		if size < 0 {
			return 0, false
		}
		item = item[size:]
		if size = protowire.ConsumeFieldValue(n, typ, item); size < 0 {
			return 0, false
		}
		switch {
		case typ == protowire.BytesType && int(n) < len(length):
			value, _ := protowire.ConsumeBytes(item)
			length[n] = len(value) + 1
			if n == 1 {
				words = !bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
			}
		case typ == protowire.Fixed64Type && (n == 7 || n == 8), typ == protowire.VarintType && n == 6, typ == protowire.Fixed32Type && n == 16:
			return otlp.Traces, true
		case typ == protowire.Fixed64Type && (n == 1 || n == 11), typ == protowire.VarintType && n == 2, typ == protowire.Fixed32Type && n == 8:
			return otlp.Logs, true
		}
		item = item[size:]
	}
	switch {
	case length[1] == 16+1 && length[2] == 8+1 && !words:
		return otlp.Traces, true
	case length[1] > 1:
		return otlp.Metrics, true
	case length[9] > 0 && length[10] > 0 || length[5] > 0:
		return otlp.Logs, true
	}
	return 0, false
}
