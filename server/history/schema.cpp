// SPDX-License-Identifier: Apache-2.0
#include "server/history/schema.hpp"

#include "server/history/claims_schema.hpp"
#include "server/history/masked_schema.hpp"
#include "server/history/saving_schema.hpp"

#include <fmt/format.h>

#include <array>

namespace fl::server {

namespace {

// The constraints say what a table may contain, so that a person with the sqlite3 shell and a
// future version of this program can rely on it. Tasks name their client instead of referencing its
// row: so the history also works for a client whose certificate is older than the database.
constexpr const char* schema = R"sql(
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
) STRICT;

CREATE TABLE round (
  run_id        INTEGER NOT NULL REFERENCES run (id),
  round         INTEGER NOT NULL CHECK (round >= 1),
  base_version  INTEGER NOT NULL CHECK (base_version >= 0 AND base_version < round),
  started_at    REAL NOT NULL,
  range_log2    INTEGER NOT NULL,       -- |update value| < 2^range_log2
  fraction_bits INTEGER NOT NULL,       -- of the fixed-point sum
  target        INTEGER NOT NULL CHECK (target >= 0),
  population    INTEGER NOT NULL CHECK (population >= 0),  -- the weight of all clients
  ended_at      REAL,                   -- NULL: open
  train_loss    REAL,
  bytes_up      INTEGER NOT NULL DEFAULT 0 CHECK (bytes_up >= 0),
  bytes_down    INTEGER NOT NULL DEFAULT 0 CHECK (bytes_down >= 0),
  PRIMARY KEY (run_id, round)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX round_open ON round (run_id) WHERE ended_at IS NULL;

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
  reason         TEXT NOT NULL,
  FOREIGN KEY (run_id, round) REFERENCES round (run_id, round)
) STRICT;
CREATE INDEX task_of_round ON task (run_id, round);
-- A client's work counts at most once in a round, whatever the program above does.
CREATE UNIQUE INDEX task_counts_once ON task (run_id, round, client)
  WHERE state IN ('offered', 'accepted');
CREATE INDEX task_under_way ON task (run_id) WHERE state = 'offered';

CREATE TABLE checkpoint (               -- a row for each version; files only of those still kept
  run_id      INTEGER NOT NULL REFERENCES run (id),
  version     INTEGER NOT NULL CHECK (version >= 0),
  made_at     REAL NOT NULL,
  dropped_at  REAL,                     -- NULL: kept
  file        TEXT NOT NULL CHECK (file <> ''),
  bytes       INTEGER NOT NULL CHECK (bytes >= 0),
  digest      TEXT NOT NULL CHECK (length(digest) = 32),
  value_max   REAL NOT NULL CHECK (value_max >= 0),
  delta_file  TEXT NOT NULL,
  delta_bytes INTEGER NOT NULL CHECK (delta_bytes >= 0),
  PRIMARY KEY (run_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE metric (                   -- one figure of one client about one model version
  run_id    INTEGER NOT NULL,
  version   INTEGER NOT NULL,
  client    TEXT NOT NULL CHECK (client <> ''),
  name      TEXT NOT NULL CHECK (name <> ''),
  value     REAL,
  examples  INTEGER NOT NULL CHECK (examples >= 1),
  evaluator INTEGER NOT NULL CHECK (evaluator IN (0, 1)),
  at        REAL NOT NULL,
  PRIMARY KEY (run_id, version, client, name),
  FOREIGN KEY (run_id, version) REFERENCES checkpoint (run_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE client (
  name               TEXT PRIMARY KEY CHECK (name <> ''),
  certificate_serial TEXT NOT NULL,
  enrolled_at        REAL NOT NULL,
  last_seen_at       REAL,
  revoked_at         REAL,
  evaluator          INTEGER NOT NULL CHECK (evaluator IN (0, 1))
) STRICT, WITHOUT ROWID;

-- A client has one key after another, as it renews: which of its certificates still let it in.
CREATE TABLE certificate (
  id     INTEGER PRIMARY KEY,           -- in the order of issue
  client TEXT NOT NULL REFERENCES client (name),
  serial TEXT NOT NULL UNIQUE CHECK (serial <> '')
) STRICT;
CREATE INDEX certificate_of_client ON certificate (client);

CREATE TABLE token (
  id          TEXT PRIMARY KEY CHECK (id <> ''),
  client      TEXT NOT NULL CHECK (client <> ''),
  secret_hash TEXT NOT NULL CHECK (length(secret_hash) = 64),
  expires_at  REAL NOT NULL,
  used_at     REAL,
  key_digest  TEXT NOT NULL DEFAULT ''  -- of the key it was used for: that may ask again
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
  id     INTEGER PRIMARY KEY,
  run_id INTEGER REFERENCES run (id),   -- NULL: outside of any run
  at     REAL NOT NULL,
  level  TEXT NOT NULL CHECK (level <> ''),
  text   TEXT NOT NULL
) STRICT;

-- What is known about a version: the evaluators' figures, or in a run without any the clients' own.
-- The two are of different data: a column that went from one to the other and back would show steps
-- that no model made. Each weighs as many examples as it was measured on.
CREATE VIEW evaluation (run_id, version, name, value) AS
  SELECT m.run_id, m.version, m.name, sum(m.value * m.examples) / sum(m.examples)
  FROM metric AS m
  -- Once for the run, not once for each of its rows.
  JOIN (SELECT run_id, name, max(evaluator) AS evaluator FROM metric
        WHERE value IS NOT NULL GROUP BY run_id, name) AS judge
    ON judge.run_id = m.run_id AND judge.name = m.name AND judge.evaluator = m.evaluator
  WHERE m.value IS NOT NULL
  GROUP BY m.run_id, m.version, m.name;

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

CREATE VIEW codec_summary (run_id, codec, updates, raw_bytes, update_bytes, encode_seconds,
                           decode_seconds, train_seconds, nmse, bytes, accuracy_first,
                           accuracy_last) AS
  SELECT t.run_id, t.codec, count(*), sum(t.raw_bytes), sum(t.update_bytes),
         sum(t.encode_seconds), sum(t.decode_seconds), sum(t.train_seconds), avg(t.nmse),
         (SELECT sum(r.bytes_up + r.bytes_down) FROM round AS r
          WHERE r.run_id = t.run_id AND r.ended_at IS NOT NULL
            AND EXISTS (SELECT 1 FROM task AS o WHERE o.run_id = r.run_id AND o.round = r.round
                        AND o.codec = t.codec AND o.state = 'accepted')),
         (SELECT value FROM evaluation AS e WHERE e.run_id = t.run_id AND e.name = 'accuracy'
          ORDER BY version LIMIT 1),
         (SELECT value FROM evaluation AS e WHERE e.run_id = t.run_id AND e.name = 'accuracy'
          ORDER BY version DESC LIMIT 1)
  FROM task AS t
  WHERE t.state = 'accepted'
  GROUP BY t.run_id, t.codec;
)sql";

constexpr const char* references = R"sql(
ALTER TABLE task ADD COLUMN reference INTEGER NOT NULL DEFAULT 0;
)sql";

// Sums choose their units themselves now (server/sums/sum_range.hpp).
constexpr const char* no_fixed_point = R"sql(
ALTER TABLE round DROP COLUMN range_log2;
ALTER TABLE round DROP COLUMN fraction_bits;
ALTER TABLE checkpoint DROP COLUMN value_max;
)sql";

// Each row says that somebody came in or was kept out. Nothing is removed from it, so that nobody
// can hide what it did behind other rows.
constexpr const char* audit = R"sql(
CREATE TABLE audit (
  id     INTEGER PRIMARY KEY,
  at     REAL NOT NULL,
  kind   TEXT NOT NULL CHECK (kind <> ''),
  client TEXT NOT NULL,                 -- "": unknown
  text   TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit are never removed'); END;
CREATE TRIGGER audit_is_fixed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit are never changed'); END;
)sql";

// A token fixes what its client may do. Clients of before keep the role that they had last.
constexpr const char* roles = R"sql(
ALTER TABLE token ADD COLUMN evaluator INTEGER NOT NULL DEFAULT 0 CHECK (evaluator IN (0, 1));
ALTER TABLE token ADD COLUMN examples_max INTEGER NOT NULL DEFAULT 0 CHECK (examples_max >= 0);
ALTER TABLE client ADD COLUMN examples_max INTEGER NOT NULL DEFAULT 0 CHECK (examples_max >= 0);
ALTER TABLE round ADD COLUMN examples_max INTEGER NOT NULL DEFAULT 0 CHECK (examples_max >= 0);
)sql";

// Metrics have names, directions and weights. How values of several clients make one is the run's
// to say, by its metric_kind; "own_" metrics are of clients' own models. early_end: see
// Runs::end_early().
constexpr const char* metrics_by_name = R"sql(
ALTER TABLE run ADD COLUMN early_end TEXT NOT NULL DEFAULT '';
ALTER TABLE metric ADD COLUMN weight REAL NOT NULL DEFAULT 0 CHECK (weight >= 0);  -- 0: examples

CREATE TABLE metric_kind (
  id              INTEGER PRIMARY KEY,  -- in the order in which they were declared
  run_id          INTEGER NOT NULL REFERENCES run (id),
  name            TEXT NOT NULL CHECK (name <> ''),
  lower_is_better INTEGER NOT NULL CHECK (lower_is_better IN (0, 1)),
  combine         TEXT NOT NULL CHECK (combine IN ('mean', 'log_mean', 'none')),
  evaluator       INTEGER NOT NULL CHECK (evaluator IN (0, 1)),  -- 1: an evaluator has declared it
  UNIQUE (run_id, name)
) STRICT;
INSERT INTO metric_kind (run_id, name, lower_is_better, combine, evaluator)
  SELECT run_id, 'accuracy', 0, 'mean', max(evaluator) FROM metric
  WHERE name = 'accuracy' GROUP BY run_id;

-- The run's main metric: --metric, or the --target's, or the first that was declared.
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

DROP VIEW evaluation;
-- What is known about a version, as before; `clients` have measured it, on `examples` together. The
-- value is exact, unless no mean of several clients' values is.
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
)sql";

