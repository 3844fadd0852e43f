-- SPDX-License-Identifier: Apache-2.0
--
-- The tables of our store on ClickHouse. The store creates them if create_schema is set.
--
-- Times are Unix nanoseconds. Attributes, bodies and resources are encoded: package internal/store
-- documents the format. Lane, Shape, Stack, Origin and Series are keys of the tables gpu_lanes,
-- gpu_shapes, gpu_stacks, gpu_origins and gpu_series, 0 for none.
--
-- A row that is written twice is in a table twice until ClickHouse merges parts. Read with FINAL.
--
-- gpu_sessions has rows for a session: Kind 'data' states the time of the last write, 'seal' that of
-- sealing, 'pin' whether retention keeps the session, 'baseline:NAME' whether it has this name. gpu_stats, gpu_lod and gpu_long are
-- sums of a sealed session, made from the rows. They belong to the seal whose Rollup they have.
--
-- A time to live deletes rows by their own age, pinned or not:
--
--   ALTER TABLE gpu_ops MODIFY TTL toDate(fromUnixTimestamp64Nano(StartNs)) + INTERVAL 30 DAY

CREATE TABLE IF NOT EXISTS gpu_ops
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    StartNs Int64 CODEC(Delta, ZSTD(1)),
    Span UInt64,
    DurationNs Int64 CODEC(T64, ZSTD(1)),
    Operation UInt8 CODEC(ZSTD(1)),
    Lane UInt64 CODEC(ZSTD(1)),
    Shape UInt64 CODEC(ZSTD(1)),
    Stack UInt64 CODEC(ZSTD(1)),
    Origin UInt64 CODEC(ZSTD(1)),
    Trace FixedString(16) CODEC(ZSTD(1)),
    Parent UInt64 CODEC(ZSTD(1)),
    ScopeName LowCardinality(String) CODEC(ZSTD(1)),
    ScopePath LowCardinality(String) CODEC(ZSTD(1)),
    Inferred Bool CODEC(ZSTD(1)),
    LaunchLeadNs Nullable(Int64) CODEC(ZSTD(1)),
    LaunchNs Nullable(Int64) CODEC(ZSTD(1)),
    QueueNs Nullable(Int64) CODEC(ZSTD(1)),
    Correlation Nullable(Int64) CODEC(ZSTD(1)),
    Bytes Nullable(Int64) CODEC(ZSTD(1)),
    Address Nullable(Int64) CODEC(ZSTD(1)),
    Estimated Bool CODEC(ZSTD(1)),
    Attributes String CODEC(ZSTD(1)),
    INDEX span Span TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX trace Trace TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(fromUnixTimestamp64Nano(StartNs))
ORDER BY (Project, Session, StartNs, Span);

CREATE TABLE IF NOT EXISTS gpu_spans
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    StartNs Int64 CODEC(Delta, ZSTD(1)),
    Span UInt64,
    EndNs UInt64 CODEC(ZSTD(1)),
    Trace FixedString(16) CODEC(ZSTD(1)),
    Parent UInt64 CODEC(ZSTD(1)),
    Kind UInt8,
    Status UInt8,
    StatusMessage String CODEC(ZSTD(1)),
    Name LowCardinality(String),
    TraceState String CODEC(ZSTD(1)),
    Flags UInt32,
    Operation LowCardinality(String),
    Origin UInt64 CODEC(ZSTD(1)),
    Attributes String CODEC(ZSTD(1)),
    Events String CODEC(ZSTD(1)),
    Links String CODEC(ZSTD(1)),
    DroppedAttrs UInt32,
    DroppedEvents UInt32,
    DroppedLinks UInt32,
    INDEX trace Trace TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree(EndNs)
PARTITION BY toDate(fromUnixTimestamp64Nano(StartNs))
ORDER BY (Project, Session, StartNs, Span);

CREATE TABLE IF NOT EXISTS gpu_samples
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    TimeNs Int64 CODEC(Delta, ZSTD(1)),
    UID FixedString(16),
    Kind UInt8,
    What LowCardinality(String),
    Value UInt64 CODEC(ZSTD(1)),
    Kernel LowCardinality(String),
    Function LowCardinality(String),
    File LowCardinality(String),
    Line Nullable(Int64) CODEC(ZSTD(1)),
    PC Nullable(Int64) CODEC(ZSTD(1)),
    Trace FixedString(16) CODEC(ZSTD(1)),
    Span UInt64 CODEC(ZSTD(1)),
    Device LowCardinality(String),
    DeviceIndex Nullable(Int64) CODEC(ZSTD(1)),
    Correlation Nullable(Int64) CODEC(ZSTD(1)),
    Origin UInt64 CODEC(ZSTD(1)),
    Attributes String CODEC(ZSTD(1)),
    INDEX trace Trace TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(fromUnixTimestamp64Nano(TimeNs))
ORDER BY (Project, Session, TimeNs, UID);

