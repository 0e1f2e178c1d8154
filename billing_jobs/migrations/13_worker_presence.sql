-- Schema version 13: hours in which a worker was there, whether it had anything to do or not.
--
-- One row per worker and UTC hour; a copy of it, in the log or here, says the same.
CREATE TABLE IF NOT EXISTS worker_presence
(
    presence_id   String COMMENT '<region>/<pool>/<worker>/<Unix ms of the hour>, unique',
    tenant_id     LowCardinality(String) COMMENT 'that of the service itself',
    region        LowCardinality(String),
    pool          LowCardinality(String),
    worker_id     LowCardinality(String),
    hour          DateTime64(3, 'UTC') COMMENT 'its beginning, by the clock of the worker',
    log_partition UInt32,
    log_offset    UInt64,
    logged_at     DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (region, pool, worker_id, hour)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

ALTER TABLE billing_batches ADD COLUMN IF NOT EXISTS presence_rows UInt64 AFTER delivered_rows;

-- What each UTC hour of a worker cost in which it said that it was there, or had an attempt in its engine, to the last
-- pico: one line for each such attempt, and one for the time in which the engine had nothing to do (`idle`).
--
-- An attempt was in the engine for `engine_ms` before its record was logged, of which a day counts at most. The part of
-- the hour in which there was any attempt is divided among them by how long each was there. A line is the difference of
-- two rounded sums, so that all lines of an hour add up to what it cost. Presence is a run of no length at the beginning
-- of its hour, and so the first one in it: it has the line of what was idle in the place of the first attempt.
CREATE OR REPLACE VIEW gpu_costs AS
WITH
    3600000 AS hour_length_ms,
    attempts AS (
        SELECT
            region, pool, worker_id, tenant_id, project_id, model, response_id, attempt_id, outcome,
            toUnixTimestamp64Milli(logged_at) AS ended_ms,
            ended_ms - toInt64(least(compute_records.engine_ms, 86400000)) AS began_ms,
            arrayJoin(range(
                toUInt64(intDiv(began_ms, hour_length_ms)),
                toUInt64(intDiv(greatest(began_ms, ended_ms - 1), hour_length_ms)) + 1
            )) AS hour_number,
            toInt64(hour_number * hour_length_ms) AS hour_ms,
            greatest(began_ms, hour_ms) AS from_ms,
            least(ended_ms, hour_ms + hour_length_ms) AS to_ms
        FROM compute_records FINAL
    ),
    runs AS (
        SELECT
            region, pool, worker_id, tenant_id, project_id, model, response_id, attempt_id, outcome, hour_ms, from_ms,
            to_ms, false AS is_presence
        FROM attempts
        UNION ALL
        SELECT
            region, pool, worker_id, toLowCardinality(''), toLowCardinality(''), toLowCardinality(''), '', '',
            toLowCardinality(''), toUnixTimestamp64Milli(hour) AS began_ms, began_ms, began_ms, true
        FROM worker_presence FINAL
    ),
    placed AS (
        SELECT
            *, to_ms - from_ms AS ran_ms,
            max(to_ms) OVER (
                PARTITION BY region, pool, worker_id, hour_ms ORDER BY from_ms, attempt_id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS seen_ms,
            greatest(0, to_ms - greatest(from_ms, seen_ms)) AS first_here_ms
        FROM runs
    ),
    summed AS (
        SELECT
            *, sum(ran_ms) OVER by_hour AS all_ms, sum(first_here_ms) OVER by_hour AS busy_ms,
            sum(ran_ms) OVER (
                PARTITION BY region, pool, worker_id, hour_ms ORDER BY from_ms, attempt_id
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS through_ms,
            row_number() OVER (
                PARTITION BY region, pool, worker_id, hour_ms ORDER BY from_ms, attempt_id
            ) = 1 AS is_first,
            fromUnixTimestamp64Milli(hour_ms, 'UTC') AS hour
        FROM placed
        WINDOW by_hour AS (PARTITION BY region, pool, worker_id, hour_ms)
    ),
    priced AS (
        SELECT
            summed.*, price.currency AS currency, toInt128(price.gpu_hour_pico) * price.gpus AS hour_pico,
            intDiv(hour_pico * busy_ms, hour_length_ms) AS busy_pico
        FROM summed
        ASOF LEFT JOIN (SELECT * FROM gpu_prices ORDER BY recorded_at, version LIMIT 1 BY pool, valid_from) AS price
            ON summed.pool = price.pool AND summed.hour >= price.valid_from
    )
SELECT
    hour, region, pool, worker_id, kind,
    if(kind = 'idle', '', toString(priced.tenant_id)) AS tenant_id,
    if(kind = 'idle', '', toString(priced.project_id)) AS project_id,
    if(kind = 'idle', '', toString(priced.model)) AS model,
    if(kind = 'idle', '', priced.response_id) AS response_id,
    if(kind = 'idle', '', priced.attempt_id) AS attempt_id,
    if(kind = 'idle', '', toString(priced.outcome)) AS outcome,
    if(kind = 'idle', hour_length_ms - busy_ms, ran_ms) AS engine_ms,
    currency,
    if(
        kind = 'idle', hour_pico - busy_pico,
        intDiv(busy_pico * through_ms, greatest(all_ms, 1)) - intDiv(busy_pico * (through_ms - ran_ms), greatest(all_ms, 1))
    ) AS cost_pico,
    toDecimal256(cost_pico, 12) / 1000000000000 AS cost
FROM priced
ARRAY JOIN multiIf(is_presence, ['idle'], is_first, ['work', 'idle'], ['work']) AS kind;
