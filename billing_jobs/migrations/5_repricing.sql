-- Schema version 5: of two rows of one usage_id, the one with a price wins over the one that waits for it.
--
-- What waits for a price was billable, so it has precedence 2, also in parts that were written before this.
ALTER TABLE usage_events MODIFY COLUMN
    precedence UInt8 MATERIALIZED (model != '') + (attempts > 0) + (charge_state = 'priced')
        COMMENT '0 refused, 1 opened, 2 a worker took it, 3 and it has a price';
