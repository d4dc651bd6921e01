//! Kept conversations in SQLite. `store::conversations` documents their meaning.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Sqlite, stored};
use crate::backend::Conversations;
use crate::conversations::{
    Added, Addition, Conversation, ConversationFacts, ConversationId, ConversationLimits,
    DELETED_AT_ONCE, FACTS, KIND, KeptMessage, MARK, MAX_PAGE, MESSAGE_BYTES, Place, Rest,
    mark_name, marks_end_ms,
};
use crate::ledger::text::from_stored;
use crate::{ENTRY_BYTES, StoreError, Tenant};

/// Deletes ended conversations, then everything that ended before an earlier time, marks included. There
/// may be many marks that must stay: neither search reads them.
const ENDED: [&str; 2] = [
    "DELETE FROM conversation WHERE id IN
     (SELECT id FROM conversation INDEXED BY conversation_by_own_end
      WHERE name < '~' AND expires_ms <= ?1 LIMIT ?2)",
    "DELETE FROM conversation WHERE id IN
     (SELECT id FROM conversation INDEXED BY conversation_by_end WHERE expires_ms <= ?1 LIMIT ?2)",
];

#[async_trait]
impl Conversations for Sqlite {
    async fn conversation(
        &self,
        tenant: Tenant,
        name: &str,
        now_ms: u64,
    ) -> Result<Option<Conversation>, StoreError> {
        let name = name.to_owned();
        let work = move |connection: &Connection| {
            // An in-memory store reads inside the writer's transaction.
            let begin = || connection.unchecked_transaction();
            let _moment = connection.is_autocommit().then(begin).transpose()?;
            let Some((id, facts)) = find(connection, tenant, &name, now_ms)? else {
                return Ok(None);
            };
            let mut statement = connection.prepare_cached(
                "SELECT place, opens, text FROM conversation_message
                 WHERE conversation = ?1 ORDER BY place",
            )?;
            let messages = statement.query_map([id], |row| {
                let text: Vec<u8> = row.get(2)?;
                let message = KeptMessage { text: text.into(), opens: row.get(1)? };
                Ok((from_stored(row.get(0)?), message))
            })?;
            let messages = messages.collect::<rusqlite::Result<_>>()?;
            Ok(Some(Conversation { id: ConversationId(id), facts, messages }))
        };
        self.read(work).await
    }

    async fn conversation_change(&self, tenant: Tenant, name: &str) -> Result<u64, StoreError> {
        let name = name.to_owned();
        self.read(move |connection: &Connection| change(connection, tenant, &name)).await
    }

    async fn list_conversations(
        &self,
        tenant: Tenant,
        after: &str,
        now_ms: u64,
    ) -> Result<Vec<ConversationFacts>, StoreError> {
        let after = after.to_owned();
        let work = move |connection: &Connection| {
            let sql = format!(
                "SELECT id, {FACTS} FROM conversation
                 WHERE tenant = ?1 AND name > ?2 AND name < '{MARK}' AND expires_ms > ?3
                 ORDER BY name LIMIT ?4"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let page = params![tenant.0, after, stored(now_ms), MAX_PAGE as i64];
            statement.query_map(page, |row| facts(row).map(|(_, facts)| facts))?.collect()
        };
        self.read(work).await
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
        let work = move |connection: &Connection| {
            let found = find(connection, tenant, &name, now_ms)?.map(|(id, _)| id);
            let change = change(connection, tenant, &name)?;
            let id = match addition.place(found, change) {
                Place::Changed => return Ok(Added::Changed),
                Place::Row(id) => id,
                Place::New => {
                    // An expired one of this name is in the way.
                    remove(connection, tenant, &name)?;
                    create(connection, tenant, &name, now_ms)?
                }
            };
            add(connection, id, &addition.messages, limits, now_ms)?;
            evict(connection, limits.max_bytes, now_ms)?;
            Ok(Added::Whole)
        };
        self.write(work).await
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
        let work = move |connection: &Connection| {
            let before = find(connection, tenant, &name, now_ms)?;
            remove(connection, tenant, &name)?;
            mark(connection, tenant, &name, now_ms)?;
            let created_ms = before.map_or(now_ms, |(_, facts)| facts.created_ms);
            let id = create(connection, tenant, &name, created_ms)?;
            add(connection, id, &messages, limits, now_ms)?;
            let sql = format!("SELECT id, {FACTS} FROM conversation WHERE id = ?1");
            let replaced = connection.prepare_cached(&sql)?.query_row([id], facts)?.1;
            evict(connection, limits.max_bytes, now_ms)?;
            Ok(replaced)
        };
        self.write(work).await
    }

    async fn delete_conversation(
        &self,
        tenant: Tenant,
        name: &str,
        max_bytes: u64,
        now_ms: u64,
    ) -> Result<bool, StoreError> {
        let name = name.to_owned();
        let work = move |connection: &Connection| {
            let is_removed = remove(connection, tenant, &name)?;
            mark(connection, tenant, &name, now_ms)?;
            evict(connection, max_bytes, now_ms)?;
            Ok(is_removed)
        };
        self.write(work).await
    }
}

/// Reads the ID and the facts of a conversation.
fn facts(row: &Row<'_>) -> rusqlite::Result<(i64, ConversationFacts)> {
    let columns = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?);
    Ok((row.get(0)?, ConversationFacts::from(columns)))
}

