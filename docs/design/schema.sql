-- The schema of history.sqlite, made by its migrations (server/history/schema.cpp), which say
-- more. The views are for queries of your own: docs/guide/history.md.

CREATE TABLE audit (
  id     INTEGER PRIMARY KEY,
  at     REAL NOT NULL,
  kind   TEXT NOT NULL CHECK (kind <> ''),
  client TEXT NOT NULL,                 -- "": unknown
  text   TEXT NOT NULL
, who TEXT NOT NULL DEFAULT '') STRICT;

CREATE TRIGGER audit_is_fixed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit are never changed'); END;

CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit are never removed'); END;

CREATE TABLE certificate (
  id     INTEGER PRIMARY KEY,           -- in the order of issue
  client TEXT NOT NULL REFERENCES client (name),
  serial TEXT NOT NULL UNIQUE CHECK (serial <> '')
) STRICT;

CREATE INDEX certificate_of_client ON certificate (client);

CREATE TABLE checkpoint (               -- a row for each version; files only of those still kept
  run_id      INTEGER NOT NULL REFERENCES run (id),
  version     INTEGER NOT NULL CHECK (version >= 0),
  made_at     REAL NOT NULL,
  dropped_at  REAL,                     -- NULL: kept
  file        TEXT NOT NULL CHECK (file <> ''),
  bytes       INTEGER NOT NULL CHECK (bytes >= 0),
  digest      TEXT NOT NULL CHECK (length(digest) = 32),
  delta_file  TEXT NOT NULL,
  delta_bytes INTEGER NOT NULL CHECK (delta_bytes >= 0), lane_steps TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE client (
  name               TEXT PRIMARY KEY CHECK (name <> ''),
  certificate_serial TEXT NOT NULL,
  enrolled_at        REAL NOT NULL,
  last_seen_at       REAL,
  revoked_at         REAL,
  evaluator          INTEGER NOT NULL CHECK (evaluator IN (0, 1))
, examples_max INTEGER NOT NULL DEFAULT 0 CHECK (examples_max >= 0), pardoned_at REAL, model TEXT NOT NULL DEFAULT '', tensors TEXT NOT NULL DEFAULT '') STRICT, WITHOUT ROWID;

CREATE TABLE event (
  id     INTEGER PRIMARY KEY,
  run_id INTEGER REFERENCES run (id),   -- NULL: outside of any run
  at     REAL NOT NULL,
  level  TEXT NOT NULL CHECK (level <> ''),
  text   TEXT NOT NULL
) STRICT;

CREATE TABLE masked_message (
  id      INTEGER PRIMARY KEY,    -- in the order in which they came
  run_id  INTEGER NOT NULL REFERENCES run (id),
  round   INTEGER NOT NULL CHECK (round >= 1),
  attempt INTEGER NOT NULL CHECK (attempt >= 1),
  client  TEXT NOT NULL,          -- '': the server
  task    INTEGER NOT NULL,       -- the client's; 0: the server
  kind    TEXT NOT NULL,
  message TEXT NOT NULL,          -- a wire::Header, base64url
  UNIQUE (run_id, round, attempt, client, task, kind)
) STRICT;

CREATE TABLE metric (                   -- one figure of one client about one model version
  run_id    INTEGER NOT NULL,
  version   INTEGER NOT NULL,
  client    TEXT NOT NULL CHECK (client <> ''),
  name      TEXT NOT NULL CHECK (name <> ''),
  value     REAL,
  examples  INTEGER NOT NULL CHECK (examples >= 1),
  evaluator INTEGER NOT NULL CHECK (evaluator IN (0, 1)),
  at        REAL NOT NULL, weight REAL NOT NULL DEFAULT 0 CHECK (weight >= 0),
  PRIMARY KEY (run_id, version, client, name),
  FOREIGN KEY (run_id, version) REFERENCES checkpoint (run_id, version)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE operator (
  name       TEXT PRIMARY KEY CHECK (name <> ''),
  role       TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  token_hash TEXT NOT NULL UNIQUE CHECK (length(token_hash) = 64),
  made_at    REAL NOT NULL,
  revoked_at REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE round (
  run_id        INTEGER NOT NULL REFERENCES run (id),
  round         INTEGER NOT NULL CHECK (round >= 1),
  base_version  INTEGER NOT NULL CHECK (base_version >= 0 AND base_version < round),
  started_at    REAL NOT NULL,
  target        INTEGER NOT NULL CHECK (target >= 0),
  population    INTEGER NOT NULL CHECK (population >= 0),  -- the weight of all clients
  ended_at      REAL,                   -- NULL: open
  train_loss    REAL,
  bytes_up      INTEGER NOT NULL DEFAULT 0 CHECK (bytes_up >= 0),
  bytes_down    INTEGER NOT NULL DEFAULT 0 CHECK (bytes_down >= 0), examples_max INTEGER NOT NULL DEFAULT 0 CHECK (examples_max >= 0),
  PRIMARY KEY (run_id, round)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX round_open ON round (run_id) WHERE ended_at IS NULL;

CREATE TABLE run (
  id           INTEGER PRIMARY KEY,
  key          TEXT NOT NULL UNIQUE CHECK (length(key) = 16),
  model        TEXT NOT NULL,
  seed         TEXT NOT NULL,           -- decimal: 64 bits without a sign don't fit an INTEGER
  rounds_total INTEGER NOT NULL CHECK (rounds_total >= 0),
  config_json  TEXT NOT NULL CHECK (config_json = '' OR json_valid(config_json)),
  state        TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'finished', 'stopped')),
  started_at   REAL NOT NULL,           -- all times: Unix seconds
  queued       INTEGER NOT NULL CHECK (queued IN (0, 1)),  -- 1: behind another
  checkpoints  TEXT NOT NULL DEFAULT '' -- their folder in STATE/checkpoints, '' for that itself
, early_end TEXT NOT NULL DEFAULT '', aside_at REAL) STRICT;

CREATE TABLE task (                     -- one client asked to train in one round
  id             INTEGER PRIMARY KEY,
  run_id         INTEGER NOT NULL,
  round          INTEGER NOT NULL,
  base_version   INTEGER NOT NULL CHECK (base_version >= 0),
  client         TEXT NOT NULL CHECK (client <> ''),
  state          TEXT NOT NULL CHECK (state IN ('offered', 'accepted', 'refused', 'late', 'lost')),
  offered_at     REAL NOT NULL,
  decided_at     REAL CHECK ((decided_at IS NULL) = (state = 'offered')),
  examples       INTEGER NOT NULL CHECK (examples >= 0),
  steps          INTEGER NOT NULL CHECK (steps >= 0),
  loss           REAL,
  norm           REAL CHECK (norm >= 0),
  seconds        REAL NOT NULL DEFAULT 0 CHECK (seconds >= 0),
  ready_seconds  REAL NOT NULL DEFAULT 0 CHECK (ready_seconds >= 0),   -- until the upload began
  train_seconds  REAL NOT NULL CHECK (train_seconds >= 0),
  upload_seconds REAL NOT NULL DEFAULT 0 CHECK (upload_seconds >= 0),
  bytes_up       INTEGER NOT NULL DEFAULT 0 CHECK (bytes_up >= 0),
  bytes_down     INTEGER NOT NULL DEFAULT 0 CHECK (bytes_down >= 0),
  codec          TEXT NOT NULL,
  codec_reason   TEXT NOT NULL,          -- '': the run's
  raw_bytes      INTEGER NOT NULL DEFAULT 0 CHECK (raw_bytes >= 0),    -- the update in fp32
  update_bytes   INTEGER NOT NULL CHECK (update_bytes >= 0),           -- as it was sent
  encode_seconds REAL NOT NULL DEFAULT 0 CHECK (encode_seconds >= 0),
  decode_seconds REAL NOT NULL DEFAULT 0 CHECK (decode_seconds >= 0),
  nmse           REAL NOT NULL DEFAULT 0 CHECK (nmse >= 0),
  update_digest  TEXT CHECK (length(update_digest) = 32),
  spool_file     TEXT NOT NULL,
  reason         TEXT NOT NULL, reference INTEGER NOT NULL DEFAULT 0, ranks INTEGER NOT NULL DEFAULT 0 CHECK (ranks >= 0), compute_seconds REAL NOT NULL DEFAULT 0 CHECK (compute_seconds >= 0), exposed_seconds REAL NOT NULL DEFAULT 0 CHECK (exposed_seconds >= 0), hidden_seconds REAL NOT NULL DEFAULT 0 CHECK (hidden_seconds >= 0), coding_seconds REAL NOT NULL DEFAULT 0 CHECK (coding_seconds >= 0), fp32_steps INTEGER NOT NULL DEFAULT 0 CHECK (fp32_steps >= 0), cosine REAL CHECK (cosine BETWEEN -1 AND 1), predictions REAL CHECK (predictions >= 0), setup TEXT NOT NULL DEFAULT '', save_seconds REAL NOT NULL DEFAULT 0 CHECK (save_seconds >= 0), residual_seconds REAL NOT NULL DEFAULT 0
  CHECK (residual_seconds >= 0), digest_seconds REAL NOT NULL DEFAULT 0 CHECK (digest_seconds >= 0), sync_seconds REAL NOT NULL DEFAULT 0 CHECK (sync_seconds >= 0),
  FOREIGN KEY (run_id, round) REFERENCES round (run_id, round)
) STRICT;

CREATE UNIQUE INDEX task_counts_once ON task (run_id, round, client)
  WHERE state IN ('offered', 'accepted');

CREATE INDEX task_of_round ON task (run_id, round);

CREATE INDEX task_under_way ON task (run_id) WHERE state = 'offered';

CREATE TABLE token (
  id          TEXT PRIMARY KEY CHECK (id <> ''),
  client      TEXT NOT NULL CHECK (client <> ''),
  secret_hash TEXT NOT NULL CHECK (length(secret_hash) = 64),
  expires_at  REAL NOT NULL,
  used_at     REAL,
  key_digest  TEXT NOT NULL DEFAULT ''  -- of the key it was used for: that may ask again
, evaluator INTEGER NOT NULL DEFAULT 0 CHECK (evaluator IN (0, 1)), examples_max INTEGER NOT NULL DEFAULT 0 CHECK (examples_max >= 0)) STRICT, WITHOUT ROWID;

CREATE VIEW codec_summary (run_id, codec, updates, raw_bytes, update_bytes, encode_seconds,
                           save_seconds, residual_seconds, digest_seconds, sync_seconds,
                           decode_seconds, train_seconds, nmse, bytes, accuracy_first,
                           accuracy_last, metric, value_first, value_last) AS
  SELECT t.run_id, t.codec, count(*), sum(t.raw_bytes), sum(t.update_bytes),
         sum(t.encode_seconds), sum(t.save_seconds), sum(t.residual_seconds),
         sum(t.digest_seconds), sum(t.sync_seconds), sum(t.decode_seconds), sum(t.train_seconds),
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

CREATE VIEW metric_figure (run_id, version, name, client, evaluator, value, examples, weight) AS
  SELECT run_id, version, name, client, evaluator, value, CAST(examples AS REAL),
         CAST(iif(weight > 0, weight, examples) AS REAL)
  FROM metric WHERE value IS NOT NULL;

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

CREATE VIEW round_summary (run_id, round, started_at, seconds, clients_offered, clients_accepted,
                           bytes_up, bytes_down, train_loss, eval_loss, eval_accuracy,
                           model_digest) AS
  SELECT r.run_id, r.round, r.started_at, r.ended_at - r.started_at,
         (SELECT count(*) FROM task AS t WHERE t.run_id = r.run_id AND t.round = r.round),
         (SELECT count(*) FROM task AS t
          WHERE t.run_id = r.run_id AND t.round = r.round AND t.state = 'accepted'),
         r.bytes_up, r.bytes_down, r.train_loss,
         (SELECT value FROM evaluation AS e
          WHERE e.run_id = r.run_id AND e.version = r.round AND e.name = 'loss'),
         (SELECT value FROM evaluation AS e
          WHERE e.run_id = r.run_id AND e.version = r.round AND e.name = 'accuracy'),
         c.digest
  FROM round AS r JOIN checkpoint AS c ON c.run_id = r.run_id AND c.version = r.round
  WHERE r.ended_at IS NOT NULL;

CREATE VIEW run_metric (run_id, name) AS
  SELECT run_id, coalesce(
           nullif(json_extract(config, '$.metric'), ''),
           nullif(trim(substr(target, 1,
                  length(rtrim(target, replace(replace(replace(target,
                         '<', ''), '>', ''), '=', ''))) - 2)), ''),
           iif(json_extract(config, '$.target_accuracy') > 0, 'accuracy', NULL),
           (SELECT f.name FROM first_metric AS f WHERE f.run_id = r.run_id),
           'accuracy')
  FROM (SELECT run_id, config, ifnull(json_extract(config, '$.target'), '') AS target
        FROM (SELECT id AS run_id, iif(config_json = '', '{}', config_json) AS config FROM run)) AS r;

CREATE VIEW site_summary (run_id, round, client, ranks, train_seconds, compute_seconds,
                          exposed_seconds, hidden_seconds, coding_seconds, overlap, fp32_steps,
                          setup) AS
  SELECT run_id, round, client, ranks, train_seconds, compute_seconds, exposed_seconds,
         hidden_seconds, coding_seconds,
         hidden_seconds / nullif(hidden_seconds + exposed_seconds, 0), fp32_steps, setup
  FROM task WHERE state = 'accepted' AND ranks > 0;
