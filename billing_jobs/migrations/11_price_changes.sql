-- Schema version 11: a change of prices is made by one insert, whatever it holds; the rows of `prices` and `gpu_prices`
-- follow from it. Append-only; of two with one version the one that was recorded first counts.
CREATE TABLE IF NOT EXISTS price_changes
(
    version     UInt32 COMMENT 'counted from 1',
    actor       String COMMENT 'who changed them',
    reason      String COMMENT 'why',
    prices      String COMMENT 'its rows of prices, as JSON',
    gpu_prices  String COMMENT 'its rows of gpu_prices, as JSON',
    recorded_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY version
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
