-- SPDX-License-Identifier: Apache-2.0
--
-- Kernel statistics by session, name and scope, on top of spans.sql.
--
-- The materialized view stores ten bytes per kernel: the values for statistics, and eight bytes of
-- its id. Sums computed at insertion would count a repeated span twice. Times are truncated to the
-- second; the table of spans.sql has all other data.

CREATE TABLE IF NOT EXISTS kernels
(
    Session LowCardinality(String),
    ServiceName LowCardinality(String),
    Device LowCardinality(String),
    Scope LowCardinality(String),
    Kernel LowCardinality(String) CODEC(ZSTD(1)),
    Timestamp DateTime CODEC(Delta, ZSTD(1)),
    SpanId UInt64 CODEC(Delta, ZSTD(1)),
    DurationNanos UInt64 CODEC(T64, ZSTD(1)),
    Occupancy Nullable(Float32) CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, Session, Scope, Kernel, Timestamp, SpanId)
TTL toDate(Timestamp) + INTERVAL 90 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS kernels_of_spans TO kernels AS
SELECT
    ResourceAttributes['service.instance.id'] AS Session,
    ServiceName,
    SpanAttributes['hw.id'] AS Device,
    SpanAttributes['cuda.scope.name'] AS Scope,
    SpanAttributes['cuda.kernel.name'] AS Kernel,
    toDateTime(Timestamp) AS Timestamp,
    reinterpretAsUInt64(reverse(unhex(SpanId))) AS SpanId,
    Duration AS DurationNanos,
    toFloat32OrNull(SpanAttributes['cuda.occupancy.theoretical']) AS Occupancy
FROM otel_traces
WHERE SpanAttributes['cuda.operation'] = 'kernel';

-- The view behind `SELECT * FROM kernel_statistics WHERE Session = '…' ORDER BY Seconds DESC`.
CREATE VIEW IF NOT EXISTS kernel_statistics AS
SELECT
    ServiceName,
    Session,
    Scope,
    Kernel,
    count() AS Launches,
    sum(DurationNanos) / 1e9 AS Seconds,
    quantileExact(0.5)(DurationNanos) / 1e9 AS Median,
    quantileExact(0.99)(DurationNanos) / 1e9 AS P99,
    max(DurationNanos) / 1e9 AS Longest,
    avg(Occupancy) AS MeanOccupancy
FROM kernels FINAL
GROUP BY ServiceName, Session, Scope, Kernel
-- A kernel's time is in the key, so that copies are on the same day.
SETTINGS do_not_merge_across_partitions_select_final = 1;
