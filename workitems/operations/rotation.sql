-- A tenant's digest key, rotated while everything runs: a new key for new rows at once, then the rows of before in small
-- batches, their old digests kept as links for a set time, then the old key destroyed. Run by the owner's commands.

-- A new key: rows from now on carry its version, rows of before keep theirs and stay found by it. The tenant's own digest stays.
CREATE OR REPLACE FUNCTION fencewatch.rotate_tenant_key(of_tenant text, new_inner bytea, new_outer bytea) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    next_version int;
    digest bytea;
BEGIN
    SELECT t.tenant_digest INTO digest FROM public.tenant t WHERE t.tenant_id = of_tenant FOR UPDATE;   -- two rotations at once take turns
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown tenant' USING ERRCODE = 'FW001';
    END IF;
    SELECT max(version) + 1 INTO next_version FROM fencewatch.tenant_key WHERE tenant_id = of_tenant;
    INSERT INTO fencewatch.tenant_key (tenant_id, version, inner_pad, outer_pad) VALUES (of_tenant, next_version, new_inner, new_outer);
    PERFORM fencewatch.enter('rotate_key', 'applied', of_tenant => digest, of_subject => jsonb_build_object('version', next_version),
                             why => left(nullif(current_setting('fencewatch.reason', true), ''), 2000));
    RETURN next_version;
END $$;

-- Digest at most max_rows rows anew under the tenant's newest key, in the key's order from after `since` on (null: a run begins, which is
-- entered); `last` is where to go on, null at the end. Rows that somebody holds locked are passed over: the next round finds them. Old links
-- resolve for resolve_days from now.
CREATE OR REPLACE FUNCTION fencewatch.redigest(of_tenant text, since text, max_rows int, resolve_days int, OUT changed bigint, OUT last text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    newest fencewatch.tenant_key;
BEGIN
    IF coalesce(max_rows < 1 OR resolve_days NOT BETWEEN 0 AND 3650, true) THEN
        RAISE EXCEPTION 'a batch has one row at least, and old links resolve for 0 to 3,650 days' USING ERRCODE = 'FW002';
    END IF;
    SELECT * INTO newest FROM fencewatch.tenant_key k WHERE k.tenant_id = of_tenant ORDER BY k.version DESC LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown tenant, or its keys were destroyed' USING ERRCODE = 'FW001';
    END IF;
    IF since IS NULL THEN
        PERFORM fencewatch.enter('redigest', 'applied', of_tenant => t.tenant_digest,
                                 of_subject => jsonb_build_object('version', newest.version, 'resolve_days', resolve_days),
                                 why => left(nullif(current_setting('fencewatch.reason', true), ''), 2000))
           FROM public.tenant t WHERE t.tenant_id = of_tenant;
    END IF;
    WITH chosen AS MATERIALIZED (
        SELECT w.operation_id, w.op_digest FROM public.work_item w
         WHERE w.tenant_id = of_tenant AND w.operation_id > coalesce(since, '') AND w.digest_key_version < newest.version
         ORDER BY w.operation_id LIMIT max_rows FOR UPDATE SKIP LOCKED),
    moved AS (
        UPDATE public.work_item w
           SET op_digest = fencewatch.item_digest(newest.inner_pad, newest.outer_pad, w.tenant_id, w.operation_id),
               digest_key_version = newest.version
          FROM chosen c
         WHERE w.tenant_id = of_tenant AND w.operation_id = c.operation_id AND w.op_digest = c.op_digest
        RETURNING w.operation_id, c.op_digest AS former, w.op_digest, w.tenant_digest, w.item_id),
    kept AS (
        INSERT INTO public.former_digest (former, tenant_digest, item_id, op_digest, resolves_until)
        SELECT m.former, m.tenant_digest, m.item_id, m.op_digest, clock_timestamp() + make_interval(days => resolve_days) FROM moved m),
    followed AS (   -- links from two keys ago lead to the same item
        UPDATE public.former_digest f SET op_digest = m.op_digest FROM moved m WHERE f.op_digest = m.former),
    buried AS (     -- a row that is about to be retired takes its tombstone along
        UPDATE public.tombstone t SET op_digest = m.op_digest, digest_key_version = newest.version,
               written_at = clock_timestamp(), xid = pg_current_xact_id()
          FROM moved m WHERE t.op_digest = m.former)
    SELECT count(*), max(m.operation_id) INTO changed, last FROM moved m;
END $$;

-- Destroy a key that nothing needs any more. False: rows or tombstones carry its version, or it is the newest; null: no such key.
-- What a producer writes in this very moment under that version is digested anew by the next redigest, which needs no old key.
CREATE OR REPLACE FUNCTION fencewatch.retire_tenant_key(of_tenant text, of_version int, OUT retired boolean, OUT rows_left boolean,
    OUT tombstones_left bigint, OUT is_newest boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    digest bytea;
BEGIN
    SELECT t.tenant_digest INTO digest FROM public.tenant t WHERE t.tenant_id = of_tenant FOR UPDATE;
    IF NOT EXISTS (SELECT FROM fencewatch.tenant_key k WHERE k.tenant_id = of_tenant AND k.version = of_version) THEN
        RETURN;
    END IF;
    is_newest := NOT EXISTS (SELECT FROM fencewatch.tenant_key k WHERE k.tenant_id = of_tenant AND k.version > of_version);
    rows_left := EXISTS (SELECT FROM public.work_item w WHERE w.tenant_id = of_tenant AND w.digest_key_version = of_version);
    SELECT count(*) INTO tombstones_left FROM public.tombstone t WHERE t.tenant_digest = digest AND t.digest_key_version = of_version;
    retired := NOT is_newest AND NOT rows_left AND tombstones_left = 0;
    IF retired THEN
        DELETE FROM fencewatch.tenant_key k WHERE k.tenant_id = of_tenant AND k.version = of_version;
    END IF;
    PERFORM fencewatch.enter('retire_key', CASE WHEN retired THEN 'applied' ELSE 'refused' END,
                             CASE WHEN is_newest THEN 'newest' WHEN rows_left THEN 'rows_left' WHEN tombstones_left > 0 THEN 'tombstones_left' END,
                             of_tenant => digest, of_subject => jsonb_build_object('version', of_version),
                             why => left(nullif(current_setting('fencewatch.reason', true), ''), 2000));
END $$;

-- Whom an old link means now: by signed context, until it expires.
ALTER TABLE former_digest ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owner_all ON former_digest TO fencewatch_owner USING (true) WITH CHECK (true);
CREATE POLICY web_by_context ON former_digest FOR SELECT TO fencewatch_web
    USING (resolves_until > (SELECT clock_timestamp())
           AND ((SELECT fencewatch.context_sees_all()) OR tenant_digest = ANY ((SELECT fencewatch.context_tenants())::bytea[])));
GRANT SELECT (former, op_digest) ON former_digest TO fencewatch_web;
CREATE POLICY owner_redigest ON tombstone FOR UPDATE TO fencewatch_owner USING (true) WITH CHECK (true);
