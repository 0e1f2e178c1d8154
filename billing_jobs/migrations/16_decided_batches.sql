-- Schema version 16: which decisions of an operator a batch was cut under.
--
-- One that was cut before the last decision says nothing of what is stored since, whenever its insert was made: whoever
-- is stopped in the middle of one, and goes on, may have it made after the decision.
ALTER TABLE billing_batches ADD COLUMN IF NOT EXISTS
    decisions Int64 DEFAULT -1 COMMENT 'so many had been made of its partition, -1: by a release that did not note it';
