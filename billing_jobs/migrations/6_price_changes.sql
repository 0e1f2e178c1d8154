-- Schema version 6: who changed a price, why, and as which change of all. Of two prices of one model that hold from the
-- same moment, the one that was recorded first counts: two processes that met a new model may both have written one.
ALTER TABLE prices ADD COLUMN IF NOT EXISTS version UInt32 COMMENT 'of the change, counted from 1, or 0 for the first of a model';
ALTER TABLE prices ADD COLUMN IF NOT EXISTS actor String COMMENT 'who changed it';
ALTER TABLE prices ADD COLUMN IF NOT EXISTS reason String COMMENT 'why';

CREATE OR REPLACE VIEW price_intervals AS
SELECT
    price_id, model, currency, valid_from,
    leadInFrame(toNullable(valid_from)) OVER
        (PARTITION BY model ORDER BY valid_from ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS valid_until,
    uncached_input_pico, cached_input_pico, output_pico, reasoning_pico, version, actor, reason
FROM (SELECT * FROM prices ORDER BY recorded_at, version LIMIT 1 BY model, valid_from);
