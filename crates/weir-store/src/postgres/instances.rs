//! Liveness of weirs: each updates its own row regularly, by the server's clock. One that stops has
//! ended, or is cut off and must assume that others settle its requests.

use std::time::Duration;

use super::connection::{Connection, Served};

/// Interval of updates.
pub(super) const BEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Time without an update after which a weir counts as dead: five missed updates.
pub(super) const LIFETIME: &str = "interval '10 seconds'";

/// Updates the row of `id`. If it counted as dead, its life starts again.
pub(super) async fn beat(connection: &Connection, id: &[u8; 16]) -> Served<()> {
    let sql = format!(
        "INSERT INTO weir_instance AS own VALUES ($1, clock_timestamp(), clock_timestamp())
         ON CONFLICT (id) DO UPDATE SET seen = excluded.seen,
         since = CASE WHEN own.seen < excluded.seen - {LIFETIME} THEN excluded.seen ELSE own.since END"
    );
    connection.execute(&sql, &[&&id[..]]).await.map(drop)
}

/// Marks `id` as ended, and deletes rows that ended long ago.
pub(super) async fn end(connection: &Connection, id: &[u8; 16]) -> Served<()> {
    let sql =
        "DELETE FROM weir_instance WHERE id = $1 OR seen < clock_timestamp() - interval '1 day'";
    connection.execute(sql, &[&&id[..]]).await.map(drop)
}
