// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/gpuflight/gpuflight/internal/store"
)

const sqlPath = "/api/v1/sql"

const (
	// maxStatements is the number of SQL statements at a time. Each has a process with memory of its
	// own.
	maxStatements = 2
	maxSQLRows    = 10_000
	maxSQLBytes   = 16 << 20
)

type sqlRequest struct {
	Session   string `json:"session"`
	Statement string `json:"statement"`
}

// sql answers a SELECT over the tables of one session.
func (s *server) sql(ctx context.Context, r *request) (any, error) {
	if !s.allowSQL {
		return nil, &status{http.StatusForbidden, "SQL is off: set sql: true in the configuration of gpu_query"}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
		return nil, &status{http.StatusUnsupportedMediaType, "the body must be JSON with the content type application/json"}
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	var in sqlRequest
	err := d.Decode(&in)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, err
	}
	if err != nil || !errors.Is(d.Decode(&struct{}{}), io.EOF) || in.Session == "" || in.Statement == "" {
		return nil, &status{http.StatusBadRequest, "the body must be a JSON object with the texts session and statement"}
	}
	t, ok := s.store.(store.Tables)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	select {
	case s.querying <- struct{}{}:
		defer func() { <-s.querying }()
	default:
		return nil, &status{http.StatusTooManyRequests, "too many SQL statements are in progress"}
	}
	found, err := t.SQL(ctx, store.SQLQuery{Project: r.project, Session: in.Session, Statement: in.Statement, Rows: maxSQLRows, Bytes: maxSQLBytes})
	if err != nil {
		if text, ok := strings.CutSuffix(err.Error(), ": "+store.ErrInvalid.Error()); ok && errors.Is(err, store.ErrInvalid) {
			return nil, &status{http.StatusBadRequest, text}
		}
		return nil, err
	}
	rows := make([]json.RawMessage, len(found.Rows))
	for i, row := range found.Rows {
		rows[i] = row
	}
	return map[string]any{"columns": all(found.Columns), "rows": rows, "truncated": found.Truncated}, nil
}
