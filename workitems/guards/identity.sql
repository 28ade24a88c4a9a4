-- Digests: what stands for tenants and operations outside the database. Python computes the same (identifiers.py).

-- A part of a digest's message: its length in bytes, then itself, so that no separator can be forged.
CREATE OR REPLACE FUNCTION fencewatch.length_prefixed(part text) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN int4send(octet_length(part)) || convert_to(part, 'UTF8');

-- HMAC-SHA256 by its two pads (RFC 2104).
CREATE OR REPLACE FUNCTION fencewatch.keyed_digest(inner_pad bytea, outer_pad bytea, message bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN sha256(outer_pad || sha256(inner_pad || message));

-- What stands for an operation, under one of its tenant's keys.
CREATE OR REPLACE FUNCTION fencewatch.item_digest(inner_pad bytea, outer_pad bytea, of_tenant text, of_operation text) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN fencewatch.keyed_digest(inner_pad, outer_pad, 'fencewatch/item/1'::bytea || fencewatch.length_prefixed(of_tenant)
                                                     || fencewatch.length_prefixed(of_operation));

-- Fills the digests of a new row. Definer's rights: no login role may read a key.
CREATE OR REPLACE FUNCTION fencewatch.identify() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT t.tenant_digest, k.version,
           fencewatch.item_digest(k.inner_pad, k.outer_pad, NEW.tenant_id, NEW.operation_id)
      INTO NEW.tenant_digest, NEW.digest_key_version, NEW.op_digest
      FROM public.tenant t JOIN fencewatch.tenant_key k ON k.tenant_id = t.tenant_id
     WHERE t.tenant_id = NEW.tenant_id
     ORDER BY k.version DESC LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'unknown tenant: add it before work is enqueued for it' USING ERRCODE = 'FW001';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.identify_member() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.tenant_digest := (SELECT t.tenant_digest FROM public.tenant t WHERE t.tenant_id = NEW.tenant_id);
    RETURN NEW;
END $$;

-- A tenant with its first key. The digest that stands for the tenant is made once, under that key.
CREATE OR REPLACE FUNCTION fencewatch.add_tenant(new_id text, new_label text, new_inner bytea, new_outer bytea) RETURNS bytea
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    digest bytea := fencewatch.keyed_digest(new_inner, new_outer, 'fencewatch/tenant/1'::bytea || fencewatch.length_prefixed(new_id));
BEGIN
    INSERT INTO public.tenant (tenant_id, tenant_digest, label) VALUES (new_id, digest, new_label);
    INSERT INTO fencewatch.tenant_key (tenant_id, version, inner_pad, outer_pad) VALUES (new_id, 1, new_inner, new_outer);
    RETURN digest;
END $$;

-- ---------------------------------------------------------------------------------------------------------------
-- Signed context: who looks, and at which tenants. Anybody may set the variable; only the holder of the key can mint it.
-- `1|user|scope|digest,digest|expiry|pid|hmac`: bound to one connection by its pid and to seconds by its expiry.
-- ---------------------------------------------------------------------------------------------------------------
CREATE OR REPLACE FUNCTION fencewatch.context_parts() RETURNS text[]
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    context text := current_setting('fencewatch.context', true);   -- '' after an earlier transaction set it
    parts text[] := string_to_array(context, '|');
    signed bytea;
BEGIN
    IF context IS NULL OR cardinality(parts) <> 7 OR parts[1] <> '1' OR parts[2] !~ '^\d{1,18}$' OR parts[3] NOT IN ('all', 'some')
       OR parts[4] !~ '^([0-9a-f]{64}(,[0-9a-f]{64})*)?$' OR parts[5] !~ '^\d{1,12}$' OR parts[6] !~ '^\d{1,10}$' OR parts[7] !~ '^[0-9a-f]{64}$' THEN
        RETURN NULL;
    END IF;
    IF parts[5]::bigint < extract(epoch FROM clock_timestamp()) OR parts[6]::bigint <> pg_backend_pid() THEN
        RETURN NULL;
    END IF;
    signed := convert_to(array_to_string(parts[1:6], '|'), 'UTF8');
    PERFORM 1 FROM fencewatch.context_key k
      WHERE k.retired_at IS NULL AND fencewatch.keyed_digest(k.inner_pad, k.outer_pad, signed) = decode(parts[7], 'hex');
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN parts;
END $$;

CREATE OR REPLACE FUNCTION fencewatch.context_user() RETURNS bigint
LANGUAGE sql STABLE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp
AS $$ SELECT (fencewatch.context_parts())[2]::bigint $$;

CREATE OR REPLACE FUNCTION fencewatch.context_sees_all() RETURNS boolean
LANGUAGE sql STABLE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce((fencewatch.context_parts())[3] = 'all', false) $$;

CREATE OR REPLACE FUNCTION fencewatch.context_tenants() RETURNS bytea[]
LANGUAGE sql STABLE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(array_agg(decode(digest, 'hex')), '{}') FROM unnest(string_to_array((fencewatch.context_parts())[4], ',')) digest $$;

-- The digest of an item's payload reference, for its page: the reference itself often holds an id or a name.
CREATE OR REPLACE FUNCTION fencewatch.reference_digest(of_item bytea) RETURNS bytea
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT fencewatch.keyed_digest(k.inner_pad, k.outer_pad, 'fencewatch/reference/1'::bytea
               || fencewatch.length_prefixed(w.tenant_id) || fencewatch.length_prefixed(w.payload_ref))
      FROM public.work_item w JOIN fencewatch.tenant_key k ON k.tenant_id = w.tenant_id AND k.version = w.digest_key_version
     WHERE w.op_digest = of_item
       AND (fencewatch.context_sees_all() OR w.tenant_digest = ANY (fencewatch.context_tenants()))
$$;
