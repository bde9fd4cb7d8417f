// SPDX-License-Identifier: Apache-2.0
// The step of the history's schema with all that a client spends on a trained update, of which
// coding is a part. Never change it: there are databases that have taken it.
#pragma once

namespace fl::server {

inline constexpr const char* saving = R"sql(
ALTER TABLE task ADD COLUMN save_seconds REAL NOT NULL DEFAULT 0 CHECK (save_seconds >= 0);
ALTER TABLE task ADD COLUMN residual_seconds REAL NOT NULL DEFAULT 0
  CHECK (residual_seconds >= 0);
ALTER TABLE task ADD COLUMN digest_seconds REAL NOT NULL DEFAULT 0 CHECK (digest_seconds >= 0);
ALTER TABLE task ADD COLUMN sync_seconds REAL NOT NULL DEFAULT 0 CHECK (sync_seconds >= 0);
-- Of updates before, no more is known.
UPDATE task SET save_seconds = encode_seconds;

DROP VIEW codec_summary;
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
)sql";

}  // namespace fl::server
