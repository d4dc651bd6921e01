//! Budgets in PostgreSQL: past spending, and the leader lease for counting among weirs that share the
//! server. `store::budgets` documents the meaning.

use std::time::Duration;

use tokio::time::Instant;

use super::super::Stored;
use super::super::budgets::spent::{self, Dialect};
use super::super::budgets::{Spent, SpentQuery};
use super::super::ledger::codec;
use super::connection::{LONG_TIMEOUT, Param};
use super::instances::LIFETIME;
use super::leader::{Rival, Sight};
use super::{Postgres, instances, schema};
use crate::sql::{SqlRow, stored};

/// Name of the leader in `weir_meta`.
const LEADER: &str = "counting";

/// Pause between two looks at a lease whose holder may have ended.
const RIVAL_POLL: Duration = Duration::from_millis(250);
/// Maximum time to wait for the lease of a weir that may have ended. Longer than its lifetime.
const MAX_WAIT: Duration = Duration::from_secs(15);

impl Postgres {
    /// Returns totals of ended requests, and open requests.
    pub(super) async fn spent_since(&self, query: SpentQuery) -> Stored<Spent> {
        let dialect = Dialect {
            tenant: "encode(tenant, 'hex')",
            label: "substr($1::text, strpos($1::text, '/') + 1)",
            scope: "$1::text",
            is_open: "id = ANY ($6)".to_owned(),
        };
        let (ended, values) = spent::statement(&query, &dialect);
        // A single statement, so that totals and open requests are consistent.
        let sql = format!(
            "SELECT ended.*, NULL::bytea, NULL::text FROM ({ended}) AS ended
             UNION ALL
             SELECT begun_ms, 0, 0, i.id, facts FROM weir_intent i WHERE begun_ms >= $7
             AND NOT EXISTS (SELECT 1 FROM weir_request r WHERE r.id = i.id)
             ORDER BY 1"
        );
        self.read(move |shared| async move {
            let connection = shared.pool.long_lease().await?;
            let open: Vec<&[u8]> = query.open.iter().map(|id| &id.0[..]).collect();
            let from_ms = stored(query.from_ms);
            let mut params: Vec<Param<'_>> =
                values.iter().map(|value| value as Param<'_>).collect();
            params.extend([&open as Param<'_>, &from_ms]);
            let rows = connection.rows_within(LONG_TIMEOUT, &sql, &params).await?;
            let mut spent = Spent::default();
            for row in rows.iter().map(SqlRow::from) {
                match row.bytes(3).try_into() {
                    Ok(id) => {
                        let facts = row.text(4);
                        spent.open.push(codec::intent(id, row.number(0), facts.as_bytes()));
                    }
                    Err(_) => spent.ended.push(spent::bucket(&row)),
                }
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
    pub(super) async fn renew_leader_lease(&self) -> Stored<bool> {
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

    async fn wait_for_leader_lease(&self, rival: &mut Rival) -> Stored<bool> {
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
    async fn try_leader_lease(&self) -> Stored<Option<Sight>> {
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