fn find(
    connection: &Connection,
    tenant: Tenant,
    name: &str,
    now_ms: u64,
) -> rusqlite::Result<Option<(i64, ConversationFacts)>> {
    let sql = format!(
        "SELECT id, {FACTS} FROM conversation WHERE tenant = ?1 AND name = ?2 AND expires_ms > ?3"
    );
    let whose = params![tenant.0, name, stored(now_ms)];
    connection.prepare_cached(&sql)?.query_row(whose, facts).optional()
}

/// Creates an empty conversation, which expires at once unless something is added.
fn create(
    connection: &Connection,
    tenant: Tenant,
    name: &str,
    created_ms: u64,
) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            "INSERT INTO conversation
             (tenant, name, created_ms, last_ms, expires_ms, messages, weight_bytes)
             VALUES (?1, ?2, ?3, NULL, 0, 0, ?4)",
        )?
        .execute(params![tenant.0, name, stored(created_ms), stored(ENTRY_BYTES)])?;
    Ok(connection.last_insert_rowid())
}

/// Marks a conversation as changed, for exchanges that began before.
fn mark(connection: &Connection, tenant: Tenant, name: &str, now_ms: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO conversation
             (tenant, name, created_ms, last_ms, expires_ms, messages, weight_bytes)
             VALUES (?1, ?2, ?3, NULL, ?3, 0, ?4)
             ON CONFLICT (tenant, name) DO UPDATE
             SET expires_ms = max(expires_ms + 1, excluded.expires_ms)",
        )?
        .execute(params![tenant.0, mark_name(name), stored(now_ms), stored(ENTRY_BYTES)])?;
    Ok(())
}

/// Returns the number of the latest change of a conversation; 0 if there is no mark.
fn change(connection: &Connection, tenant: Tenant, name: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT expires_ms FROM conversation WHERE tenant = ?1 AND name = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row(params![tenant.0, mark_name(name)], |row| row.get(0));
    Ok(found.optional()?.map_or(0, from_stored))
}

fn remove(connection: &Connection, tenant: Tenant, name: &str) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM conversation WHERE tenant = ?1 AND name = ?2";
    Ok(connection.prepare_cached(sql)?.execute(params![tenant.0, name])? > 0)
}

