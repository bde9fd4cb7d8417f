// SPDX-License-Identifier: Apache-2.0
// A step of the history's schema (schema.cpp): what members declare and claim counts beside what
// the others do. Text only; any thread.
#pragma once

namespace fl::server {

// The numbers in these views are those of counted_claims.hpp, and a test holds both against each
// other. metric_kind was a table of the first declarations; whose they were is not
// known, so they are those of a client without a name.
inline constexpr const char* bounded_claims = R"sql(
CREATE TABLE metric_declaration (       -- what one client says of a metric that it measures
  id              INTEGER PRIMARY KEY,  -- in the order in which they were declared
  run_id          INTEGER NOT NULL REFERENCES run (id),
  client          TEXT NOT NULL,        -- '': a history of before does not know
  name            TEXT NOT NULL CHECK (name <> ''),
  lower_is_better INTEGER NOT NULL CHECK (lower_is_better IN (0, 1)),
  combine         TEXT NOT NULL CHECK (combine IN ('mean', 'log_mean', 'none')),
  evaluator       INTEGER NOT NULL CHECK (evaluator IN (0, 1)),
  UNIQUE (run_id, client, name)
) STRICT;
INSERT INTO metric_declaration (id, run_id, client, name, lower_is_better, combine, evaluator)
  SELECT id, run_id, '', name, lower_is_better, combine, evaluator FROM metric_kind;
DROP TABLE metric_kind;

-- Each metric as most evaluators declare it, or where none measures it most trainers. Of kinds that
-- equally many declare, the first one counts. A member that was revoked counts where nobody else does.
CREATE VIEW metric_kind (id, run_id, name, lower_is_better, combine, evaluator, revoked) AS
  SELECT id, run_id, name, lower_is_better, combine, evaluator, revoked
  FROM (
    SELECT min(d.id) AS id, d.run_id, d.name, d.lower_is_better, d.combine, d.evaluator,
           c.revoked_at IS NOT NULL AS revoked,
           row_number() OVER (
             PARTITION BY d.run_id, d.name
             ORDER BY c.revoked_at IS NOT NULL, d.evaluator DESC, count(*) DESC, min(d.id)) AS place
    FROM metric_declaration AS d LEFT JOIN client AS c ON c.name = d.client
    GROUP BY d.run_id, d.name, d.lower_is_better, d.combine, d.evaluator, c.revoked_at IS NOT NULL)
  WHERE place = 1;

-- The metric that most evaluators, or where there is none most trainers, declare as their first one.
CREATE VIEW first_metric (run_id, name) AS
  SELECT run_id, name
  FROM (
    SELECT run_id, name,
           row_number() OVER (
             PARTITION BY run_id ORDER BY revoked, evaluator DESC, count(*) DESC, min(id)) AS place
    FROM (
      -- With min() SQLite takes the other columns from the row that has the minimum.
      SELECT min(d.id) AS id, d.run_id, d.client, d.name, d.evaluator,
             c.revoked_at IS NOT NULL AS revoked
      FROM metric_declaration AS d LEFT JOIN client AS c ON c.name = d.client
      GROUP BY d.run_id, d.client)
    GROUP BY run_id, name, evaluator, revoked)
  WHERE place = 1;

DROP VIEW run_metric;
-- The run's main metric: --metric, or the --target's, or the first_metric.
CREATE VIEW run_metric (run_id, name) AS
  SELECT run_id, coalesce(
           nullif(json_extract(config, '$.metric'), ''),
           nullif(trim(substr(json_extract(config, '$.target'), 1,
                  instr(replace(json_extract(config, '$.target'), '<', '>'), '>') - 1)), ''),
           iif(json_extract(config, '$.target_accuracy') > 0, 'accuracy', NULL),
           (SELECT f.name FROM first_metric AS f WHERE f.run_id = r.run_id),
           'accuracy')
  FROM (SELECT id AS run_id, iif(config_json = '', '{}', config_json) AS config FROM run) AS r;

-- One client's figure of one version, with its weight among the others'.
CREATE VIEW metric_figure (run_id, version, name, client, evaluator, value, examples, weight) AS
  SELECT run_id, version, name, client, evaluator, value, CAST(examples AS REAL),
         CAST(iif(weight > 0, weight, examples) AS REAL)
  FROM metric WHERE value IS NOT NULL;

DROP VIEW evaluation;
-- One row for each metric of a version. Each client's figure is bounded by those of the others
-- about the same version, by their medians.
CREATE VIEW evaluation (run_id, version, name, value, clients, examples, evaluator, is_exact) AS
  SELECT run_id, version, name,
         (SELECT iif(g.combine = 'log_mean',
                   exp(sum(w * ln(v)) FILTER (WHERE v > 0) / sum(w) FILTER (WHERE v > 0)),
                   sum(w * v) / sum(w))
          FROM (
            SELECT max(-g.value_max, min(g.value_max, f.value)) AS v,
                   min(f.weight, g.weight_max * f.examples)
                     * (min(f.examples, g.examples_max) / f.examples) AS w
            FROM metric_figure AS f WHERE f.run_id = g.run_id AND f.version = g.version
              AND f.name = g.name AND f.evaluator = g.evaluator)),
         clients, examples, evaluator, combine <> 'none' OR clients = 1
  FROM (
    SELECT m.run_id, m.version, m.name, m.evaluator, ifnull(k.combine, 'mean') AS combine,
           count(*) AS clients, sum(m.examples) AS examples,
           min(1.7014118346046923e38, CASE WHEN count(*) < 3 THEN 9e999 ELSE max(1.0, 100 *
           (SELECT max(x) FILTER (WHERE place = n / 2 + 1) FROM (
             SELECT abs(f.value) AS x, count(*) OVER () AS n,
                    row_number() OVER (ORDER BY abs(f.value)) AS place
             FROM metric_figure AS f WHERE f.run_id = m.run_id AND f.version = m.version
               AND f.name = m.name AND f.evaluator = m.evaluator))) END) AS value_max,
           CASE count(*) WHEN 1 THEN 9e999 WHEN 2 THEN
             max(2.0, 4 * min(CAST(iif(m.weight > 0, m.weight, m.examples) AS REAL) / m.examples))
           ELSE max(2.0, 4 *
           (SELECT max(x) FILTER (WHERE place = n / 2 + 1) FROM (
             SELECT f.weight / f.examples AS x, count(*) OVER () AS n,
                    row_number() OVER (ORDER BY f.weight / f.examples) AS place
             FROM metric_figure AS f WHERE f.run_id = m.run_id AND f.version = m.version
               AND f.name = m.name AND f.evaluator = m.evaluator))) END AS weight_max,
           CASE WHEN count(*) < 3 THEN 9e999 ELSE 10 *
           (SELECT max(x) FILTER (WHERE place = n / 2 + 1) FROM (
             SELECT f.examples AS x, count(*) OVER () AS n,
                    row_number() OVER (ORDER BY f.examples) AS place
             FROM metric_figure AS f WHERE f.run_id = m.run_id AND f.version = m.version
               AND f.name = m.name AND f.evaluator = m.evaluator)) END AS examples_max
    FROM metric AS m
    -- Once for the run, not once for each of its rows.
    JOIN (SELECT run_id, name, max(evaluator) AS evaluator FROM metric
          WHERE value IS NOT NULL GROUP BY run_id, name) AS judge
      ON judge.run_id = m.run_id AND judge.name = m.name AND judge.evaluator = m.evaluator
    LEFT JOIN metric_kind AS k ON k.run_id = m.run_id
      AND k.name = iif(substr(m.name, 1, 4) = 'own_', substr(m.name, 5), m.name)
    WHERE m.value IS NOT NULL
    GROUP BY m.run_id, m.version, m.name) AS g;

DROP VIEW codec_summary;
-- As before, with the codecs' errors bounded like other figures that clients claim.
CREATE VIEW codec_summary (run_id, codec, updates, raw_bytes, update_bytes, encode_seconds,
                           decode_seconds, train_seconds, nmse, bytes, accuracy_first,
                           accuracy_last, metric, value_first, value_last) AS
  SELECT t.run_id, t.codec, count(*), sum(t.raw_bytes), sum(t.update_bytes),
         sum(t.encode_seconds), sum(t.decode_seconds), sum(t.train_seconds),
         avg(min(t.nmse, t.nmse_max)),
         (SELECT sum(r.bytes_up + r.bytes_down) FROM round AS r
          WHERE r.run_id = t.run_id AND r.ended_at IS NOT NULL
            AND EXISTS (SELECT 1 FROM task AS o WHERE o.run_id = r.run_id AND o.round = r.round
                        AND o.codec = t.codec AND o.state = 'accepted')),
         (SELECT value FROM evaluation AS e WHERE e.run_id = t.run_id AND e.name = 'accuracy'
          ORDER BY version LIMIT 1),
         (SELECT value FROM evaluation AS e WHERE e.run_id = t.run_id AND e.name = 'accuracy'
          ORDER BY version DESC LIMIT 1),
         (SELECT name FROM run_metric AS m WHERE m.run_id = t.run_id),
         (SELECT value FROM evaluation AS e JOIN run_metric AS m USING (run_id, name)
          WHERE e.run_id = t.run_id ORDER BY version LIMIT 1),
         (SELECT value FROM evaluation AS e JOIN run_metric AS m USING (run_id, name)
          WHERE e.run_id = t.run_id ORDER BY version DESC LIMIT 1)
  FROM (
    SELECT *, min(1e38, iif(n < 3, 1e38, max(1.0, 100 * max(nmse)
             FILTER (WHERE place = n / 2 + 1) OVER (PARTITION BY run_id, codec)))) AS nmse_max
    FROM (
      SELECT *, count(*) OVER (PARTITION BY run_id, codec) AS n,
             row_number() OVER (PARTITION BY run_id, codec ORDER BY nmse) AS place
      FROM task WHERE state = 'accepted')) AS t
  GROUP BY t.run_id, t.codec;
)sql";

}  // namespace fl::server
