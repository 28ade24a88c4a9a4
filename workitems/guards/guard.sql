-- The guard and the history of work_item. Both triggers are ENABLE ALWAYS: a replica's replay role does not lift them.

-- The number of the server's timeline: changes when a standby is promoted.
CREATE OR REPLACE FUNCTION fencewatch.timeline() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;

-- No fence at or below this is given out again: raised when a cluster comes back from a dump or an older point in time,
-- where the timeline starts anew. A function, so that the guard pays nothing for it.
CREATE OR REPLACE FUNCTION fencewatch.fence_base() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 0::bigint;

-- Job types on hold, and those that workers of the article's own statements may claim: small lists, read once a statement.
CREATE OR REPLACE FUNCTION fencewatch.held_types() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(array_agg(name), '{}') FROM public.job_type WHERE held_until > clock_timestamp() $$;

CREATE OR REPLACE FUNCTION fencewatch.foreign_types() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(array_agg(name), '{}') FROM public.job_type WHERE foreign_claims $$;

-- Workers by tenant group: fencewatch_worker itself sees every tenant; another role that is a member of it sees those that
-- worker_scope names for it, or for a role that it is a member of, and none where nothing is named. By session_user, so
-- that functions with their owner's rights ask the same of whoever signed in.
CREATE OR REPLACE FUNCTION fencewatch.worker_is_scoped() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT session_user <> 'fencewatch_worker' AND pg_has_role(session_user, 'fencewatch_worker', 'USAGE')
       AND NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user)
       AND NOT EXISTS (SELECT FROM fencewatch.worker_scope s JOIN pg_roles r ON r.rolname = s.role
                        WHERE s.tenant_id IS NULL AND pg_has_role(session_user, r.oid, 'USAGE'))
$$;

CREATE OR REPLACE FUNCTION fencewatch.worker_tenants() RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(s.tenant_id), '{}') FROM fencewatch.worker_scope s JOIN pg_roles r ON r.rolname = s.role
     WHERE pg_has_role(session_user, r.oid, 'USAGE')
$$;

