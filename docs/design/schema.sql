-- The schema of history.sqlite, made by its migrations (server/history/schema.cpp), which say
-- more. The views are for queries of your own: docs/guide/history.md.

CREATE TABLE audit (
  id     INTEGER PRIMARY KEY,
  at     REAL NOT NULL,
  kind   TEXT NOT NULL CHECK (kind <> ''),
  client TEXT NOT NULL,                 -- "": unknown
  text   TEXT NOT NULL
) STRICT;

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
  delta_bytes INTEGER NOT NULL CHECK (delta_bytes >= 0),
  PRIMARY KEY (run_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE client (
  name               TEXT PRIMARY KEY CHECK (name <> ''),
  certificate_serial TEXT NOT NULL,
  enrolled_at        REAL NOT NULL,
  last_seen_at       REAL,
  revoked_at         REAL,
  evaluator          INTEGER NOT NULL CHECK (evaluator IN (0, 1))
, examples_max INTEGER NOT NULL DEFAULT 0 CHECK (examples_max >= 0)) STRICT, WITHOUT ROWID;

CREATE TABLE event (
  id     INTEGER PRIMARY KEY,
  run_id INTEGER REFERENCES run (id),   -- NULL: outside of any run
  at     REAL NOT NULL,
  level  TEXT NOT NULL CHECK (level <> ''),
  text   TEXT NOT NULL
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

CREATE TABLE metric_kind (
  id              INTEGER PRIMARY KEY,  -- in the order in which they were declared
  run_id          INTEGER NOT NULL REFERENCES run (id),
  name            TEXT NOT NULL CHECK (name <> ''),
  lower_is_better INTEGER NOT NULL CHECK (lower_is_better IN (0, 1)),
  combine         TEXT NOT NULL CHECK (combine IN ('mean', 'log_mean', 'none')),
  evaluator       INTEGER NOT NULL CHECK (evaluator IN (0, 1)),  -- 1: an evaluator has declared it
  UNIQUE (run_id, name)
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
, early_end TEXT NOT NULL DEFAULT '') STRICT;

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
  reason         TEXT NOT NULL, reference INTEGER NOT NULL DEFAULT 0, ranks INTEGER NOT NULL DEFAULT 0 CHECK (ranks >= 0), compute_seconds REAL NOT NULL DEFAULT 0 CHECK (compute_seconds >= 0), exposed_seconds REAL NOT NULL DEFAULT 0 CHECK (exposed_seconds >= 0), hidden_seconds REAL NOT NULL DEFAULT 0 CHECK (hidden_seconds >= 0), coding_seconds REAL NOT NULL DEFAULT 0 CHECK (coding_seconds >= 0), fp32_steps INTEGER NOT NULL DEFAULT 0 CHECK (fp32_steps >= 0), cosine REAL CHECK (cosine BETWEEN -1 AND 1), predictions REAL CHECK (predictions >= 0),
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
                           decode_seconds, train_seconds, nmse, bytes, accuracy_first,
                           accuracy_last, metric, value_first, value_last) AS
  SELECT t.run_id, t.codec, count(*), sum(t.raw_bytes), sum(t.update_bytes),
         sum(t.encode_seconds), sum(t.decode_seconds), sum(t.train_seconds), avg(t.nmse),
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
  FROM task AS t
  WHERE t.state = 'accepted'
  GROUP BY t.run_id, t.codec;

CREATE VIEW evaluation (run_id, version, name, value, clients, examples, evaluator, is_exact) AS
  SELECT run_id, version, name,
         iif(combine = 'log_mean',
             exp(sum(w * ln(value)) FILTER (WHERE value > 0) / sum(w) FILTER (WHERE value > 0)),
             sum(w * value) / sum(w)),
         count(*), sum(examples), evaluator, combine <> 'none' OR count(*) = 1
  FROM (
    SELECT m.run_id, m.version, m.name, m.value, m.examples, m.evaluator,
           iif(m.weight > 0, m.weight, m.examples) AS w, ifnull(k.combine, 'mean') AS combine
    FROM metric AS m
    -- Once for the run, not once for each of its rows.
    JOIN (SELECT run_id, name, max(evaluator) AS evaluator FROM metric
          WHERE value IS NOT NULL GROUP BY run_id, name) AS judge
      ON judge.run_id = m.run_id AND judge.name = m.name AND judge.evaluator = m.evaluator
    LEFT JOIN metric_kind AS k ON k.run_id = m.run_id
      AND k.name = iif(substr(m.name, 1, 4) = 'own_', substr(m.name, 5), m.name)
    WHERE m.value IS NOT NULL)
  GROUP BY run_id, version, name;

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
           nullif(trim(substr(json_extract(config, '$.target'), 1,
                  instr(replace(json_extract(config, '$.target'), '<', '>'), '>') - 1)), ''),
           iif(json_extract(config, '$.target_accuracy') > 0, 'accuracy', NULL),
           (SELECT k.name FROM metric_kind AS k WHERE k.run_id = r.run_id
            ORDER BY k.evaluator DESC, k.id LIMIT 1),
           'accuracy')
  FROM (SELECT id AS run_id, iif(config_json = '', '{}', config_json) AS config FROM run) AS r;

CREATE VIEW site_summary (run_id, round, client, ranks, train_seconds, compute_seconds,
                          exposed_seconds, hidden_seconds, coding_seconds, overlap, fp32_steps) AS
  SELECT run_id, round, client, ranks, train_seconds, compute_seconds, exposed_seconds,
         hidden_seconds, coding_seconds,
         hidden_seconds / nullif(hidden_seconds + exposed_seconds, 0), fp32_steps
  FROM task WHERE state = 'accepted' AND ranks > 0;
