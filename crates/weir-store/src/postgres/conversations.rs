//! Kept conversations in PostgreSQL. `store::conversations` documents their meaning. Changes hold the
//! lock of their kind, so that one at a time changes sizes.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::super::sqlite::stored;
use super::super::{ENTRY_BYTES, StoreError, Tenant};
use super::connection::Connection;
use super::pool::Lease;
use super::{Postgres, Shared};
use crate::backend::Conversations;
use crate::conversations::{
    Added, Addition, Conversation, ConversationFacts, ConversationId, ConversationLimits,
    DELETED_AT_ONCE, FACTS, KIND, KeptMessage, MARK, MAX_PAGE, MESSAGE_BYTES, Place, Rest,
    mark_name, marks_end_ms,
};
use crate::ledger::text::from_stored;

#[async_trait]
impl Conversations for Postgres {
    async fn conversation(
        &self,
        tenant: Tenant,
        name: &str,
        now_ms: u64,
    ) -> Result<Option<Conversation>, StoreError> {
        let name = name.to_owned();
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            // A single statement, so that facts and messages are of one moment.
            let sql = "SELECT c.id, c.name, c.messages, c.weight_bytes, c.created_ms, c.last_ms,
                        c.expires_ms, m.place, m.opens, m.text
                       FROM weir_conversation c
                       LEFT JOIN weir_conversation_message m ON m.conversation = c.id
                       WHERE c.tenant = $1 AND c.name = $2 AND c.expires_ms > $3 ORDER BY m.place";
            let rows = connection.rows(sql, &[&&tenant.0[..], &name, &stored(now_ms)]).await?;
            let Some((id, facts)) = rows.first().map(facts) else { return Ok(None) };
            let message = |row: &Row| {
                let place = from_stored(row.get::<_, Option<i64>>(7)?);
                let text = row.get::<_, Vec<u8>>(9).into();
                Some((place, KeptMessage { text, opens: row.get(8) }))
            };
            let messages = rows.iter().filter_map(message).collect();
            Ok(Some(Conversation { id: ConversationId(id), facts, messages }))
        })
        .await
    }

    async fn conversation_change(&self, tenant: Tenant, name: &str) -> Result<u64, StoreError> {
        let name = name.to_owned();
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            change(&connection, tenant, &name).await
        })
        .await
    }

    async fn list_conversations(
        &self,
        tenant: Tenant,
        after: &str,
        now_ms: u64,
    ) -> Result<Vec<ConversationFacts>, StoreError> {
        let after = after.to_owned();
        self.read(move |shared| async move {
            let connection = shared.pool.lease().await?;
            let sql = format!(
                "SELECT id, {FACTS} FROM weir_conversation
                 WHERE tenant = $1 AND name > $2 AND name < '{MARK}' AND expires_ms > $3
                 ORDER BY name LIMIT $4"
            );
            let (now, limit) = (stored(now_ms), stored(MAX_PAGE as u64));
            let rows = connection.rows(&sql, &[&&tenant.0[..], &after, &now, &limit]).await?;
            Ok(rows.iter().map(|row| facts(row).1).collect())
        })
        .await
    }

    async fn add_to_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        addition: Addition,
        limits: ConversationLimits,
        now_ms: u64,
    ) -> Result<Added, StoreError> {
        let name = name.to_owned();
        self.run(move |shared| async move {
            let connection = begin(&shared).await?;
            let found = find(&connection, tenant, &name, now_ms).await?.map(|(id, _)| id);
            let change = change(&connection, tenant, &name).await?;
            let id = match addition.place(found, change) {
                Place::Changed => {
                    connection.roll_back().await?;
                    return Ok(Added::Changed);
                }
                Place::Row(id) => id,
                Place::New => {
                    // An expired one of this name is in the way.
                    remove(&connection, tenant, &name).await?;
                    create(&connection, tenant, &name, now_ms).await?
                }
            };
            add(&connection, id, &addition.messages, limits, now_ms).await?;
            evict(&connection, limits.max_bytes, now_ms).await?;
            connection.commit().await?;
            Ok(Added::Whole)
        })
        .await
    }

    async fn replace_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        messages: Vec<KeptMessage>,
        limits: ConversationLimits,
        now_ms: u64,
    ) -> Result<ConversationFacts, StoreError> {
        let name = name.to_owned();
        self.run(move |shared| async move {
            let connection = begin(&shared).await?;
            let before = find(&connection, tenant, &name, now_ms).await?;
            remove(&connection, tenant, &name).await?;
            mark(&connection, tenant, &name, now_ms).await?;
            let created_ms = before.map_or(now_ms, |(_, facts)| facts.created_ms);
            let id = create(&connection, tenant, &name, created_ms).await?;
            add(&connection, id, &messages, limits, now_ms).await?;
            let sql = format!("SELECT id, {FACTS} FROM weir_conversation WHERE id = $1");
            let replaced = connection.row(&sql, &[&id]).await?;
            let replaced = replaced.map(|row| facts(&row).1).ok_or_else(vanished)?;
            evict(&connection, limits.max_bytes, now_ms).await?;
            connection.commit().await?;
            Ok(replaced)
        })
        .await
    }

    async fn delete_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        max_bytes: u64,
        now_ms: u64,
    ) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.run(move |shared| async move {
            let connection = begin(&shared).await?;
            let is_removed = remove(&connection, tenant, &name).await?;
            mark(&connection, tenant, &name, now_ms).await?;
            evict(&connection, max_bytes, now_ms).await?;
            connection.commit().await?;
            Ok(is_removed)
        })
        .await
    }
}

