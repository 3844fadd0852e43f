// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"

	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/internal/analysis"
	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/rows"
)

// critical answers with the critical path of a span, or of the step [from, to) of a device.
func (s *server) critical(ctx context.Context, r *request) (any, error) {
	from, to := r.interval()
	device, at := analysis.AnyDevice, int64(0)
	if _, ok := r.values["device"]; ok {
		device = r.text("device", 1000)
	}
	id := r.spanID("span")
	if _, ok := r.values["at"]; ok {
		at = r.integer("at", 0, -r.base, store.MaxTimeNs-r.base) + r.base
	}
	if id == 0 && (from == 0 || to == 0) {
		r.fail("span", "is required without from and to")
	}
	limit := int(r.integer("limit", 1000, 1, 10_000))
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.info.RowsDropped {
		return nil, &status{http.StatusBadRequest, "the session has sums only, because retention removed its rows"}
	}
	end, err := s.beginAnalysis()
	if err != nil {
		return nil, err
	}
	defer end()
	path, err := s.criticalPath(ctx, r, id, at, from, to, device)
	if errors.Is(err, analysis.ErrPathTooLong) {
		return nil, &status{http.StatusBadRequest, err.Error()}
	}
	if err != nil {
		return nil, err
	}
	for i := range path.Parts {
		if p := &path.Parts[i]; p.Session != "" && p.Session != r.session {
			r.etag = "" // it is of one session
		}
	}
	return analysis.NewAnswerPath(path, r.base, limit), nil
}

func (s *server) criticalPath(ctx context.Context, r *request, id store.SpanID, at, from, to int64, device string) (*analysis.CriticalPath, error) {
	if id == 0 {
		return analysis.StepPath(ctx, analysis.FromReader(s.store, r.project, r.session), from, to, device)
	}
	op, span, err := s.store.Span(ctx, r.project, r.session, id, at)
	if err != nil {
		return nil, err
	}
	if op != nil {
		return nil, &status{http.StatusBadRequest, "the span is an operation: only scopes and requests have a critical path"}
	}
	return analysis.SpanPath(ctx, s.store, r.project, r.session, span, spanLinks)
}

// spanLinks decodes links; it returns none if they are invalid.
func spanLinks(encoded []byte) (list []analysis.SpanLink) {
	links := ptrace.NewSpanLinkSlice()
	if err := rows.DecodeLinks(encoded, links); err != nil {
		return nil
	}
	for _, l := range links.All() {
		list = append(list, analysis.SpanLink{Trace: store.TraceID(l.TraceID()), Span: spanKey(l.SpanID())})
	}
	return list
}

func spanKey(id [8]byte) store.SpanID { return store.SpanID(binary.BigEndian.Uint64(id[:])) }
