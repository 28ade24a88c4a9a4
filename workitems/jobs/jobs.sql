-- What running job types needs beside the protocol: payloads by (tenant, reference), and what the database says of job types.

-- name: put_payload
-- Store a payload. Zero rows: the tenant has bytes under this reference already.
INSERT INTO payload (tenant_id, payload_ref, body)
VALUES (%(tenant_id)s, %(payload_ref)s, %(body)s)
ON CONFLICT (tenant_id, payload_ref) DO NOTHING
RETURNING true;

-- name: get_payload
-- A payload's first bytes, as many as the limit. Zero rows: no such payload.
SELECT substring(p.body FROM 1 FOR %(limit)s)
  FROM payload p
 WHERE p.tenant_id = %(tenant_id)s AND p.payload_ref = %(payload_ref)s;

-- name: payload_exists
-- Whether a tenant has a payload under a reference.
SELECT EXISTS (SELECT FROM payload p WHERE p.tenant_id = %(tenant_id)s AND p.payload_ref = %(payload_ref)s);

-- name: payload_is
-- Whether the bytes under a reference are these.
SELECT p.body = %(body)s FROM payload p WHERE p.tenant_id = %(tenant_id)s AND p.payload_ref = %(payload_ref)s;

-- name: fingerprints
-- The definitions that the database knows, by name.
SELECT t.name, t.fingerprint FROM job_type t WHERE t.name <> 'legacy';

-- name: put_job_type
-- Write a definition. What operators decide (held_until, held_reason) stays as it is.
INSERT INTO job_type (name, target, side_effect, owner, producer_team, system_owner, lease_seconds,
                      progress_seconds, max_attempts, attempts_ceiling, auto_redrives, backoff_seconds,
                      answer_valid_seconds, settle_seconds, reconciles, no_reconciler_because, foreign_claims,
                      key_window_seconds, key_scope, key_mismatch, key_source, key_verified_on, key_verified_by,
                      key_expires_on, fingerprint, synced_at)
VALUES (%(name)s, %(target)s, %(side_effect)s, %(owner)s, %(producer_team)s, %(system_owner)s, %(lease_seconds)s,
        %(progress_seconds)s, %(max_attempts)s, %(attempts_ceiling)s, %(auto_redrives)s, %(backoff_seconds)s,
        %(answer_valid_seconds)s, %(settle_seconds)s, %(reconciles)s, %(no_reconciler_because)s, %(foreign_claims)s,
        %(key_window_seconds)s, %(key_scope)s, %(key_mismatch)s, %(key_source)s, %(key_verified_on)s,
        %(key_verified_by)s, %(key_expires_on)s, %(fingerprint)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE
   SET target = excluded.target, side_effect = excluded.side_effect, owner = excluded.owner, producer_team =
       excluded.producer_team, system_owner = excluded.system_owner, lease_seconds = excluded.lease_seconds,
       progress_seconds = excluded.progress_seconds, max_attempts = excluded.max_attempts, attempts_ceiling =
       excluded.attempts_ceiling, auto_redrives = excluded.auto_redrives, backoff_seconds =
       excluded.backoff_seconds, answer_valid_seconds = excluded.answer_valid_seconds, settle_seconds =
       excluded.settle_seconds, reconciles = excluded.reconciles, no_reconciler_because =
       excluded.no_reconciler_because, foreign_claims = excluded.foreign_claims, key_window_seconds =
       excluded.key_window_seconds, key_scope = excluded.key_scope, key_mismatch = excluded.key_mismatch, key_source
       = excluded.key_source, key_verified_on = excluded.key_verified_on, key_verified_by =
       excluded.key_verified_by, key_expires_on = excluded.key_expires_on, fingerprint = excluded.fingerprint, synced_at = excluded.synced_at;

-- name: seconds_since
-- How long ago a moment was, on the database's clock.
SELECT extract(epoch FROM clock_timestamp() - %(moment)s::timestamptz)::float8;
