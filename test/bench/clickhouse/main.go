// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command clickhouse measures the size and time of kernel spans in ClickHouse, with the tables of
// config/clickhouse and with the default tables of contrib's exporter.
//
// The log receiver reads a generated session, and contrib's exporter writes it into two databases
// in turn: one with our tables, one without. Both use ClickHouse's engine (package front) on disk.
// Bytes are those of the parts after all merges, one part per day. The time of an insert is that of
// the exporter's call, including materialized views. A query runs five times; the result is the
// median. Processor time is that of the engine including background merges. It depends less on
// other load of the machine than wall time.
//
// The command fails if the two databases differ in spans or in sums by session, scope and kernel.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuflight/gpuflight/internal/testing/gpuflgen"
	"github.com/gpuflight/gpuflight/test/clickhouse/front"
)

// rounds is how often a query is run.
const rounds = 5

func main() {
	kernels := flag.Int64("kernels", 200_000, "kernels of the generated session")
	launcher := flag.String("chdb", ".tools/chdb/chdb", "the launcher that scripts/chdb makes")
	tables := flag.String("tables", "config/clickhouse", "the folder with our spans.sql and kernels.sql")
	flag.Parse()
	if err := bench(*kernels, *launcher, *tables); err != nil {
		fmt.Fprintln(os.Stderr, "clickhouse:", err)
		os.Exit(1)
	}
}

// schema is one of the two that are compared.
type schema struct {
	database string
	// files create its tables, in addition to those of the exporter.
	files []string
	// statistics is the table, or a query, with one row per session, scope and kernel.
	statistics string
}

// cost is wall time and processor time.
type cost struct{ clock, processor time.Duration }

// result holds the measurements of one schema.
type result struct {
	spans          int
	inserts, merge cost
	// bytes on disk, by table.
	bytes map[string]int64
	took  [3]cost // by the order of questions
	// sums must be equal for both.
	sums string
}

