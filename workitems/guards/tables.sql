-- The tables. Run by migration 0001 as fencewatch_owner; functions live in schema fencewatch, tables in public, so that
-- the plain `work_item` of the article's statements resolves for a worker that knows nothing of this project.
--
-- work_item is the article's table plus what the protocol needs. Nothing below is written by the pages.

CREATE SCHEMA fencewatch;
-- Whoever may call a function is named in policies.sql. Without a schema: the form with one cannot take PUBLIC's right away.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- ---------------------------------------------------------------------------------------------------------------
-- Tenants and their keys
-- ---------------------------------------------------------------------------------------------------------------
CREATE TABLE tenant (
    tenant_id     text        PRIMARY KEY,
    tenant_digest bytea       NOT NULL,
    label         text        NOT NULL DEFAULT '',      -- a nickname for the pages, chosen by people; never the id
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT tenant_digest_unique UNIQUE (tenant_digest),
    CONSTRAINT tenant_id_bounded CHECK (char_length(tenant_id) BETWEEN 1 AND 100 AND octet_length(tenant_id) <= 128),
    CONSTRAINT tenant_label_is_not_the_id CHECK (label <> tenant_id AND char_length(label) <= 60)
);

-- HMAC keys as their two 64-byte pads, so that hmac = sha256(outer || sha256(inner || message)) needs no extension.
-- The pads are as secret as the key: no login role may read them. Destroying a tenant's rows here unlinks its digests.
CREATE TABLE fencewatch.tenant_key (
    tenant_id  text        NOT NULL REFERENCES tenant,
    version    int         NOT NULL CHECK (version > 0),
    inner_pad  bytea       NOT NULL CHECK (octet_length(inner_pad) = 64),
    outer_pad  bytea       NOT NULL CHECK (octet_length(outer_pad) = 64),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, version)
);

-- The keys that sign operators' contexts. The web process holds the same key; see the README's threat model.
CREATE TABLE fencewatch.context_key (
    version    int         PRIMARY KEY CHECK (version > 0),
    inner_pad  bytea       NOT NULL CHECK (octet_length(inner_pad) = 64),
    outer_pad  bytea       NOT NULL CHECK (octet_length(outer_pad) = 64),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at timestamptz
);

-- A person's standing in one tenant, or in all of them where tenant_id is null.
CREATE TABLE membership (
    membership_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id       bigint      NOT NULL,
    tenant_id     text        REFERENCES tenant,
    tenant_digest bytea,                                 -- filled by the database; what the pages and policies compare
    role          text        NOT NULL DEFAULT 'viewer',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT membership_role_known CHECK (role IN ('viewer', 'operator', 'approver', 'auditor')),
    CONSTRAINT membership_once UNIQUE NULLS NOT DISTINCT (user_id, tenant_id, role),
    CONSTRAINT membership_digest_iff_tenant CHECK ((tenant_id IS NULL) = (tenant_digest IS NULL))
);