// With the run's main metric, whatever it is, besides the accuracy.
constexpr const char* codecs_by_metric = R"sql(
DROP VIEW codec_summary;
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
)sql";

// These columns say how the ranks of a site spent a training; 0 for a client that is one process.
// overlap: the part of the reductions that was done while the gradients before were still being
// computed.
constexpr const char* sites = R"sql(
ALTER TABLE task ADD COLUMN ranks INTEGER NOT NULL DEFAULT 0 CHECK (ranks >= 0);
ALTER TABLE task ADD COLUMN compute_seconds REAL NOT NULL DEFAULT 0 CHECK (compute_seconds >= 0);
ALTER TABLE task ADD COLUMN exposed_seconds REAL NOT NULL DEFAULT 0 CHECK (exposed_seconds >= 0);
ALTER TABLE task ADD COLUMN hidden_seconds REAL NOT NULL DEFAULT 0 CHECK (hidden_seconds >= 0);
ALTER TABLE task ADD COLUMN coding_seconds REAL NOT NULL DEFAULT 0 CHECK (coding_seconds >= 0);

CREATE VIEW site_summary (run_id, round, client, ranks, train_seconds, compute_seconds,
                          exposed_seconds, hidden_seconds, coding_seconds, overlap) AS
  SELECT run_id, round, client, ranks, train_seconds, compute_seconds, exposed_seconds,
         hidden_seconds, coding_seconds,
         hidden_seconds / nullif(hidden_seconds + exposed_seconds, 0)
  FROM task WHERE state = 'accepted' AND ranks > 0;
)sql";