func bench(kernels int64, launcher, tables string) (err error) {
	if launcher, err = filepath.Abs(launcher); err != nil {
		return err
	}
	if _, err = exec.LookPath(launcher); err != nil {
		return fmt.Errorf("%w (make .tools/chdb/chdb)", err)
	}
	work, err := os.MkdirTemp("", "gpuflight-clickhouse-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	logs := filepath.Join(work, "logs")
	// Today's data, because our tables drop old rows, and from midnight on, so that it is all of
	// one day.
	cfg := gpuflgen.Config{Dir: logs, Kernels: kernels, StackBytes: 500, Samples: -1, Start: time.Now().UTC().Truncate(24 * time.Hour)}
	if _, err := gpuflgen.Run(context.Background(), cfg); err != nil {
		return err
	}
	schemas := []schema{
		{"ours", []string{filepath.Join(tables, "spans.sql"), filepath.Join(tables, "kernels.sql")}, "kernel_statistics"},
		{"contrib", nil, fromSpans},
	}
	results := make([]result, len(schemas))
	for i, s := range schemas {
		if results[i], err = s.run(filepath.Join(work, s.database), launcher, logs, kernels); err != nil {
			return fmt.Errorf("%s: %w", s.database, err)
		}
	}
	ours, theirs := results[0], results[1]
	if ours.spans != theirs.spans || ours.sums != theirs.sums {
		return fmt.Errorf("the databases differ: %d and %d spans, %s and %s", ours.spans, theirs.spans, ours.sums, theirs.sums)
	}

	fmt.Printf("%d kernels in %d spans\n\n", kernels, ours.spans)
	fmt.Println("| | ours | contrib's | ours / contrib's |")
	fmt.Println("|---|--:|--:|--:|")
	perMillion := 1e6 / float64(kernels)
	row := func(what string, format string, of func(result) float64) {
		a, b := of(ours), of(theirs)
		fmt.Printf("| %s | "+format+" | "+format+" | %.2f |\n", what, a, b, a/b)
	}
	for _, table := range []string{"otel_traces", "kernels", "otel_traces_trace_id_ts"} {
		if theirs.bytes[table] == 0 {
			fmt.Printf("| MB per million kernels, `%s` | %.1f | | |\n", table, float64(ours.bytes[table])*perMillion/1e6)
			continue
		}
		row("MB per million kernels, `"+table+"`", "%.1f", func(r result) float64 { return float64(r.bytes[table]) * perMillion / 1e6 })
	}
	row("MB per million kernels, all", "%.1f", func(r result) float64 { return float64(r.total()) * perMillion / 1e6 })
	row("bytes a span, all", "%.1f", func(r result) float64 { return float64(r.total()) / float64(r.spans) })
	for _, c := range []struct {
		what string
		of   func(result) cost
	}{
		{"inserts", func(r result) cost { return r.inserts }},
		{"merging the rest", func(r result) cost { return r.merge }},
	} {
		row("seconds per million kernels, "+c.what, "%.1f", func(r result) float64 { return c.of(r).clock.Seconds() * perMillion })
		row("the same, of processors", "%.1f", func(r result) float64 { return c.of(r).processor.Seconds() * perMillion })
	}
	for i, q := range questions {
		row("ms, "+q.name, "%.1f", func(r result) float64 { return float64(r.took[i].clock.Microseconds()) / 1e3 })
		row("the same, of processors", "%.1f", func(r result) float64 { return float64(r.took[i].processor.Microseconds()) / 1e3 })
	}
	return nil
}

func (r result) total() (sum int64) {
	for _, n := range r.bytes {
		sum += n
	}
	return sum
}

// fromSpans computes kernel_statistics from the exporter's own table, for spans that were sent
// once.
const fromSpans = `(SELECT ServiceName, ResourceAttributes['service.instance.id'] AS Session,
	SpanAttributes['cuda.scope.name'] AS Scope, SpanAttributes['cuda.kernel.name'] AS Kernel,
	count() AS Launches, sum(Duration) / 1e9 AS Seconds, quantileExact(0.5)(Duration) / 1e9 AS Median,
	quantileExact(0.99)(Duration) / 1e9 AS P99, max(Duration) / 1e9 AS Longest,
	avg(toFloat32OrNull(SpanAttributes['cuda.occupancy.theoretical'])) AS MeanOccupancy
	FROM otel_traces WHERE SpanAttributes['cuda.operation'] = 'kernel' GROUP BY ServiceName, Session, Scope, Kernel)`

// question is a query that is timed. In its SQL, STATISTICS stands for the schema's.
type question struct{ name, sql string }

var questions = [3]question{
	{"the ten kernels of a session that take the longest", "SELECT * FROM STATISTICS WHERE Session = (SELECT any(ResourceAttributes['service.instance.id']) " +
		"FROM otel_traces) ORDER BY Seconds DESC LIMIT 10"},
	{"all spans of a trace", "SELECT * FROM otel_traces WHERE TraceId = (SELECT max(TraceId) FROM otel_traces) ORDER BY Timestamp"},
	{"spans by the second", "SELECT toDateTime(Timestamp) AS Second, count() FROM otel_traces GROUP BY Second ORDER BY Second"},
}

// run fills a schema in an engine of its own and measures it.
func (s schema) run(dir, launcher, logs string, kernels int64) (r result, err error) {
	ctx := context.Background()
	engine, err := front.Start(launcher, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	server := &front.Server{Engine: engine}
	if err := server.Listen(""); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	ask := func(sql string) ([]byte, error) {
		return engine.Run(ctx, front.Statement{SQL: sql, Format: "JSONEachRow"}, nil)
	}
	timed := func(sql string) (answer []byte, c cost, err error) {
		// Exclude the processor time of earlier background work.
		if _, err := ask("SELECT 1"); err != nil {
			return nil, c, err
		}
		begin, before := time.Now(), engine.ProcessorTime()
		answer, err = ask(sql)
		return answer, cost{time.Since(begin), engine.ProcessorTime() - before}, err
	}
	for _, file := range s.files {
		text, err := os.ReadFile(file)
		if err != nil {
			return r, err
		}
		if _, err := ask(string(text)); err != nil {
			return r, fmt.Errorf("%s: %w", file, err)
		}
	}
	before := engine.ProcessorTime()
	if r.spans, r.inserts.clock, err = write(ctx, server.URL(), logs, kernels); err != nil {
		return r, err
	}
	r.inserts.processor = engine.ProcessorTime() - before

	out, err := ask("SELECT DISTINCT table FROM system.parts WHERE active AND database = 'default'")
	if err != nil {
		return r, err
	}
	r.bytes = map[string]int64{}
	for line := range strings.Lines(string(out)) {
		var row struct{ Table string }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			return r, err
		}
		_, c, err := timed("OPTIMIZE TABLE " + row.Table + " FINAL")
		if err != nil {
			return r, err
		}
		r.merge = cost{r.merge.clock + c.clock, r.merge.processor + c.processor}
		size, err := ask("SELECT sum(bytes_on_disk) AS n FROM system.parts WHERE active AND database = 'default' AND table = '" + row.Table + "'")
		if err != nil {
			return r, err
		}
		var sum struct{ N int64 }
		if err := json.Unmarshal(size, &sum); err != nil {
			return r, err
		}
		r.bytes[row.Table] = sum.N
	}
	for i, q := range questions {
		var clock, processor []time.Duration
		for range rounds {
			answer, c, err := timed(strings.ReplaceAll(q.sql, "STATISTICS", s.statistics))
			if err != nil {
				return r, err
			}
			if len(answer) == 0 {
				return r, fmt.Errorf("no answer to %s", q.name)
			}
			clock, processor = append(clock, c.clock), append(processor, c.processor)
		}
		slices.Sort(clock)
		slices.Sort(processor)
		r.took[i] = cost{clock[rounds/2], processor[rounds/2]}
	}
	// Sums of floats depend on the order of rows.
	out, err = ask("SELECT count() AS spans, (SELECT groupArray(tuple(*)) FROM (SELECT Session, Scope, Kernel, Launches, round(Seconds * 1e9), " +
		"Median, P99, Longest FROM " + s.statistics + " ORDER BY ALL)) AS sums FROM otel_traces")
	r.sums = string(out)
	return r, err
}
