-- Schema version 10: how far the log and the tables were compared, and what came of it. Append-only.
CREATE TABLE IF NOT EXISTS reconciliations
(
    from_at                   DateTime64(3, 'UTC') COMMENT 'the first moment that was compared, by the times that brokers give records',
    to_at                     DateTime64(3, 'UTC') COMMENT 'the first one that was not',
    checked_at                DateTime64(3, 'UTC') DEFAULT now64(3),
    usage_rows                UInt64 COMMENT 'usage events that the log has of it',
    usage_tokens              UInt64,
    usage_cost_pico           Int128 COMMENT 'as priced by another program than the sink',
    delivered_rows            UInt64,
    delivered_tokens          UInt64,
    counted_responses         UInt64 COMMENT 'responses whose tokens were counted again on generated',
    counted_tokens            UInt64,
    unreadable                UInt64 COMMENT 'records of usage that are no bill',
    usage_hours_differing     UInt64 COMMENT 'hours of tenants',
    delivered_hours_differing UInt64,
    generated_hours_differing UInt64,
    hours_apart               UInt64 COMMENT 'hours of tenants whose sums are not those of their events',
    left_out                  String COMMENT 'what was not compared, and why'
)
ENGINE = MergeTree
ORDER BY (to_at, checked_at)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Comparing asks for a time of the log; without these it reads whole tables.
ALTER TABLE usage_events ADD INDEX IF NOT EXISTS logged_at_range logged_at TYPE minmax GRANULARITY 1;
ALTER TABLE delivered_counts ADD INDEX IF NOT EXISTS logged_at_range logged_at TYPE minmax GRANULARITY 1;
