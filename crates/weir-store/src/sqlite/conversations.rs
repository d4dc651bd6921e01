//! Deletion of kept conversations in SQLite. `conversations::rows` has all other steps.

use rusqlite::{Connection, params};

use super::values::is_above;
use super::{cached, stored};
use crate::Kind;
use crate::conversations::{KIND, marks_end_ms};

/// Deletes ended conversations, then everything that ended before an earlier time, marks included. There
/// may be many marks that must stay: neither search reads them.
const ENDED: [&str; 2] = [
    "DELETE FROM conversation WHERE id IN
     (SELECT id FROM conversation INDEXED BY conversation_by_own_end
      WHERE name < '~' AND expires_ms <= ?1 LIMIT ?2)",
    "DELETE FROM conversation WHERE id IN
     (SELECT id FROM conversation INDEXED BY conversation_by_end WHERE expires_ms <= ?1 LIMIT ?2)",
];

pub(super) fn evict(connection: &Connection, max_bytes: u64, now_ms: u64) -> rusqlite::Result<()> {
    let kind = Kind { name: KIND, max_bytes };
    if !is_above(connection, kind)? {
        return Ok(());
    }
    delete_ended(connection, now_ms, u64::MAX)?;
    let oldest = "WITH most AS
          (SELECT tenant FROM weight WHERE kind = ?1 ORDER BY bytes DESC, tenant DESC LIMIT 1)
         DELETE FROM conversation WHERE id = coalesce(
          (SELECT id FROM conversation WHERE tenant = (SELECT tenant FROM most)
           AND expires_ms > ?2 ORDER BY expires_ms, id LIMIT 1),
          (SELECT id FROM conversation WHERE tenant = (SELECT tenant FROM most)
           ORDER BY expires_ms, id LIMIT 1))";
    while is_above(connection, kind)?
        && cached::run(connection, oldest, params![KIND, stored(now_ms)])? > 0
    {}
    Ok(())
}

pub(super) fn delete_ended(
    connection: &Connection,
    now_ms: u64,
    most: u64,
) -> rusqlite::Result<u64> {
    let mut deleted = 0;
    for (sql, end_ms) in ENDED.iter().zip([now_ms, marks_end_ms(now_ms)]) {
        deleted += cached::run(connection, sql, params![stored(end_ms), stored(most)])? as u64;
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::super::change_counter::ChangeCounter;
    use super::super::schema;
    use super::super::steps::OnConnection;
    use super::*;
    use crate::conversations::{create, mark};
    use crate::{ENTRY_BYTES, Tenant};

    const NOW: u64 = 1_800_000_000_000;
    const ALICE: Tenant = Tenant([1; 16]);

    #[test]
    fn marks_that_stay_take_no_time_from_other_changes() {
        let mut connection = Connection::open_in_memory().expect("memory");
        schema::prepare(&mut connection).expect("an empty database");
        let counter = ChangeCounter::new(None);
        let sql = OnConnection { connection: &connection, counter: &counter };
        let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        for number in 0..1000 {
            mark(&sql, ALICE, &number.to_string(), NOW).expect("SQL");
        }
        for name in ["a", "b"] {
            create(&sql, ALICE, name, NOW).expect("SQL");
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
