// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuflight/gpuflight/internal/store"
)

// query reads the parameters of a request. It keeps the first error, which check returns.
type query struct {
	values url.Values
	known  []string
	err    error
	etag   string
}

func (q *query) fail(name, format string, args ...any) {
	if q.err == nil {
		q.err = &status{http.StatusBadRequest, "parameter " + name + ": " + fmt.Sprintf(format, args...)}
	}
}

// check returns the first error, or an error for a parameter that nobody has read.
func (q *query) check() error {
	if q.err != nil {
		return q.err
	}
	for name := range q.values {
		if !slices.Contains(q.known, name) {
			q.fail(strconv.Quote(name[:min(len(name), 64)]), "does not exist for this path")
			return q.err
		}
	}
	return nil
}

func (q *query) raw(name string) (string, bool) {
	q.known = append(q.known, name)
	v, ok := q.values[name]
	if !ok {
		return "", false
	}
	if len(v) != 1 {
		q.fail(name, "must be given once")
	}
	return v[0], true
}

func (q *query) text(name string, most int) string {
	v, _ := q.raw(name)
	if len(v) > most || !utf8.ValidString(v) {
		q.fail(name, "must be valid UTF-8 of at most %d bytes", most)
	}
	return v
}

func (q *query) integer(name string, normal, low, high int64) int64 {
	v, ok := q.raw(name)
	if !ok {
		return normal
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < low || n > high {
		q.fail(name, "must be an integer from %d to %d", low, high)
		return normal
	}
	return n
}

func (q *query) boolean(name string) bool {
	v, ok := q.raw(name)
	if ok && v != "true" && v != "false" {
		q.fail(name, "must be true or false")
	}
	return v == "true"
}

// choice returns the index of the value; the first is the default.
func (q *query) choice(name string, values ...string) int {
	v, ok := q.raw(name)
	if !ok {
		return 0
	}
	i := slices.Index(values, v)
	if i < 0 {
		q.fail(name, "must be one of %s", strings.Join(values, ", "))
		return 0
	}
	return i
}

func (q *query) list(name string, most int) []string {
	v, ok := q.raw(name)
	if !ok {
		return nil
	}
	list := strings.Split(v, ",")
	if len(list) > most || !utf8.ValidString(v) {
		q.fail(name, "must be valid UTF-8 with at most %d values", most)
		return nil
	}
	return list
}

func (q *query) ids(name string) []uint32 {
	list := q.list(name, 1000)
	ids := make([]uint32, len(list))
	for i, v := range list {
		ids[i] = q.id(name, v)
	}
	return ids
}

func (q *query) id(name, v string) uint32 {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		q.fail(name, "must be an integer from 0 to 4294967295")
	}
	return uint32(n)
}

func (q *query) optionalID(name string) *uint32 {
	v, ok := q.raw(name)
	if !ok {
		return nil
	}
	id := q.id(name, v)
	return &id
}

func (q *query) hex(name, v string, digits int) []byte {
	b, err := hex.DecodeString(v)
	if err != nil || len(v) != digits || strings.ToLower(v) != v {
		q.fail(name, "must be %d lower-case hexadecimal digits", digits)
		return make([]byte, digits/2)
	}
	return b
}

func (q *query) number(name, v string) (n uint64) {
	for _, b := range q.hex(name, v, 16) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (q *query) spanID(name string) store.SpanID {
	v, ok := q.raw(name)
	if !ok {
		return 0
	}
	id := q.number(name, v)
	if id == 0 {
		q.fail(name, "must not be zero")
	}
	return store.SpanID(id)
}

func (q *query) traceID(name string) (id store.TraceID) {
	v, ok := q.raw(name)
	if !ok {
		return id
	}
	return q.traceOf(name, v)
}

func (q *query) traceOf(name, v string) (id store.TraceID) {
	copy(id[:], q.hex(name, v, 32))
	if id == (store.TraceID{}) {
		q.fail(name, "must not be zero")
	}
	return id
}

// absolute reads Unix nanoseconds in decimal.
func (q *query) absolute(name string) (int64, bool) {
	v, ok := q.raw(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > store.MaxTimeNs || v[0] == '+' || v[0] == '-' {
		q.fail(name, "must be Unix nanoseconds from 0 to %d", int64(store.MaxTimeNs))
	}
	return n, true
}

func (q *query) absoluteInterval() (from, to int64) {
	from, _ = q.absolute("from")
	to, bounded := q.absolute("to")
	if bounded && to <= from {
		q.fail("to", "must be above from")
	}
	return from, to
}

// interval reads from and to relative to the base. A time before 1970 is no bound for from.
func (r *request) interval() (from, to int64) {
	relative := func(name string) (int64, bool) {
		v, ok := r.raw(name)
		if !ok {
			return 0, false
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n > math.MaxInt64/2-r.base || n+r.base > store.MaxTimeNs {
			r.fail(name, "must be an integer of nanoseconds from the base, at most %d", store.MaxTimeNs-r.base)
			return 0, false
		}
		return max(n+r.base, 0), true
	}
	from, _ = relative("from")
	to, bounded := relative("to")
	if bounded && to <= from {
		r.fail("to", "must be above from")
	}
	return from, to
}
