-- The audit log: one entry per decision. Appended by fencewatch.enter and by triggers only, never changed, never removed.

-- Append one entry. Who: the person of the signed context, and what that person is in that tenant at this moment; without a
-- context a command ran, which names itself in the setting fencewatch.said_by (a claim, not proof). Request and software
-- version come from settings of the transaction as well. Definer's rights: no login role may write an entry of its own.
CREATE OR REPLACE FUNCTION fencewatch.enter(
    of_verb text, of_outcome text, of_reason_code text DEFAULT NULL, of_tenant bytea DEFAULT NULL, of_item bytea DEFAULT NULL,
    was_state text DEFAULT NULL, is_state text DEFAULT NULL, was_fence bigint DEFAULT NULL, is_fence bigint DEFAULT NULL,
    of_subject jsonb DEFAULT NULL, why text DEFAULT NULL, proof text DEFAULT '', other_person bigint DEFAULT NULL, of_batch uuid DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    person bigint := fencewatch.context_user();
    pepper bytea;
    made bigint;
BEGIN
    IF why IS NOT NULL THEN
        pepper := uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());
    END IF;
    INSERT INTO public.audit_entry (actor, actor_rights, said_by, verb, outcome, outcome_reason, tenant_digest, op_digest,
        state_before, state_after, fence_before, fence_after, subject, second_person, batch, request_id, software_version, text_hash)
    VALUES (person,
        coalesce((SELECT array_agg(DISTINCT m.role ORDER BY m.role) FROM public.membership m
                   WHERE m.user_id = person AND (m.tenant_digest IS NULL OR m.tenant_digest = of_tenant)), '{}'),
        left(nullif(current_setting('fencewatch.said_by', true), ''), 200), of_verb, of_outcome, of_reason_code, of_tenant, of_item,
        was_state, is_state, was_fence, is_fence, of_subject, other_person, of_batch,
        left(nullif(current_setting('fencewatch.request_id', true), ''), 100),
        left(nullif(current_setting('fencewatch.software_version', true), ''), 100),
        sha256(pepper || convert_to(why || E'\x01' || proof, 'UTF8')))
    RETURNING entry_id INTO made;
    IF why IS NOT NULL THEN
        INSERT INTO public.audit_text (entry_id, salt, reason, evidence) VALUES (made, pepper, why, proof);
    END IF;
    RETURN made;
END $$;

-- Each entry waits for its seal.
CREATE OR REPLACE FUNCTION fencewatch.await_seal() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.audit_unsealed (entry_id) VALUES (NEW.entry_id);
    RETURN NULL;
END $$;
CREATE TRIGGER await_seal AFTER INSERT ON audit_entry FOR EACH ROW EXECUTE FUNCTION fencewatch.await_seal();
ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER await_seal;

-- Nothing of the log changes or goes, whoever asks. (A superuser can lift the triggers; then the seals differ.)
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_entry FOR EACH ROW EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_text FOR EACH ROW EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_seal FOR EACH ROW EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_leaf FOR EACH ROW EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON audit_entry FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON audit_text FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON audit_seal FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON audit_leaf FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON audit_unsealed FOR EACH STATEMENT EXECUTE FUNCTION fencewatch.refuse_removal();
ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER append_only, ENABLE ALWAYS TRIGGER never_truncated;
ALTER TABLE audit_text ENABLE ALWAYS TRIGGER append_only, ENABLE ALWAYS TRIGGER never_truncated;
ALTER TABLE audit_seal ENABLE ALWAYS TRIGGER append_only, ENABLE ALWAYS TRIGGER never_truncated;
ALTER TABLE audit_leaf ENABLE ALWAYS TRIGGER append_only, ENABLE ALWAYS TRIGGER never_truncated;
ALTER TABLE audit_unsealed ENABLE ALWAYS TRIGGER never_truncated;

