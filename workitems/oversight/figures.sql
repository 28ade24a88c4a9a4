-- What the ORM says badly. `{...}` are lanes: ranges of one index each, for everybody's work or for some tenants'
-- (oversight/scope.py). Every sample stops at its cap, so the work is bounded however much there is. Everything compares
-- with one reading of the database's clock, %(at)s, so that the numbers on a page agree.

-- name: open_kinds
-- The job types that have open work, registered or not, by hopping along the two indexes that begin with them.
(WITH RECURSIVE walk (kind) AS (
    (SELECT i.job_type FROM work_item i WHERE i.state = 'queued' ORDER BY i.job_type, i.available_at LIMIT 1)
    UNION ALL
    SELECT (SELECT i.job_type FROM work_item i WHERE i.state = 'queued' AND i.job_type > walk.kind
             ORDER BY i.job_type, i.available_at LIMIT 1)
      FROM walk WHERE walk.kind IS NOT NULL)
 SELECT kind FROM walk WHERE kind IS NOT NULL LIMIT 1000)
UNION
(WITH RECURSIVE walk (kind) AS (
    (SELECT i.job_type FROM work_item i WHERE i.state = 'claimed' AND i.attempts > 0 ORDER BY i.job_type, i.claimed_at LIMIT 1)
    UNION ALL
    SELECT (SELECT i.job_type FROM work_item i WHERE i.state = 'claimed' AND i.attempts > 0 AND i.job_type > walk.kind
             ORDER BY i.job_type, i.claimed_at LIMIT 1)
      FROM walk WHERE walk.kind IS NOT NULL)
 SELECT kind FROM walk WHERE kind IS NOT NULL LIMIT 1000);

-- name: stuck
-- What waits for a person and what is in flight, counted by condition and job type, and the first few to look at.
-- Zero rows: nothing waits and nothing is in flight.
WITH waiting AS MATERIALIZED (
    {unknown} UNION ALL {quarantined} UNION ALL {failed_terminal}
), flight AS MATERIALIZED (
    SELECT f.*, f.lease_expires_at < %(at)s AS lapsed,
           f.lease_expires_at >= %(at)s AND NOT f.waiting_in_worker AND f.moved_at + f.allowed < %(at)s AS lying
      FROM (SELECT i.*, make_interval(secs => j.progress_seconds) AS allowed
              FROM ({claimed}) i LEFT JOIN job_type j ON j.name = i.job_type) f
), condition AS MATERIALIZED (
    SELECT w.state AS word, w.job_type, w.since, w.op_digest, w.begun FROM waiting w
    UNION ALL
    SELECT CASE WHEN f.lapsed THEN 'lapsed' WHEN f.lying THEN 'lying' ELSE 'held' END, f.job_type,
           CASE WHEN f.lapsed THEN f.lease_expires_at WHEN f.lying THEN f.moved_at + f.allowed ELSE f.since END,
           f.op_digest, f.begun
      FROM flight f
), ranked AS (
    -- what may have acted comes before what has not; a lapsed claim that never began is taken over without anybody
    SELECT c.*,
           CASE WHEN c.word = 'unknown' AND c.begun AND coalesce(j.side_effect, 'irreversible') = 'irreversible' THEN 1
                WHEN c.word = 'lapsed' AND c.begun THEN 2
                WHEN c.word = 'lying' THEN 3
                WHEN c.word = 'unknown' AND c.begun THEN 4
                WHEN c.word = 'quarantined' THEN 5
                WHEN c.word = 'unknown' THEN 6
                WHEN c.word = 'lapsed' THEN 7 END AS rank
      FROM condition c LEFT JOIN job_type j ON j.name = c.job_type
)
(SELECT c.word, c.job_type, count(*) AS number, min(c.since) AS oldest, count(*) FILTER (WHERE c.begun) AS begun, NULL::bytea AS op_digest
   FROM condition c GROUP BY c.word, c.job_type)
UNION ALL
(SELECT 'first', r.job_type, r.rank, r.since, NULL, r.op_digest
   FROM ranked r WHERE r.rank IS NOT NULL ORDER BY r.rank, r.since, r.op_digest LIMIT %(first)s);

-- name: oldest
-- Since when the oldest of a state has been in it. Always one row each. Asked apart from the samples: of a stalled claim
-- those say since when it is stalled.
SELECT 'unknown', (SELECT min(i.since) FROM ({unknown_one}) i)
UNION ALL SELECT 'quarantined', (SELECT min(i.since) FROM ({quarantined_one}) i)
UNION ALL SELECT 'failed_terminal', (SELECT min(i.since) FROM ({failed_terminal_one}) i)
UNION ALL SELECT 'claimed', (SELECT min(i.since) FROM ({claimed_one}) i);

-- name: queue
-- The backlog: how much, when the longest due fell due, and how much of it has a job type that nobody registered.
-- Always one row.
SELECT (SELECT count(*) FROM (SELECT FROM ({queued_any}) i LIMIT %(cap)s + 1) every_one),
       (SELECT min(i.since) FROM ({queued_one}) i),
       strange.number, strange.oldest
  FROM (SELECT count(*) AS number, min(s.since) AS oldest
          FROM ({unregistered}) s WHERE NOT EXISTS (SELECT FROM job_type j WHERE j.name = s.job_type)) strange;

-- name: rates
-- Claims, takeovers and endings of the last hour. Always one row.
SELECT count(*) FILTER (WHERE e.verb IN ('claim', 'takeover')),
       count(*) FILTER (WHERE e.verb = 'takeover'),
       count(*) FILTER (WHERE e.verb IN ('complete', 'fail', 'park', 'sweep', 'quarantine')),
       count(*) FILTER (WHERE e.verb = 'quarantine')
  FROM work_event e WHERE e.at > %(since)s AND {own_events};
