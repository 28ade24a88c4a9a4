-- Memberships, rights per verb, job types: written only here, each change with its audit entry, which a trigger writes in the
-- same statement. The command line calls these as fencewatch_owner, which itself can no longer write the tables.
-- True: changed. False: it was so already, and nothing is entered. Null: there is no such thing.

CREATE OR REPLACE FUNCTION fencewatch.add_membership(of_user bigint, of_tenant text, of_role text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.membership (user_id, tenant_id, role) VALUES (of_user, of_tenant, of_role)
    ON CONFLICT ON CONSTRAINT membership_once DO NOTHING;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.remove_membership(of_user bigint, of_tenant text, of_role text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM public.membership m WHERE m.user_id = of_user AND m.tenant_id IS NOT DISTINCT FROM of_tenant AND m.role = of_role;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.give_right(of_role text, of_verb text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.verb_right (role, verb) VALUES (of_role, of_verb) ON CONFLICT (role, verb) DO NOTHING;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.take_right(of_role text, of_verb text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM public.verb_right r WHERE r.role = of_role AND r.verb = of_verb;
    RETURN FOUND;
END $$;

-- Tenants of a role of workers; null: every one. Null comes back where there is no such role.
CREATE OR REPLACE FUNCTION fencewatch.allow_worker(of_role text, of_tenant text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = of_role) THEN
        RETURN NULL;
    END IF;
    INSERT INTO fencewatch.worker_scope (role, tenant_id) VALUES (of_role, of_tenant)
    ON CONFLICT ON CONSTRAINT worker_scope_once DO NOTHING;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.withdraw_worker(of_role text, of_tenant text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM fencewatch.worker_scope s WHERE s.role = of_role AND s.tenant_id IS NOT DISTINCT FROM of_tenant;
    RETURN FOUND;
END $$;

-- A definition as the code has it: keys are columns of job_type; what is left out stays, or takes the column's default. What
-- operators decide, a hold, stays as it is.
CREATE OR REPLACE FUNCTION fencewatch.put_job_type(definition jsonb) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    defaults CONSTANT jsonb := '{"auto_redrives": 0, "backoff_seconds": 5, "answer_valid_seconds": 300, "settle_seconds": 60,
        "no_reconciler_because": "", "foreign_claims": false, "key_scope": "", "key_mismatch": "", "key_source": "",
        "key_verified_by": "", "held_reason": ""}';
    new_row public.job_type;
    unknown_key text;
BEGIN
    SELECT k INTO unknown_key FROM jsonb_object_keys(definition) k
     WHERE k IN ('held_until', 'held_reason', 'synced_at')
        OR NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = 'public.job_type'::regclass AND a.attname = k AND a.attnum > 0) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a definition names columns of job_type, and no hold: %', unknown_key USING ERRCODE = 'FW002';
    END IF;
    SELECT * INTO new_row FROM public.job_type t WHERE t.name = definition ->> 'name';
    new_row := jsonb_populate_record(new_row, CASE WHEN FOUND THEN definition ELSE defaults || definition END);
    new_row.synced_at := clock_timestamp();
    INSERT INTO public.job_type AS t SELECT (new_row).*
    ON CONFLICT (name) DO UPDATE
       SET (target, side_effect, owner, producer_team, system_owner, lease_seconds, progress_seconds, max_attempts, attempts_ceiling,
            auto_redrives, backoff_seconds, answer_valid_seconds, settle_seconds, reconciles, no_reconciler_because, foreign_claims,
            key_window_seconds, key_scope, key_mismatch, key_source, key_verified_on, key_verified_by, key_expires_on, fingerprint, synced_at)
         = (excluded.target, excluded.side_effect, excluded.owner, excluded.producer_team, excluded.system_owner, excluded.lease_seconds,
            excluded.progress_seconds, excluded.max_attempts, excluded.attempts_ceiling, excluded.auto_redrives, excluded.backoff_seconds,
            excluded.answer_valid_seconds, excluded.settle_seconds, excluded.reconciles, excluded.no_reconciler_because,
            excluded.foreign_claims, excluded.key_window_seconds, excluded.key_scope, excluded.key_mismatch, excluded.key_source,
            excluded.key_verified_on, excluded.key_verified_by, excluded.key_expires_on, excluded.fingerprint, excluded.synced_at)
     WHERE to_jsonb(t) - '{held_until,held_reason,synced_at}'::text[] <> to_jsonb(excluded) - '{held_until,held_reason,synced_at}'::text[];
    RETURN FOUND;
END $$;

-- Nothing of this job type is claimed until then; what is claimed goes on.
CREATE OR REPLACE FUNCTION fencewatch.hold_job_type(of_name text, until timestamptz, because text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE public.job_type t SET held_until = until, held_reason = because WHERE t.name = of_name;
    RETURN CASE WHEN FOUND THEN true END;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.release_hold(of_name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE public.job_type t SET held_until = NULL, held_reason = '' WHERE t.name = of_name AND t.held_until IS NOT NULL;
    IF FOUND THEN
        RETURN true;
    END IF;
    RETURN CASE WHEN EXISTS (SELECT FROM public.job_type t WHERE t.name = of_name) THEN false END;
END $$;

-- The entry of each change, whoever makes it: a superuser's direct write leaves one too. Digests only, and of an update only
-- what changed. Who and why come from settings of the transaction.
CREATE OR REPLACE FUNCTION fencewatch.enter_administration() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    was jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - '{tenant_id,tenant_digest,synced_at,created_at}'::text[] END;
    now_is jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - '{tenant_id,tenant_digest,synced_at,created_at}'::text[] END;
    of_tenant bytea;
BEGIN
    IF TG_TABLE_NAME IN ('membership', 'worker_scope') THEN
        of_tenant := coalesce(NEW.tenant_digest, OLD.tenant_digest);
    END IF;
    PERFORM fencewatch.enter(
        CASE TG_TABLE_NAME
            WHEN 'membership' THEN CASE TG_OP WHEN 'INSERT' THEN 'member_add' WHEN 'DELETE' THEN 'member_remove' ELSE 'member_change' END
            WHEN 'worker_scope' THEN CASE TG_OP WHEN 'INSERT' THEN 'worker_allow' WHEN 'DELETE' THEN 'worker_withdraw' ELSE 'worker_change' END
            WHEN 'verb_right' THEN CASE TG_OP WHEN 'INSERT' THEN 'right_give' WHEN 'DELETE' THEN 'right_take' ELSE 'right_change' END
            ELSE CASE WHEN TG_OP = 'DELETE' THEN 'job_type_remove'
                      WHEN TG_OP = 'INSERT' OR was -> 'held_until' = now_is -> 'held_until' THEN 'job_type_put'
                      WHEN now_is ->> 'held_until' IS NULL THEN 'release_hold' ELSE 'hold' END END,
        'applied', NULL, of_tenant, NULL,
        of_subject => jsonb_build_object(
            'of', coalesce(now_is ->> 'name', was ->> 'name'),
            'was', CASE TG_OP WHEN 'UPDATE' THEN (SELECT jsonb_object_agg(k, v) FROM jsonb_each(was) o (k, v) WHERE v <> now_is -> k) ELSE was END,
            'is', CASE TG_OP WHEN 'UPDATE' THEN (SELECT jsonb_object_agg(k, v) FROM jsonb_each(now_is) n (k, v) WHERE v <> was -> k) ELSE now_is END),
        why => left(nullif(current_setting('fencewatch.reason', true), ''), 2000));
    RETURN NULL;
END $$;

CREATE TRIGGER enter_administration AFTER INSERT OR UPDATE OR DELETE ON membership FOR EACH ROW EXECUTE FUNCTION fencewatch.enter_administration();
CREATE TRIGGER enter_administration AFTER INSERT OR UPDATE OR DELETE ON verb_right FOR EACH ROW EXECUTE FUNCTION fencewatch.enter_administration();
CREATE TRIGGER enter_administration AFTER INSERT OR UPDATE OR DELETE ON job_type FOR EACH ROW EXECUTE FUNCTION fencewatch.enter_administration();
CREATE TRIGGER enter_administration AFTER INSERT OR UPDATE OR DELETE ON fencewatch.worker_scope FOR EACH ROW EXECUTE FUNCTION fencewatch.enter_administration();
CREATE TRIGGER identify_member BEFORE INSERT OR UPDATE ON fencewatch.worker_scope FOR EACH ROW EXECUTE FUNCTION fencewatch.identify_member();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON fencewatch.worker_scope FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON membership FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON verb_right FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON job_type FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
ALTER TABLE membership ENABLE ALWAYS TRIGGER enter_administration, ENABLE ALWAYS TRIGGER never_truncated;
ALTER TABLE fencewatch.worker_scope ENABLE ALWAYS TRIGGER enter_administration, ENABLE ALWAYS TRIGGER identify_member, ENABLE ALWAYS TRIGGER never_truncated;
ALTER TABLE verb_right ENABLE ALWAYS TRIGGER enter_administration, ENABLE ALWAYS TRIGGER never_truncated;
ALTER TABLE job_type ENABLE ALWAYS TRIGGER enter_administration, ENABLE ALWAYS TRIGGER never_truncated;

ALTER TABLE fencewatch.worker_scope ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_read ON fencewatch.worker_scope FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY actions_all ON fencewatch.worker_scope TO fencewatch_actions USING (true) WITH CHECK (true);
CREATE POLICY actions_all ON membership TO fencewatch_actions USING (true) WITH CHECK (true);
REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON membership, verb_right, job_type, fencewatch.worker_scope FROM fencewatch_owner;
GRANT SELECT, INSERT, DELETE ON membership, verb_right, fencewatch.worker_scope TO fencewatch_actions;
GRANT SELECT, INSERT, UPDATE ON job_type TO fencewatch_actions;
GRANT SELECT ON verb_right TO fencewatch_web;

GRANT CREATE ON SCHEMA fencewatch TO fencewatch_actions;
ALTER FUNCTION fencewatch.add_membership(bigint, text, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.remove_membership(bigint, text, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.give_right(text, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.take_right(text, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.allow_worker(text, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.withdraw_worker(text, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.put_job_type(jsonb) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.hold_job_type(text, timestamptz, text) OWNER TO fencewatch_actions;
ALTER FUNCTION fencewatch.release_hold(text) OWNER TO fencewatch_actions;
REVOKE CREATE ON SCHEMA fencewatch FROM fencewatch_actions;

-- By its owner: a right that the former owner gave itself went with the function.
GRANT USAGE ON SCHEMA fencewatch TO fencewatch_actions;
SET LOCAL ROLE fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.add_membership(bigint, text, text), fencewatch.remove_membership(bigint, text, text),
    fencewatch.give_right(text, text), fencewatch.take_right(text, text), fencewatch.put_job_type(jsonb),
    fencewatch.allow_worker(text, text), fencewatch.withdraw_worker(text, text),
    fencewatch.hold_job_type(text, timestamptz, text), fencewatch.release_hold(text) TO fencewatch_owner;
SET LOCAL ROLE fencewatch_owner;