/// Begins a transaction that alone changes conversations.
async fn begin(shared: &Shared) -> Result<Lease<'_>, StoreError> {
    let connection = shared.pool.lease().await?;
    connection.begin().await?;
    connection.row("SELECT NULL::text FROM weir_hold($1)", &[&KIND]).await?;
    Ok(connection)
}

fn vanished() -> StoreError {
    StoreError::Failed("PostgreSQL returned no row for a conversation that it has".to_owned())
}

/// Reads the ID and the facts of a conversation.
fn facts(row: &Row) -> (i64, ConversationFacts) {
    let columns = (row.get(1), row.get(2), row.get(3), row.get(4), row.get(5), row.get(6));
    (row.get(0), ConversationFacts::from(columns))
}

async fn find(
    connection: &Connection,
    tenant: Tenant,
    name: &str,
    now_ms: u64,
) -> Result<Option<(i64, ConversationFacts)>, StoreError> {
    let sql = format!(
        "SELECT id, {FACTS} FROM weir_conversation
         WHERE tenant = $1 AND name = $2 AND expires_ms > $3"
    );
    let row = connection.row(&sql, &[&&tenant.0[..], &name, &stored(now_ms)]).await?;
    Ok(row.as_ref().map(facts))
}

/// Creates an empty conversation, which expires at once unless something is added.
async fn create(
    connection: &Connection,
    tenant: Tenant,
    name: &str,
    created_ms: u64,
) -> Result<i64, StoreError> {
    let sql = "INSERT INTO weir_conversation
                (tenant, name, created_ms, last_ms, expires_ms, messages, weight_bytes)
               VALUES ($1, $2, $3, NULL, 0, 0, $4) RETURNING id";
    let (created, weight) = (stored(created_ms), stored(ENTRY_BYTES));
    let row = connection.row(sql, &[&&tenant.0[..], &name, &created, &weight]).await?;
    row.map(|row| row.get(0)).ok_or_else(vanished)
}

/// Marks a conversation as changed, for exchanges that began before.
async fn mark(
    connection: &Connection,
    tenant: Tenant,
    name: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO weir_conversation
                (tenant, name, created_ms, last_ms, expires_ms, messages, weight_bytes)
               VALUES ($1, $2, $3, NULL, $3, 0, $4)
               ON CONFLICT (tenant, name) DO UPDATE
                SET expires_ms = greatest(weir_conversation.expires_ms + 1, excluded.expires_ms)";
    let (name, now, weight) = (mark_name(name), stored(now_ms), stored(ENTRY_BYTES));
    connection.execute(sql, &[&&tenant.0[..], &name, &now, &weight]).await?;
    Ok(())
}