-- ---------------------------------------------------------------------------------------------------------------
-- Seals: batches of entries under one RFC 6962 Merkle root, chained. Apart from the write path, where a chain would make every
-- decision wait for every other. oversight/audit.py computes the same, from nothing but the rows.
-- ---------------------------------------------------------------------------------------------------------------
CREATE OR REPLACE FUNCTION fencewatch.sealed_field(field text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN field IS NULL THEN '\x00'::bytea ELSE '\x01'::bytea || fencewatch.length_prefixed(field) END;

-- The leaf of an entry, format 1: sha256(0x00 || label || every column as text, length-prefixed, nulls apart). Times are
-- microseconds since 1970, bytes hexadecimal, lists joined by commas, JSON as PostgreSQL prints jsonb.
CREATE OR REPLACE FUNCTION fencewatch.entry_leaf(e public.audit_entry) RETURNS bytea
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256('\x00'::bytea || 'fencewatch/entry/1'::bytea
        || fencewatch.sealed_field(e.entry_id::text) || fencewatch.sealed_field(((extract(epoch FROM e.at) * 1000000)::bigint)::text)
        || fencewatch.sealed_field(e.xid::text) || fencewatch.sealed_field(e.actor::text)
        || fencewatch.sealed_field(array_to_string(e.actor_rights, ',')) || fencewatch.sealed_field(e.said_by)
        || fencewatch.sealed_field(e.db_role) || fencewatch.sealed_field(e.verb) || fencewatch.sealed_field(e.outcome)
        || fencewatch.sealed_field(e.outcome_reason) || fencewatch.sealed_field(encode(e.tenant_digest, 'hex'))
        || fencewatch.sealed_field(encode(e.op_digest, 'hex')) || fencewatch.sealed_field(e.state_before)
        || fencewatch.sealed_field(e.state_after) || fencewatch.sealed_field(e.fence_before::text)
        || fencewatch.sealed_field(e.fence_after::text) || fencewatch.sealed_field(e.subject::text)
        || fencewatch.sealed_field(e.second_person::text) || fencewatch.sealed_field(e.batch::text)
        || fencewatch.sealed_field(e.request_id) || fencewatch.sealed_field(e.software_version)
        || fencewatch.sealed_field(encode(e.text_hash, 'hex')))
$$;

-- RFC 6962: pairs from below, an odd one rises as it is.
CREATE OR REPLACE FUNCTION fencewatch.merkle_root(leaves bytea[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    level bytea[] := leaves;
BEGIN
    WHILE cardinality(level) > 1 LOOP
        SELECT array_agg(CASE WHEN p.other IS NULL THEN p.one ELSE sha256('\x01'::bytea || p.one || p.other) END ORDER BY p.n) INTO level
          FROM (SELECT u.n, u.hash AS one, lead(u.hash) OVER (ORDER BY u.n) AS other FROM unnest(level) WITH ORDINALITY u (hash, n)) p
         WHERE p.n % 2 = 1;
    END LOOP;
    RETURN level[1];
END $$;

-- Seal at most max_entries that wait. Cut by transaction horizon and never by id: what commits late is in a later batch. Entries
-- of a cluster that this one was restored from carry transaction numbers from the future: they ended long ago.
-- Two at once: the second waits for the number that both want, and gives up. Nobody who appends waits for either.
CREATE OR REPLACE FUNCTION fencewatch.seal(max_entries int, OUT sealed bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    former public.audit_seal;
    ids bigint[];
    leaves bytea[];
    cut xid8;
    root_now bytea;
BEGIN
    IF coalesce(max_entries NOT BETWEEN 1 AND 100000, true) THEN
        RAISE EXCEPTION 'a batch has 1 to 100,000 entries' USING ERRCODE = 'FW002';
    END IF;
    SELECT * INTO former FROM public.audit_seal s ORDER BY s.seal_id DESC LIMIT 1;
    SELECT array_agg(e.entry_id ORDER BY e.entry_id), array_agg(e.leaf ORDER BY e.entry_id), (array_agg(e.horizon))[1] INTO ids, leaves, cut
      FROM (SELECT a.entry_id, fencewatch.entry_leaf(a) AS leaf, pg_snapshot_xmin(h.snap) AS horizon
              FROM (SELECT pg_current_snapshot() AS snap) h, public.audit_unsealed u JOIN public.audit_entry a ON a.entry_id = u.entry_id
             WHERE a.xid < pg_snapshot_xmin(h.snap) OR a.xid >= pg_snapshot_xmax(h.snap)
             ORDER BY u.entry_id LIMIT max_entries) e;
    sealed := coalesce(cardinality(ids), 0);
    IF sealed = 0 THEN
        RETURN;
    END IF;
    root_now := fencewatch.merkle_root(leaves);
    former.seal_id := coalesce(former.seal_id, 0);
    former.entries_total := coalesce(former.entries_total, 0);
    former.chained := coalesce(former.chained, decode(repeat('00', 32), 'hex'));
    INSERT INTO public.audit_seal (seal_id, horizon, entries, entries_total, root, previous, chained)
    VALUES (former.seal_id + 1, cut, sealed, former.entries_total + sealed, root_now, former.chained,
            sha256(former.chained || int8send(former.seal_id + 1) || int8send(sealed) || int8send(former.entries_total + sealed) || root_now))
    ON CONFLICT (seal_id) DO NOTHING;
    IF NOT FOUND THEN
        sealed := 0;
        RETURN;
    END IF;
    INSERT INTO public.audit_leaf (entry_id, seal_id, place, leaf)
    SELECT l.id, former.seal_id + 1, l.place, l.leaf FROM unnest(ids, leaves) WITH ORDINALITY l (id, leaf, place);
    DELETE FROM public.audit_unsealed u WHERE u.entry_id = ANY (ids);
END $$;

-- ---------------------------------------------------------------------------------------------------------------
-- Who may read and append
-- ---------------------------------------------------------------------------------------------------------------
-- Whether the person of the signed context may use a verb on one tenant's work; null: on what concerns every tenant, for
-- which only a membership in all of them counts. Memberships are read now, not as the context was minted.
CREATE OR REPLACE FUNCTION fencewatch.person_may(of_verb text, of_tenant bytea) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM public.membership m JOIN public.verb_right r ON r.role = m.role AND r.verb = of_verb
                    WHERE m.user_id = fencewatch.context_user() AND (m.tenant_id IS NULL OR m.tenant_digest = of_tenant))
$$;

-- The tenants in which the person of the signed context may use a verb.
CREATE OR REPLACE FUNCTION fencewatch.tenants_open_to(of_verb text) RETURNS bytea[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(t.tenant_digest), '{}') FROM public.tenant t
     WHERE (fencewatch.context_sees_all() OR t.tenant_digest = ANY (fencewatch.context_tenants()))
       AND EXISTS (SELECT FROM public.membership m JOIN public.verb_right r ON r.role = m.role AND r.verb = of_verb
                    WHERE m.user_id = fencewatch.context_user() AND (m.tenant_id IS NULL OR m.tenant_id = t.tenant_id))
$$;

ALTER TABLE audit_entry ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE audit_text ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE audit_seal ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE audit_leaf ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE audit_unsealed ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_append ON audit_entry FOR INSERT TO fencewatch_owner WITH CHECK (true);
CREATE POLICY owner_read ON audit_entry FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY owner_append ON audit_text FOR INSERT TO fencewatch_owner WITH CHECK (true);
CREATE POLICY owner_read ON audit_text FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY owner_append ON audit_unsealed FOR INSERT TO fencewatch_owner WITH CHECK (true);
CREATE POLICY owner_read ON audit_unsealed FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY owner_read ON audit_seal FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY owner_read ON audit_leaf FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY keeping_read ON audit_entry FOR SELECT TO fencewatch_keeping USING (true);
CREATE POLICY keeping_all ON audit_unsealed TO fencewatch_keeping USING (true) WITH CHECK (true);
CREATE POLICY keeping_read ON audit_seal FOR SELECT TO fencewatch_keeping USING (true);
CREATE POLICY keeping_append ON audit_seal FOR INSERT TO fencewatch_keeping WITH CHECK (true);
CREATE POLICY keeping_read ON audit_leaf FOR SELECT TO fencewatch_keeping USING (true);
CREATE POLICY keeping_append ON audit_leaf FOR INSERT TO fencewatch_keeping WITH CHECK (true);
GRANT SELECT ON audit_entry, audit_seal, audit_leaf, audit_unsealed TO fencewatch_keeping;
GRANT INSERT ON audit_seal, audit_leaf TO fencewatch_keeping;
GRANT DELETE ON audit_unsealed TO fencewatch_keeping;

-- Pages: whoever may read the log of a tenant reads that tenant's entries; what concerns no tenant, only who may for all of them.
CREATE POLICY web_by_right ON audit_entry FOR SELECT TO fencewatch_web
    USING ((SELECT fencewatch.person_may('read_audit', NULL)) OR tenant_digest = ANY ((SELECT fencewatch.tenants_open_to('read_audit'))::bytea[]));
CREATE POLICY web_by_entry ON audit_text FOR SELECT TO fencewatch_web
    USING (EXISTS (SELECT FROM audit_entry e WHERE e.entry_id = audit_text.entry_id));
GRANT SELECT ON audit_entry, audit_text TO fencewatch_web;

GRANT EXECUTE ON FUNCTION fencewatch.enter(text, text, text, bytea, bytea, text, text, bigint, bigint, jsonb, text, text, bigint, uuid),
    fencewatch.person_may(text, bytea), fencewatch.tenants_open_to(text) TO fencewatch_actions;
GRANT EXECUTE ON FUNCTION fencewatch.person_may(text, bytea), fencewatch.tenants_open_to(text) TO fencewatch_web;
GRANT EXECUTE ON FUNCTION fencewatch.entry_leaf(public.audit_entry), fencewatch.merkle_root(bytea[]) TO fencewatch_keeping;
GRANT EXECUTE ON FUNCTION fencewatch.seal(int) TO fencewatch_keeper;
GRANT CREATE ON SCHEMA fencewatch TO fencewatch_keeping;
ALTER FUNCTION fencewatch.seal(int) OWNER TO fencewatch_keeping;
REVOKE CREATE ON SCHEMA fencewatch FROM fencewatch_keeping;
