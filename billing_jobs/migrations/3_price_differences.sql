-- Schema version 3: priced rows whose stored cost differs from tokens times the price in force when the request was
-- accepted, or that name another price: always empty.
CREATE OR REPLACE VIEW price_differences AS
SELECT
    event.usage_id AS usage_id, event.price_id AS price_id, in_force.price_id AS price_id_in_force,
    event.cost_pico AS cost_pico,
    toInt128(uncached_input_tokens) * uncached_input_pico + toInt128(cached_input_tokens) * cached_input_pico
        + toInt128(output_tokens) * output_pico + toInt128(reasoning_tokens) * reasoning_pico AS recomputed_pico
FROM (SELECT * FROM usage_events FINAL WHERE charge_state = 'priced') AS event
ASOF LEFT JOIN price_intervals AS in_force ON event.model = in_force.model AND event.accepted_at >= in_force.valid_from
WHERE cost_pico != recomputed_pico OR price_id != price_id_in_force;
