// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/duckdb/duckdb-go/v2"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/gpuflight/gpuflight/semconv"
)

// desktop has the table of spans of otel-desktop-viewer, with its dictionary of attributes: a row for
// each distinct key, value and type. See desktopexporter/internal/store/schema in
// github.com/CtrlSpice/otel-desktop-viewer at 0c29fba6.
type desktop struct {
	db       *sql.DB
	conn     *sql.Conn
	file     string
	known    map[duckdb.UUID]struct{}
	resource duckdb.UUID
}

const desktopTables = `
CREATE TABLE attributes (id UUID PRIMARY KEY, key VARCHAR NOT NULL, value VARCHAR NOT NULL, type VARCHAR NOT NULL, scope VARCHAR NOT NULL);
CREATE TABLE resources (id UUID PRIMARY KEY, seq INTEGER NOT NULL, attribute_ids UUID[] NOT NULL, dropped_attributes_count UINTEGER NOT NULL);
CREATE TABLE scopes (id UUID PRIMARY KEY, seq INTEGER NOT NULL, name VARCHAR NOT NULL, version VARCHAR NOT NULL, attribute_ids UUID[] NOT NULL,
  dropped_attributes_count UINTEGER NOT NULL);
CREATE TABLE spans (trace_id UUID, trace_state VARCHAR, span_id UUID PRIMARY KEY, parent_span_id UUID, name VARCHAR, kind VARCHAR,
  start_time BIGINT, end_time BIGINT, resource_id UUID NOT NULL REFERENCES resources(id), scope_id UUID NOT NULL REFERENCES scopes(id),
  attribute_ids UUID[] NOT NULL, dropped_attributes_count UINTEGER, dropped_events_count UINTEGER, dropped_links_count UINTEGER,
  status_code VARCHAR, status_message VARCHAR, service_name VARCHAR NOT NULL);
CREATE INDEX spans_trace ON spans(trace_id);
CREATE INDEX spans_start ON spans(start_time);
CREATE INDEX spans_parent ON spans(parent_span_id);
CREATE INDEX spans_service ON spans(service_name);
CREATE INDEX spans_resource ON spans(resource_id);
CREATE INDEX spans_scope ON spans(scope_id);
`

func openDesktop(dir string) (_ peer, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d := &desktop{file: filepath.Join(dir, "spans.duckdb"), known: map[duckdb.UUID]struct{}{}}
	if d.db, err = sql.Open("duckdb", d.file+"?threads=2"); err != nil {
		return nil, err
	}
	ctx := context.Background()
	if d.conn, err = d.db.Conn(ctx); err == nil {
		_, err = d.conn.ExecContext(ctx, desktopTables)
	}
	return d, err
}

func (d *desktop) close() error { return errors.Join(d.conn.Close(), d.db.Close()) }

// hash returns an id made of content.
func hash(parts ...string) (id duckdb.UUID) {
	h := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	copy(id[:], h[:])
	return id
}

func spanUUID(id pcommon.SpanID) (u duckdb.UUID) {
	copy(u[8:], id[:])
	return u
}

func uuidText(u duckdb.UUID) string { return u.String() }

