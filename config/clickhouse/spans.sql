-- SPDX-License-Identifier: Apache-2.0
--
-- The table of spans for config/clickhouse.yaml, in the database that the connection names. Make it
-- before the exporter starts, which would else make its own: that one keeps a span that arrives
-- twice twice. Columns and their types are those that the exporter (contrib 0.157) writes.
--
-- The ids end the sorting key, so ReplacingMergeTree takes rows for the same only if they are: Kafka
-- and the agents deliver at least once, and a span has the same ids each time. Rows are merged some
-- time after they came; ask with FINAL where a count must be right at once.
--
-- Nanoseconds stand before the ids because these are random: sorted by them, the spans of one second
-- lose the order in which times, parents and counters differ little. Attributes repeat from span to
-- span, over longer distances than lower levels of ZSTD look; level 6 finds that. What both save, and
-- what level 6 costs, is in docs/internals/measurements.md.
--
-- The time to live goes by when a span was recorded: to replay older ones, change it first.

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