-- ---------------------------------------------------------------------------------------------------------------
-- Job types: what code registered, as the database and the pages see it
-- ---------------------------------------------------------------------------------------------------------------
CREATE TABLE job_type (
    name                 text        PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 100),
    target               text        NOT NULL,
    side_effect          text        NOT NULL,
    owner                text        NOT NULL CHECK (owner <> ''),           -- service owner: failed_terminal
    producer_team        text        NOT NULL CHECK (producer_team <> ''),   -- quarantined
    system_owner         text        NOT NULL CHECK (system_owner <> ''),    -- with on-call: unknown
    lease_seconds        int         NOT NULL CHECK (lease_seconds BETWEEN 1 AND 86400),
    progress_seconds     int         NOT NULL CHECK (progress_seconds > 0),  -- longest honest silence before "lying"
    max_attempts         int         NOT NULL CHECK (max_attempts > 0),
    attempts_ceiling     int         NOT NULL,
    auto_redrives        int         NOT NULL DEFAULT 0 CHECK (auto_redrives >= 0),
    backoff_seconds      int         NOT NULL DEFAULT 5 CHECK (backoff_seconds >= 0),
    answer_valid_seconds int         NOT NULL DEFAULT 300 CHECK (answer_valid_seconds > 0),
    settle_seconds       int         NOT NULL DEFAULT 60 CHECK (settle_seconds >= 0),
    reconciles           boolean     NOT NULL,             -- the code names a reconciler
    no_reconciler_because text       NOT NULL DEFAULT '',
    foreign_claims       boolean     NOT NULL DEFAULT false, -- workers that run the article's own statements may claim
    held_until           timestamptz,
    held_reason          text        NOT NULL DEFAULT '',
    key_window_seconds   bigint,                             -- type C: how long the provider remembers a key,
    key_scope            text        NOT NULL DEFAULT '',    -- within what it is unique,
    key_mismatch         text        NOT NULL DEFAULT '',    -- what another payload under one key gets,
    key_source           text        NOT NULL DEFAULT '',    -- where that is written,
    key_verified_on      date,                               -- and who looked, when, and until when it counts
    key_verified_by      text        NOT NULL DEFAULT '',
    key_expires_on       date,
    fingerprint          text        NOT NULL,               -- of the code's definition: workers refuse to claim on another
    synced_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT target_known CHECK (target IN ('A', 'B', 'C', 'D')),
    CONSTRAINT side_effect_known CHECK (side_effect IN ('reversible', 'idempotent', 'irreversible')),
    CONSTRAINT ceiling_not_below_max CHECK (attempts_ceiling >= max_attempts),
    CONSTRAINT plain_external_runs_once CHECK (target <> 'D' OR name = 'legacy' OR (max_attempts = 1 AND auto_redrives = 0 AND NOT reconciles)),
    CONSTRAINT reconciler_or_reason CHECK (reconciles OR target = 'A' OR no_reconciler_because <> ''),
    CONSTRAINT idempotent_api_says_its_window CHECK (target <> 'C' OR (key_window_seconds > 0 AND key_scope <> '' AND key_mismatch <> ''
        AND key_source <> '' AND key_verified_by <> '' AND key_verified_on IS NOT NULL AND key_expires_on > key_verified_on))
);

-- Rows that came without a job type: written by producers and claimed by workers that know the article's table only.
INSERT INTO job_type (name, target, side_effect, owner, producer_team, system_owner, lease_seconds, progress_seconds,
                      max_attempts, attempts_ceiling, reconciles, no_reconciler_because, foreign_claims, fingerprint)
VALUES ('legacy', 'D', 'irreversible', 'service owner', 'producer team', 'on-call', 60, 300, 5, 5, false,
        'nothing is known about the target of rows without a job type', true, 'legacy');

-- ---------------------------------------------------------------------------------------------------------------
-- The work table
-- ---------------------------------------------------------------------------------------------------------------
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
    CONSTRAINT operation_id_bounded CHECK (char_length(operation_id) BETWEEN 1 AND 1000 AND octet_length(operation_id) <= 2500),
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

-- ---------------------------------------------------------------------------------------------------------------
-- History: one row per change of state, fence or effect stamp, written by a trigger, read by the pages
-- ---------------------------------------------------------------------------------------------------------------
CREATE TABLE work_event (
    event_id      bigint      GENERATED ALWAYS AS IDENTITY,
    item_id       bigint      NOT NULL,
    tenant_digest bytea       NOT NULL,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    verb          text        NOT NULL,
    state_before  text,
    state_after   text        NOT NULL,
    fence         bigint      NOT NULL,
    attempts      int         NOT NULL,
    worker        text,                    -- the lease owner that acted, or lost the item
    outcome_code  text,
    detail        jsonb,                   -- a reconcile's verdict and evidence; never an identifier or a payload
    db_role       name        NOT NULL DEFAULT session_user,
    PRIMARY KEY (item_id, event_id)        -- the one index that finds events: each costs every change of an item
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
-- rates over the last hour; rows arrive in time order, so a block range index costs an insert next to nothing
CREATE INDEX work_event_recent ON work_event USING brin (at) WITH (pages_per_range = 32, autosummarize = on);

-- ---------------------------------------------------------------------------------------------------------------
-- Payloads, always by (tenant, reference)
-- ---------------------------------------------------------------------------------------------------------------
CREATE TABLE payload (
    tenant_id   text        NOT NULL REFERENCES tenant,
    payload_ref text        NOT NULL CHECK (char_length(payload_ref) BETWEEN 1 AND 2000),
    body        bytea       NOT NULL,
    stored_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, payload_ref)
);
