-- Usage by hour, day and month, and of the last hour: for billing's own tables and for a tenant's analysts alike.
-- `{tables}` and `{views}` are where the tables are and where these go; the other words in braces stand in `views.py`.
--
-- Hours that are settled are read from their sums and the others from the events, so every view is exact whatever has
-- been summed by then (`hours.py`). Events that come after the others of their month were dropped are shown beside the
-- sums that were kept of those, so a group may have two rows then. All of a statement sees one moment of `usage_hours`,
-- and it matters not whether the events are of a moment before or after it.
{create} {views}usage_by_hour AS
SELECT {dimensions}, hour, {figures}
FROM {tables}usage_hours
WHERE tenant_id != '' AND (hour, version, kind = 'kept') IN (
    SELECT hour, if(is_open, kept, generation), is_open FROM {hours} WHERE NOT is_open OR kept > 0
)
UNION ALL
SELECT {dimensions}, toStartOfHour(accepted_at) AS hour, {figures_of_events}
FROM {tables}usage_events FINAL
WHERE toStartOfHour(accepted_at) IN (SELECT hour FROM {hours} WHERE is_open)
GROUP BY {dimensions}, hour;

{create} {views}usage_by_day AS
SELECT {dimensions}, toDate(hour) AS day, {sums}
FROM {views}usage_by_hour
GROUP BY {dimensions}, day;

{create} {views}usage_by_month AS
SELECT {dimensions}, toStartOfMonth(hour) AS month, {sums}
FROM {views}usage_by_hour
GROUP BY {dimensions}, month;

-- By the minute in which requests were accepted. What still runs is not in it, so the newest minutes will grow.
{create} {views}usage_live AS
SELECT {dimensions}, toStartOfMinute(accepted_at) AS minute, true AS is_estimate, {figures_of_events}
FROM {tables}usage_events FINAL
WHERE toStartOfHour(accepted_at) >= toStartOfHour(now('UTC') - INTERVAL 1 HOUR)
  AND accepted_at >= toStartOfMinute(now('UTC') - INTERVAL 1 HOUR)
GROUP BY {dimensions}, minute;
