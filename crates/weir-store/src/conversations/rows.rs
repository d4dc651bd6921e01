//! Rows of kept conversations, and the steps of their operations.

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Added, Addition, AdditionRow, Conversation, ConversationFacts, ConversationId,
    ConversationLimits, DELETED_AT_ONCE, KeptMessage, MARK, MAX_PAGE, MESSAGE_BYTES, Rest,
    mark_name,
};
use crate::backend::Conversations;
use crate::sql::{Exclusive, Reads, Sql, SqlRow, Steps, values};
use crate::{ENTRY_BYTES, StoreError, Stored, Tenant};

/// Columns of a conversation: its ID and its facts.
const COLUMNS: &str =
    "c.id, c.name, c.messages, c.weight_bytes, c.created_ms, c.last_ms, c.expires_ms";

#[async_trait]
impl<B: Steps> Conversations for B {
    async fn conversation(
        &self,
        tenant: Tenant,
        name: &str,
        now_ms: u64,
    ) -> Stored<Option<Conversation>> {
        let name = name.to_owned();
        let steps = move |sql: &dyn Sql| {
            if find(sql, tenant, &name, now_ms)?.is_none() {
                return Ok(None);
            }
            // A single statement, so that facts and messages are of one moment.
            let rows = sql.rows(
                &format!(
                    "SELECT {COLUMNS}, m.place, m.opens, m.text FROM weir_conversation c
                     LEFT JOIN weir_conversation_message m ON m.conversation = c.id
                     WHERE c.tenant = $1 AND c.name = $2 AND c.expires_ms > $3 ORDER BY m.place"
                ),
                values![&tenant.0[..], name, now_ms],
            )?;
            let Some((id, facts)) = rows.first().map(facts) else { return Ok(None) };
            let message = |row: SqlRow| {
                let text = Bytes::copy_from_slice(row.bytes(9));
                Some((row.some_figure(7)?, KeptMessage { text, opens: row.number(8) != 0 }))
            };
            let messages = rows.into_iter().filter_map(message).collect();
            Ok(Some(Conversation { id: ConversationId(id), facts, messages }))
        };
        self.select(Reads::Few, steps).await
    }

    async fn conversation_change(&self, tenant: Tenant, name: &str) -> Stored<u64> {
        let name = name.to_owned();
        self.select(Reads::Few, move |sql| change(sql, tenant, &name)).await
    }

    async fn list_conversations(
        &self,
        tenant: Tenant,
        after: &str,
        now_ms: u64,
    ) -> Stored<Vec<ConversationFacts>> {
        let after = after.to_owned();
        let steps = move |sql: &dyn Sql| {
            let rows = sql.rows(
                &format!(
                    "SELECT {COLUMNS} FROM weir_conversation c
                     WHERE tenant = $1 AND name > $2 AND name < '{MARK}' AND expires_ms > $3
                     ORDER BY name LIMIT $4"
                ),
                values![&tenant.0[..], after, now_ms, MAX_PAGE as u64],
            )?;
            Ok(rows.iter().map(|row| facts(row).1).collect())
        };
        self.select(Reads::Few, steps).await
    }

    async fn add_to_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        addition: Addition,
        limits: ConversationLimits,
        now_ms: u64,
    ) -> Stored<Added> {
        let name = name.to_owned();
        let steps = move |sql: &dyn Sql| {
            let found = find(sql, tenant, &name, now_ms)?.map(|(id, _)| id);
            let id = match addition.row(found, change(sql, tenant, &name)?) {
                AdditionRow::Changed => return Ok(Added::Changed),
                AdditionRow::Known(id) => id,
                AdditionRow::New => {
                    // An expired one of this name is in the way.
                    remove(sql, tenant, &name)?;
                    create(sql, tenant, &name, now_ms)?
                }
            };
            add(sql, id, &addition.messages, limits, now_ms)?;
            sql.evict_conversations(limits.max_bytes, now_ms)?;
            Ok(Added::Whole)
        };
        self.change(Exclusive::Conversations, steps).await
    }

    async fn replace_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        messages: Vec<KeptMessage>,
        limits: ConversationLimits,
        now_ms: u64,
    ) -> Stored<ConversationFacts> {
        let name = name.to_owned();
        let steps = move |sql: &dyn Sql| {
            let before = find(sql, tenant, &name, now_ms)?;
            remove(sql, tenant, &name)?;
            mark(sql, tenant, &name, now_ms)?;
            let created_ms = before.map_or(now_ms, |(_, facts)| facts.created_ms);
            let id = create(sql, tenant, &name, created_ms)?;
            add(sql, id, &messages, limits, now_ms)?;
            let replaced = format!("SELECT {COLUMNS} FROM weir_conversation c WHERE id = $1");
            let replaced = sql.row(&replaced, values![id])?.ok_or_else(vanished)?;
            sql.evict_conversations(limits.max_bytes, now_ms)?;
            Ok(facts(&replaced).1)
        };
        self.change(Exclusive::Conversations, steps).await
    }

    async fn delete_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        max_bytes: u64,
        now_ms: u64,
    ) -> Stored<bool> {
        let name = name.to_owned();
        let steps = move |sql: &dyn Sql| {
            let is_removed = remove(sql, tenant, &name)?;
            mark(sql, tenant, &name, now_ms)?;
            sql.evict_conversations(max_bytes, now_ms)?;
            Ok(is_removed)
        };
        self.change(Exclusive::Conversations, steps).await
    }
}

