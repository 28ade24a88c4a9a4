-- While a table is being adopted: every write, of the old workers and of the backfill alike, leaves the row in a form that
-- the guard and the constraints will accept. Laid by adopt, and gone with the flip that lays the guard (guards/clear.sql).
--
-- Nothing is guessed. What may have acted and can no longer be claimed becomes unknown; times that nobody wrote down are the
-- row's last change. Identity, payload and a running claim's fence and lease stay as they are.
CREATE SEQUENCE IF NOT EXISTS fencewatch.adopting_item;

CREATE OR REPLACE FUNCTION fencewatch.adopting() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    clock timestamptz := clock_timestamp();
BEGIN
    IF NEW.item_id IS NULL THEN
        NEW.item_id := nextval('fencewatch.adopting_item');
        IF NEW.updated_at IS NULL OR NEW.updated_at NOT BETWEEN '2000-01-01 00:00Z' AND clock THEN
            NEW.updated_at := clock;
        END IF;
        NEW.enqueued_at := NEW.updated_at;
        NEW.available_at := NEW.updated_at;   -- the order in which the old workers claim
        NEW.enqueue_timeline := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
        IF NEW.attempts > 0 THEN
            NEW.claimed_at := NEW.updated_at;
            NEW.progress_at := NEW.updated_at;
        END IF;
    END IF;
    IF NEW.op_digest IS NULL THEN
        SELECT t.tenant_digest, k.version, fencewatch.item_digest(k.inner_pad, k.outer_pad, NEW.tenant_id, NEW.operation_id)
          INTO NEW.tenant_digest, NEW.digest_key_version, NEW.op_digest
          FROM public.tenant t JOIN fencewatch.tenant_key k ON k.tenant_id = t.tenant_id
         WHERE t.tenant_id = NEW.tenant_id ORDER BY k.version DESC LIMIT 1;   -- a tenant that is not known yet: left for adopt
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.state = 'claimed' AND NEW.fence > OLD.fence THEN
        NEW.claimed_at := clock;
        NEW.progress_at := clock;
    END IF;

    NEW.attempts := greatest(NEW.attempts, 0);
    NEW.max_attempts := greatest(NEW.max_attempts, 1);
    -- A claim that nobody can lose, since it has no lease: whoever holds it may have acted.
    IF NEW.state = 'claimed' AND (NEW.lease_expires_at IS NULL OR NEW.fence < 0) THEN
        NEW.state := 'unknown';
    END IF;
    IF NEW.state = 'queued' AND NEW.attempts >= NEW.max_attempts THEN
        NEW.state := 'unknown';   -- the old workers take no such row either
    END IF;
    IF NEW.state = 'claimed' THEN
        NEW.attempts := greatest(NEW.attempts, 1);   -- the claim that runs; takeover and sweep look for no row without one
        NEW.lease_owner := left(coalesce(nullif(NEW.lease_owner, ''), '?'), 200);
        NEW.lease_expires_at := least(NEW.lease_expires_at, clock + interval '1 day');
    ELSE
        NEW.lease_owner := NULL;
        NEW.lease_expires_at := NULL;
    END IF;
    NEW.fence := greatest(NEW.fence, 0);
    NEW.outcome_code := left(nullif(NEW.outcome_code, ''), 100);
    NEW.foreign_held := NEW.foreign_held OR NEW.attempts > 0 OR NEW.fence > 0;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER adopting BEFORE INSERT OR UPDATE ON public.work_item FOR EACH ROW EXECUTE FUNCTION fencewatch.adopting();
