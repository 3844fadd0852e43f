-- SPDX-License-Identifier: Apache-2.0
--
-- The table of spans for config/clickhouse.yaml, in the database of the connection. Create it before
-- the exporter starts. Otherwise the exporter creates its own table, which stores repeated spans
-- twice. The columns and types are those of the exporter (contrib 0.157).
--
-- The ids are the end of the sorting key, so ReplacingMergeTree replaces only rows with equal ids.
-- Kafka and the agents deliver at least once, and a span has the same ids each time. Rows are merged
-- some time after insertion; query with FINAL if a count must be exact immediately.
--
-- Nanoseconds precede the ids because ids are random. Sorting by ids first would destroy the order of
-- the spans of one second, in which times, parents and counters differ little. Attributes repeat
-- over long distances, which ZSTD finds at level 6. docs/internals/measurements.md has the savings
-- and the cost.
--
-- The time to live starts with the time of recording. Change it before you replay older spans.

CREATE TABLE IF NOT EXISTS otel_traces
(
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)),
    TraceState String CODEC(ZSTD(1)),
    SpanName LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(6)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(6)),
    Duration UInt64 CODEC(ZSTD(1)),
    StatusCode LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage String CODEC(ZSTD(1)),
    Events Nested (Timestamp DateTime64(9), Name LowCardinality(String), Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    Links Nested (TraceId String, SpanId String, TraceState String, Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(Timestamp)
PRIMARY KEY (ServiceName, SpanName, toDateTime(Timestamp))
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp), Timestamp, TraceId, SpanId)
TTL toDate(Timestamp) + INTERVAL 30 DAY
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1;
