//! Budgets in PostgreSQL: past spending, and the leader lease for counting among weirs that share the
//! server. `store::budgets` documents the meaning.

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::super::StoreError;
use super::super::budgets::{Spent, SpentQuery};
use super::super::ledger::{DAY_MS, RequestId, codec};
use super::connection::LONG_TIMEOUT;
use super::instances::LIFETIME;
use super::leader::{Rival, Sight};
use super::{Postgres, instances, schema};
use crate::budget::{Measure, ScopeKind};
use crate::sql::stored;

/// Name of the leader in `weir_meta`.
const LEADER: &str = "counting";

/// Pause between two looks at a lease whose holder may have ended.
const RIVAL_POLL: Duration = Duration::from_millis(250);
/// Maximum time to wait for the lease of a weir that may have ended. Longer than its lifetime.
const MAX_WAIT: Duration = Duration::from_secs(15);

impl Postgres {
    /// Returns totals of ended requests, and open requests.
    pub(super) async fn spent_since(&self, query: SpentQuery) -> Result<Spent, StoreError> {
        let first_day = query.from_ms.div_ceil(DAY_MS);
        let kind = query.scope.kind;
        let is_by_day = query.bucket_ms.is_none_or(|length_ms| length_ms % DAY_MS == 0);
        let is_by_day = is_by_day && !kind.is_label();
        // Buckets shorter than a day, and labels, use rows only.
        let rows_until_ms = if is_by_day { first_day.saturating_mul(DAY_MS) } else { u64::MAX };
        let sums_from_day = if is_by_day { first_day } else { u64::MAX };
        let (by_day, by_row) = conditions(kind);
        let amount = match query.measure {
            Measure::NanoUsd => "coalesce(cost_nano_usd, 0)",
            Measure::Tokens => "coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)",
        };
        // Whole days come from daily totals, the rest from rows. A single statement, so that totals
        // and open requests are consistent.
        let sql = format!(
            "SELECT bucket, greatest(sum(amount), 0)::text, NULL::bytea, NULL::text FROM (
                 SELECT (day * {DAY_MS}) / $2 * $2 AS bucket, {amount} AS amount
                 FROM weir_usage_day WHERE day >= $3 AND {by_day}
                 UNION ALL
                 SELECT begun_ms / $2 * $2, {amount} FROM weir_request WHERE id >= $4 AND id < $5
                 AND {by_row} AND NOT id = ANY ($6)
                 UNION ALL
                 SELECT begun_ms / $2 * $2, -({amount}) FROM weir_request WHERE id = ANY ($6)
                 AND begun_ms >= $3 * {DAY_MS} AND {by_row}
             ) AS amounts GROUP BY bucket
             UNION ALL
             SELECT begun_ms, '0', i.id, facts FROM weir_intent i WHERE begun_ms >= $7
             AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)
             ORDER BY 1"
        );
        self.read(move |shared| async move {
            let connection = shared.pool.long_lease().await?;
            let length = stored(query.bucket_ms.unwrap_or(u64::MAX));
            let from_day = stored(sums_from_day.min(u64::MAX / DAY_MS / 4));
            let (first, until) =
                (RequestId::first_of(query.from_ms).0, RequestId::first_of(rows_until_ms).0);
            let open: Vec<&[u8]> = query.open.iter().map(|id| &id.0[..]).collect();
            let (first, until) = (&first[..], &until[..]);
            let from_ms = stored(query.from_ms);
            let params: [&(dyn ToSql + Sync); 7] =
                [&query.scope.name, &length, &from_day, &first, &until, &open, &from_ms];
            let rows = connection.rows_within(LONG_TIMEOUT, &sql, &params).await?;
            let mut spent = Spent::default();
            for row in &rows {
                let moment_ms = row.get::<_, i64>(0);
                if let Some(id) = row.get::<_, Option<&[u8]>>(2) {
                    let json = row.get::<_, Option<&str>>(3).unwrap_or_default();
                    let id = id.try_into().unwrap_or_default();
                    spent.open.push(codec::intent(id, moment_ms, json.as_bytes()));
                    continue;
                }
                let amount: i128 = row.get::<_, &str>(1).parse().unwrap_or(0);
                let bucket_ms = u64::try_from(moment_ms).unwrap_or(0);
                spent.ended.push((bucket_ms, u64::try_from(amount).unwrap_or(u64::MAX)));
            }
            Ok(spent)
        })
        .await
    }

    /// Acquires the leader lease for this store's budgets; `false` if another weir has it and lives.
    ///
    /// The lease of a killed weir ends when that counts as dead, within some ten seconds: the
    /// caller waits for it, since the state of budgets is known only then. A weir loses the lease
    /// once it counts as dead itself. After another weir has taken it, this one does not resume: its
    /// counters are outdated.
    pub(super) async fn renew_leader_lease(&self) -> Result<bool, StoreError> {
        let leader = &self.0.shared.leader;
        if leader.is_fresh() {
            return Ok(true);
        }
        let asked_at = Instant::now();
        let mut rival = leader.rival.lock().await;
        if leader.is_fresh() {
            return Ok(true);
        }
        if let Some((_, outcome)) = rival.last.as_ref().filter(|(at, _)| *at >= asked_at) {
            return outcome.clone();
        }
        let outcome = self.wait_for_leader_lease(&mut rival).await;
        rival.last = Some((Instant::now(), outcome.clone()));
        outcome
    }

    async fn wait_for_leader_lease(&self, rival: &mut Rival) -> Result<bool, StoreError> {
        self.begin().await?;
        let give_up_at = Instant::now() + MAX_WAIT;
        loop {
            let Some(sight) = self.try_leader_lease().await? else { return Ok(true) };
            let is_outdated = self.0.shared.leader.obtained().is_some();
            if rival.lives(sight) || is_outdated || Instant::now() >= give_up_at {
                return Ok(false);
            }
            tokio::time::sleep(RIVAL_POLL).await;
        }
    }

    /// Takes the leader lease if it is free; otherwise returns when its holder was last seen.
    async fn try_leader_lease(&self) -> Result<Option<Sight>, StoreError> {
        self.run(move |shared| async move {
            let asked_at = Instant::now();
            let connection = shared.pool.lease().await?;
            connection.begin().await?;
            instances::beat(&connection, &shared.instance).await?;
            let add = "INSERT INTO weir_meta VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
            let own = &shared.instance[..];
            connection.execute(add, &[&LEADER, &own]).await?;
            let holder = "SELECT value FROM weir_meta WHERE name = $1 FOR UPDATE";
            let holder: Option<Vec<u8>> =
                connection.row(holder, &[&LEADER]).await?.map(|row| row.get(0));
            // A statement of its own: it must see what the last holder has committed.
            let sql = format!(
                "SELECT (extract(epoch FROM seen) * 1000000)::bigint,
                  (extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint
                 FROM weir_instance WHERE id = $1 AND seen >= clock_timestamp() - {LIFETIME}"
            );
            let holder = holder.unwrap_or_default();
            let sight = match holder == own {
                true => None,
                false => connection.row(&sql, &[&holder]).await?,
            };
            let sight = sight.map(|row| Sight {
                holder: holder.clone(),
                seen_us: row.get(0),
                silent_ms: row.get(1),
            });
            let may_take = holder == own || shared.leader.obtained().is_none();
            let sight = match sight {
                None if !may_take => Some(Sight { holder, seen_us: 0, silent_ms: i64::MAX }),
                sight => sight,
            };
            if sight.is_none() {
                schema::put(&connection, LEADER, own).await?;
                shared.leader.obtain(asked_at);
            }
            connection.commit().await?;
            Ok(sight)
        })
        .await
    }
}

/// Returns the conditions of a scope on daily totals and on rows, with its name as the first value.
fn conditions(kind: ScopeKind) -> (String, String) {
    let column = match kind {
        ScopeKind::All => "$1::text".to_owned(),
        kind => format!("\"{}\"", kind.word()),
    };
    if !kind.is_label() {
        return (format!("{column} = $1"), format!("coalesce({column}, '') = $1"));
    }
    // An index finds the label; then its caller is compared.
    let owner = "coalesce(nullif(key, ''), encode(tenant, 'hex'))";
    let label = format!("{column} = substr($1::text, strpos($1::text, '/') + 1)");
    ("$1::text IS NULL".to_owned(), format!("{label} AND {owner} || '/' || {column} = $1"))
}