// People who may control the server. Tokens are 256 random bits, so one SHA-256 is enough: nobody
// can try them all, and a slow hash would only slow down us.
constexpr const char* operators = R"sql(
CREATE TABLE operator (
  name       TEXT PRIMARY KEY CHECK (name <> ''),
  role       TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  token_hash TEXT NOT NULL UNIQUE CHECK (length(token_hash) = 64),
  made_at    REAL NOT NULL,
  revoked_at REAL
) STRICT, WITHOUT ROWID;
)sql";

// Steps that a site with an adaptive precision has taken in fp32.
constexpr const char* fp32_steps = R"sql(
ALTER TABLE task ADD COLUMN fp32_steps INTEGER NOT NULL DEFAULT 0 CHECK (fp32_steps >= 0);

DROP VIEW site_summary;
CREATE VIEW site_summary (run_id, round, client, ranks, train_seconds, compute_seconds,
                          exposed_seconds, hidden_seconds, coding_seconds, overlap, fp32_steps) AS
  SELECT run_id, round, client, ranks, train_seconds, compute_seconds, exposed_seconds,
         hidden_seconds, coding_seconds,
         hidden_seconds / nullif(hidden_seconds + exposed_seconds, 0), fp32_steps
  FROM task WHERE state = 'accepted' AND ranks > 0;
)sql";

// An update's cosine with what its round made of all updates. NULL: not known, or one of them is 0.
constexpr const char* cosines = R"sql(
ALTER TABLE task ADD COLUMN cosine REAL CHECK (cosine BETWEEN -1 AND 1);
)sql";

// The weight of a training loss. NULL: as many predictions as examples.
constexpr const char* predictions = R"sql(
ALTER TABLE task ADD COLUMN predictions REAL CHECK (predictions >= 0);
)sql";

// When an operator has pardoned a client: what it missed before counts no more. NULL: never.
constexpr const char* pardons = R"sql(
ALTER TABLE client ADD COLUMN pardoned_at REAL;
)sql";

// A run that its clients could not train comes after those that have never stepped aside.
constexpr const char* queue_order = R"sql(
ALTER TABLE run ADD COLUMN aside_at REAL;
ALTER TABLE client ADD COLUMN model TEXT NOT NULL DEFAULT '';
)sql";

