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
-- Write a definition and its audit entry (operations/administration.sql). What operators decide stays as it is.
SELECT fencewatch.put_job_type(%(definition)s::jsonb);

-- name: hold_job_type
-- Keep every worker from claiming a job type. Null: there is none of this name.
SELECT fencewatch.hold_job_type(%(name)s, %(until)s::timestamptz, %(reason)s);

-- name: release_hold
-- Let workers claim again. False: it was not on hold. Null: there is none of this name.
SELECT fencewatch.release_hold(%(name)s);

-- name: seconds_since
-- How long ago a moment was, on the database's clock.
SELECT extract(epoch FROM clock_timestamp() - %(moment)s::timestamptz)::float8;
