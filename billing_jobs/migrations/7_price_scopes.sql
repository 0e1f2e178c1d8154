-- Schema version 7: prices for some alone (of a tenant, an endpoint, a lane, a region), and what GPUs cost.
ALTER TABLE prices ADD COLUMN IF NOT EXISTS tenant_id LowCardinality(String) COMMENT 'whom it is for, empty: all';
ALTER TABLE prices ADD COLUMN IF NOT EXISTS endpoint LowCardinality(String) COMMENT 'empty: all';
ALTER TABLE prices ADD COLUMN IF NOT EXISTS lane LowCardinality(String) COMMENT 'empty: all';
ALTER TABLE prices ADD COLUMN IF NOT EXISTS region LowCardinality(String) COMMENT 'empty: all';
ALTER TABLE prices ADD COLUMN IF NOT EXISTS withdrawn Bool COMMENT 'from then on these have no price of their own';

-- An interval ends where the next row of the same scope begins. The order of specificity is that of `PriceScope`.
CREATE OR REPLACE VIEW price_intervals AS
SELECT
    price_id, model, currency, valid_from, valid_until, uncached_input_pico, cached_input_pico, output_pico,
    reasoning_pico, tenant_id, endpoint, lane, region, specificity, version, actor, reason
FROM (
    SELECT
        *, toUInt8((tenant_id != '') * 8 + (endpoint != '') * 4 + (lane != '') * 2 + (region != '')) AS specificity,
        leadInFrame(toNullable(valid_from)) OVER
            (PARTITION BY model, tenant_id, endpoint, lane, region ORDER BY valid_from
             ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS valid_until
    FROM (
        SELECT * FROM prices
        ORDER BY recorded_at, version LIMIT 1 BY model, tenant_id, endpoint, lane, region, valid_from
    )
)
WHERE NOT withdrawn;

-- Of each combination that was used: from when on which price is in force, the most specific of those that fit. Empty
-- from where on none is. Usage finds its price by one ASOF JOIN.
CREATE OR REPLACE VIEW price_timeline AS
WITH
    used AS (SELECT DISTINCT model, tenant_id, endpoint, lane, region FROM usage_events WHERE model != ''),
    asked AS (
        SELECT
            model, tenant_id, endpoint, lane, region, toUInt8(arrayJoin(range(16))) AS specificity,
            if(bitTest(specificity, 3), toString(tenant_id), '') AS of_tenant,
            if(bitTest(specificity, 2), toString(endpoint), '') AS of_endpoint,
            if(bitTest(specificity, 1), toString(lane), '') AS of_lane,
            if(bitTest(specificity, 0), toString(region), '') AS of_region
        FROM used
    ),
    fitting AS (
        SELECT
            asked.model AS model, asked.tenant_id AS tenant_id, asked.endpoint AS endpoint, asked.lane AS lane,
            asked.region AS region,
            arrayReverseSort(each -> each.1, groupArray((
                asked.specificity, price.valid_from,
                ifNull(price.valid_until, toDateTime64('2299-12-31 00:00:00', 3, 'UTC')), price.price_id,
                toString(price.currency), price.uncached_input_pico, price.cached_input_pico, price.output_pico,
                price.reasoning_pico
            ))) AS prices
        FROM asked
        INNER JOIN price_intervals AS price
            ON asked.model = price.model AND asked.specificity = price.specificity
            AND asked.of_tenant = price.tenant_id AND asked.of_endpoint = price.endpoint
            AND asked.of_lane = price.lane AND asked.of_region = price.region
        GROUP BY model, tenant_id, endpoint, lane, region
    )
SELECT
    model, tenant_id, endpoint, lane, region, valid_from, in_force.4 AS price_id, in_force.5 AS currency,
    in_force.6 AS uncached_input_pico, in_force.7 AS cached_input_pico, in_force.8 AS output_pico,
    in_force.9 AS reasoning_pico
FROM (
    SELECT
        model, tenant_id, endpoint, lane, region, valid_from,
        arrayFirst(each -> each.2 <= valid_from AND valid_from < each.3, prices) AS in_force
    FROM fitting
    ARRAY JOIN arrayDistinct(arrayConcat(prices.2, prices.3)) AS valid_from
);

CREATE OR REPLACE VIEW price_differences AS
SELECT
    event.usage_id AS usage_id, event.price_id AS price_id, price.price_id AS price_id_in_force,
    event.cost_pico AS cost_pico,
    toInt128(uncached_input_tokens) * uncached_input_pico + toInt128(cached_input_tokens) * cached_input_pico
        + toInt128(output_tokens) * output_pico + toInt128(reasoning_tokens) * reasoning_pico AS recomputed_pico
FROM (SELECT * FROM usage_events FINAL WHERE charge_state = 'priced') AS event
ASOF LEFT JOIN price_timeline AS price
    ON event.model = price.model AND event.tenant_id = price.tenant_id AND event.endpoint = price.endpoint
    AND event.lane = price.lane AND event.region = price.region AND event.accepted_at >= price.valid_from
WHERE cost_pico != recomputed_pico OR price_id != price_id_in_force;

-- Append-only, as prices are. An hour costs what holds at its beginning.
CREATE TABLE IF NOT EXISTS gpu_prices
(
    pool          LowCardinality(String),
    currency      LowCardinality(String),
    valid_from    DateTime64(3, 'UTC'),
    gpu_hour_pico Int64 COMMENT '10^-12 of currency for an hour of one GPU',
    gpus          UInt16 COMMENT 'that each worker of the pool has',
    version       UInt32 COMMENT 'of the change, counted from 1 together with those of prices, or 0',
    actor         String COMMENT 'who changed it',
    reason        String COMMENT 'why',
    recorded_at   DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (pool, valid_from)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- What each UTC hour of a worker cost in which it had an attempt in its engine, to the last pico: one line for each
-- such attempt, and one for the time in which the engine had nothing to do (`idle`).
--
-- An attempt was in the engine for `engine_ms` before its record was logged, of which a day counts at most. The part of
-- the hour in which there was any attempt is divided among them by how long each was there. A line is the difference of
-- two rounded sums, so that all lines of an hour add up to what it cost.
CREATE OR REPLACE VIEW gpu_costs AS
WITH
    3600000 AS hour_length_ms,
    runs AS (
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
ARRAY JOIN if(is_first, ['work', 'idle'], ['work']) AS kind;

-- By UTC day: what was charged, of requests that were accepted then, beside what GPUs cost then. Idle hours are of no
-- tenant and no model.
CREATE OR REPLACE VIEW margins AS
SELECT
    day, pool, tenant_id, model, endpoint, currency, sum(tokens_) AS tokens, sum(engine_ms_) AS engine_ms,
    sum(charged_pico_) AS charged_pico, sum(gpu_cost_pico_) AS gpu_cost_pico,
    charged_pico - gpu_cost_pico AS margin_pico, toDecimal256(margin_pico, 12) / 1000000000000 AS margin
FROM (
    SELECT
        toDate(accepted_at) AS day, toString(pool) AS pool, toString(tenant_id) AS tenant_id, toString(model) AS model,
        toString(endpoint) AS endpoint, toString(currency) AS currency,
        toUInt64(uncached_input_tokens) + cached_input_tokens + output_tokens + reasoning_tokens AS tokens_,
        toInt64(0) AS engine_ms_, cost_pico AS charged_pico_, toInt128(0) AS gpu_cost_pico_
    FROM usage_events FINAL
    WHERE attempts > 0
    UNION ALL
    SELECT
        toDate(hour) AS day, toString(pool) AS pool, costs.tenant_id AS tenant_id, costs.model AS model,
        toString(answered.endpoint) AS endpoint, toString(costs.currency) AS currency,
        toUInt64(0) AS tokens_, toInt64(costs.engine_ms) AS engine_ms_, toInt128(0) AS charged_pico_,
        toInt128(costs.cost_pico) AS gpu_cost_pico_
    FROM gpu_costs AS costs
    LEFT ANY JOIN (SELECT response_id, endpoint FROM usage_events) AS answered ON costs.response_id = answered.response_id
)
GROUP BY day, pool, tenant_id, model, endpoint, currency;
