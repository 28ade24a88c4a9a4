-- The work table: the article's, plus what the protocol needs. In public, so that the plain `work_item` of the article's
-- statements resolves for a worker that knows nothing of this project. Nothing below is written by the pages.
--
-- Run by migration 0001 as fencewatch_owner. A table that was there before is adopted instead, column by column and
-- constraint by constraint of what this file makes (workitems/adoption).

CREATE TABLE work_item (
    -- the article's columns, in the article's order
    tenant_id           text        NOT NULL,
    operation_id        text        NOT NULL,
    payload_hash        bytea       NOT NULL,
    payload_ref         text        NOT NULL,
    state               text        NOT NULL DEFAULT 'queued',
    fence               bigint      NOT NULL DEFAULT 0,
    lease_owner         text,
    lease_expires_at    timestamptz,
    attempts            int         NOT NULL DEFAULT 0,
    max_attempts        int         NOT NULL DEFAULT 5,
    outcome_code        text,
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),   -- a heartbeat of ours leaves it alone
    -- what the protocol adds
    job_type            text        NOT NULL DEFAULT 'legacy',            -- one that job_type does not list is "unregistered"
    available_at        timestamptz NOT NULL DEFAULT clock_timestamp(),   -- not claimed before; the claim's order
    enqueued_at         timestamptz NOT NULL DEFAULT clock_timestamp(),   -- first seen; survives every redrive
    enqueue_timeline    bigint      NOT NULL DEFAULT 0,                   -- the server's timeline then (guard)
    claimed_at          timestamptz,                                      -- start of the last claim (guard)
    stamping_fence      bigint,      -- fence of the last claim by a worker that stamps `begin`; <> fence: a foreign claim
    foreign_held        boolean     NOT NULL DEFAULT false,               -- a claim that does not stamp ever held it (guard)
    unspent_attempts    int         NOT NULL DEFAULT 0,                   -- claims given back by a shutdown before their turn
    effect_fence        bigint,      -- begin: under which fence an outside effect may have started,
    effect_at           timestamptz, -- the latest such moment,
    first_effect_at     timestamptz, -- and the first one (a type C key's window counts from here; guard)
    progress            bigint      NOT NULL DEFAULT 0,                   -- the work loop's own mark, rises with each heartbeat
    progress_at         timestamptz,                                      -- when it last rose (guard)
    waiting_in_worker   boolean     NOT NULL DEFAULT false,               -- claimed in a batch, its turn not come yet
    cleared_for_attempt int,         -- the one attempt that may act without asking again, after a confirmed did_not_happen
    op_digest           bytea,       -- HMAC over tenant and operation, under the tenant's key of that version;
    tenant_digest       bytea,       -- both filled by the database on insert
    digest_key_version  int,
    item_id             bigint      GENERATED ALWAYS AS IDENTITY,         -- joins the history; means nothing outside
    PRIMARY KEY (tenant_id, operation_id),
    CONSTRAINT state_known CHECK (state IN ('queued', 'claimed', 'succeeded', 'failed_terminal', 'unknown', 'quarantined')),
    CONSTRAINT claimed_iff_leased CHECK ((state = 'claimed') = (lease_owner IS NOT NULL) AND (state = 'claimed') = (lease_expires_at IS NOT NULL)),
    CONSTRAINT queued_has_attempts_left CHECK (state <> 'queued' OR attempts < max_attempts),
    CONSTRAINT fence_not_negative CHECK (fence >= 0),
    CONSTRAINT attempts_not_negative CHECK (attempts >= unspent_attempts AND unspent_attempts >= 0 AND max_attempts > 0),
    -- a date that no program can read would poison whoever claims or lists the row
    CONSTRAINT available_at_bounded CHECK (available_at >= '2000-01-01 00:00Z' AND available_at < '9000-01-01 00:00Z'),
    CONSTRAINT effect_stamped_whole CHECK ((effect_fence IS NULL) = (effect_at IS NULL)),
    -- 2,500 bytes: what still fits a btree entry beside the tenant
    CONSTRAINT operation_id_bounded CHECK (char_length(operation_id) >= 1 AND char_length(operation_id) <= 1000 AND octet_length(operation_id) <= 2500),
    CONSTRAINT payload_hash_present CHECK (octet_length(payload_hash) BETWEEN 1 AND 64),
    CONSTRAINT payload_ref_bounded CHECK (char_length(payload_ref) BETWEEN 1 AND 2000),
    CONSTRAINT outcome_code_bounded CHECK (char_length(outcome_code) BETWEEN 1 AND 100),
    CONSTRAINT lease_owner_bounded CHECK (char_length(lease_owner) BETWEEN 1 AND 200)
) WITH (fillfactor = 85,                                    -- room for a claim's begin and heartbeats on the same page (HOT)
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- No index names lease_expires_at, progress, progress_at, effect_*: a heartbeat must stay a HOT update, and a column
-- in an index's condition counts as much as one in its key.
-- Not UNIQUE: the digest is one by its making, and a second unique index would answer a concurrent replay, which ON CONFLICT
-- on the key has not seen yet, with an error instead of a replay.
CREATE INDEX work_item_by_digest ON work_item (op_digest);
-- the claim's order, one job type at a time: another type's backlog costs nothing
CREATE INDEX work_item_queued ON work_item (job_type, available_at) WHERE state = 'queued';
-- `attempts > 0` is true of every claimed row and named by the takeover, the sweep and the pages, but by no completion
-- or heartbeat: those can only go by the primary key, whatever the statistics say.
CREATE INDEX work_item_in_flight ON work_item (job_type, claimed_at) WHERE state = 'claimed' AND attempts > 0;
-- what waits for a person
CREATE INDEX work_item_attention ON work_item (state, updated_at, op_digest) WHERE state IN ('unknown', 'quarantined', 'failed_terminal');
CREATE INDEX work_item_attention_of_tenant ON work_item (tenant_digest, state, updated_at, op_digest) WHERE state IN ('unknown', 'quarantined', 'failed_terminal');
-- the open backlog as the pages list it
-- `IS NOT NULL` follows from a page's `tenant_digest = ..` and from nothing in a completion, which would otherwise be
-- drawn into this index while statistics say that it is empty.
CREATE INDEX work_item_open_of_tenant ON work_item (tenant_digest, state, available_at, op_digest)
    WHERE state IN ('queued', 'claimed') AND tenant_digest IS NOT NULL;
-- finished rows have no index but this small one: they are looked at within a window of time
CREATE INDEX work_item_recent ON work_item USING brin (updated_at) WITH (pages_per_range = 32, autosummarize = on);