CREATE TABLE IF NOT EXISTS gpu_logs
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    TimeNs Int64 CODEC(Delta, ZSTD(1)),
    UID FixedString(16),
    ObservedNs Int64 CODEC(ZSTD(1)),
    Severity UInt8,
    SeverityText LowCardinality(String),
    Event LowCardinality(String),
    Body String CODEC(ZSTD(1)),
    Trace FixedString(16) CODEC(ZSTD(1)),
    Span UInt64 CODEC(ZSTD(1)),
    Flags UInt32,
    Origin UInt64 CODEC(ZSTD(1)),
    Attributes String CODEC(ZSTD(1)),
    DroppedAttrs UInt32,
    INDEX trace Trace TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(fromUnixTimestamp64Nano(TimeNs))
ORDER BY (Project, Session, TimeNs, UID);

CREATE TABLE IF NOT EXISTS gpu_points
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Series UInt64 CODEC(ZSTD(1)),
    TimeNs Int64 CODEC(Delta, ZSTD(1)),
    Version UInt64 CODEC(Delta, ZSTD(1)),
    StartNs Int64 CODEC(ZSTD(1)),
    Flags UInt32,
    Int Nullable(Int64) CODEC(ZSTD(1)),
    Double Nullable(Float64) CODEC(ZSTD(1)),
    Data String CODEC(ZSTD(1)),
    Exemplars String CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree(Version)
PARTITION BY toDate(fromUnixTimestamp64Nano(TimeNs))
ORDER BY (Project, Session, Series, TimeNs);

CREATE TABLE IF NOT EXISTS gpu_origins
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Key UInt64,
    Resource String,
    ResourceSchemaURL String,
    ScopeName String,
    ScopeVersion String,
    ScopeAttributes String,
    ScopeSchemaURL String,
    Seen Date DEFAULT today()
)
ENGINE = ReplacingMergeTree(Seen)
ORDER BY (Project, Session, Key);

CREATE TABLE IF NOT EXISTS gpu_lanes
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Key UInt64,
    Device String,
    DeviceIndex Nullable(Int64),
    Context Nullable(Int64),
    Stream Nullable(Int64),
    Class UInt8,
    Seen Date DEFAULT today()
)
ENGINE = ReplacingMergeTree(Seen)
ORDER BY (Project, Session, Key);

CREATE TABLE IF NOT EXISTS gpu_shapes
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Key UInt64,
    Operation UInt8,
    Name String,
    FullName String,
    Symbol String,
    Grid Array(Int64),
    Block Array(Int64),
    Cluster Array(Int64),
    Registers Nullable(Int64),
    SharedStatic Nullable(Int64),
    SharedDynamic Nullable(Int64),
    SharedExecuted Nullable(Int64),
    LocalMemory Nullable(Int64),
    Attributes String,
    Seen Date DEFAULT today()
)
ENGINE = ReplacingMergeTree(Seen)
ORDER BY (Project, Session, Key);

CREATE TABLE IF NOT EXISTS gpu_stacks
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Key UInt64,
    Text String CODEC(ZSTD(1)),
    Seen Date DEFAULT today()
)
ENGINE = ReplacingMergeTree(Seen)
ORDER BY (Project, Session, Key);

CREATE TABLE IF NOT EXISTS gpu_series
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Key UInt64,
    Metric String,
    Unit String,
    Description String,
    Type UInt8,
    Temporality UInt8,
    Monotonic Bool,
    Attributes String,
    Origin UInt64,
    Seen Date DEFAULT today()
)
ENGINE = ReplacingMergeTree(Seen)
ORDER BY (Project, Session, Key);

CREATE TABLE IF NOT EXISTS gpu_sessions
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Kind LowCardinality(String),
    At UInt64,
    Version UInt64,
    Rollup UInt64,
    Flag Bool,
    Summary String
)
ENGINE = ReplacingMergeTree(Version)
ORDER BY (Project, Session, Kind);

CREATE TABLE IF NOT EXISTS gpu_stats
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Rollup UInt64,
    Operation UInt8,
    Lane UInt64,
    Shape UInt64,
    Parent UInt64,
    ScopeName String,
    ScopePath String,
    Bucket UInt16,
    N Int64,
    SumNs Int64,
    MaxNs Int64,
    QueueNs Int64,
    Bytes Int64,
    FirstNs Int64,
    LastNs Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (Project, Session, Rollup, Operation, Lane, Shape, Parent, ScopeName, ScopePath, Bucket);

CREATE TABLE IF NOT EXISTS gpu_lod
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Rollup UInt64,
    Level UInt8,
    Lane UInt64,
    Bin Int64 CODEC(Delta, ZSTD(1)),
    N Int64,
    BusyNs Int64,
    TopNs Int64,
    TopStartNs Int64,
    TopShape UInt64
)
ENGINE = ReplacingMergeTree
ORDER BY (Project, Session, Rollup, Level, Lane, Bin);

CREATE TABLE IF NOT EXISTS gpu_long
(
    Project LowCardinality(String),
    Session LowCardinality(String),
    Rollup UInt64,
    StartNs Int64,
    Span UInt64,
    DurationNs Int64,
    Lane UInt64
)
ENGINE = ReplacingMergeTree
ORDER BY (Project, Session, Rollup, StartNs, Span);
