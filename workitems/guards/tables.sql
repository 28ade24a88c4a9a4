-- The tables but work_item (work_item.sql). Run by migration 0001 as fencewatch_owner; functions live in schema fencewatch,
-- tables in public. Nothing below is written by the pages.

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
