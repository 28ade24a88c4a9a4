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

ALTER TABLE audit_entry ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE audit_text ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_append ON audit_entry FOR INSERT TO fencewatch_owner WITH CHECK (true);
CREATE POLICY owner_read ON audit_entry FOR SELECT TO fencewatch_owner USING (true);
CREATE POLICY owner_append ON audit_text FOR INSERT TO fencewatch_owner WITH CHECK (true);
CREATE POLICY owner_read ON audit_text FOR SELECT TO fencewatch_owner USING (true);
GRANT EXECUTE ON FUNCTION fencewatch.enter(text, text, text, bytea, bytea, text, text, bigint, bigint, jsonb, text, text, bigint, uuid)
    TO fencewatch_actions;
