-- Schema version 14: margins also of months whose events have left, by the sums that were kept of these.
--
-- By UTC day: what was charged, of requests that were accepted then, beside what GPUs cost then. Idle hours are of no
-- tenant and no model. At which endpoint an attempt's response was asked for stands in its event alone. So of events
-- that have left nothing is of an endpoint, what was charged as little as what GPUs cost, and each line is a margin.
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
        toDate(hour) AS day, toString(pool) AS pool, toString(tenant_id) AS tenant_id, toString(model) AS model,
        '' AS endpoint, toString(currency) AS currency,
        uncached_input_tokens + cached_input_tokens + output_tokens + reasoning_tokens AS tokens_,
        toInt64(0) AS engine_ms_, cost_pico AS charged_pico_, toInt128(0) AS gpu_cost_pico_
    FROM usage_hours
    WHERE kind = 'kept' AND usage_hours.tenant_id != '' AND (tokens_ > 0 OR charged_pico_ != 0) AND (hour, version) IN (
        SELECT hour, max(version) FROM usage_hours WHERE kind = 'kept' AND tenant_id = '' GROUP BY hour
    )
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