// A row of the audit says who did it; rows of before have that in their text. The client is the one
// that it was done to.
constexpr const char* actors = R"sql(
ALTER TABLE audit ADD COLUMN who TEXT NOT NULL DEFAULT '';
)sql";

// The only tensors that a client trains, as a digest. And a run's main metric may have a sign of a
// comparison in its name: a target's bound begins at the last '<=' or '>='. What stands behind that
// is a number, which has none of these three characters.
constexpr const char* tensors_of_clients = R"sql(
ALTER TABLE client ADD COLUMN tensors TEXT NOT NULL DEFAULT '';

DROP VIEW run_metric;
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
)sql";

// How a client has trained: device, format, ranks and what they have parts of.
constexpr const char* setups = R"sql(
ALTER TABLE task ADD COLUMN setup TEXT NOT NULL DEFAULT '';

DROP VIEW site_summary;
CREATE VIEW site_summary (run_id, round, client, ranks, train_seconds, compute_seconds,
                          exposed_seconds, hidden_seconds, coding_seconds, overlap, fp32_steps,
                          setup) AS
  SELECT run_id, round, client, ranks, train_seconds, compute_seconds, exposed_seconds,
         hidden_seconds, coding_seconds,
         hidden_seconds / nullif(hidden_seconds + exposed_seconds, 0), fp32_steps, setup
  FROM task WHERE state = 'accepted' AND ranks > 0;
)sql";

// Only append here, and never change a step: there are databases that have taken it.
constexpr std::array migrations_in_order{Migration{"the history's schema", schema},
                                         Migration{"column reference in table task", references},
                                         Migration{"no fixed point of sums", no_fixed_point},
                                         Migration{"table audit", audit},
                                         Migration{"roles and limits of claims", roles},
                                         Migration{"metrics by name", metrics_by_name},
                                         Migration{"codecs by the main metric", codecs_by_metric},
                                         Migration{"times of sites", sites},
                                         Migration{"table operator", operators},
                                         Migration{"steps of sites in fp32", fp32_steps},
                                         Migration{"cosines of updates", cosines},
                                         Migration{"weights of losses", predictions},
                                         Migration{"bounded claims", bounded_claims},
                                         Migration{"pardons of clients", pardons},
                                         Migration{"order of the queue", queue_order},
                                         Migration{"actors of the audit", actors},
                                         Migration{"tensors of clients", tensors_of_clients},
                                         Migration{"setups of clients", setups},
                                         Migration{"all that saving an update takes", saving},
                                         Migration{"steps of lanes", lane_steps},
                                         Migration{"table masked_message", masked_messages}};

struct Marks {
  int application = 0;
  int version = 0;
  int objects = 0;
};

/// In one statement, as another process may be creating the file at this moment.
Result<Marks> read_marks(Database& db) {
  FL_TRY(const auto found,
         db.find("SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)"
                 " FROM pragma_application_id, pragma_user_version",
                 [](const Row& row) {
                   return Marks{static_cast<int>(row.integer(0)), static_cast<int>(row.integer(1)),
                                static_cast<int>(row.integer(2))};
                 }));
  return found.value_or(Marks{});
}

}  // namespace

std::span<const Migration> history_migrations() { return migrations_in_order; }

Result<int> check_schema(Database& db, int newest) {
  FL_TRY(const Marks marks, read_marks(db));
  const bool is_empty = marks.application == 0 && marks.version == 0 && marks.objects == 0;
  if (!is_empty && marks.application != history_application_id) {
    return Error(Errc::conflict, "it is the database of another program: name another --state");
  }
  if (marks.version < 0)
    return Error(Errc::conflict, fmt::format("its schema is version {}, which no program makes: "
                                             "restore the file from a copy",
                                             marks.version));
  if (marks.version > newest) {
    return Error(Errc::conflict,
                 fmt::format("its schema is version {}, and this program knows only {}: install a "
                             "newer Tributary, or begin with another --state",
                             marks.version, newest));
  }
  return marks.version;
}

Result<void> migrate(Database& db, std::span<const Migration> migrations) {
  const int newest = static_cast<int>(migrations.size());
  FL_TRY(const int found, check_schema(db, newest));
  for (int at = found; at < newest; ++at) {
    const auto& migration = migrations[static_cast<std::size_t>(at)];
    const auto one = [&]() -> Result<void> {
      // Looks again under the lock: another process may have migrated it in the meantime.
      FL_TRY(const int version, check_schema(db, newest));
      if (version > at) return {};
      return db.script(fmt::format("{}; PRAGMA application_id = {}; PRAGMA user_version = {};",
                                   migration.sql, history_application_id, at + 1));
    };
    if (auto done = db.write(one); !done) {
      return done.error().at(fmt::format("migration to schema {} ({})", at + 1, migration.what));
    }
  }
  return {};
}

}  // namespace fl::server