/// Returns the number of the latest change of a conversation; 0 if there is no mark.
async fn change(connection: &Connection, tenant: Tenant, name: &str) -> Result<u64, StoreError> {
    let sql = "SELECT expires_ms FROM weir_conversation WHERE tenant = $1 AND name = $2";
    let row = connection.row(sql, &[&&tenant.0[..], &mark_name(name)]).await?;
    Ok(row.map_or(0, |row| from_stored(row.get(0))))
}

async fn remove(connection: &Connection, tenant: Tenant, name: &str) -> Result<bool, StoreError> {
    let sql = "DELETE FROM weir_conversation WHERE tenant = $1 AND name = $2";
    Ok(connection.execute(sql, &[&&tenant.0[..], &name]).await? > 0)
}

/// Adds messages at the end, removes the oldest if there are too many, and updates the facts.
async fn add(
    connection: &Connection,
    id: i64,
    messages: &[KeptMessage],
    limits: ConversationLimits,
    now_ms: u64,
) -> Result<(), StoreError> {
    let insert = "INSERT INTO weir_conversation_message
                  SELECT $1, next.place + given.place - 1, given.opens, given.text
                  FROM unnest($2::boolean[], $3::bytea[]) WITH ORDINALITY
                   AS given (opens, text, place),
                  (SELECT coalesce(max(place) + 1, 0) AS place FROM weir_conversation_message
                   WHERE conversation = $1) AS next";
    let opens: Vec<bool> = messages.iter().map(|message| message.opens).collect();
    let texts: Vec<&[u8]> = messages.iter().map(|message| &message.text[..]).collect();
    connection.execute(insert, &[&id, &opens, &texts]).await?;
    let sizes = "SELECT place, octet_length(text) + $2::bigint, opens
                 FROM weir_conversation_message WHERE conversation = $1 ORDER BY place";
    let rows = connection.rows(sizes, &[&id, &stored(MESSAGE_BYTES)]).await?;
    let sizes: Vec<(i64, i64, bool)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let rest = Rest::of(&sizes, limits.max_conversation_bytes);
    if rest.first > 0 {
        let sql = "DELETE FROM weir_conversation_message WHERE conversation = $1 AND place < $2";
        connection.execute(sql, &[&id, &rest.first]).await?;
    }
    let update = "UPDATE weir_conversation SET messages = $2, weight_bytes = $3, expires_ms = $4,
                  last_ms = CASE WHEN $5::boolean THEN $6::bigint ELSE last_ms END WHERE id = $1";
    let (count, weight, has_any) = (rest.messages, rest.weight_bytes, !messages.is_empty());
    let expires = stored(now_ms.saturating_add(limits.lifetime_ms));
    let now = stored(now_ms);
    connection.execute(update, &[&id, &count, &weight, &expires, &has_any, &now]).await?;
    Ok(())
}

async fn evict(connection: &Connection, max_bytes: u64, now_ms: u64) -> Result<(), StoreError> {
    let sql = "SELECT NULL::text FROM weir_evict_conversations($1, $2, $3)";
    let (now, marks) = (stored(now_ms), stored(marks_end_ms(now_ms)));
    connection.row(sql, &[&now, &marks, &stored(max_bytes)]).await?;
    Ok(())
}

/// Deletes expired conversations of all tenants; returns their number.
pub(super) async fn delete_expired(shared: Arc<Shared>, now_ms: u64) -> Result<u64, StoreError> {
    let mut deleted = 0;
    loop {
        let connection = begin(&shared).await?;
        let mut more = 0;
        // Marks that must stay may be many, so the search for conversations passes them by.
        let ended =
            [(format!("name < '{MARK}' AND"), now_ms), (String::new(), marks_end_ms(now_ms))];
        for (which, end_ms) in ended {
            let sql = format!(
                "DELETE FROM weir_conversation WHERE id IN
                 (SELECT id FROM weir_conversation WHERE {which} expires_ms <= $1
                  LIMIT {DELETED_AT_ONCE})"
            );
            more += connection.execute(&sql, &[&stored(end_ms)]).await?;
        }
        connection.commit().await?;
        deleted += more;
        if more < DELETED_AT_ONCE {
            return Ok(deleted);
        }
    }
}