CREATE OR REPLACE FUNCTION fencewatch.worker_may(of_tenant text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT session_user = 'fencewatch_worker' OR NOT fencewatch.worker_is_scoped() OR of_tenant = ANY (fencewatch.worker_tenants()) $$;

-- Checks every arrow and normalises what a statement may leave out. Invoker's rights: current_user is who writes, and
-- inside the operators' and keeper's functions that is the role which owns the function.
CREATE OR REPLACE FUNCTION fencewatch.guard() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    clock timestamptz := clock_timestamp();
    timeline bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state NOT IN ('queued', 'quarantined') OR NEW.attempts <> 0 THEN
            RAISE EXCEPTION 'new work is queued or quarantined, without attempts' USING ERRCODE = 'FW002';
        END IF;
        NEW.fence := 0;
        NEW.unspent_attempts := 0;
        NEW.outcome_code := CASE NEW.state WHEN 'quarantined' THEN left(nullif(NEW.outcome_code, ''), 100) END;
        -- No producer grants more attempts than the job type; an unregistered one gets a single attempt.
        NEW.max_attempts := least(NEW.max_attempts, coalesce((SELECT t.max_attempts FROM public.job_type t WHERE t.name = NEW.job_type), 1));
        NEW.lease_owner := NULL;
        NEW.lease_expires_at := NULL;
        NEW.enqueued_at := clock;
        NEW.updated_at := clock;
        NEW.enqueue_timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
        RETURN NEW;
    END IF;

    IF NEW.tenant_id <> OLD.tenant_id OR NEW.operation_id <> OLD.operation_id OR NEW.payload_hash <> OLD.payload_hash
       OR NEW.payload_ref <> OLD.payload_ref OR NEW.job_type <> OLD.job_type OR NEW.enqueued_at <> OLD.enqueued_at THEN
        RAISE EXCEPTION 'identity, payload and first-seen time of an item never change' USING ERRCODE = 'FW002';
    END IF;

    -- A new digest, under a newer key of the tenant (operations/rotation.sql): by the owner, and nothing else with it.
    IF NEW.op_digest IS DISTINCT FROM OLD.op_digest THEN
        IF current_user <> 'fencewatch_owner'
           OR to_jsonb(NEW) - '{op_digest,digest_key_version}'::text[] <> to_jsonb(OLD) - '{op_digest,digest_key_version}'::text[] THEN
            RAISE EXCEPTION 'a digest changes by rotation only, and nothing with it' USING ERRCODE = 'FW002';
        END IF;
        RETURN NEW;
    END IF;

    -- A claim: from queued, or a takeover once the lease ran out.
    IF NEW.state = 'claimed' AND NEW.fence > OLD.fence THEN
        IF OLD.state = 'claimed' THEN
            IF OLD.lease_expires_at >= clock THEN
                RAISE EXCEPTION 'the lease of fence % still runs', OLD.fence USING ERRCODE = 'FW002';
            END IF;
            IF OLD.job_type = ANY (fencewatch.held_types()) THEN
                RETURN NULL;   -- on hold: nothing to claim, for statements that do not know of holds
            END IF;
        ELSIF OLD.state <> 'queued' THEN
            RAISE EXCEPTION 'no arrow from % to claimed', OLD.state USING ERRCODE = 'FW002';
        END IF;
        IF NEW.fence <> OLD.fence + 1 OR NEW.attempts <> OLD.attempts + 1 OR NEW.attempts > OLD.max_attempts
           OR NEW.max_attempts <> OLD.max_attempts OR NEW.unspent_attempts <> OLD.unspent_attempts
           OR NEW.lease_expires_at NOT BETWEEN clock - interval '1 day' AND clock + interval '1 day' THEN
            RAISE EXCEPTION 'a claim takes one fence, one attempt that is left, and a lease of a day at most' USING ERRCODE = 'FW002';
        END IF;
        IF NEW.effect_fence IS DISTINCT FROM OLD.effect_fence OR NEW.effect_at IS DISTINCT FROM OLD.effect_at THEN
            RAISE EXCEPTION 'a claim leaves the stamps of earlier ones alone' USING ERRCODE = 'FW002';
        END IF;
        timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
        -- After a failover that lost a claim, a plain fence + 1 would be given out twice; the timeline makes it new.
        NEW.fence := greatest(NEW.fence, (timeline << 32) + 1, fencewatch.fence_base() + 1);
        IF NEW.stamping_fence IS DISTINCT FROM OLD.stamping_fence THEN
            NEW.stamping_fence := NEW.fence;       -- this worker stamps `begin`
        ELSE
            NEW.foreign_held := true;              -- this one knows the article's statements only
            NEW.waiting_in_worker := false;
        END IF;
        IF OLD.cleared_for_attempt IS NOT NULL AND fencewatch.may_be_lost(OLD.fence >> 32, timeline) THEN
            NEW.cleared_for_attempt := NULL;       -- a claim may have been lost since the answer
        END IF;
        NEW.lease_owner := left(coalesce(nullif(NEW.lease_owner, ''), '?'), 200);   -- a foreign worker may call itself anything
        NEW.claimed_at := clock;
        NEW.progress := 0;
        NEW.progress_at := clock;
        NEW.outcome_code := NULL;
        NEW.updated_at := clock;
        RETURN NEW;
    END IF;

    -- Revoke: an operator ends a claim (operations/actions.sql). Whoever held it can no longer write.
    IF NEW.fence > OLD.fence AND OLD.state = 'claimed' AND NEW.state IN ('queued', 'unknown') AND current_user = 'fencewatch_actions' THEN
        IF coalesce(current_setting('fencewatch.action', true), '') = '' THEN
            RAISE EXCEPTION 'an operator''s change says its verb and its reason' USING ERRCODE = 'FW002';
        END IF;
        IF NEW.state = 'queued' AND (OLD.effect_fence = OLD.fence OR OLD.stamping_fence IS DISTINCT FROM OLD.fence)
           AND (SELECT t.target FROM public.job_type t WHERE t.name = OLD.job_type) IS DISTINCT FROM 'A' THEN
            RAISE EXCEPTION 'begun under this claim, or by a worker that does not stamp: not queued, the effect may have happened' USING ERRCODE = 'FW002';
        END IF;
        IF to_jsonb(NEW) - '{state,fence,lease_owner,lease_expires_at,outcome_code,max_attempts,available_at}'::text[]
           <> to_jsonb(OLD) - '{state,fence,lease_owner,lease_expires_at,outcome_code,max_attempts,available_at}'::text[]
           OR NEW.max_attempts NOT BETWEEN OLD.max_attempts AND OLD.max_attempts + 1 THEN
            RAISE EXCEPTION 'a revoke ends the claim and leaves attempts and stamps alone' USING ERRCODE = 'FW002';
        END IF;
        timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
        NEW.fence := greatest(OLD.fence + 1, (timeline << 32) + 1, fencewatch.fence_base() + 1);
        NEW.cleared_for_attempt := NULL;
        NEW.lease_owner := NULL;
        NEW.lease_expires_at := NULL;
        NEW.waiting_in_worker := false;
        NEW.updated_at := clock;
        RETURN NEW;
    END IF;

    IF NEW.fence <> OLD.fence THEN
        RAISE EXCEPTION 'only a claim moves the fence' USING ERRCODE = 'FW002';
    END IF;

    -- Heartbeat and begin, by the claim that holds the item.
    IF NEW.state = 'claimed' AND OLD.state = 'claimed' THEN
        IF NEW.attempts <> OLD.attempts OR NEW.lease_owner IS DISTINCT FROM OLD.lease_owner OR NEW.max_attempts <> OLD.max_attempts
           OR NEW.unspent_attempts <> OLD.unspent_attempts OR NEW.stamping_fence IS DISTINCT FROM OLD.stamping_fence
           OR NEW.available_at <> OLD.available_at OR NEW.outcome_code IS DISTINCT FROM OLD.outcome_code
           OR NEW.lease_expires_at NOT BETWEEN clock - interval '1 day' AND clock + interval '1 day' THEN
            RAISE EXCEPTION 'a claim''s holder moves its progress, its stamp, and its lease by a day at most' USING ERRCODE = 'FW002';
        END IF;
        IF NEW.progress > OLD.progress THEN
            NEW.progress_at := clock;
        ELSIF NEW.progress < OLD.progress THEN
            RAISE EXCEPTION 'progress never falls' USING ERRCODE = 'FW002';
        END IF;
        IF NEW.updated_at <> OLD.updated_at THEN
            NEW.updated_at := clock;
        END IF;
        IF NEW.effect_fence IS DISTINCT FROM OLD.effect_fence OR NEW.effect_at IS DISTINCT FROM OLD.effect_at THEN
            IF NEW.effect_fence IS DISTINCT FROM NEW.fence THEN
                RAISE EXCEPTION 'an effect is stamped with the fence of its claim' USING ERRCODE = 'FW002';
            END IF;
            NEW.effect_at := clock;
            NEW.first_effect_at := coalesce(OLD.first_effect_at, clock);
        END IF;
        RETURN NEW;
    END IF;

    -- Leaving claimed.
    IF OLD.state = 'claimed' THEN
        IF NEW.state = 'queued' AND OLD.effect_fence = OLD.fence THEN
            RAISE EXCEPTION 'begun under this claim: not released, the effect may have happened' USING ERRCODE = 'FW002';
        END IF;
        IF NEW.attempts <> OLD.attempts OR NEW.effect_fence IS DISTINCT FROM OLD.effect_fence
           OR NEW.effect_at IS DISTINCT FROM OLD.effect_at OR NEW.stamping_fence IS DISTINCT FROM OLD.stamping_fence THEN
            RAISE EXCEPTION 'attempts are never reset and stamps never erased' USING ERRCODE = 'FW002';
        END IF;
        IF NEW.max_attempts NOT BETWEEN OLD.max_attempts AND OLD.max_attempts + 1
           OR NEW.unspent_attempts NOT BETWEEN OLD.unspent_attempts
              AND OLD.unspent_attempts + (OLD.waiting_in_worker AND NEW.state = 'queued')::int THEN
            RAISE EXCEPTION 'room for one more attempt at a time, and none back but to a mate whose turn never came' USING ERRCODE = 'FW002';
        END IF;
        NEW.outcome_code := left(nullif(NEW.outcome_code, ''), 100);
        NEW.lease_owner := NULL;
        NEW.lease_expires_at := NULL;
        NEW.waiting_in_worker := false;
        NEW.updated_at := clock;
        RETURN NEW;
    END IF;

    IF NEW.state <> OLD.state THEN
        RAISE EXCEPTION 'no arrow from % to %', OLD.state, NEW.state USING ERRCODE = 'FW002';
    END IF;
    -- The same state, not claimed: nobody touches it. (A superuser could lift the guard.)
    IF current_setting('is_superuser') <> 'on' THEN
        RAISE EXCEPTION 'an item that is % changes by a verb only', OLD.state USING ERRCODE = 'FW002';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.refuse_removal() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% rows are never removed by %', TG_TABLE_NAME, TG_OP USING ERRCODE = 'FW003';
END $$;

-- One event per new row. A replayed enqueue inserts nothing and writes nothing.
CREATE OR REPLACE FUNCTION fencewatch.record_enqueued() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.work_event (item_id, tenant_digest, verb, state_after, fence, attempts, outcome_code)
    SELECT n.item_id, n.tenant_digest, CASE n.state WHEN 'queued' THEN 'enqueue' ELSE 'quarantine' END, n.state, n.fence, n.attempts, n.outcome_code
      FROM enqueued n;
    RETURN NULL;
END $$;

-- One event per row whose state, fence or effect stamp changed, and an audit entry for each that an operator changed, which
-- alone leaves claimed with a higher fence. Heartbeats leave none.
-- No nested loop: a plan made for a statement of one row would be kept for batches, whose two tables it then compares
-- row by row, 40,000 times for 200.
CREATE OR REPLACE FUNCTION fencewatch.record_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $$
DECLARE
    action jsonb := nullif(current_setting('fencewatch.action', true), '')::jsonb;
BEGIN
    INSERT INTO public.work_event (item_id, tenant_digest, verb, state_before, state_after, fence, attempts, worker, outcome_code)
    SELECT n.item_id, n.tenant_digest,
           CASE WHEN n.state <> 'claimed' AND n.fence > o.fence THEN action ->> 'verb'
                WHEN n.state = 'claimed' AND o.state = 'queued' THEN 'claim'
                WHEN n.state = 'claimed' AND n.fence > o.fence THEN 'takeover'
                WHEN n.state = 'claimed' THEN 'begin'
                WHEN session_user = 'fencewatch_keeper' THEN 'sweep'
                -- the article's own sweep names no outcome; a park always does
                WHEN n.state = 'unknown' AND n.outcome_code IS NULL THEN 'sweep'
                WHEN n.state = 'succeeded' THEN 'complete'
                WHEN n.state = 'failed_terminal' THEN 'fail'
                WHEN n.state = 'unknown' THEN 'park'
                WHEN n.state = 'quarantined' THEN 'quarantine'
                ELSE 'release' END,
           o.state, n.state, n.fence, n.attempts, coalesce(n.lease_owner, o.lease_owner), n.outcome_code
      FROM changed n JOIN former o ON o.item_id = n.item_id
     WHERE n.state <> o.state OR n.fence <> o.fence OR n.effect_at IS DISTINCT FROM o.effect_at;
    -- The guard lets an operator's change through with an action only, so that none is without its entry.
    IF action IS NOT NULL THEN
        PERFORM fencewatch.enter(action ->> 'verb', 'applied', NULL, n.tenant_digest, n.op_digest, o.state, n.state, o.fence, n.fence,
                                 action -> 'subject', action ->> 'why', coalesce(action ->> 'proof', ''))
           FROM changed n JOIN former o ON o.item_id = n.item_id
          WHERE n.state <> 'claimed' AND n.fence > o.fence;
    END IF;
    RETURN NULL;
END $$;