/// Adds messages at the end, removes the oldest if there are too many, and updates the facts.
fn add(
    connection: &Connection,
    id: i64,
    messages: &[KeptMessage],
    limits: ConversationLimits,
    now_ms: u64,
) -> rusqlite::Result<()> {
    let next =
        "SELECT coalesce(max(place) + 1, 0) FROM conversation_message WHERE conversation = ?1";
    let next: i64 = connection.prepare_cached(next)?.query_row([id], |row| row.get(0))?;
    let mut insert =
        connection.prepare_cached("INSERT INTO conversation_message VALUES (?1, ?2, ?3, ?4)")?;
    for (place, message) in (next..).zip(messages) {
        insert.execute(params![id, place, message.opens, &message.text[..]])?;
    }
    let mut sizes = connection.prepare_cached(
        "SELECT place, length(text) + ?2, opens FROM conversation_message
         WHERE conversation = ?1 ORDER BY place",
    )?;
    let overhead = stored(MESSAGE_BYTES);
    let sizes =
        sizes.query_map([id, overhead], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let sizes: Vec<(i64, i64, bool)> = sizes.collect::<rusqlite::Result<_>>()?;
    let rest = Rest::of(&sizes, limits.max_conversation_bytes);
    if rest.first > 0 {
        let sql = "DELETE FROM conversation_message WHERE conversation = ?1 AND place < ?2";
        connection.prepare_cached(sql)?.execute([id, rest.first])?;
    }
    connection
        .prepare_cached(
            "UPDATE conversation SET messages = ?2, weight_bytes = ?3, expires_ms = ?4,
             last_ms = iif(?5, ?6, last_ms) WHERE id = ?1",
        )?
        .execute(params![
            id,
            rest.messages,
            rest.weight_bytes,
            stored(now_ms.saturating_add(limits.lifetime_ms)),
            !messages.is_empty(),
            stored(now_ms),
        ])?;
    Ok(())
}

/// Deletes the excess: expired conversations, then the oldest of the tenant with the most data. Its marks
/// go last: without one, an exchange could undo a change.
fn evict(connection: &Connection, max_bytes: u64, now_ms: u64) -> rusqlite::Result<()> {
    let mut total = connection
        .prepare_cached("SELECT coalesce((SELECT bytes FROM total WHERE kind = ?1), 0)")?;
    let mut is_above = || {
        let bytes: i64 = total.query_row([KIND], |row| row.get(0))?;
        Ok::<_, rusqlite::Error>(bytes > stored(max_bytes))
    };
    if !is_above()? {
        return Ok(());
    }
    delete_ended(connection, now_ms, u64::MAX)?;
    let mut oldest = connection.prepare_cached(
        "WITH most AS
          (SELECT tenant FROM weight WHERE kind = ?1 ORDER BY bytes DESC, tenant DESC LIMIT 1)
         DELETE FROM conversation WHERE id = coalesce(
          (SELECT id FROM conversation WHERE tenant = (SELECT tenant FROM most)
           AND expires_ms > ?2 ORDER BY expires_ms, id LIMIT 1),
          (SELECT id FROM conversation WHERE tenant = (SELECT tenant FROM most)
           ORDER BY expires_ms, id LIMIT 1))",
    )?;
    while is_above()? {
        if oldest.execute(params![KIND, stored(now_ms)])? == 0 {
            break;
        }
    }
    Ok(())
}

/// Deletes expired conversations, then marks that no exchange needs any more: at most `most` of each.
/// Returns their number.
fn delete_ended(connection: &Connection, now_ms: u64, most: u64) -> rusqlite::Result<u64> {
    let mut deleted = 0;
    for (sql, end_ms) in ENDED.iter().zip([now_ms, marks_end_ms(now_ms)]) {
        let ended = params![stored(end_ms), stored(most)];
        deleted += connection.prepare_cached(sql)?.execute(ended)? as u64;
    }
    Ok(deleted)
}

/// Deletes expired conversations of all tenants; returns their number.
pub(super) async fn delete_expired(sqlite: &Sqlite, now_ms: u64) -> Result<u64, StoreError> {
    let mut deleted = 0;
    loop {
        let work = move |connection: &Connection| delete_ended(connection, now_ms, DELETED_AT_ONCE);
        let more = sqlite.write(work).await?;
        deleted += more;
        if more < DELETED_AT_ONCE {
            return Ok(deleted);
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::super::schema;
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const ALICE: Tenant = Tenant([1; 16]);

    #[test]
    fn marks_that_stay_take_no_time_from_other_changes() {
        let mut connection = Connection::open_in_memory().expect("memory");
        schema::prepare(&mut connection).expect("an empty database");
        let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        for number in 0..1000 {
            mark(&connection, ALICE, &number.to_string(), NOW).expect("SQL");
        }
        for name in ["a", "b"] {
            create(&connection, ALICE, name, NOW).expect("SQL");
        }
        let total = count("SELECT bytes FROM total WHERE kind = 'conversation'").expect("SQL");
        // Two conversations have ended, and one mark more has to go.
        let max_bytes = total as u64 - 2 * ENTRY_BYTES - 1;
        evict(&connection, max_bytes, NOW).expect("SQL");
        assert_eq!(count("SELECT count(*) FROM conversation"), Ok(999));
        for sql in ENDED {
            let statement = connection.prepare_cached(sql).expect("SQL");
            let steps = statement.get_status(StatementStatus::VmStep);
            assert!((1..500).contains(&steps), "{steps} steps of {sql}");
        }
        assert_eq!(delete_ended(&connection, NOW, 10), Ok(0));
        let later_ms = NOW + 2 * 24 * 3_600_000;
        assert_eq!(delete_ended(&connection, later_ms, 10), Ok(10));
        assert_eq!(delete_ended(&connection, later_ms, u64::MAX), Ok(989));
    }
}