func (d *desktop) write(ctx context.Context, td ptrace.Traces) error {
	tx, err := d.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	err = d.conn.Raw(func(c any) error {
		appenders := map[string]*duckdb.Appender{}
		for _, t := range []string{"attributes", "resources", "scopes", "spans"} {
			if appenders[t], err = duckdb.NewAppender(c.(driver.Conn), "", "", t); err != nil {
				return err
			}
		}
		ids := func(m pcommon.Map, scope string) ([]duckdb.UUID, error) {
			list := []duckdb.UUID{}
			for k, v := range m.All() {
				text, kind := v.AsString(), v.Type().String()
				id := hash(k, text, kind, scope)
				list = append(list, id)
				if _, ok := d.known[id]; ok {
					continue
				}
				d.known[id] = struct{}{}
				if err := appenders["attributes"].AppendRow(id, k, text, kind, scope); err != nil {
					return nil, err
				}
			}
			return list, nil
		}
		rs := td.ResourceSpans().At(0)
		scope := hash("gpuflight")
		if d.resource == (duckdb.UUID{}) {
			d.resource = hash("resource")
			list, err := ids(rs.Resource().Attributes(), "resource")
			if err == nil {
				err = appenders["resources"].AppendRow(d.resource, int32(1), list, uint32(0))
			}
			if err == nil {
				err = appenders["scopes"].AppendRow(scope, int32(1), "gpuflight", "", []duckdb.UUID{}, uint32(0))
			}
			if err != nil {
				return err
			}
			for _, t := range []string{"resources", "scopes"} {
				if err := appenders[t].Flush(); err != nil {
					return err
				}
			}
		}
		for _, s := range rs.ScopeSpans().At(0).Spans().All() {
			list, err := ids(s.Attributes(), "span")
			if err != nil {
				return err
			}
			err = appenders["spans"].AppendRow(duckdb.UUID(s.TraceID()), "", spanUUID(s.SpanID()), spanUUID(s.ParentSpanID()), s.Name(), s.Kind().String(),
				int64(s.StartTimestamp()), int64(s.EndTimestamp()), d.resource, scope, list, uint32(0), uint32(0), uint32(0),
				s.Status().Code().String(), s.Status().Message(), "bench")
			if err != nil {
				return err
			}
		}
		var errs []error
		for _, t := range []string{"attributes", "resources", "scopes", "spans"} {
			errs = append(errs, appenders[t].Close())
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// fresh does nothing: DuckDB keeps no answers.
func (d *desktop) fresh(context.Context) error { return nil }

func (d *desktop) merge(ctx context.Context) error {
	_, err := d.conn.ExecContext(ctx, "CHECKPOINT")
	return err
}

func (d *desktop) usage(context.Context) (time.Duration, int64, error) {
	size, err := sizeOf(filepath.Dir(d.file))
	return processorTime(), size, err
}

func (d *desktop) ask(ctx context.Context, name string, q question) (n int, err error) {
	kernel := hash(semconv.CUDAOperation, semconv.CUDAOperationKernel, "Str", "span")
	kernels := " WHERE resource_id = '" + uuidText(d.resource) + "' AND list_contains(attribute_ids, '" + uuidText(kernel) + "'::UUID)"
	attribute := func(key string) string {
		return " JOIN (SELECT id, value FROM attributes WHERE key = '" + key + "') a ON list_contains(attribute_ids, a.id)"
	}
	var id [8]byte
	binary.BigEndian.PutUint64(id[:], uint64(q.last.Span))
	query := map[string]string{
		"timeline, 100 %": fmt.Sprintf("SELECT a.value, (start_time - %d) // %d AS b, count(*), sum(end_time - start_time), max(end_time - start_time), "+
			"arg_max(name, end_time - start_time) FROM spans%s%s GROUP BY 1, 2", q.from, (q.to-q.from)/2000+1, attribute(semconv.CUDAStreamID), kernels),
		"kernels by name, p50, p99": "SELECT name, count(*), sum(end_time - start_time) AS ns, quantile_disc(end_time - start_time, 0.5), " +
			"quantile_disc(end_time - start_time, 0.99), max(end_time - start_time) FROM spans" + kernels + " GROUP BY 1 ORDER BY ns DESC LIMIT 50",
		"scope tree":          "SELECT a.value, count(*), sum(end_time - start_time) FROM spans" + attribute(scopePath) + kernels + " GROUP BY 1",
		"session list":        "SELECT resource_id, any_value(service_name), min(start_time), max(end_time), count(*) FROM spans GROUP BY 1",
		"span by id and time": "SELECT * FROM spans WHERE span_id = '" + uuidText(spanUUID(id)) + "'",
	}[name]
	rows, err := d.conn.QueryContext(ctx, query)
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		n++
	}
	return n, rows.Err()
}
