// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/semconv"
)

// Limits checks the interval and the limit of a query. It returns the limit, which is def for 0.
// Errors wrap [store.ErrInvalid].
func Limits(from, to int64, n, def, most int) (int, error) {
	switch {
	case from < 0 || to < 0 || from > store.MaxTimeNs || to > store.MaxTimeNs || to != 0 && to <= from:
		return 0, fmt.Errorf("interval [%d, %d): %w", from, to, store.ErrInvalid)
	case n < 0 || n > most:
		return 0, fmt.Errorf("limit %d: %w: at most %d", n, store.ErrInvalid, most)
	case n == 0:
		return def, nil
	}
	return n, nil
}

// CompareLanes compares in the order of lanes (see [store.Reader]).
func CompareLanes(a, b *store.Lane) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), CompareInt(a.DeviceIndex, b.DeviceIndex),
		CompareInt(a.Context, b.Context), CompareInt(a.Stream, b.Stream), cmp.Compare(a.Class, b.Class),
		cmp.Compare(a.Key, b.Key))
}

// CompareInt orders unknown before known integers.
func CompareInt(a, b store.Int) int {
	if a.OK != b.OK {
		if b.OK {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.V, b.V)
}

// SetResource sets the resource of a session and the fields that are its attributes.
func SetResource(i *store.SessionInfo, resource store.Attrs) {
	text := func(key string) string {
		switch v, _ := resource.Get(key); v.Kind {
		case store.KindString:
			return v.Str
		case store.KindInt:
			return strconv.FormatInt(v.Int, 10)
		}
		return ""
	}
	i.Resource = resource
	i.Service, i.Host = text(semconv.ServiceName), text(semconv.HostName)
	i.Run, i.Rank, i.RankSize = text(semconv.CUDARunID), text(semconv.CUDARunRank), text(semconv.CUDARunSize)
	i.PID = store.Int{}
	if v, _ := resource.Get(semconv.ProcessPID); v.Kind == store.KindInt {
		i.PID = store.Some(v.Int)
	}
}

// Selects reports whether a query selects a session. It ignores After and Limit.
func Selects(q *store.SessionQuery, i *store.SessionInfo) bool {
	has := func(s string) bool { return store.ContainsFold(s, q.Text) }
	return (q.From == 0 || i.LastNs >= q.From) && (q.To == 0 || i.FirstNs < q.To) &&
		(q.Service == "" || q.Service == i.Service) && (q.Host == "" || q.Host == i.Host) && (q.Run == "" || q.Run == i.Run) &&
		(has(i.ID) || has(i.Service) || has(i.Host) || has(i.Run))
}
