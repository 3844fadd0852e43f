// SPDX-License-Identifier: Apache-2.0

//go:build cgo && unix

package duckstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/store"
	"github.com/gpuflight/gpuflight/internal/store/answer"
)

var _ store.Tables = (*Store)(nil)

// tableSQL returns the rows of a table with plain columns. {interval} is a condition. docs/export.md
// describes the columns: they are an API.
var tableSQL = map[string]string{
	"operations": `SELECT o.start_ns, greatest(o.dur_ns, 0) AS duration_ns,
		CASE h.operation WHEN 1 THEN 'kernel' WHEN 2 THEN 'memcpy' WHEN 3 THEN 'memset' WHEN 4 THEN 'synchronize'
			WHEN 5 THEN 'graph' WHEN 6 THEN 'malloc' WHEN 7 THEN 'free' END AS operation,
		coalesce(h.name, '') AS name, h.full_name, h.symbol, h.grid, h.block, h.cluster, h.registers, h.shared_static, h.shared_dynamic, h.local_memory,
		l.device, l.device_index, l.context, l.stream,
		CASE WHEN o.launch_lead_ns IS NOT NULL THEN try(o.start_ns - o.launch_lead_ns) END AS launch_start_ns, o.launch_dur_ns AS launch_duration_ns,
		try(` + queueSQL + `) AS queue_ns, o.correlation, o.bytes, o.address, o.estimated,
		nullif(p.scope_name, '') AS scope, nullif(p.scope_path, '') AS scope_path, t.text AS host_stack,
		lower(hex(nullif(p.trace, repeat('\x00', 16)::BLOB))) AS trace_id, format('{:016x}', o.span) AS span_id,
		CASE WHEN p.parent != 0 THEN format('{:016x}', p.parent) END AS parent_id
		FROM {ops} o LEFT JOIN {dict:lanes} l ON l.id = o.lane LEFT JOIN {dict:shapes} h ON h.id = o.shape
		LEFT JOIN {dict:places} p ON p.id = o.place LEFT JOIN {dict:stacks} t ON t.id = o.stack WHERE {interval}`,
	"spans": `SELECT o.start_ns, greatest(o.end_ns - o.start_ns, 0) AS duration_ns, o.name, nullif(o.operation, '') AS operation,
		o.kind, o.status, nullif(o.status_message, '') AS status_message,
		lower(hex(nullif(o.trace, repeat('\x00', 16)::BLOB))) AS trace_id, format('{:016x}', o.span) AS span_id,
		CASE WHEN o.parent != 0 THEN format('{:016x}', o.parent) END AS parent_id
		FROM {spans} o WHERE {interval}`,
	"samples": `SELECT o.time_ns, CASE o.kind WHEN 1 THEN 'stall' WHEN 2 THEN 'sass' END AS kind, o.what, o.value,
		nullif(o.kernel, '') AS kernel, nullif(o.function, '') AS function, nullif(o.file, '') AS file, o.line, o.pc,
		nullif(o.device, '') AS device, o.device_index, o.correlation,
		lower(hex(nullif(o.trace, repeat('\x00', 16)::BLOB))) AS trace_id, CASE WHEN o.span != 0 THEN format('{:016x}', o.span) END AS span_id
		FROM {samples} o WHERE {interval}`,
	"logs": `SELECT o.time_ns, o.severity, nullif(o.severity_text, '') AS severity_text, nullif(o.event, '') AS event,
		lower(hex(nullif(o.trace, repeat('\x00', 16)::BLOB))) AS trace_id, CASE WHEN o.span != 0 THEN format('{:016x}', o.span) END AS span_id
		FROM {logs} o WHERE {interval}`,
	"points": `SELECT o.time_ns, s.metric, nullif(s.unit, '') AS unit, lower(format('{:016x}', s.key)) AS series,
		coalesce(o.int_value::DOUBLE, o.double_value) AS value
		FROM {points} o LEFT JOIN {dict:series} s ON s.id = o.series WHERE {interval}`,
}

// table returns the SELECT of a table. DuckDB binds no parameters in COPY and CREATE TABLE, so the
// interval is in the text.
func (v *view) table(name string, from, to int64) (string, error) {
	query, ok := tableSQL[name]
	if !ok {
		return "", fmt.Errorf("the table %.50q does not exist: %w", name, store.ErrInvalid)
	}
	start, end := "o.time_ns", "o.time_ns"
	switch name {
	case "operations":
		start, end = "o.start_ns", "o.start_ns + greatest(o.dur_ns, 0)"
	case "spans":
		start, end = "o.start_ns", "greatest(o.start_ns, o.end_ns)"
	}
	interval := "true"
	if from != 0 {
		interval = fmt.Sprintf("(%s >= %d OR %s > %d)", start, from, end, from)
	}
	if to != 0 {
		interval += fmt.Sprintf(" AND %s < %d", start, to)
	}
	query = strings.ReplaceAll(query, "{interval}", interval)
	for i, dict := range dictTables {
		query = strings.ReplaceAll(query, "{dict:"+dict+"}", v.dict(i))
	}
	return v.tables(query), nil
}

// scratch returns the name of a new file that DuckDB may write.
func (s *Store) scratch(suffix string) (string, error) {
	dir := filepath.Join(s.dir, "tmp")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	s.attach.Lock()
	defer s.attach.Unlock()
	s.sequence++
	return filepath.Join(dir, "export-"+strconv.FormatInt(time.Now().UnixNano(), 36)+"-"+strconv.FormatUint(s.sequence, 36)+suffix), nil
}

// WriteParquet implements [store.Tables].
func (s *Store) WriteParquet(ctx context.Context, q store.TableQuery, file string) error {
	if _, err := answer.Limits(q.From, q.To, 0, 1, 1); err != nil {
		return fmt.Errorf("write Parquet: %w", err)
	}
	v, err := s.open(ctx, q.Project, q.Session, false)
	if err != nil {
		return fmt.Errorf("write Parquet: %w", err)
	}
	defer v.close()
	if v.dropped {
		return fmt.Errorf("session %q has sums only, because retention removed its rows: %w", q.Session, store.ErrInvalid)
	}
	query, err := v.table(q.Table, q.From, q.To)
	if err != nil {
		return err
	}
	building, err := s.scratch(".parquet")
	if err != nil {
		return fmt.Errorf("write Parquet: %w", err)
	}
	defer func() { _ = os.Remove(building) }()
	err = s.withTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "COPY ("+query+") TO "+quote(building)+" (FORMAT parquet, COMPRESSION zstd)")
		return err
	})
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	if err == nil {
		err = copyNew(building, file)
	}
	if err != nil {
		return fmt.Errorf("write table %s of session %q: %w", q.Table, q.Session, err)
	}
	return nil
}