/// Deletes expired conversations of all tenants; returns their number.
pub(crate) async fn delete_expired(store: &impl Steps, now_ms: u64) -> Stored<u64> {
    let mut deleted = 0;
    loop {
        let steps = move |sql: &dyn Sql| sql.delete_ended_conversations(now_ms, DELETED_AT_ONCE);
        let more = store.change(Exclusive::Conversations, steps).await?;
        deleted += more;
        if more < DELETED_AT_ONCE {
            return Ok(deleted);
        }
    }
}

fn vanished() -> StoreError {
    StoreError::Failed("the store returned no row for a conversation that it has".to_owned())
}

/// Reads the ID and the facts of a conversation.
fn facts(row: &SqlRow) -> (i64, ConversationFacts) {
    let facts = ConversationFacts {
        name: row.text(1),
        messages: row.figure(2),
        bytes: row.figure(3),
        created_ms: row.figure(4),
        last_message_ms: row.some_figure(5),
        expires_ms: row.figure(6),
    };
    (row.number(0), facts)
}

fn find(
    sql: &dyn Sql,
    tenant: Tenant,
    name: &str,
    now_ms: u64,
) -> Stored<Option<(i64, ConversationFacts)>> {
    let select = format!(
        "SELECT {COLUMNS} FROM weir_conversation c
         WHERE tenant = $1 AND name = $2 AND expires_ms > $3"
    );
    Ok(sql.row(&select, values![&tenant.0[..], name, now_ms])?.as_ref().map(facts))
}

/// Creates an empty conversation, which expires at once unless something is added.
pub(crate) fn create(sql: &dyn Sql, tenant: Tenant, name: &str, created_ms: u64) -> Stored<i64> {
    let insert = "INSERT INTO weir_conversation
                   (tenant, name, created_ms, last_ms, expires_ms, messages, weight_bytes)
                  VALUES ($1, $2, $3, NULL, 0, 0, $4) RETURNING id";
    let row = sql.row(insert, values![&tenant.0[..], name, created_ms, ENTRY_BYTES])?;
    row.map(|row| row.number(0)).ok_or_else(vanished)
}

/// Marks a conversation as changed, for exchanges that began before.
pub(crate) fn mark(sql: &dyn Sql, tenant: Tenant, name: &str, now_ms: u64) -> Stored<()> {
    let end_ms = now_ms.max(change(sql, tenant, name)?.saturating_add(1));
    let insert = "INSERT INTO weir_conversation
                   (tenant, name, created_ms, last_ms, expires_ms, messages, weight_bytes)
                  VALUES ($1, $2, $3, NULL, $4, 0, $5)
                  ON CONFLICT (tenant, name) DO UPDATE SET expires_ms = excluded.expires_ms";
    sql.execute(insert, values![&tenant.0[..], mark_name(name), now_ms, end_ms, ENTRY_BYTES])?;
    Ok(())
}

/// Returns the number of the latest change of a conversation; 0 if there is no mark.
fn change(sql: &dyn Sql, tenant: Tenant, name: &str) -> Stored<u64> {
    let select = "SELECT expires_ms FROM weir_conversation WHERE tenant = $1 AND name = $2";
    let row = sql.row(select, values![&tenant.0[..], mark_name(name)])?;
    Ok(row.map_or(0, |row| row.figure(0)))
}

fn remove(sql: &dyn Sql, tenant: Tenant, name: &str) -> Stored<bool> {
    let delete = "DELETE FROM weir_conversation WHERE tenant = $1 AND name = $2";
    Ok(sql.execute(delete, values![&tenant.0[..], name])? > 0)
}

/// Adds messages at the end, removes the oldest if there are too many, and updates the facts.
fn add(
    sql: &dyn Sql,
    id: i64,
    messages: &[KeptMessage],
    limits: ConversationLimits,
    now_ms: u64,
) -> Stored<()> {
    let next = "SELECT coalesce(max(place) + 1, 0) FROM weir_conversation_message
                WHERE conversation = $1";
    let next = sql.row(next, values![id])?.map_or(0, |row| row.number(0));
    let insert = "INSERT INTO weir_conversation_message VALUES ($1, $2, $3, $4)";
    for (place, message) in (next..).zip(messages) {
        sql.execute(insert, values![id, place, message.opens, &message.text[..]])?;
    }
    let sizes = sql.rows(
        "SELECT place, length(text), opens FROM weir_conversation_message
         WHERE conversation = $1 ORDER BY place",
        values![id],
    )?;
    let size = |row: &SqlRow| {
        (row.number(0), row.number(1) + MESSAGE_BYTES.cast_signed(), row.number(2) != 0)
    };
    let sizes: Vec<(i64, i64, bool)> = sizes.iter().map(size).collect();
    let rest = Rest::of(&sizes, limits.max_conversation_bytes);
    if rest.first > 0 {
        let delete = "DELETE FROM weir_conversation_message WHERE conversation = $1 AND place < $2";
        sql.execute(delete, values![id, rest.first])?;
    }
    sql.execute(
        "UPDATE weir_conversation SET messages = $2, weight_bytes = $3, expires_ms = $4,
         last_ms = coalesce($5, last_ms) WHERE id = $1",
        values![
            id,
            rest.messages,
            rest.weight_bytes,
            now_ms.saturating_add(limits.lifetime_ms),
            (!messages.is_empty()).then_some(now_ms),
        ],
    )?;
    Ok(())
}
