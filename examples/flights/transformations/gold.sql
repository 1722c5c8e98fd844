CREATE MATERIALIZED VIEW delays_by_carrier
COMMENT 'Mean departure delay in minutes, and the share of flights that left 15 minutes late.'
AS SELECT
  carrier,
  count(*) AS flights,
  round(avg(dep_delay), 1) AS delay,
  round(100 * avg(CAST(dep_delay >= 15 AS int)), 1) AS late
FROM silver
WHERE dep_delay IS NOT NULL
GROUP BY carrier;

CREATE MATERIALIZED VIEW delays_by_hour
COMMENT 'The same by airport and hour of departure.'
AS SELECT
  origin,
  hour,
  count(*) AS flights,
  round(avg(dep_delay), 1) AS delay,
  round(100 * avg(CAST(dep_delay >= 15 AS int)), 1) AS late
FROM silver
WHERE dep_delay IS NOT NULL
GROUP BY origin, hour;
